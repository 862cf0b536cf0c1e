"""The overhead of `detect` over the bare spaCy pipeline, and the gain of two processes.

    python benchmarks/detect.py PIPELINE TEXTS.csv[.gz] [--texts N]

PIPELINE is a spaCy pipeline (name or folder), TEXTS an AG-style csv. All three are timed on the
same texts in this one run, after loading, the order rotated between repetitions; ratios are of
medians. Target: at least 0.9 of `nlp.pipe` on one process, and 1.6 x that with two.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from uedp.corpus.readers import read_sentences
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.entities import parallel
from uedp.entities.detection import Detection, detect

REPETITIONS = 3


def bare(pipeline: str, texts: list[str]) -> float:
    import spacy

    nlp = spacy.load(pipeline)
    began = time.perf_counter()
    assert sum(len(doc.ents) for doc in nlp.pipe(texts))
    return len(texts) / (time.perf_counter() - began)


def ours(pipeline: str, texts: list[str], workers: int) -> float:
    """Texts per second of the whole of `detect`: pipeline, both passes, files, incidence.

    Loading is not counted: the clock starts once every worker has returned a first batch. Batches
    given out by then but not yet returned are counted as done after it, as they are.
    """
    pending = 0 if workers == 1 else parallel.AHEAD * workers - 1
    warm = (pending + workers + 1) * parallel.BATCH
    began = 0.0

    def stream() -> Iterator[Sentence]:
        nonlocal began
        for number in range(warm):
            yield Sentence("warm", texts[number % len(texts)])
        began = time.perf_counter()
        for number, text in enumerate(texts):
            yield Sentence(f"u{number // 15}", text)

    with tempfile.TemporaryDirectory() as folder:
        detect(stream(), Path(folder) / "c", Detection((f"spacy:{pipeline}",), workers=workers))
        return (len(texts) + pending * parallel.BATCH) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    parser.add_argument("source", type=Path)
    parser.add_argument("--texts", type=int, default=6000)
    options = parser.parse_args()
    sentences = read_sentences(options.source, "ag", Columns(user=None))
    texts = [sentence.text for sentence, _ in zip(sentences, range(options.texts), strict=False)]
    runs = {
        "nlp.pipe": lambda: bare(options.pipeline, texts),
        "detect, 1 process": lambda: ours(options.pipeline, texts, 1),
        "detect, 2 processes": lambda: ours(options.pipeline, texts, 2),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(REPETITIONS):
        names = list(runs)
        for name in names[turn % 3 :] + names[: turn % 3]:
            rates[name].append(runs[name]())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{len(texts):,} texts, median of {REPETITIONS}")
    for name, rate in medians.items():
        print(f"{name:22} {rate:>8,.0f} texts/s   {rate / medians['nlp.pipe']:.2f} x nlp.pipe")
    one = medians["detect, 1 process"] / medians["nlp.pipe"]
    two = medians["detect, 2 processes"] / medians["detect, 1 process"]
    print(f"target 0.90 on one process: {one:.2f} {'met' if one >= 0.9 else 'MISSED'}")
    print(f"target 1.60 x that on two:  {two:.2f} {'met' if two >= 1.6 else 'MISSED'}")


if __name__ == "__main__":
    main()
