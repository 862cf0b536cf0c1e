"""The runs that a studio shows: which folders they are, their state, and their live metrics."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from uedp import files
from uedp.accounting.certificate import CERTIFICATE
from uedp.accounting.ledger import RUN_LEDGER
from uedp.accounting.signature import SIGNATURE
from uedp.errors import UserError
from uedp.report.run_record import RunRecord, refuse_links
from uedp.studio.settings import ForbiddenError, Settings, inside

Floats = npt.NDArray[np.float64]

_IDENTITY, _METRICS = "run.json", "metrics.jsonl"
_MARKS = (_IDENTITY, "config.yaml")  # a folder with one of these holds a run
_MOST_RUNS = 500  # of one folder


@dataclass(frozen=True)
class RunFolder:
    """A run, and the name by which pages ask for it: `FOLDER/PATH`, the folder as a number."""

    key: str
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)


def run_folders(settings: Settings) -> list[RunFolder]:
    """The given folders that hold a run, and those in them that do, by name."""
    found = []
    for number, base in enumerate(settings.runs):
        if _holds_run(base):
            found.append(RunFolder(f"{number}/.", base))
        else:
            found += [RunFolder(f"{number}/{path.name}", path) for path in _inner(base)]
    return found


def _inner(base: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(base) if entry.is_dir())
    except OSError:
        return
    paths = (base / name for name in names)
    paths = (path for path in paths if path.resolve().is_relative_to(base.resolve()))
    yield from [path for path in paths if _holds_run(path)][:_MOST_RUNS]


def _holds_run(folder: Path) -> bool:
    try:
        return any((folder / name).is_file() for name in _MARKS)
    except OSError:
        return False


def find_run(settings: Settings, key: str) -> RunFolder:
    """The run of a name.

    Guarantees:
      - a folder outside of the given ones is `ForbiddenError`, links followed
    """
    number, _, path = key.partition("/")
    if not number.isdecimal() or len(number) > 4 or int(number) >= len(settings.runs):
        raise ForbiddenError("a folder that was not given to the studio")
    folder = inside(settings.runs[int(number)], path)
    if not _holds_run(folder):
        raise UserError(f"{folder.name}: holds no run; it may have been moved")
    return RunFolder(key, folder)


# --- the state of a run --------------------------------------------------------------------------


def state_of(record: RunRecord) -> str:
    """What a person wants to know first: running, finished, ended early, or stopped."""
    if record.finished:
        return "finished"
    if files.is_locked(record.folder / _IDENTITY):
        return "running"
    return "ended early" if record.closed else "stopped"


class MetricsTail:
    """The metrics of a run that may still be written: each look reads only what was added.

    Guarantees:
      - a line that is still being written is read once it is complete
      - a file that was replaced or cut, as when a run resumes, is read anew
      - lines that no run wrote are left out
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._clear()

    def _clear(self) -> None:
        self._file: tuple[int, int] | None = None
        self._offset, self._rows = 0, 0
        self._columns: dict[str, list[float]] = {}

    def columns(self) -> Mapping[str, Floats]:
        """All that was read so far, after another look; NaN where a round has no value."""
        with self._lock:
            self._look()
            return {name: np.array(values) for name, values in self._columns.items()}

    def _look(self) -> None:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._file or status.st_size < self._offset:
                    self._clear()
                    self._file = identity
                file.seek(self._offset)
                added = file.read()
        except OSError:  # it is not there yet, or no longer
            self._clear()
            return
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(row, dict) or type(row.get("round")) is not int:
            return
        for name in row.keys() - self._columns.keys():
            if len(self._columns) < _MOST_COLUMNS:
                self._columns[name] = [math.nan] * self._rows
        for name, values in self._columns.items():
            values.append(_value(row.get(name)))
        self._rows += 1


def _value(value: Any) -> float:
    try:
        return float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return math.nan


_MOST_COLUMNS = 200


class Live:
    """Runs that are looked at again and again: what cannot have changed is read once."""

    def __init__(self) -> None:
        self._tails: dict[Path, MetricsTail] = {}
        self._records: dict[Path, _Known] = {}

    def record(self, folder: Path) -> RunRecord:
        """The run as it is now; its ledger may be some seconds old while it grows."""
        refuse_links(folder)
        stamp, ledger, now = _stamp(folder), _size(folder / RUN_LEDGER), time.monotonic()
        known = self._records.get(folder)
        if (
            known is None
            or known.stamp != stamp
            or (known.ledger != ledger and now - known.read_at > _LEDGER_SECONDS)
        ):
            known = self._records[folder] = _Known(stamp, ledger, now, RunRecord.read(folder))
        tail = self._tails.setdefault(folder, MetricsTail(folder / _METRICS))
        return replace(known.record, metrics=tail.columns())


@dataclass(frozen=True)
class _Known:
    stamp: object
    ledger: int
    read_at: float
    record: RunRecord


_LEDGER_SECONDS = 5.0  # a ledger of many rounds takes a moment to check


def _stamp(folder: Path) -> object:
    """Changes with the files of a run that do not grow."""
    names = (CERTIFICATE, SIGNATURE, "config.yaml", "result.json", _IDENTITY)
    return tuple((_size(folder / name), _written(folder / name)) for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1
