"""Ways to more signal from the same noise, and what each changes of the validation measure."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from research import markdown
from research.markdown import format_measure

KEPT = 0.02  # what a way to more signal must gain
AS_IT_IS = ""
Column = TypeVar("Column", bound=Hashable)


def search_table(
    measure: str,
    columns: Mapping[Column, str],
    variants: Iterable[str],
    measured: Callable[[Column, str], float | None],
) -> tuple[str, dict[str, set[Column]]]:
    """A table, and the columns in which each variant gains `KEPT`; empty if nothing was run.

    Args:
        columns: their titles; one without a result of `AS_IT_IS` is left out.
        measured: the mean validation measure of a variant, if it was run.
    """
    bases = {key: own for key in columns if (own := measured(key, AS_IT_IS)) is not None}
    if not bases:
        return "", {}
    better: dict[str, set[Column]] = {}
    lines = []
    for name in (AS_IT_IS, *variants):
        cells = []
        for key, base in bases.items():
            own = measured(key, name)
            change = None if own is None else own / base - 1
            if change is not None and change <= -KEPT:
                better.setdefault(name, set()).add(key)
            shown = "" if name == AS_IT_IS or change is None else f" ({change:+.1%})"
            cells.append("-" if own is None else f"{format_measure(own, measure)}{shown}")
        lines.append([name.strip("-") or "as it is", *cells])
    header = ("more signal from the same noise, validation", *(columns[key] for key in bases))
    return markdown.table(header, lines), better
