"""Rotation's round for an entity that several drawn users mention, their draws hidden (Theorem 3).

An entity that was missed in some sentences moves more users than the one it is lent to. Holder `i`
moves by at most `k_i` between the emptied corpus and the full one, from `r_i` to `r_i + a_i`, if it
was drawn; `|r_i|, |r_i + a_i| <= 1`. Holders whose draw is known move the full corpus by an
offset. `docs/privacy.md` proves at which epsilon one of two collinear worlds is the worst; at the
others one more draw is revealed.

Nothing here searches for a threshold: each point of the line is the threshold of the epsilon
computed there. Between these epsilons the divergence, convex in `e^eps`, lies below its chords.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from uedp.accounting.divergence import (
    MAX_EPSILON,
    TAIL_MASS,
    Floats,
    RevealedMixture,
    ShiftedGaussian,
    log_ratio,
)

_FARTHEST = 9.5  # standard deviations; beyond lies less than `TAIL_MASS`
_FINEST, _MOST_POINTS = 0.01, 8000  # of the loss between two points, and of points in a world
_RANGE = np.geomspace(1e-8, MAX_EPSILON, 1500)  # epsilons at which the range of losses may end


@dataclass(frozen=True)
class HiddenHolders:
    """`others` holders who move by up to `move`, and one by up to `lent`, none of them revealed.

    Those that were revealed, and drawn, move the full corpus by up to `offset`. The protected
    user's own draw is hidden as well. `full` and `emptied` are bounds, convex once enveloped.

    Guarantees:
      - no world of these moves, in any dimension, diverges by more at any epsilon
      - with one holder some world attains the bound, but for chords between neighbouring points
    """

    noise: float
    user_rate: float
    lent: float
    others: int
    move: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.user_rate < 1:
            raise ValueError(f"user rate {self.user_rate}: nothing to hide")
        # one form for each world, so that none is computed twice
        if not self.others or not self.move:
            object.__setattr__(self, "others", 1 if self.lent else 0)
            object.__setattr__(self, "move", self.lent)
            object.__setattr__(self, "lent", 0.0)
        elif self.lent == self.move:
            object.__setattr__(self, "others", self.others + 1)
            object.__setattr__(self, "lent", 0.0)

    @property
    def revealed(self) -> RevealedMixture:
        """The same round with every holder's draw revealed."""
        weights, pairs = [], []
        for lent, others, chance in self._outcomes():
            shift = self.offset + lent * self.lent + others * self.move
            weights.append(chance)
            chances = (1 - self.user_rate, self.user_rate)
            pairs.append(ShiftedGaussian(self.noise, (shift, shift + 1), chances))
        return RevealedMixture(tuple(weights), tuple(pairs))

    def full(self, epsilons: Floats) -> Floats:
        return self._bound("full", epsilons, {})

    def emptied(self, epsilons: Floats) -> Floats:
        return self._bound("emptied", epsilons, {})

    def loss_range(self) -> tuple[float, float]:
        return _loss_range(self)

    def loss_spread(self) -> float:
        return self.revealed.loss_spread()

    def _bound(self, side: str, epsilons: Floats, known: dict["HiddenHolders", Floats]) -> Floats:
        """The smaller of the bound by the two worlds and the bound with one more draw revealed."""
        if self not in known:
            bound = _chords(self)[side].at(epsilons)
            for away, drawn in self._reveal_one():
                average = (1 - self.user_rate) * away._bound(side, epsilons, known)
                average += self.user_rate * drawn._bound(side, epsilons, known)
                bound = np.minimum(bound, average)
            known[self] = bound
        return known[self]

    def _reveal_one(self) -> Iterator[tuple["HiddenHolders", "HiddenHolders"]]:
        """The round once a holder is known not to be drawn, and once it is known to be."""
        if self.lent:
            away = replace(self, lent=0.0)
            yield away, replace(away, offset=self.offset + self.lent)
        if self.others:
            away = replace(self, others=self.others - 1)
            yield away, replace(away, offset=self.offset + self.move)

    def _outcomes(self) -> Iterator[tuple[int, int, float]]:
        """Whether the lent holder was drawn, how many others were, and how likely that is."""
        q = self.user_rate
        lent = ((0, 1 - q), (1, q)) if self.lent else ((0, 1.0),)
        chances = stats.binom.pmf(np.arange(self.others + 1), self.others, q)
        for (one, p), (count, chance) in product(lent, enumerate(chances.tolist())):
            yield one, count, p * chance


