"""The words of `entities/ordinary_words.txt`: ordinary English, not names when in lower case.

    python benchmarks/ordinary_words.py --data FOLDER [--out FILE]

`FOLDER` holds `ag_news`, `conll2003` and `edgar` as downloaded (`*.csv.gz`, `eng.*.gz`,
`*.jsonl.gz`). Edited text capitalises names, so a word is ordinary if at least `DOCUMENTS` of its
documents have it in lower case and these outnumber those that have it capitalised in the middle of
a sentence. `ordinary_by_hand.txt` adds informal words, which such text lacks, and removes the
remains of mark-up and foreign names.
"""

import argparse
import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

DOCUMENTS = 6
BY_HAND = Path(__file__).with_name("ordinary_by_hand.txt")
OUT = Path(__file__).parents[1] / "src/uedp/entities/ordinary_words.txt"
# a word of letters that is not part of an address, a compound or a piece of mark-up
WORD = re.compile(r"(?<![\w./@&#;'-])[A-Za-z]+(?:'[a-z]+)?(?![\w/@-])")
HEADER = """\
# Words of ordinary English, one a line. Written by benchmarks/ordinary_words.py from AG News,
# CoNLL-2003 and EDGAR contracts, and benchmarks/ordinary_by_hand.txt; do not edit.
"""


def documents(data: Path) -> Iterator[str]:
    for path in sorted((data / "ag_news").glob("*.csv.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                yield row["text"].replace("\\", " ")
    for path in sorted((data / "conll2003").glob("eng.*.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for document in lines.read().split("-DOCSTART-")[1:]:
                tokens = (line.split(" ")[0] or "\n" for line in document.split("\n")[1:])
                yield " ".join(tokens)
    for path in sorted((data / "edgar").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def count(texts: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """In how many texts each word stands in lower case, and capitalised in mid-sentence."""
    lower: Counter[str] = Counter()
    capitalised: Counter[str] = Counter()
    for text in texts:
        lower.update({match[0] for match in WORD.finditer(text) if match[0].islower()})
        capitalised.update(
            {
                match[0].lower()
                for match in WORD.finditer(text)
                if not match[0].islower() and re.search(r"[a-z,] \Z", text[: match.start()][-2:])
            }
        )
    return lower, capitalised


def by_hand() -> tuple[set[str], set[str]]:
    """The words to add and those to remove."""
    lines = BY_HAND.read_text(encoding="utf-8").splitlines()
    words = {word for line in lines if not line.startswith("#") for word in line.split()}
    removed = {word for word in words if word.startswith("-")}
    return words - removed, {word[1:] for word in removed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    lower, capitalised = count(documents(options.data))
    counted = {
        word
        for word, found in lower.items()
        # forms in 's are looked up without it
        if found >= DOCUMENTS and found > capitalised[word] and not word.endswith("'s")
    }
    added, removed = by_hand()
    words = sorted((counted | added) - removed)
    options.out.write_text(HEADER + "\n".join(words) + "\n", encoding="utf-8")
    print(f"{len(words):,} words: {len(counted - removed):,} counted, {len(added):,} by hand")


if __name__ == "__main__":
    main()
