"""A process that replaces a corpus again and again, killed at one file event after the other.

    python -m tests.corpus.overwriter FOLDER exchange|renames

Prints a JSON line for each kill: the event, which corpus was there afterwards, what else was.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from uedp import files
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities import parallel
from uedp.entities.detection import Detection, detect

KILLED = 9
LEDGER = b'{"kept": "byte for byte"}\n'
_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod")


def write(out: Path, text: str, overwrite: bool = False) -> None:
    detect([Sentence("u", text)], out, Detection(("labels",)), overwrite=overwrite)


def killed_at(number: int, out: Path) -> NoReturn:
    """Replace the corpus, and die before the given file event; without it, end as ever."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        path = arguments[0] if event in _EVENTS else None
        if isinstance(path, str | Path | bytes) and str(out.parent) in os.fsdecode(path):
            seen += 1
            if seen == number:
                os.write(1, json.dumps([event, Path(os.fsdecode(path)).name]).encode())
                os._exit(KILLED)

    sys.addaudithook(watch)
    write(out, "new", overwrite=True)
    os._exit(0)


def looked_at(out: Path) -> NoReturn:
    """Open what a killed process left, then write once more."""
    before = [sentence.text for sentence in Corpus(out)]
    carried = (out / "ledger.jsonl").read_bytes() == LEDGER
    write(out, "next", overwrite=True)
    after = [sentence.text for sentence in Corpus(out)]
    carried = carried and (out / "ledger.jsonl").read_bytes() == LEDGER
    left = sorted(path.name for path in out.parent.iterdir())
    print(json.dumps({"before": before, "after": after, "carried": carried, "left": left}))
    sys.stdout.flush()
    os._exit(0)


def in_child(action: Any, *arguments: Any) -> tuple[int, str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.dup2(writer, 1)
            action(*arguments)
        finally:
            os._exit(1)  # only after a traceback
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def main() -> None:
    place, how = Path(sys.argv[1]), sys.argv[2]
    if how == "renames":
        files._exchanged = lambda one, other: False  # type: ignore[assignment]
    os.fsync = lambda descriptor: None  # a kill loses nothing that was written
    # what is imported late (Pandas, by Arrow), once for all
    list(parallel.detect_batches([Sentence("u", "x")], ["labels"]))
    pa.array(["x"])
    number, code = 0, KILLED
    while code == KILLED:
        number += 1
        folder = place / str(number)
        out = folder / "corpus"
        if number == 1:
            in_child(write, place / "old", "old")
        folder.mkdir()
        shutil.copytree(place / "old", out)
        (out / "ledger.jsonl").write_bytes(LEDGER)
        code, event = in_child(killed_at, number, out)
        checked, said = in_child(looked_at, out)
        found = json.loads(said) if checked == 0 else {"failed": said}
        print(json.dumps({"number": number, "code": code, "event": event, **found}), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
