"""Training curves. They are computed from the data without noise: for the curator only."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from uedp.errors import UserError
from uedp.files import private_opener, write_atomically
from uedp.strict import parse_json

FILE = "metrics.jsonl"


class Metrics:
    """One JSON line per round, flushed at once.

    Lines that a killed process wrote after the first `done` rounds are dropped; `logged` is the
    last round that it wrote.
    """

    def __init__(self, out: Path, done: int) -> None:
        path = out / FILE
        rounds = [(line, parse_round(line)) for line in _lines(path)]
        self.logged = max((number for _, number in rounds), default=0)
        kept = (f"{line}\n" for line, number in rounds if 0 < number <= done)
        write_atomically(path, "".join(kept))
        self._file = open(path, "a", encoding="utf-8", opener=private_opener)  # noqa: SIM115

    def add(self, row: Mapping[str, float]) -> None:
        self._file.write(json.dumps(finite(row)) + "\n")
        self._file.flush()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def _lines(path: Path) -> list[str]:
    """The lines of an earlier process, of which only the last may be incomplete."""
    if not path.is_file():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    try:
        decoded = [line.decode() for line in lines]
    except UnicodeDecodeError:
        decoded = [""]
    for number, line in enumerate(decoded, 1):
        if not parse_round(line):
            raise UserError(f"{path}:{number}: damaged; remove the file to continue without it")
    return decoded if not last else [*decoded, last.decode(errors="replace")]


def parse_round(line: str) -> int:
    """The round of a line of metrics; 0 for an incomplete line."""
    try:
        number = parse_json(line)["round"]
    except (ValueError, KeyError, TypeError, IndexError):
        return 0
    return number if type(number) is int else 0


def finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """A row for JSON, which has no infinity: null instead."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}
