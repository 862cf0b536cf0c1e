"""An append-only file of records, each sealed by the hash of all before it.

One JSON object per line: `{"record": ..., "seal": sha256(previous seal + record)}`. A record is on
disk before `append` returns. Whoever changes, drops or reorders a line breaks every later seal;
whoever cuts lines off the end, or seals the whole file anew, is caught by a copy of the last seal
kept elsewhere (the certificate's).
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from uedp.errors import UserError
from uedp.files import fsync_file, fsync_path, lock_file, private_opener

Record = Mapping[str, Any]
FIRST_SEAL = "0" * 64


class Chain:
    """The records of a file, open for appending by one process at a time.

    Guarantees:
      - a record for which `append` returned survives the process being killed at any moment
      - a line that was being written when the process died is removed, and that is recorded
      - a file changed by any other hand is refused, naming the line
      - two processes never hold the same file open
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        """`timeout`: seconds to wait for another process that has the file open."""
        self.path = path
        self._file: IO[bytes] = open(path, "a+b", opener=private_opener)  # noqa: SIM115
        try:
            lock_file(
                self._file,
                f"{path}: another process is writing this ledger; wait for it, or stop it",
                timeout,
            )
            self.records, self.seals, torn = _read(self._file, path)
            fsync_path(path.parent)  # the file may be new
            if torn:
                self._file.truncate(self._file.seek(0, os.SEEK_END) - torn)
                self.append({"kind": "torn line removed", "bytes": torn})
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Record) -> None:
        """Write one record; it is on disk when this returns."""
        seal = _seal(self.seal, record)
        line = _line(record, seal)
        try:
            if os.write(self._file.fileno(), line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            fsync_file(self._file)
        except BaseException:
            # how much of the line is on disk is unknown: whoever opens the file next checks
            self._file.close()
            raise
        self.records.append(dict(record))
        self.seals.append(seal)

    @property
    def seal(self) -> str:
        """The seal of the last record, which stands for all."""
        return self.seals[-1] if self.seals else FIRST_SEAL

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record.get("kind") == kind]


def read_chain(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a file and their seals. A torn last line is skipped: nobody relied on it."""
    if not path.is_file():
        raise UserError(f"{path}: no such ledger")
    with path.open("rb") as file:
        records, seals, _ = _read(file, path)
    return records, seals


def _read(file: IO[bytes], path: Path) -> tuple[list[dict[str, Any]], list[str], int]:
    """Records, their seals, and the length in bytes of a torn last line."""
    file.seek(0)
    records: list[dict[str, Any]] = []
    seals: list[str] = []
    seal = FIRST_SEAL
    for number, line in enumerate(file, 1):
        record = _record(line, seal)
        if record is None:
            # a torn line lacks more than its newline; one with a wrong last byte was changed
            if not line.endswith(b"\n") and _record(line[:-1] + b"\n", seal) is None:
                return records, seals, len(line)
            raise UserError(
                f"{path}:{number}: the ledger was changed here; restore it from a copy, "
                "or treat this run as without a guarantee"
            )
        records.append(record)
        seal = _seal(seal, record)
        seals.append(seal)
    return records, seals, 0


def _record(line: bytes, previous: str) -> dict[str, Any] | None:
    """The record of a line, if the line is byte for byte what `append` would have written."""
    try:
        record: Any = json.loads(line)["record"]
        if not isinstance(record, dict):
            return None
        return record if line == _line(record, _seal(previous, record)) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _line(record: Record, seal: str) -> bytes:
    entry = {"record": record, "seal": seal}
    return json.dumps(entry, sort_keys=True, allow_nan=False).encode() + b"\n"


def _seal(previous: str, record: Record) -> str:
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    return hashlib.sha256(previous.encode() + text.encode()).hexdigest()
