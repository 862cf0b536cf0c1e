"""A round in which an entity moves several drawn users, by parts that add up to its share.

`docs/privacy.md`, Theorem 7. The draw of one holder stays hidden, those of the others are revealed,
and every way to divide the share has to be bounded. The divergence is convex in what the revealed
holders move, but for epsilons close to zero. So for a given largest part, other parts as large as
that one are the worst; largest parts are tried in steps. Close to zero a bound that is linear in
the parts takes over.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from uedp.accounting.divergence import (
    DominatingPair,
    Floats,
    RevealedMixture,
    ShiftedGaussian,
    binomial,
    log_ratio,
    sampled_gaussian,
)
from uedp.accounting.hidden_holders import HiddenHolders

Mask = npt.NDArray[np.bool_]

# Largest parts, in units of the share. Steps are short where a division is nearly the worst one:
# next to one holder of everything, and to two holders of a half each.
_LARGEST: tuple[float, ...] = (
    *(1.0, 0.985, 0.955, 0.91, 0.85, 0.78, 0.71, 0.65, 0.6, 0.56, 0.53, 0.51),
    *(0.5, 0.485, 0.46, 0.42, 0.37, 0.3, 0.2),
)
_STEPS = tuple(zip(_LARGEST, (*_LARGEST[1:], 0.0), strict=True))
_EXCESS = max(high - low for high, low in _STEPS)  # what a step adds to a whole share
_COARSE = ((1.0, 0.9), (0.9, 0.74), (0.74, 0.5), (0.5, 0.0))
_MOST_HALVINGS = 5
_WIDE_WINDOW = 0.5  # of epsilons around zero: wider than that, a line is a poor bound


@dataclass(frozen=True)
class SharedParts:
    """An entity of which any number of users hold parts, at most `share` together.

    `offset` moves the full corpus beside that, whoever was drawn: rounding, which any holder that
    was drawn may cause. `full` and `emptied` are bounds, convex once enveloped.

    Guarantees:
      - no division of the share, in any world and dimension, diverges by more at any epsilon
      - never below the bound for one holder of the whole share (`HiddenHolders`)
    """

    noise: float
    user_rate: float
    share: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.user_rate < 1 or not 0 < self.share <= 1:
            raise ValueError(f"user rate {self.user_rate}, share {self.share}: must lie in 0..1")

    def full(self, epsilons: Floats) -> Floats:
        return self._bound("full", epsilons, epsilons)

    def emptied(self, epsilons: Floats) -> Floats:
        return self._bound("emptied", epsilons, -epsilons)

    def loss_range(self) -> tuple[float, float]:
        # no loss is beyond those where all holders are known to be drawn
        farthest = self._farthest
        chances = (1 - self.user_rate, self.user_rate)
        return ShiftedGaussian(self.noise, (farthest, farthest + 1), chances).loss_range()

    def loss_spread(self) -> float:
        return self._one.loss_spread()

    @property
    def _farthest(self) -> float:
        return (1 + _EXCESS) * self.share + self.offset

    @property
    def _one(self) -> HiddenHolders:
        """One holder of everything."""
        return HiddenHolders(self.noise, self.user_rate, self.share, 0, 0.0, self.offset)

    def _bound(self, side: str, epsilons: Floats, losses: Floats) -> Floats:
        bound = self._linear(side, epsilons)
        convex, window = _convexity(losses, self.noise, self.user_rate, self._farthest)
        divided = [_at(pair, side, epsilons[convex]) for pair in self._divisions]
        bound[convex] = np.minimum(bound[convex], np.maximum.reduce(divided))
        if window > _WIDE_WINDOW and not convex.all():
            rest = [self._by_mean(side, epsilons[~convex], *step) for step in _COARSE]
            bound[~convex] = np.minimum(bound[~convex], np.maximum.reduce(rest))
        return np.minimum(np.maximum(bound, _at(self._one, side, epsilons)), 1.0)

    def _linear(self, side: str, epsilons: Floats) -> Floats:
        shifts, chances = (self.offset, self.offset + 1), (1 - self.user_rate, self.user_rate)
        user = ShiftedGaussian(self.noise, shifts, chances)
        steepest = _density(self.noise, self.user_rate) * _weight(side, epsilons)
        return _at(user, side, epsilons) + self.user_rate * self.share * steepest

    def _by_mean(self, side: str, epsilons: Floats, high: float, low: float) -> Floats:
        hidden, left = high * self.share, (1 - low) * self.share
        return _by_mean(self.noise, self.user_rate, side, epsilons, hidden, left, self.offset)

    @cached_property
    def _divisions(self) -> tuple[DominatingPair, ...]:
        """For every step, the worst division whose largest part lies in it."""
        return tuple(self._worst(high * self.share, low * self.share) for high, low in _STEPS)

    def _worst(self, most: float, least: float) -> DominatingPair:
        """Parts of `most` and one of what is left, of all beside a largest part of `least`."""
        left = self.share - least
        count = int(left / most * (1 + 1e-12))
        rest = max(left - count * most, 0.0)
        q, weights, pairs = self.user_rate, [], []
        for drawn, chance in enumerate(stats.binom.pmf(np.arange(count + 1), count, q).tolist()):
            for one, probability in ((0, 1 - q), (1, q)) if rest > 0 else ((0, 1.0),):
                weights.append(chance * probability)
                offset = self.offset + drawn * most + one * rest
                pairs.append(HiddenHolders(self.noise, q, most, 0, 0.0, offset))
        return RevealedMixture(tuple(weights), tuple(pairs))


@dataclass(frozen=True)
class MissedParts:
    """The same for an entity that was missed in the texts of `users` more users.

    Each of them moves by up to `missed`, and by its part, if it has one. One of them is hidden.
    `offset` is as in `SharedParts`.

    Guarantees:
      - no division of the share, among these users and others, diverges by more at any epsilon
    """

    noise: float
    user_rate: float
    share: float
    users: int
    missed: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.users < 1 or not 0 < self.user_rate < 1 or not 0 < self.share <= 1:
            raise ValueError("missed in no user, or a rate or share outside of 0..1")

    def full(self, epsilons: Floats) -> Floats:
        return self._bound("full", epsilons, epsilons)

    def emptied(self, epsilons: Floats) -> Floats:
        return self._bound("emptied", epsilons, -epsilons)

    def loss_range(self) -> tuple[float, float]:
        farthest = self.share + (self.users - 1) * self.missed
        return self._holders(self._own(1.0), farthest).loss_range()

    def loss_spread(self) -> float:
        return self._holders(self.missed, 0.0).loss_spread()

    def _own(self, part: float) -> float:
        return min(2.0, self.missed + part * self.share)

    def _holders(self, hidden: float, offset: float) -> HiddenHolders:
        return HiddenHolders(self.noise, self.user_rate, hidden, 0, 0.0, self.offset + offset)

    def _bound(self, side: str, epsilons: Floats, losses: Floats) -> Floats:
        """The largest over all parts that the hidden user may have, in steps."""
        bounds = []
        for high, low in _COARSE:
            hidden, left = self._own(high), (1 - low) * self.share
            farthest = self.offset + hidden + left + (self.users - 1) * self.missed
            turned = max(hidden - 1, 0.0)
            convex, _ = _convexity(losses, self.noise, self.user_rate, farthest, turned)
            bound = self._whatever(side, epsilons, hidden, left)
            bound[convex] = np.minimum(
                bound[convex], self._together(side, epsilons[convex], hidden, left)
            )
            bounds.append(bound)
        largest: Floats = np.minimum(np.maximum.reduce(bounds), 1.0)
        return largest

    def _together(self, side: str, epsilons: Floats, hidden: float, left: float) -> Floats:
        """With all that is left of the share in one user: of the missed ones, if there are more.

        The worst division where the divergence is convex.
        """
        q, one = self.user_rate, left + (self.missed if self.users > 1 else 0.0)
        total = np.zeros_like(epsilons)
        for drawn, chance in binomial(max(self.users - 2, 0), q):
            offset = drawn * self.missed
            for more, probability in ((0.0, 1 - q), (one, q)):
                value = _at(self._holders(hidden, offset + more), side, epsilons)
                total += chance * probability * value
        return total

    def _whatever(self, side: str, epsilons: Floats, hidden: float, left: float) -> Floats:
        """Wherever the rest of the share is: all of it counts if another missed user was drawn."""
        total = np.zeros_like(epsilons)
        for drawn, chance in binomial(self.users - 1, self.user_rate):
            if drawn:
                pair = self._holders(hidden, drawn * self.missed + left)
                total += chance * _at(pair, side, epsilons)
            else:
                mean = _by_mean(
                    self.noise, self.user_rate, side, epsilons, hidden, left, self.offset
                )
                total += chance * mean
        return total


def _by_mean(
    noise: float,
    user_rate: float,
    side: str,
    epsilons: Floats,
    hidden: float,
    most: float,
    offset: float,
) -> Floats:
    """Others move by at most `most`, in the mean by `user_rate` of it; nothing else is known.

    They move by more than `x` with probability `q most / x` at most, and the divergence rises with
    what they move.
    """
    mean = user_rate * most
    halvings = min(int(np.ceil(-np.log2(user_rate))), _MOST_HALVINGS)
    ends = [most * 2.0**-step for step in range(halvings + 1)][::-1]
    values = [
        _at(HiddenHolders(noise, user_rate, hidden, 0, 0.0, offset + end), side, epsilons)
        for end in (0.0, *ends)
    ]
    slope = mean * _highest(noise) * _weight(side, epsilons)
    linear = values[0] + slope
    # up to the first end wholly, or by the steepest slope
    total = np.minimum(values[1], linear)
    for start, below, above in zip(ends, values[1:], values[2:], strict=False):
        total += min(1.0, mean / start) * np.maximum(above - below, 0.0)
    bound: Floats = np.minimum(linear, total)
    return bound


def _at(pair: DominatingPair, side: str, epsilons: Floats) -> Floats:
    return pair.full(epsilons) if side == "full" else pair.emptied(epsilons)


def _convexity(
    losses: Floats, noise: float, user_rate: float, farthest: float, turned: float = 0.0
) -> tuple[Mask, float]:
    """Whether the divergence is convex in what revealed holders move, where these are thresholds.

    It is where the full corpus' density falls at the threshold, or the emptied corpus' rises: all
    but a window around zero, whose width is returned too.

    Args:
        farthest: what all holders together move by, at most.
        turned: by how much the hidden holder moves more than 1.
    """
    user = sampled_gaussian(noise, user_rate)
    ends = np.array([-turned, farthest + _mode(noise, user_rate) + turned])
    rises, falls = user.loss(ends - farthest) + log_ratio(farthest, ends, noise)
    return (losses <= rises) | (losses >= falls), float(falls - rises)


def _weight(side: str, epsilons: Floats) -> Floats:
    """Of the shifted law in the difference whose positive part is integrated."""
    return np.ones_like(epsilons) if side == "full" else np.exp(epsilons)


def _highest(noise: float) -> float:
    """The largest density that a mixture of Gaussians of this noise can have."""
    return float(1 / (noise * np.sqrt(2 * np.pi)))


def _mode(noise: float, user_rate: float) -> float:
    """A place from which on the density of a user's shift falls.

    The mixture of two Gaussians has one mode if they are at most two deviations apart.
    """
    if noise < 0.5 or user_rate > 0.999:
        return 1.0

    def falls(at: float) -> float:
        return at / (1 - at) - user_rate / (1 - user_rate) * float(
            np.exp((2 * at - 1) / (2 * noise**2))
        )

    return float(optimize.brentq(falls, 0.0, 1 - 1e-12)) + 1e-9


def _density(noise: float, user_rate: float) -> float:
    """At least the largest density of a user's shift."""
    if noise < 0.5 or user_rate > 0.999:
        return _highest(noise)
    at = _mode(noise, user_rate)
    weights = np.array([1 - user_rate, user_rate])
    return (
        (1 + 1e-12)
        * _highest(noise)
        * float(weights @ np.exp(-((at - np.arange(2)) ** 2) / 2 / noise**2))
    )
