"""Selecting the rows of an experiment that trains: the best of several settings, by validation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

Row = Mapping[str, Any]
REPEAT = "-repeat-"  # in a trial's name, before the number of the repeat
SEARCH = "search"  # in the names of trials of ways to more signal
PUBLIC_FIRST = "-public"  # at the end of a method's name, if public text was trained on first


def best_setting(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows, among those with the given values, of the setting with the best validation mean.

    A setting is a trial with its repeats.

    Guarantees:
      - trials that were not run are ignored
      - the test part decides nothing
    """
    ran = (
        row
        for row in rows
        if row["test"] is not None and all(row[key] == value for key, value in wanted.items())
    )
    settings = group_by_setting(ran)
    return min(settings, key=lambda own: mean(r["validation"] for r in own), default=[])


def group_by_setting(rows: Iterable[Row]) -> list[list[Row]]:
    """Each trial with its repeats, in the order of first occurrence."""
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(row["setting"], []).append(row)
    return list(settings.values())


def mean_test(rows: Sequence[Row]) -> float | None:
    """The mean of the test measure; None without rows."""
    return mean(row["test"] for row in rows) if rows else None


def targets_of(rows: Iterable[Row]) -> list[float | None]:
    """The epsilons that rows aim at, the largest first; None, of rows without one, last."""
    return sorted({row["target"] for row in rows}, key=lambda target: -(target or 0.0))


def epsilon_of(rows: Iterable[Row]) -> float:
    """What holds for all rows: what they aim at, or more where more is proven of them.

    Infinite if one of them has no guarantee.
    """
    known = ((row["target"], row["epsilon"]) for row in rows)
    return max(max(target or 0.0, math.inf if own is None else own) for target, own in known)


def user_level_like(method: str) -> str:
    """User-level DP as a method is compared with it: after public text, if that was."""
    return "user-level" + (PUBLIC_FIRST if method.endswith(PUBLIC_FIRST) else "")


def is_search(row: Row) -> bool:
    """Whether a trial is one of the search for more signal, which decides no comparison."""
    return f"-{SEARCH}" in row["setting"]


def names_not_run(rows: Iterable[Row]) -> list[str]:
    return [row["name"] for row in rows if row["test"] is None]