@dataclass(frozen=True)
class Chords:
    """A bound on a divergence at some epsilons, ascending; between them, by convexity, chords."""

    epsilons: Floats
    values: Floats

    @classmethod
    def through(cls, epsilons: Floats, values: Floats) -> "Chords":
        epsilons, first = np.unique(epsilons, return_index=True)
        return cls(epsilons, values[first])

    def at(self, epsilons: Floats) -> Floats:
        """Above the last point its value; below the first the chord to 1 at `e^eps = 0`."""
        if not len(self.epsilons):
            return np.ones_like(epsilons)
        nodes = np.concatenate([[-np.inf], self.epsilons])
        values = np.concatenate([[1.0], self.values])
        right = np.clip(np.searchsorted(nodes, epsilons), 1, len(nodes) - 1)
        high = nodes[right]
        weight = np.expm1(np.minimum(epsilons - high, 0.0)) / np.expm1(nodes[right - 1] - high)
        chord: Floats = weight * values[right - 1] + (1 - weight) * values[right]
        return chord


@dataclass(frozen=True)
class _World:
    """Everything on one line. Rows are outcomes of the holders' draws, `lent` and `others`.

    `rest` is the mean of an outcome on the emptied corpus, `moved` that on the full one while the
    protected user is not drawn.
    """

    noise: float
    user_rate: float
    drawn: npt.NDArray[np.int64]
    chances: Floats
    rest: Floats
    moved: Floats
    upwards: bool

    @cached_property
    def points(self) -> Floats:
        """Thresholds to try, from the end of one tail to the end of the other."""
        means = np.concatenate([self.rest, self.moved, self.moved + 1])
        low = means.min() - _FARTHEST * self.noise
        high = means.max() + _FARTHEST * self.noise
        # the loss rises by no more than this from one end to the other
        rise = (high - low) * (means.max() - means.min()) / self.noise**2
        count = int(min(_MOST_POINTS, 1200 + rise / _FINEST))
        points: Floats = np.linspace(low, high, count)
        return points

    def log_parts(self) -> tuple[Floats, Floats]:
        """Each outcome's part of the log densities at the points, relative to `N(0)`."""
        q, logs = self.user_rate, np.log(self.chances)[:, None]
        absent = np.log1p(-q) + self._log_ratio(self.moved)
        present = np.log(q) + self._log_ratio(self.moved + 1)
        return logs + self._log_ratio(self.rest), logs + np.logaddexp(absent, present)

    def log_mass(self, side: float, points: Floats) -> tuple[Floats, Floats]:
        """Logarithms of both laws' masses above some points (side 1) or below them (side -1)."""
        q, logs = self.user_rate, np.log(self.chances)[:, None]
        absent = np.log1p(-q) + self._log_tail(self.moved, side, points)
        present = np.log(q) + self._log_tail(self.moved + 1, side, points)
        rest: Floats = _log_sum(logs + self._log_tail(self.rest, side, points))
        full: Floats = _log_sum(logs + np.logaddexp(absent, present))
        return rest, full

    def _log_ratio(self, means: Floats) -> Floats:
        return log_ratio(means[:, None], self.points, self.noise)

    def _log_tail(self, means: Floats, side: float, points: Floats) -> Floats:
        tail: Floats = special.log_ndtr(side * (means[:, None] - points) / self.noise)
        return tail

    def worst_at(self, full: Floats, emptied: Floats, margin: Floats) -> npt.NDArray[np.bool_]:
        """A mask of the points where the condition of Theorem 3 holds.

        `full` and `emptied` are each outcome's part of the two densities; both sum up to one. Every
        set of outcomes that contains with each also those of more draws must have at least as much
        of the full density as of the emptied one (the reverse in the lower world). Equivalently,
        the rest must have at most as much; one of the two inequalities beyond rounding suffices,
        because in a tail one of the two sets holds all the mass.
        """
        excess = full - emptied if self.upwards else emptied - full
        size = full + emptied
        holds = np.ones(full.shape[1], dtype=np.bool_)
        for inside in _up_sets(self.drawn):
            more = excess[inside].sum(axis=0) > margin * size[inside].sum(axis=0)
            less = -excess[~inside].sum(axis=0) > margin * size[~inside].sum(axis=0)
            holds &= more | less
        return holds


