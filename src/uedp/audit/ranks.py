"""Ranks, and what they come to: exposure, extraction, and how well membership is guessed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uedp.audit.bounds import at_least, at_most
from uedp.audit.scoring import Floats
from uedp.errors import UserError
from uedp.incidence import Ints

FALSE_POSITIVES = (0.001, 0.01, 0.1)

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ranked:
    """What a model says of one gap.

    `rank` is that of the truth among `among` candidates, itself included; those that tie with it
    count half; these are all that could stand there, or a sample of so large a `space`.
    `confidence` is the log (base 2) of the share of the truth in the likelihood of all candidates.
    `users` is how many users told it.
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
    def exposure(self) -> float:
        """Bits that a model saves whoever searches for the truth (Carlini et al. 2019).

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
        """False and true positive rates, from nobody taken for a member to everybody."""
        cuts = np.unique(np.concatenate([self.members, self.others]))[::-1]
        rates = [
            np.concatenate([[0.0], np.searchsorted(np.sort(-values), -cuts, "right") / len(values)])
            for values in (self.others, self.members)
        ]
        return rates[0], rates[1]

    def area(self) -> float:
        """The chance that a member scores above another, half of ties counted."""
        false, true = self.curve()
        return float(np.trapezoid(true, false))

    def hits(self, false_positives: float) -> int:
        """How many members are found while at most this share of the others is."""
        allowed = math.floor(false_positives * len(self.others) + 1e-9)
        if allowed >= len(self.others):
            return len(self.members)
        threshold = np.sort(self.others)[::-1][allowed]
        return int(np.count_nonzero(self.members > threshold))

    def above(self) -> Ints:
        """For each member, the number of others that score at least as high."""
        places = np.searchsorted(np.sort(self.others), self.members, "left")
        return np.asarray(len(self.others) - places)


def roc(found: Sequence[Ranked]) -> Roc:
    """By confidence, of what was trained on against what was not."""
    values = {
        member: np.array([item.confidence for item in found if item.member is member])
        for member in (True, False)
    }
    for member, name in ((True, "in the training corpus"), (False, "left out of it")):
        if not len(values[member]):
            raise UserError(f"none of what is ranked is {name}; there is nothing to compare with")
    return Roc(values[True], values[False])


def summary(found: Sequence[Ranked]) -> dict[str, Any]:
    """What a table shows: exposure and extraction by group, and what guessing members comes to."""
    curve = roc(found)
    groups: dict[str, list[Ranked]] = {}
    for item in sorted(found, key=lambda item: (not item.member, item.users)):
        for name in _groups(item):
            groups.setdefault(name, []).append(item)
    most = max(item.among for item in found)
    return {
        "candidates": most,
        "exact": all(item.among == item.space for item in found),
        "largest_exposure": math.log2(most),
        "exposure_by_chance": by_chance(most),
        "groups": {name: _of_group(items) for name, items in groups.items()},
        "membership": {"others": len(curve.others), **membership_rates(curve)},
    }


def by_chance(among: int) -> float:
    """Bits of exposure, on average, if all ranks are equally likely: nothing was learned."""
    return math.log2(among) - math.lgamma(among + 1) / math.log(2) / among


def _groups(item: Ranked) -> Iterable[str]:
    inside, outside = ("planted", "left out") if item.extracted is not None else _HELD
    everyone = inside if item.member else outside
    return (everyone,) if item.group == everyone else (everyone, item.group)


_HELD = ("held in", "held out")


def _of_group(items: Sequence[Ranked]) -> dict[str, Any]:
    exposures = np.array([item.exposure for item in items])
    found: dict[str, Any] = {
        "count": len(items),
        "mean_exposure": float(exposures.mean()),
        "median_exposure": float(np.median(exposures)),
        "ranked_first": share([item.rank == 1 for item in items]),
    }
    for name in ("extracted", "in_beams"):
        if all(getattr(item, name) is not None for item in items):
            found[name] = share([getattr(item, name) for item in items])
    return found


def membership_rates(curve: Roc) -> dict[str, Any]:
    """The area under the curve, and true positive rates at a few false positive rates."""
    return {
        "members": len(curve.members),
        "area": curve.area(),
        "at": [_at(curve, rate) for rate in FALSE_POSITIVES],
    }


def _at(curve: Roc, rate: float) -> dict[str, Any]:
    """`resolved` says that there are enough others to tell such a rate from none at all."""
    hits = curve.hits(rate)
    return {
        "false_positives": rate,
        "resolved": len(curve.others) * rate >= 1,
        "true_positives": share([True] * hits + [False] * (len(curve.members) - hits)),
    }


def share(found: Sequence[bool]) -> dict[str, float]:
    """A share, and where it may lie with 95% confidence (Clopper and Pearson 1934)."""
    hits, alpha = np.array([sum(found)]), (1 - _CONFIDENCE) / 2
    return {
        "share": float(hits[0]) / len(found),
        "low": float(at_least(hits, len(found), alpha)[0]),
        "high": float(at_most(hits, len(found), alpha)[0]),
    }
