"""Rotation's round without revealing whether the lent user was drawn (Theorem 2).

Let `v` be the user the entity is lent to, `r` its update without the entity's sentences and
`r + a` with them, `b` the update of the user under attack; `|r|, |r + a|, |b| <= 1`, `|a| <= s`.
With both draws hidden,

    P  = (1-q) N(0) + q N(r)                                            (emptied)
    P' = (1-q)^2 N(0) + q(1-q) N(b) + q(1-q) N(r+a) + q^2 N(b+r+a)      (full)

`docs/privacy.md` proves for which epsilon one collinear choice of `r, a, b` is the worst; elsewhere
the bound that reveals the draw (Theorem 1) is used. Theorem 2 is for a coin that always comes up;
any other coin is revealed first, if that is better than revealing the draw.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from uedp.accounting.divergence import (
    DominatingPair,
    Floats,
    PointwiseMin,
    RevealedMixture,
    ShiftedGaussian,
    log_ratio,
    log_sum,
    sampled_gaussian,
)

_TABLE = 2048  # points at which a search for a threshold starts


@dataclass(frozen=True)
class _Density:
    """A mixture of Gaussians on a line, shifts of either sign."""

    noise: float
    shifts: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def largest_shift(self) -> float:
        return max(map(abs, self.shifts))

    def log_and_slope(self, at: Floats) -> tuple[Floats, Floats]:
        """The log density relative to `N(0)`, and its slope."""
        logs, shifts = np.log(self.weights)[:, None], np.asarray(self.shifts)[:, None]
        return log_sum(logs, shifts, at, self.noise)[:2]

    def mass(self, at: Floats, side: float) -> Floats:
        """The mass above the points (side 1) or below them (side -1)."""
        total = np.zeros_like(at)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            total += weight * special.ndtr(side * (shift - at) / self.noise)
        return total


@dataclass(frozen=True)
class HiddenDraw:
    """The dominating pair of Theorem 2. `full` and `emptied` are bounds, convex once enveloped."""

    noise: float
    user_rate: float
    share: float

    @property
    def revealed(self) -> RevealedMixture:
        """Theorem 1's pair for the same round."""
        return revealed_draw(self.noise, self.user_rate, self.share)

    def full(self, epsilons: Floats) -> Floats:
        return _by_symmetry(epsilons, self._full_above, self._emptied_above)

    def emptied(self, epsilons: Floats) -> Floats:
        return _by_symmetry(epsilons, self._emptied_above, self._full_above)

    def loss_range(self) -> tuple[float, float]:
        return self.revealed.loss_range()

    def loss_spread(self) -> float:
        """Of the losses in the world that is the worst for `full`."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        emptied, full = self._upper_world
        first = second = 0.0
        for shift, weight in zip(full.shifts, full.weights, strict=True):
            at = shift + self.noise * nodes
            loss = full.log_and_slope(at)[0] - emptied.log_and_slope(at)[0]
            first += weight * float(weights @ loss) / float(weights.sum())
            second += weight * float(weights @ loss**2) / float(weights.sum())
        return float(np.sqrt(max(second - first**2, 0.0)))

    @property
    def _upper_world(self) -> tuple[_Density, _Density]:
        """Both laws at `r = 1-s, a = s, b = 1`."""
        q, z, s = self.user_rate, self.noise, self.share
        emptied = _Density(z, (0.0, 1 - s), (1 - q, q))
        return emptied, _Density(z, (0.0, 1.0, 2.0), ((1 - q) ** 2, 2 * q * (1 - q), q**2))

    def _full_above(self, epsilons: Floats) -> Floats:
        """`H(P' || P)` for epsilon >= 0: worst at `r = 1-s, a = s, b = 1`, if the split allows."""
        q, z = self.user_rate, self.noise
        bound = self.revealed.full(epsilons)
        emptied, full = self._upper_world
        at = _crossing(full, emptied, epsilons)
        # the positive part at N(b) must be covered by the negative part at N(0) alone
        covered = np.log(q) + log_ratio(1.0, at, z) <= np.log(np.expm1(epsilons) + q)
        value = full.mass(at, 1.0) - np.exp(epsilons) * emptied.mass(at, 1.0)
        return np.where(covered, np.clip(value, 0.0, bound), bound)

    def _emptied_above(self, epsilons: Floats) -> Floats:
        """`H(P || P')` for epsilon >= 0: worst at `r = -1, a = s, b = 1`, if the split allows."""
        q, z, s = self.user_rate, self.noise, self.share
        bound = self.revealed.emptied(epsilons)
        emptied = _Density(z, (0.0, -1.0), (1 - q, q))
        full = _Density(z, (0.0, 1.0, s - 1.0, s), ((1 - q) ** 2, q * (1 - q), q * (1 - q), q**2))
        at = _crossing(full, emptied, -epsilons)
        # the positive part at N(0), if any, must be covered by the negative part at N(b) alone
        positive = np.maximum(1 - np.exp(epsilons) * (1 - q), 0.0)
        with np.errstate(divide="ignore"):
            covered = np.log(positive) - log_ratio(1.0, at, z) <= epsilons + np.log(q)
        value = emptied.mass(at, -1.0) - np.exp(epsilons) * full.mass(at, -1.0)
        return np.where(covered, np.clip(value, 0.0, bound), bound)


def hidden_draw(noise: float, user_rate: float, share: float, coin: float = 1.0) -> DominatingPair:
    """The best bound on a round: with the draw hidden, or with the coin hidden."""
    hidden = HiddenDraw(noise, user_rate, share)
    if coin == 1:
        return hidden
    known_coin = RevealedMixture((1 - coin, coin), (sampled_gaussian(noise, user_rate), hidden))
    return PointwiseMin((known_coin, revealed_draw(noise, user_rate, share, coin)))


def revealed_draw(
    noise: float, user_rate: float, share: float, coin: float = 1.0
) -> RevealedMixture:
    """Theorem 1's pair: it is revealed whether the entity's holder was drawn, at rate `q_u`."""
    chances = tuple(c * p for p in (1 - user_rate, user_rate) for c in (1 - coin, coin))
    both = ShiftedGaussian(noise, (0.0, share, 1.0, 1.0 + share), chances)
    return RevealedMixture((1 - user_rate, user_rate), (sampled_gaussian(noise, user_rate), both))


def _crossing(full: _Density, emptied: _Density, losses: Floats) -> Floats:
    """A point where the log ratio equals the given loss; nan where the search fails.

    Where the ratio is not monotone there may be several such points; the bound holds at any of
    them, because the condition under which it is used implies that there is only one. At any other
    point the value would be too small, so only a point that solves the equation is returned.
    """

    def excess(at: Floats, loss: Floats) -> tuple[Floats, Floats]:
        (up, up_slope), (down, down_slope) = full.log_and_slope(at), emptied.log_and_slope(at)
        return up - down - loss, up_slope - down_slope

    low, high = _bracket(full, emptied, losses)
    found, searched, loss = (low + high) / 2, np.arange(len(losses)), losses
    before = np.full_like(losses, np.inf)
    for _ in range(300):
        at = found[searched]
        over, slope = excess(at, loss)
        high, low = np.where(over >= 0, at, high), np.where(over >= 0, low, at)
        newton = at - over / np.where(slope > 0, slope, np.inf)
        # a step that gains little is followed by one that halves the bracket: pure Newton can
        # oscillate between flat and steep
        use = (newton > low) & (newton < high) & (slope > 0) & (np.abs(over) <= before / 2)
        following = np.where(use, newton, (low + high) / 2)
        found[searched] = following
        moving = np.abs(following - at) > 1e-14 * (np.abs(at) + full.noise)
        if not moving.any():
            break
        searched, loss, before = searched[moving], loss[moving], np.abs(over[moving])
        low, high = low[moving], high[moving]
    at = found
    residual = np.abs(excess(at, losses)[0])
    steepest = (full.largest_shift + emptied.largest_shift) / full.noise**2  # no slope is larger
    rounding = 1e-13 * (1 + np.abs(losses) + steepest * (np.abs(at) + full.noise))
    return np.where(residual <= rounding, at, np.nan)


def _bracket(full: _Density, emptied: _Density, losses: Floats) -> tuple[Floats, Floats]:
    """Two near points for each loss, with the log ratio below it at one and not below at the other.

    Both come from a table of the ratio, whose running maximum tells where it first reaches a loss.
    """
    reach = full.largest_shift + emptied.largest_shift + 10 * full.noise
    for _ in range(100):
        table = np.linspace(-reach, reach, _TABLE)
        ratio = full.log_and_slope(table)[0] - emptied.log_and_slope(table)[0]
        if np.all((ratio[0] <= losses) & (losses <= ratio[-1])):
            break
        reach *= 2
    first = np.clip(np.searchsorted(np.maximum.accumulate(ratio), losses), 1, _TABLE - 1)
    return table[first - 1], table[first]


def _by_symmetry(
    epsilons: Floats, above: Callable[[Floats], Floats], other: Callable[[Floats], Floats]
) -> Floats:
    """A divergence at every epsilon from both directions' at epsilon >= 0.

    `H_g(A || B) = 1 - g + g H_{1/g}(B || A)`.
    """
    result = np.empty_like(epsilons)
    positive = epsilons >= 0
    result[positive] = above(epsilons[positive])
    g = np.exp(epsilons[~positive])
    result[~positive] = 1 - g + g * other(-epsilons[~positive])
    return result
