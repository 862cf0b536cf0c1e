"""The high-water mark of a run's ledger, kept beside its corpus.

A run whose ledger was cut short, or restored from an older copy, would repeat rounds. So whoever
spends a round also leaves the ledger's seal beside the corpus; a ledger without that seal is
refused. The mark is written second: a ledger that is ahead of its mark does no harm. A round that
begins is marked, too, with a digest of the key of its draws, so that an older copy of the key's
file is no way to draw it again.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from uedp.accounting.chain import Chain, Record, of_kind, read_chain
from uedp.errors import UserError

_NAME = re.compile(r"[\w.-]{1,150}")


def mark_path(corpus: Path, run: str) -> Path:
    """Its name begins with `ledger`: such files outlive a new detection."""
    if not _NAME.fullmatch(run):
        raise UserError(f"run {run!r}: a name has letters, digits, dots and dashes only")
    return corpus / f"ledger-mark-{run}.jsonl"


class Mark(Chain):
    """The last seal of a run's ledger that was seen.

    Guarantees:
      - a seal for which `advance` returned survives the process being killed at any moment
      - two processes never advance the same mark
    """

    def __init__(self, corpus: Path, run: str) -> None:
        super().__init__(mark_path(corpus, run))

    def check(self, ledger: Path, seals: Sequence[str], spent: int) -> None:
        """Refuse a ledger that does not continue the one that was marked."""
        _check(self.path, self.records, ledger, seals, spent)

    def advance(self, spent: int, seal: str) -> None:
        marks = of_kind(self.records, "mark")
        if not marks or marks[-1]["seal"] != seal:
            self.append({"kind": "mark", "spent": spent, "seal": seal})

    def begun(self, number: int) -> str | None:
        """The digest of the key with which a round began, None if it was not begun."""
        digests = [r.get("key") for r in of_kind(self.records, "begun") if r.get("round") == number]
        return digests[-1] if digests else None

    def begin(self, number: int, digest: str) -> None:
        if self.begun(number) != digest:
            self.append({"kind": "begun", "round": number, "key": digest})


def check_mark(corpus: Path, run: str, ledger: Path, seals: Sequence[str], spent: int) -> None:
    """The same without opening the mark for writing."""
    path = mark_path(corpus, run)
    _check(path, read_chain(path)[0] if path.is_file() else [], ledger, seals, spent)


def _check(
    path: Path, records: Sequence[Record], ledger: Path, seals: Sequence[str], spent: int
) -> None:
    marks = of_kind(records, "mark")
    if not all("seal" in mark for mark in marks):
        raise UserError(f"{path}: not the mark of a run; restore it from a copy")
    if not marks and spent:
        raise UserError(
            f"{path}: missing, but {ledger} has {spent} rounds; restore it from a copy, or start "
            "a new run"
        )
    if marks and marks[-1]["seal"] not in seals:
        marked = marks[-1].get("spent")
        raise UserError(
            f"{ledger}: has {spent} rounds, and is not the ledger that had {marked} ({path.name} "
            "beside the corpus): it was cut or replaced, and rounds would be repeated; restore it "
            "from a copy, or start a new run"
        )