def _log_sum(logs: Floats) -> Floats:
    """Of each column: SciPy's takes longer to look at its arguments than to add up a few rows."""
    largest: Floats = logs.max(axis=0)
    if len(logs) == 1:
        return largest
    with np.errstate(invalid="ignore"):
        total = largest + np.log(np.exp(logs - largest).sum(axis=0))
    return np.where(np.isneginf(largest), -np.inf, total)


def _up_sets(drawn: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.bool_]]:
    """Sets of outcomes (rows) that contain with each those of more draws; neither all nor none."""
    lent, others = drawn.T
    most = others.max(initial=0)
    for with_lent, without in product(range(most + 2), range(most + 2)):
        if with_lent <= without:
            inside = others >= np.where(lent == 1, with_lent, without)
            if inside.any() and not inside.all():
                yield inside


def _worlds(holders: HiddenHolders) -> Iterator[_World]:
    """The upper world, `r = 1 - move`, and the lower one, `r = -1`; all moves point upwards."""
    outcomes = list(holders._outcomes())
    drawn = np.array([(lent, others) for lent, others, _ in outcomes], dtype=np.int64)
    chances = np.array([chance for *_, chance in outcomes])
    count = drawn.sum(axis=1)
    moves = drawn @ np.array([holders.lent, holders.move])
    for rest, upwards in ((count - moves, True), (-1.0 * count, False)):
        moved = holders.offset + rest + moves
        yield _World(holders.noise, holders.user_rate, drawn, chances, rest, moved, upwards)


@lru_cache(maxsize=1024)
def _chords(holders: HiddenHolders) -> dict[str, Chords]:
    """The divergences of the two worlds, each at the epsilons where it is the worst."""
    losses, full, emptied = [], [], []
    for world in _worlds(holders):
        rest_parts, full_parts = world.log_parts()
        rest_total = _log_sum(rest_parts)
        full_total = _log_sum(full_parts)
        largest = np.abs(full_parts).max(axis=0) + np.abs(rest_parts).max(axis=0)
        shares = np.exp(full_parts - full_total), np.exp(rest_parts - rest_total)
        holds = world.worst_at(*shares, margin=1e-13 * (1 + largest))
        loss = (full_total - rest_total)[holds]
        points = world.points[holds]  # often few of them: tails take the most of the time
        rest_above, full_above = world.log_mass(1.0, points)
        rest_below, full_below = world.log_mass(-1.0, points)
        losses.append(loss)
        with np.errstate(over="ignore"):
            full.append(np.exp(full_above) - np.exp(rest_above + loss))
            emptied.append(np.exp(rest_below) - np.exp(full_below - loss))
        if not len(world.drawn) > 1:
            break  # no one's draw is hidden: the two worlds are one
    loss = np.concatenate(losses)
    return {
        "full": Chords.through(loss, np.clip(np.concatenate(full), 0.0, 1.0)),
        "emptied": Chords.through(-loss, np.clip(np.concatenate(emptied), 0.0, 1.0)),
    }


@lru_cache(maxsize=256)
def _loss_range(holders: HiddenHolders) -> tuple[float, float]:
    """An interval at most two percent too wide."""
    low, high = (
        float(_RANGE[np.argmax(small)])
        if (small := side(_RANGE) <= TAIL_MASS).any()
        else MAX_EPSILON
        for side in (holders.emptied, holders.full)
    )
    return -low, high
