"""Ranks and what follows from them: exposure, extraction, and membership inference."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uedp.accounting.divergence import Floats
from uedp.audit.bounds import at_least, at_most
from uedp.errors import UserError
from uedp.incidence import Ints

FALSE_POSITIVES = (0.001, 0.01, 0.1)

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ranked:
    """The truth of one gap, ranked by a model.

    `rank` is that of the truth among `among` candidates, itself included; ties count half. The
    candidates are the whole `space` of possible values, or a sample of it. `confidence` is the log
    (base 2) of the truth's share in the likelihood of all candidates. `users` is how many users
    hold it.
    """

    group: str
    member: bool
    users: int
    rank: float
    among: int
    space: int
    confidence: float
    extracted: bool | None = None
    in_beams: bool | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """What members and others are called."""
        return ("held in", "held out") if self.extracted is None else ("planted", "left out")

    @property
    def exposure(self) -> float:
        """Bits that a model saves in a search for the truth (Carlini et al. 2019).

        From 0 at the end of the list to `log2(among)` at its head. For a sample of the space it is
        an estimate with that cap, however well the truth is known.
        """
        return math.log2(self.among) - math.log2(self.rank)


def rank(truth: float, others: Floats) -> tuple[float, float]:
    """The rank of the truth among itself and others, and its confidence.

    Guarantees:
      - a rank lies in 1 .. others + 1, and is in the middle if all are alike
    """
    better = np.count_nonzero(others > truth) + 0.5 * np.count_nonzero(others == truth)
    total = np.logaddexp.reduce(np.append(others, truth))
    return 1.0 + float(better), float(truth - total) / math.log(2)


@dataclass(frozen=True, eq=False)
class Roc:
    """How often members and others are taken for members, at every threshold on their scores.

    Guarantees:
      - both rates of the curve rise from 0 to 1
      - `hits(x)` counts the members above a threshold that at most a share `x` of the others is
        above, the lowest such
      - `hits(x)` is the number of members with at most `x * len(others)` others `above` them
    """

    members: Floats
    others: Floats

    def curve(self) -> tuple[Floats, Floats]:
        """False and true positive rates, from the highest threshold to the lowest."""
        cuts = np.unique(np.concatenate([self.members, self.others]))[::-1]
        rates = [
            np.concatenate([[0.0], np.searchsorted(np.sort(-values), -cuts, "right") / len(values)])
            for values in (self.others, self.members)
        ]
        return rates[0], rates[1]

    def area(self) -> float:
        """The probability that a member scores above another, ties counted half."""
        false, true = self.curve()
        return float(np.trapezoid(true, false))

    def hits(self, false_positives: float) -> int:
        """How many members are found at this false positive rate or less."""
        return int(np.count_nonzero(self.above() <= false_positives * len(self.others) + 1e-9))

    def above(self) -> Ints:
        """For each member, the number of others that score at least as high."""
        places = np.searchsorted(np.sort(self.others), self.members, "left")
        return np.asarray(len(self.others) - places)


def roc(items: Sequence[Ranked]) -> Roc:
    """By confidence: items of the training corpus against items left out of it."""
    sides = [
        np.array([item.confidence for item in items if item.member is member])
        for member in (True, False)
    ]
    for side, name in zip(sides, ("in the training corpus", "left out of it"), strict=True):
        if not len(side):
            raise UserError(f"none of the ranked items is {name}; there is nothing to compare with")
    return Roc(*sides)


def summary(items: Sequence[Ranked]) -> dict[str, Any]:
    """Exposure and extraction by group, and membership inference."""
    curve = roc(items)
    groups: dict[str, list[Ranked]] = {}
    for item in sorted(items, key=lambda item: (not item.member, item.users)):
        for name in _groups(item):
            groups.setdefault(name, []).append(item)
    most = max(item.among for item in items)
    return {
        "candidates": most,
        "exact": all(item.among == item.space for item in items),
        "largest_exposure": math.log2(most),
        "exposure_by_chance": chance_exposure(most),
        "groups": {name: _group_summary(group) for name, group in groups.items()},
        "membership": {"others": len(curve.others), **membership_rates(curve)},
    }


def chance_exposure(among: int) -> float:
    """Mean exposure in bits if all ranks are equally likely: nothing was learned."""
    return math.log2(among) - math.lgamma(among + 1) / math.log(2) / among


def _groups(item: Ranked) -> Iterable[str]:
    return dict.fromkeys((item.sides[not item.member], item.group))


def _group_summary(items: Sequence[Ranked]) -> dict[str, Any]:
    exposures = np.array([item.exposure for item in items])
    result: dict[str, Any] = {
        "count": len(items),
        "mean_exposure": float(exposures.mean()),
        "median_exposure": float(np.median(exposures)),
        "ranked_first": share([item.rank == 1 for item in items]),
    }
    for name in ("extracted", "in_beams"):
        if all(getattr(item, name) is not None for item in items):
            result[name] = share([getattr(item, name) for item in items])
    return result


def membership_rates(curve: Roc) -> dict[str, Any]:
    """The area under the curve, and true positive rates at a few false positive rates.

    `resolved` says that there are enough others to tell such a rate from zero.
    """
    members, rates = len(curve.members), []
    for rate in FALSE_POSITIVES:
        hits, resolved = curve.hits(rate), len(curve.others) * rate >= 1
        true = share([True] * hits + [False] * (members - hits))
        rates.append({"false_positives": rate, "resolved": resolved, "true_positives": true})
    return {"members": members, "area": curve.area(), "at": rates}


def share(hits: Sequence[bool]) -> dict[str, float]:
    """A share and its 95% confidence interval (Clopper and Pearson 1934)."""
    count, alpha = np.array([sum(hits)]), (1 - _CONFIDENCE) / 2
    return {
        "share": float(count[0]) / len(hits),
        "low": float(at_least(count, len(hits), alpha)[0]),
        "high": float(at_most(count, len(hits), alpha)[0]),
    }
