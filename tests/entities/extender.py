"""A process that extends a corpus again and again, killed at one file event after the other.

    python -m tests.entities.extender FOLDER

Prints a JSON line for each kill: how many epochs there were then, whether the first was untouched,
and whether it could be extended once more.
"""

import json
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from tests.corpus.overwriter import KILLED, in_child
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities import parallel
from uedp.entities.detection import Detection, detect
from uedp.entities.extension import extend

DETECTION = Detection(("labels",))
FIRST = [Sentence("ann", "old"), Sentence("ben", "older")]
_EVENTS = (
    *("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod"),
    "sqlite3.connect",
)


def tree(folder: Path) -> dict[str, str]:
    """Every file, by the hash of its content."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in paths}


def killed_at(number: int, corpus: Path) -> NoReturn:
    """Extend the corpus, and die before the given file event; without it, end as ever."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        path = arguments[0] if event in _EVENTS else None
        if isinstance(path, str | Path | bytes) and str(corpus.name) in os.fsdecode(path):
            seen += 1
            if seen == number:
                os._exit(KILLED)

    opened = Corpus(corpus)
    sys.addaudithook(watch)
    extend(opened, [Sentence("cat", "new")], DETECTION)
    os._exit(0)


def looked_at(corpus: Path, before: dict[str, str]) -> NoReturn:
    """Open what a killed process left, then extend it once more."""
    opened = Corpus(corpus)
    now = tree(corpus)
    first = {name: now.get(name) for name in before} == before
    epochs = len(opened.epochs)
    again = extend(opened, [Sentence("ann", "newer")], DETECTION).corpus
    again.check_texts()
    left = sorted(path.name for path in (corpus / "epochs").iterdir())
    fine = left == [f"{number:04d}" for number in range(2, epochs + 2)]
    print(json.dumps({"epochs": epochs, "first": first, "again": fine}))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    place = Path(sys.argv[1])
    os.fsync = lambda descriptor: None  # a kill loses nothing that was written
    list(parallel.detect_batches([Sentence("u", "x")], ["labels"]))
    pa.array(["x"])
    in_child(detect, FIRST, place / "first-corpus", DETECTION)
    before = tree(place / "first-corpus")
    number, code = -2, KILLED
    while code == KILLED:
        number += 3  # every third event: there are many, and a fork takes its time
        corpus = place / f"corpus-{number}"
        shutil.copytree(place / "first-corpus", corpus)
        code, _ = in_child(killed_at, number, corpus)
        checked, said = in_child(looked_at, corpus, before)
        found = json.loads(said) if checked == 0 else {"failed": said}
        print(json.dumps({"number": number, "code": code, **found}), flush=True)
        shutil.rmtree(corpus)


if __name__ == "__main__":
    main()
