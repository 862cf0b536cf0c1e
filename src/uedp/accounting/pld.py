"""Privacy-loss distributions: discretise a pair, compose rounds, read off epsilon.

Discretisation is connect-the-dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): exact at
the grid's epsilons, above the truth between them, hence pessimistic at any resolution. Tests
compare it with dp-accounting, whose composition loops over the grid in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import fft

from uedp.accounting.divergence import MAX_EPSILON, TAIL_MASS, DominatingPair, Floats

Ints = npt.NDArray[np.int64]

# Grid steps per standard deviation of one round's loss. A step d adds at most d^2/4 to a round's
# variance, here 6e-5 of it.
_STEPS_PER_SPREAD = 64
_MAX_STEP = 0.1
_MAX_POINTS = 1 << 18
# Relative rounding error of a Fourier coefficient, times a margin. Raised to the T-th power it
# grows T-fold; `slack` carries it into delta.
_ROUNDING = 4e-16
_TAILS = 4 * TAIL_MASS  # a round's tail holds at most this: a mixture has up to four components
_NOISE = 1e-15  # rounding of a divergence; a point less above a chord is not above it
_WRAPPED = 1e-15  # mass outside the range that a sum is kept on, by Chernoff's bound


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """A discretised distribution on the grid `step * (lowest + i)`, plus mass at infinity."""

    step: float
    lowest: int
    masses: Floats
    infinite: float
    slack: float = 0.0  # of delta, for rounding errors; `epsilon` and `delta` add it

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with hockey-stick divergence at most delta; inf if none is.

        Guarantees:
          - never below the epsilon of the pair that was discretised
          - an epsilon beyond `MAX_EPSILON` is given as infinite
        """
        losses = self._losses()
        # losses up to zero cannot raise an epsilon that is not negative; those beyond are infinite
        use = (losses > 0) & (losses <= MAX_EPSILON) & (self.masses > 0)
        beyond = self.infinite + float(self.masses[losses > MAX_EPSILON].sum()) + self.slack
        losses, masses = losses[use], self.masses[use]
        if beyond > delta:
            return float("inf")
        # from the top, at losses of i and above: the mass of one output, and of the other
        ours = beyond + np.cumsum(masses[::-1])[::-1]
        theirs = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        if not len(losses) or ours[0] - theirs[0] <= delta:
            return 0.0
        # delta at losses[i] falls with i; epsilon lies below the first that is small enough, where
        # delta is linear in e^eps
        small = ours - np.exp(losses) * theirs <= delta
        small[-1] = True  # only `beyond` is left there, whatever rounding says
        first = int(np.argmax(small))
        return float(np.log((ours[first] - delta) / theirs[first]))

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at an epsilon.

        Guarantees:
          - never below that of the pair that was discretised
        """
        losses = self._losses()
        over = losses > epsilon
        value = self.infinite - float(np.expm1(epsilon - losses[over]) @ self.masses[over])
        return min(1.0, value + self.slack)

    def _losses(self) -> Floats:
        return self.step * np.arange(self.lowest, self.lowest + len(self.masses), dtype=np.float64)


BothDirections = tuple[PrivacyLossDistribution, PrivacyLossDistribution]


@lru_cache(maxsize=8)  # a run asks for the same rounds again: planned, spent so far, certified
def discretise(pair: DominatingPair, step: float) -> BothDirections:
    """The losses of `P'` over `P` and of `P` over `P'`, on a grid of the given step.

    Guarantees:
      - the divergence at every epsilon is at least the pair's, in both directions
    """
    low, high = pair.loss_range()
    bottom, top = int(np.floor(low / step)), int(np.ceil(high / step))
    grid = step * np.arange(bottom, top + 1, dtype=np.float64)
    full, emptied = pair.full(grid), pair.emptied(-grid[::-1])
    return _connect(full, bottom, step), _connect(emptied, -top, step)


def _connect(deltas: Floats, lowest: int, step: float) -> PrivacyLossDistribution:
    if len(deltas) == 1:
        return PrivacyLossDistribution(step, lowest, 1 - deltas, float(deltas[0]))
    deltas = _enveloped(np.minimum.accumulate(deltas), step)
    falls = -np.diff(deltas)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] - falls[0] / np.expm1(step)
    masses[1:-1] = (falls[:-1] * np.exp(step) - falls[1:]) / np.expm1(step)
    masses[-1] = falls[-1] / -np.expm1(-step)
    # Rounding leaves masses a little below zero. They are paid for by lower losses, never by
    # cutting: the total stays one, and losses only move up.
    above = np.maximum.accumulate(np.cumsum(masses[::-1]))[::-1]
    return PrivacyLossDistribution(step, lowest, -np.diff(above, append=0.0), float(deltas[-1]))


def _enveloped(deltas: Floats, step: float) -> Floats:
    """The largest convex function of `e^eps` below the given values.

    A true divergence is convex, so it lies below the chords of any points of a bound on it,
    whichever are kept. Points above the chord of their neighbours are dropped until none is:
    first of few points far apart, then of more, for a dent may be too shallow to show up close.
    """
    grid = np.arange(len(deltas))
    keep = np.zeros(len(deltas), dtype=np.bool_)
    keep[[0, -1]] = True
    for stride in 1 << np.arange(len(deltas).bit_length())[::-1]:
        finer, kept = grid[::stride], np.flatnonzero(keep)
        keep[finer] |= deltas[finer] <= _between(deltas, kept, finer, step)
        above = np.ones(1, dtype=np.bool_)
        while above.any():
            kept = np.flatnonzero(keep)
            left, middle, right = kept[:-2], kept[1:-1], kept[2:]
            above = deltas[middle] > _chord(deltas, left, middle, right, step) + _NOISE
            keep[middle[above]] = False
    return _between(deltas, np.flatnonzero(keep), grid, step)


def _between(deltas: Floats, kept: Ints, at: Ints, step: float) -> Floats:
    """The chords of the kept points, read at others."""
    place = np.clip(np.searchsorted(kept, at, side="right"), 1, len(kept) - 1)
    return _chord(deltas, kept[place - 1], at, kept[place], step)


def _chord(deltas: Floats, left: Ints, at: Ints, right: Ints, step: float) -> Floats:
    """The chord from `left` to `right` in terms of `e^eps`, without leaving the exponents."""
    weight = np.expm1(-step * (right - at)) / np.expm1(-step * (right - left))
    value: Floats = weight * deltas[left] + (1 - weight) * deltas[right]
    return value


def compose(parts: Sequence[tuple[PrivacyLossDistribution, int]]) -> PrivacyLossDistribution:
    """Independent losses added: each part that many times. All parts share one step.

    Guarantees:
      - the result does not depend on the order of the parts
      - mass that the grid cannot hold counts as infinite loss
    """
    (step,) = {part.step for part, _ in parts}
    if any(part.infinite >= 1 or not part.masses.any() for part, _ in parts):
        return PrivacyLossDistribution(step, 0, np.zeros(1), 1.0)
    rounds = sum(count for _, count in parts)
    log_finite = sum(count * np.log1p(-part.infinite) for part, count in parts)
    if log_finite < np.log(_WRAPPED):  # next to nothing stays finite
        return PrivacyLossDistribution(step, 0, np.zeros(1), 1.0)
    lower, upper = _support(parts, step)
    size = upper - lower + 1
    length = fft.next_fast_len(max(size, *(len(part.masses) for part, _ in parts)), real=True)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for part, count in parts:
        spectrum *= fft.rfft(part.masses, length) ** count
    circular = fft.irfft(spectrum, length)
    start = sum(part.lowest * count for part, count in parts)
    masses = np.roll(circular, -(lower - start))[:size]
    return PrivacyLossDistribution(
        step,
        lower,
        np.maximum(masses, 0.0),
        float(-np.expm1(log_finite)) + _TAILS * rounds + _WRAPPED,
        slack=_ROUNDING * rounds,
    )


def min_delta(rounds: int) -> float:
    """The least delta at which rounding errors of so many rounds are negligible."""
    return 100 * ((_ROUNDING + _TAILS) * rounds + _WRAPPED)


def max_rounds(delta: float) -> int:
    """The most rounds for which rounding errors are negligible at this delta."""
    return int((delta / 100 - _WRAPPED) / (_ROUNDING + _TAILS))


def _support(parts: Sequence[tuple[PrivacyLossDistribution, int]], step: float) -> tuple[int, int]:
    """A range of the grid outside which the sum has at most `_WRAPPED` mass."""
    spread = np.sqrt(sum(count * _variance(part) for part, count in parts))
    # the order at which Chernoff's bound is best for a Gaussian sum
    order = np.sqrt(2 * np.log(2 / _WRAPPED)) / max(spread, step)
    return -_range_end(parts, -order * step), _range_end(parts, order * step)


def _range_end(parts: Sequence[tuple[PrivacyLossDistribution, int]], order: float) -> int:
    """The end of the sum's range, on the right or (order below 0) on the left, by Chernoff's bound.

    The bound has one minimum over the order; heavier tails have it at a lower one.
    """
    sign = 1 if order > 0 else -1
    farthest = sum(
        count * max(sign * part.lowest, sign * (part.lowest + len(part.masses) - 1))
        for part, count in parts
    )
    bound = np.inf
    while True:
        exponent = np.log(2 / _WRAPPED)
        for part, count in parts:
            points = part.lowest + np.arange(len(part.masses))
            exponent += count * _log_mean_exp(np.float64(order) * points, part.masses)
        if exponent / abs(order) >= bound:
            return min(farthest, int(np.ceil(bound)))
        bound = exponent / abs(order)
        order *= 0.7


def _log_mean_exp(exponents: Floats, masses: Floats) -> float:
    exponents, masses = exponents[masses > 0], masses[masses > 0]
    top = float(exponents.max())
    return top + float(np.log(np.exp(exponents - top) @ masses))


def _variance(part: PrivacyLossDistribution) -> float:
    losses = part._losses()
    mean = float(losses @ part.masses)
    return float((losses - mean) ** 2 @ part.masses)


def grid_step(pairs: Sequence[DominatingPair]) -> float:
    """A grid step that is fine enough to cost little epsilon, and coarse enough to be fast."""
    spreads = [pair.loss_spread() for pair in pairs]
    spread = min((s for s in spreads if s > 0), default=1.0)
    widest = max(high - low for low, high in (pair.loss_range() for pair in pairs))
    step = min(spread / _STEPS_PER_SPREAD, _MAX_STEP)
    return float(max(step, widest / _MAX_POINTS))
