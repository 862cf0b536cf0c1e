"""The cost of extending a corpus: linear in the new text, flat in the old.

    python benchmarks/growth.py [--old 10000 40000 160000] [--new 1000 4000 16000] [--out FOLDER]

The text is generated: words by Zipf's law, a name in every third sentence, ten sentences a user.
A detector that stands in for a model finds a name only before an exclamation mark, so that names
spread to their other places, and new ones are looked for in old text; its own time is next to
nothing. Each corpus is made and extended once before anything is measured: the first extension
reads all of it to make its index, and is reported apart.
"""

import argparse
import json
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.extension import extend

WORDS, LENGTH, EACH, LATE = 20_000, 12, 10, 50
REPEATS = 3


@register_detector("growth-benchmark")
class Names:
    """Finds a name before an exclamation mark."""

    propagates = True

    def __init__(self, argument: str | None) -> None:
        del argument

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for text in texts:
            found = re.finditer(r"\b[A-Z]\w+(?=!)", text)
            yield [Span(match.start(), match.end(), "PER") for match in found]


DETECTION = Detection(("growth-benchmark",))


def texts(count: int, seed: int, late: int = 0) -> Iterator[Sentence]:
    """Sentences; the first `late` of them name somebody whom only later text shows to be a name."""
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.3, size=(count, LENGTH)), WORDS)
    for number in range(count):
        words = [f"w{rank}" for rank in ranks[number]]
        if number < late:
            words.append(f"Late{number}")
        elif number % 3 == 0:
            words.append(f"Name{seed}x{rng.integers(max(count // 10, 1))}" + "!" * (number % 2))
        yield Sentence(f"u{seed}-{number // EACH}", " ".join(words))


def seen_late(seed: int) -> list[Sentence]:
    return [Sentence(f"late-{seed}", f"w1 Late{number}!") for number in range(LATE)]


def measured(old: int, new: Sequence[int], place: Path) -> dict[str, Any]:
    """Seconds to make a corpus, to extend it for the first time, and then by so many sentences."""
    folder = place / f"old-{old}"
    start = time.perf_counter()
    corpus = detect(texts(old, 1, late=LATE), folder, DETECTION)
    made = time.perf_counter() - start
    start = time.perf_counter()
    extend(corpus, texts(100, 2), DETECTION)
    first = time.perf_counter() - start
    rows = {}
    for count in new:
        taken = []
        for repeat in range(REPEATS):
            # the same text again, on the same corpus: what was added before is taken away
            shutil.rmtree(folder / "epochs" / "0003", ignore_errors=True)
            start = time.perf_counter()
            added = extend(
                Corpus(folder), [*texts(count, 3 + repeat), *seen_late(repeat)], DETECTION
            )
            taken.append(time.perf_counter() - start)
            assert added.late == LATE
        rows[count] = float(np.median(taken))
    shutil.rmtree(folder)
    return {"old": old, "make_seconds": made, "first_seconds": first, "extend_seconds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=int, nargs="+", default=[10_000, 40_000, 160_000])
    parser.add_argument("--new", type=int, nargs="+", default=[1_000, 4_000, 16_000])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    print(f"{'old':>10}{'make':>9}{'first':>9}", *(f"{count:>9,}" for count in options.new))
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for old in options.old:
            row = measured(old, options.new, Path(place))
            rows.append(row)
            seconds = (f"{value:9.2f}" for value in row["extend_seconds"].values())
            print(f"{old:>10,}{row['make_seconds']:9.1f}{row['first_seconds']:9.1f}", *seconds)
    smallest, largest = rows[0]["extend_seconds"], rows[-1]["extend_seconds"]
    least, most = min(options.new), max(options.new)
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "late_mentions": LATE,
        "repeats": REPEATS,
        "rows": rows,
        "old_times": options.old[-1] / options.old[0],
        "cost_times_by_old": {count: largest[count] / smallest[count] for count in options.new},
        "new_times": most / least,
        "cost_times_by_new": {
            row["old"]: row["extend_seconds"][most] / row["extend_seconds"][least] for row in rows
        },
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"{result['old_times']:g} times the old text costs",
        ", ".join(
            f"{times:.2f} times as much at {n:,}"
            for n, times in result["cost_times_by_old"].items()
        ),
    )
    print(
        f"{result['new_times']:g} times the new text costs",
        ", ".join(
            f"{times:.1f} times as much at {n:,}"
            for n, times in result["cost_times_by_new"].items()
        ),
    )


if __name__ == "__main__":
    main()
