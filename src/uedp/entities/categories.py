"""The categories of sensitive entity; `categories.yaml` lists them and the labels that mean them.

There are three unions: `pii`, the paper's twentieth category; `all`; and `default`, what is
protected unless a person chooses: all but percentages, and years, months and weekdays that stand
alone, which are seldom anybody's secret and stand in many people's text.
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from uedp.errors import UserError, did_you_mean

_LISTS: Any = yaml.safe_load(
    files(__package__).joinpath("categories.yaml").read_text(encoding="utf-8")
)
# Name -> description. The order is the bit order of masks and that of stored numbers.
BASE: Mapping[str, str] = MappingProxyType(_LISTS["base"])
UNIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "pii": frozenset({"person", "loc", "gpe", "contact"}),
        "default": frozenset(BASE) - {"percent", "year", "calendar"},
        "all": frozenset(BASE),
    }
)
DEFAULT = UNIONS["default"]
NAMES: tuple[str, ...] = (*BASE, *UNIONS)
# Source of the labels -> label -> category.
LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        source: {label: category for category, labels in table.items() for label in labels}
        for source, table in _LISTS["labels"].items()
    }
)
_CATEGORY = {label: category for table in LABELS.values() for label, category in table.items()}
_BIT = {name: 1 << position for position, name in enumerate(BASE)}


def category_of(label: str) -> str:
    """The base category of a detector's label.

    Guarantees:
      - total: a label that is not listed is `misc`, so that an unforeseen entity is protected
      - a base category's own name, in any case, means itself
    """
    known = _CATEGORY.get(label.upper())
    if known is not None:
        return known
    return label.lower() if label.lower() in BASE else "misc"


def expand_categories(names: str | Iterable[str]) -> frozenset[str]:
    """The base categories of names (unions included), given as a list or separated by commas."""
    chosen: set[str] = set()
    for name in names.split(",") if isinstance(names, str) else names:
        key = name.strip().lower()
        if key not in NAMES:
            raise UserError(
                f"`categories={name!r}`: unknown category; choose among {', '.join(NAMES)}"
                f"{did_you_mean(key, NAMES)}"
            )
        chosen |= UNIONS.get(key, {key})
    if not chosen:
        raise UserError("`categories=...` is empty; name at least one category, or `all`")
    return frozenset(chosen)


def mask_of(categories: Iterable[str]) -> int:
    """Base categories as a bit mask (bit i is the i-th name of `BASE`)."""
    return sum(_BIT[category] for category in set(categories))


def masks() -> dict[str, int]:
    """The bit mask of every name, unions included."""
    return {**_BIT, **{name: mask_of(members) for name, members in UNIONS.items()}}
