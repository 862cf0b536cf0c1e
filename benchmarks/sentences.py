"""What splitting texts into sentences gains: the share of AG that is usable in a round.

    python benchmarks/sentences.py DATA --ner MODEL [--articles 6000] [--out JSON]

`DATA` holds `ag_news/train.csv.gz`; `MODEL` is a spaCy model. The first articles are detected whole
and split, each user with about 15 of them. In 50 rounds the sentences are counted whose entities
are all lent to their user: each as one (`usable`), and by its words (`usable_words`), since whole
articles are longer.
"""

import argparse
import gzip
import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from uedp.corpus.store import Corpus
from uedp.entities.breakdown import sentence_masks
from uedp.entities.build import build_corpus
from uedp.mechanism import sampling as draw

ROUNDS = 50
MAX_TOKENS = 128  # the default of model.max_tokens
WORDS = MAX_TOKENS * 3 // 4  # about as many words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--ner", required=True)
    parser.add_argument("--articles", type=int, default=6000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"articles": options.articles, "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "ag.csv"
        with gzip.open(options.data / "ag_news" / "train.csv.gz", "rt") as whole:
            part.write_text("".join(islice(whole, options.articles + 1)))
        for name, split in (("whole", None), ("split", "auto")):
            corpus = build_corpus(
                part,
                Path(folder) / name,
                reader="ag",
                split=split,
                detectors=("patterns", f"spacy:{options.ner}"),
                on_warning=print,
            )
            result[name] = measure(corpus)
            print(name, result[name], flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def measure(corpus: Corpus) -> dict[str, float]:
    incidence = corpus.incidence
    everyone, no_limit = np.arange(incidence.users), draw.Sampling(1.0, per_entity=None)
    words = np.array([len(text.split()) for text in corpus.sentences["text"].to_pylist()])
    times = np.zeros(incidence.sentences)
    for key in range(ROUNDS):
        _, sentences, _ = draw.select(incidence, everyone, no_limit, key)
        times[sentences] += 1
    return {
        "users": incidence.users,
        "sentences": incidence.sentences,
        "sensitive": float((sentence_masks(corpus) != 0).mean()),
        "usable": float(times.mean() / ROUNDS),
        "usable_words": float((times * words).sum() / ROUNDS / words.sum()),
        f"words_beyond_{WORDS}": float(np.maximum(words - WORDS, 0).sum() / words.sum()),
    }


if __name__ == "__main__":
    main()
