"""One run folder as one object: everything that a page shows of a run.

Reading never fails for the folder of a run: a part that is not there yet is None, and so is one
that cannot be read, with a line in `problems`. Nothing here is verified, and most of it is for the
curator only.
"""

import json
import math
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from uedp.accounting.certificate import CERTIFICATE, Certificate, load_certificate
from uedp.accounting.chain import of_kind, read_chain
from uedp.accounting.ledger import RUN_LEDGER, PlannedRun, planned_run, spent_rounds
from uedp.accounting.signature import SIGNATURE
from uedp.errors import UserError
from uedp.strict import parse_json, parse_yaml

Floats = npt.NDArray[np.float64]
T = TypeVar("T")

_CONFIG, _IDENTITY, _METRICS, _RESULT = "config.yaml", "run.json", "metrics.jsonl", "result.json"
AUDITS = "audits"  # a folder in that of the run
_PLAIN_METHODS = ("noiseless", "deidentified")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run folder holds. `metrics` are columns by name, NaN where a round has no value.

    `spent` are the rounds in the ledger, which may be more than have metrics: a round is entered
    before it is computed.
    """

    folder: Path
    run: str | None = None
    config: Mapping[str, Any] | None = None
    certificate: Certificate | None = None
    signed: bool = False
    planned: PlannedRun | None = None
    spent: int | None = None
    closed: bool = False
    metrics: Mapping[str, Floats] = field(default_factory=dict)
    before: Mapping[str, float] | None = None
    public: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None
    lineage: Sequence[Mapping[str, Any]] = ()
    audits: Sequence["AuditFile"] = ()
    written: float | None = None
    problems: Sequence[str] = ()

    @classmethod
    def read(cls, folder: Path, audits: Sequence[Path] = ()) -> "RunRecord":
        """Read a run folder, and results of audits that lie in its folder `audits` or are named.

        Raises only if there is no such folder, or if it holds no run, or a link.

        Guarantees:
          - no file outside of the folder is read, but for audits that are named
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; name the folder of a run")
        refuse_links(folder)
        if not any((folder / name).is_file() for name in (_IDENTITY, _CONFIG, RUN_LEDGER)):
            raise UserError(f"{folder}: holds no run; name the folder of a run")
        reader = _Reader(folder)
        identity = reader.json(_IDENTITY)
        result = reader.json(_RESULT) or {}
        records = reader.part(RUN_LEDGER, lambda path: read_chain(path)[0]) or []
        name = identity.get("run") if isinstance(identity, dict) else None
        ledger = folder / RUN_LEDGER
        return cls(
            folder=folder,
            run=name if isinstance(name, str) else None,
            config=reader.mapping(_CONFIG, lambda path: parse_yaml(path.read_text("utf-8"))),
            certificate=reader.part(CERTIFICATE, lambda path: load_certificate(path.parent)),
            signed=(folder / SIGNATURE).is_file(),
            planned=reader.part(RUN_LEDGER, lambda path: planned_run(path, records))
            if records
            else None,
            spent=reader.part(RUN_LEDGER, lambda path: spent_rounds(records))
            if ledger.is_file()
            else None,
            closed=bool(of_kind(records, "closed")),
            metrics=reader.part(_METRICS, read_metrics) or {},
            before=_measures(result, "before"),
            public=_measures(result, "public"),
            after=_measures(result, "after"),
            lineage=reader.objects("lineage.json"),
            audits=tuple(reader.audits(audits)),
            written=_last_written(folder),
            problems=tuple(reader.problems),
        )

    # --- what it is ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """How the run is called on a page: by its folder."""
        return self.folder.name or str(self.folder)

    def setting(self, section: str, name: str) -> Any:
        """A field of the config; None if there is none."""
        values = (self.config or {}).get(section)
        return values.get(name) if isinstance(values, Mapping) else None

    @property
    def method(self) -> str:
        if self.planned is not None:
            return self.planned.method
        if self.certificate is not None:
            return self.certificate.method
        return str(self.setting("privacy", "method") or "not known")

    @property
    def model(self) -> str:
        return str(self.setting("model", "name") or "not known")

    @property
    def task(self) -> str:
        return str(self.setting("task", "kind") or "next-word")

    @property
    def without_noise(self) -> bool:
        """Whether the method adds no noise at all, and no guarantee can follow."""
        return self.method in _PLAIN_METHODS

    @property
    def finished(self) -> bool:
        return self.after is not None

    @property
    def rounds_planned(self) -> int | None:
        if self.planned is not None:
            return self.planned.rounds
        rounds = self.setting("privacy", "rounds")
        return rounds if type(rounds) is int else None

    @property
    def rounds_done(self) -> int:
        """The rounds that have metrics, or that the ledger has, whichever is more."""
        rounds = self.metrics.get("round")
        measured = int(rounds[-1]) if rounds is not None and len(rounds) else 0
        return max(measured, self.spent or 0)

    @property
    def state(self) -> str:
        """How far the run is, in words; whether a process is at work on it is not known here."""
        if self.finished:
            return "finished"
        planned = "" if self.rounds_planned is None else f" of {self.rounds_planned:,}"
        rounds = f"{self.rounds_done:,}{planned} rounds done"
        return f"ended early, {rounds}" if self.closed else f"not finished, {rounds}"

    # --- curves ----------------------------------------------------------------------------------

    def series(self, name: str) -> tuple[Floats, Floats]:
        """The rounds in which something was measured, and its values.

        Measures are joined by those before the first and after the last round.
        """
        empty = np.empty(0)
        rounds, values = self.metrics.get("round", empty), self.metrics.get(name, empty)
        measured = np.isfinite(values)
        points = list(zip(rounds[measured], values[measured], strict=True)) if len(values) else []
        first = self.public if self.public and name in self.public else self.before
        if first and name in first:
            points.insert(0, (0.0, first[name]))
        if self.after and name in self.after and self.rounds_planned:
            points.append((float(self.rounds_planned), self.after[name]))
        pairs = np.array(points, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The names of measures on held-out text, without those of single categories."""
        named = dict.fromkeys([*(self.before or {}), *(self.after or {}), *self.metrics])
        prefixes = ("perplexity", "error rate", "bits per token")
        return tuple(name for name in named if name.startswith(prefixes) and ": " not in name)


_LOGS = frozenset(("mlflow", "tensorboard", "wandb"))  # not read here; wandb links to its last run


def refuse_links(folder: Path) -> None:
    """Raise for anything in a run folder that is neither a file in it nor a folder in it."""
    for path in _entries(folder):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # a run that is being trained writes and removes files
            continue
        if stat.S_ISLNK(mode):
            raise UserError(
                f"{path}: is a link, which may lead anywhere; put what it leads to in its place"
            )
        if stat.S_ISDIR(mode):
            if path.name not in _LOGS:
                refuse_links(path)
        elif not stat.S_ISREG(mode):
            raise UserError(f"{path}: neither a file nor a folder; remove it")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class AuditFile:
    """A result of an audit: `mechanism`, `training` or `extraction`, and its content."""

    path: Path
    kind: str
    content: Mapping[str, Any]


def read_metrics(path: Path) -> dict[str, Floats]:
    """The columns of a file of metrics; a last line that is still being written is left out.

    Guarantees:
      - every column has one value per round, NaN where there is none
    """
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        rows = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except (ValueError, RecursionError):
        raise ValueError("not one JSON object per line") from None
    if not all(isinstance(row, dict) and type(row.get("round")) is int for row in rows):
        raise ValueError("a line without its round")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kept = [value if type(value) in (int, float) else math.nan for value in values]
        columns[name] = np.array(kept, dtype=np.float64)
    return columns


def audit_kind(content: Any) -> str | None:
    """Which audit wrote this; None if it was none."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("audits"), list) and isinstance(content.get("verdict"), list):
        return "mechanism"
    if isinstance(content.get("findings"), list) and "proven" in content:
        return "training"
    runs = content.get("runs")
    if isinstance(runs, list) and runs and all(_is_extraction(run) for run in runs):
        return "extraction"
    return None


def _is_extraction(run: Any) -> bool:
    return isinstance(run, dict) and isinstance(run.get("summary"), dict) and "kind" in run


class _Reader:
    """Reads parts of a folder; one that is missing is None, one that is damaged is a problem."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[str] = []

    def part(self, name: str, read: Callable[[Path], T]) -> T | None:
        path = self._folder / name
        if not path.is_file():
            return None
        try:
            return read(path)
        except UserError as error:
            self._note(str(error))
        except OSError as error:
            self._note(f"{path}: cannot be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._note(f"{path}: damaged: {' '.join(str(error).split())[:120]}")
        return None

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def json(self, name: str) -> Any:
        return self.part(name, lambda path: parse_json(path.read_bytes()))

    def mapping(self, name: str, read: Callable[[Path], Any]) -> Mapping[str, Any] | None:
        value = self.part(name, read)
        return value if isinstance(value, Mapping) else None

    def objects(self, name: str) -> Sequence[Mapping[str, Any]]:
        value = self.json(name)
        if not isinstance(value, list):
            return ()
        return tuple(item for item in value if isinstance(item, Mapping))

    def audits(self, named: Sequence[Path]) -> list[AuditFile]:
        """Results in the folder `audits`, and those that are named: files, or folders of audits."""
        found = []
        for path in (*sorted((self._folder / AUDITS).glob("*.json")), *named):
            file = path / "audit.json" if path.is_dir() else path
            content = self.part(str(file.resolve()), lambda path: parse_json(path.read_bytes()))
            kind = audit_kind(content)
            if content is not None and kind is not None:
                found.append(AuditFile(file, kind, content))
            elif content is not None:
                self._note(f"{file}: not the result of an audit")
        return found


def _measures(result: Any, name: str) -> Mapping[str, float] | None:
    """Measures of a result; those that are not finite are left out."""
    values = result.get(name) if isinstance(result, dict) else None
    if not isinstance(values, dict):
        return None
    return {key: value for key, value in values.items() if type(value) in (int, float)}


def _last_written(folder: Path) -> float | None:
    times = []
    for name in (RUN_LEDGER, _METRICS, _RESULT, _IDENTITY):
        path = folder / name
        if path.is_file():
            times.append(path.stat().st_mtime)
    return max(times, default=None)
