"""How far a run has come, kept beside its corpus: the high-water mark of its ledger.

A run's ledger lies in the run's own folder. Cut it short, or restore the folder from an older copy,
and rounds would be made again that were made before. So whoever spends a round also leaves the
ledger's seal beside the corpus; a ledger that does not contain that seal is refused. The mark comes
second: a process that dies between the two leaves a ledger that is ahead, which is no harm.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uedp.accounting.chain import Chain, read
from uedp.errors import UserError

_NAME = re.compile(r"[\w.-]{1,150}")


def mark_path(corpus: Path, run: str) -> Path:
    """Its name begins with `ledger`, as all do that must outlive a new detection."""
    if not _NAME.fullmatch(run):
        raise UserError(f"run {run!r}: a name has letters, digits, dots and dashes only")
    return corpus / f"ledger-mark-{run}.jsonl"


class Mark:
    """The last seal of a run's ledger that was seen.

    Guarantees:
      - a seal for which `advance` returned survives the process being killed at any moment
      - two processes never advance the same mark
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @classmethod
    @contextmanager
    def open(cls, corpus: Path, run: str) -> Iterator["Mark"]:
        with Chain(mark_path(corpus, run)) as chain:
            yield cls(chain)

    def check(self, ledger: Path, seals: Sequence[str], spent: int) -> None:
        """Refuse a ledger that is not a continuation of the one that was marked."""
        _refuse_another(self._chain.path, self._chain.records, ledger, seals, spent)

    def advance(self, spent: int, seal: str) -> None:
        if not self._seals or self._seals[-1] != seal:
            self._chain.append({"kind": "mark", "spent": spent, "seal": seal})

    @property
    def _seals(self) -> list[str]:
        records = self._chain.records
        return [record["seal"] for record in records if record.get("kind") == "mark"]


def check_mark(corpus: Path, run: str, ledger: Path, seals: Sequence[str], spent: int) -> None:
    """The same for a run that nobody is at work on."""
    path = mark_path(corpus, run)
    records = read(path)[0] if path.is_file() else []
    _refuse_another(path, records, ledger, seals, spent)


def _refuse_another(
    path: Path, records: Sequence[dict[str, Any]], ledger: Path, seals: Sequence[str], spent: int
) -> None:
    marks = [record for record in records if record.get("kind") == "mark"]
    if not marks:
        if spent:
            raise UserError(
                f"{path}: missing, but {ledger} has {spent} rounds; restore it from a copy, or "
                "begin a new run"
            )
        return
    last = marks[-1]
    if not all("seal" in mark for mark in marks):
        raise UserError(f"{path}: not the mark of a run; restore it from a copy")
    if last["seal"] not in seals:
        raise UserError(
            f"{ledger}: has {spent} rounds, and is not the ledger that had {last.get('spent')} "
            f"({path.name} beside the corpus): it was cut or replaced, and rounds would be made "
            "twice; restore it from a copy, or begin a new run"
        )
