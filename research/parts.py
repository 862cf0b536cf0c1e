"""Where the cost falls: a model on names and on everything else apart.

Names are the tokens of entities that were detected in the test part; a classifier is measured on
sentences with entities and without. Runs from before this was recorded are not shown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from research import markdown
from research.base import Result
from research.markdown import format_measure
from research.select_results import (
    PUBLIC_FIRST,
    Row,
    best_setting,
    epsilon_of,
    targets_of,
    user_level_like,
)
from uedp.accounting.statement import epsilon_text

METHODS = {
    "noiseless": "noiseless",
    "user-level": "user-level DP",
    "rotation": "rotation",
    "fair-shares": "fair shares",
    f"user-level{PUBLIC_FIRST}": "user-level, public first",
    f"fair-shares{PUBLIC_FIRST}": "fair shares, public first",
    "deidentified": "de-identified",
    "noiseless-surrogates": "surrogates",
    "user-level-deidentified": "user-level, de-identified",
    "user-level-surrogates": "user-level, surrogates",
}
_COMPARED = ("rotation", "fair-shares", f"fair-shares{PUBLIC_FIRST}")
_LEAST = 0.005  # of a mean loss: less is too little to divide between names and other tokens


@dataclass(frozen=True)
class Measured:
    """The best setting of a method at an epsilon: means over its repeats.

    `share` is the share of names among the tokens.
    """

    method: str
    target: float | None
    names: float
    others: float
    whole: float
    share: float
    proven: float | None

    @property
    def label(self) -> str:
        name = METHODS[self.method]
        return name if self.proven is None else f"{name}, epsilon {epsilon_text(self.proven, 3)}"


def measured_apart(rows: Sequence[Row], panel: str) -> list[Measured]:
    """What is known of a panel, by method and epsilon, the largest epsilon first."""
    found = []
    for method in METHODS:
        own = [
            row
            for row in rows
            if (row["panel"], row["method"], row["category"]) == (panel, method, "all")
            and row["extended_rate"] == 1.0
        ]
        for target in targets_of(own):
            best = best_setting(own, target=target)
            if best and all(row.get("parts") for row in best):
                names, others = (
                    mean(row["parts"][part] for row in best) for part in ("names", "others")
                )
                counts = best[0]["parts"]
                share = counts["names_count"] / counts["count"]
                whole = mean(row["test"] for row in best)
                epsilon = None if target is None else epsilon_of(best)
                found.append(Measured(method, target, names, others, whole, share, epsilon))
    return found


def table(result: Result) -> str:
    """A table, and how the loss beyond user-level DP's divides; empty if no run recorded it."""
    measure = result["measure"]
    of = (
        ("with entities", "without entities", "all")
        if measure == "error rate"
        else ("names", "other tokens", "all tokens")
    )
    rows: list[list[str]] = []
    lines: list[str] = []
    for panel, title in result["panels"].items():
        own = measured_apart(result["rows"], panel)
        for one in own:
            values = (one.names, one.others, one.whole)
            rows.append([f"{title}, {one.label}", *(format_measure(v, measure) for v in values)])
        if measure != "error rate":
            lines += _division(own, title)
    if not rows:
        return ""
    header = (f"{measure} on the test part, where the cost falls", *of)
    return "\n\n".join(filter(None, (markdown.table(header, rows), markdown.bullets(*lines))))


def _division(measured: Sequence[Measured], title: str) -> Iterator[str]:
    """How much of the loss beyond user-level DP's is on names."""
    known = {(one.method, one.target): one for one in measured}
    for one in measured:
        base = known.get((user_level_like(one.method), one.target))
        if one.method not in _COMPARED or base is None:
            continue
        names = one.share * math.log(one.names / base.names)
        others = (1 - one.share) * math.log(one.others / base.others)
        if names + others < _LEAST:
            continue
        borne = ""
        if min(names, others) >= 0:
            borne = f" and bear {names / (names + others):.0%} of the additional loss"
        yield (
            f"{title}, {one.label}: perplexity is {one.names / base.names:.2f} times that of "
            f"user-level DP on names, {one.others / base.others:.2f} times on other tokens. Names "
            f"are {one.share:.0%} of the tokens{borne}."
        )
