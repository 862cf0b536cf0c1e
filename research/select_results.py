"""Rows of an experiment that trains: which of several settings to tell, and what came of it."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

Row = Mapping[str, Any]
REPEAT = "-repeat-"  # in a trial's name, before the number of the repeat


def chosen(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Of the rows with these values, those of the setting that did best on the validation part.

    A setting is a trial with its repeats.

    Guarantees:
      - trials that were not run are left out
      - the test part decides nothing
    """
    ran = (
        row
        for row in rows
        if row["test"] is not None and all(row[key] == value for key, value in wanted.items())
    )
    settings = by_setting(ran)
    return min(settings, key=lambda own: mean(r["validation"] for r in own), default=[])


def by_setting(rows: Iterable[Row]) -> list[list[Row]]:
    """Each trial with its repeats, in the order of the first of them."""
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(row["setting"], []).append(row)
    return list(settings.values())


def score(rows: Sequence[Row]) -> float | None:
    """The mean of the test measure, where there is any."""
    return mean(row["test"] for row in rows) if rows else None


def not_run(rows: Iterable[Row]) -> list[str]:
    return [row["name"] for row in rows if row["test"] is None]
