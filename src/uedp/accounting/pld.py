"""Privacy-loss distributions: discretise a pair, compose rounds, read off epsilon.

Discretisation is connect-the-dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): exact at
the chosen epsilons, above the truth between them, hence pessimistic at any resolution. A round is
kept at a few thousand losses, close together where the mass is and at equal ratios in the tails;
only to compose are they put on an equidistant grid, by the same rule. Tests compare both with
dp-accounting and with finer grids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import fft

from uedp.accounting.divergence import MAX_EPSILON, TAIL_MASS, DominatingPair, Floats

Ints = npt.NDArray[np.int64]

# Neighbouring losses of a round are `sqrt(spread^2 + loss^2) / _NODES` apart, those of the grid on
# which rounds are composed `spread / _STEPS_PER_SPREAD`. A gap d adds at most d^2/4 to the variance
# of what lies in it: together about 1e-4 of a round's.
_NODES = 384
_FINEST = 1e-9  # smaller spreads count as this: closer losses are lost in rounding
_STEPS_PER_SPREAD = 64
_MAX_STEP = 0.1
# Points of the grid, at most. Rounding every loss to it spreads the sum of T of them by
# sqrt(T) / 2 steps, so many rounds need a finer grid than few.
_FEW_POINTS, _POINTS_PER_ROOT_ROUND, _MOST_POINTS = 1 << 17, 1 << 10, 1 << 21
# Rounding errors of a round, times a margin: of its divergences (up to 2e-16), and of a Fourier
# coefficient, relative. Raised to the T-th power the latter grows T-fold (measured: 9e-17 T of
# delta). `slack` carries them into delta.
_ROUNDING = 1e-15
_TAILS = 4 * TAIL_MASS  # a round's tail holds at most this: a mixture has up to four components
_NOISE = 1e-15  # rounding of a divergence; a point less above a chord is not above it
_WRAPPED = 1e-15  # mass outside the range that a sum is kept on, by Chernoff's bound
_MOST_SLACK = 0.2  # of delta; it is charged, so this is about utility


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """Masses at losses in ascending order, plus mass at infinity."""

    losses: Floats
    masses: Floats
    infinite: float
    slack: float = 0.0  # of delta, for rounding errors; `epsilon` and `delta` add it

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with hockey-stick divergence at most delta; inf if none is.

        Guarantees:
          - never below the epsilon of the pair that was discretised
          - an epsilon beyond `MAX_EPSILON` is given as infinite
        """
        # losses up to zero cannot raise an epsilon that is not negative; those beyond are infinite
        first, last = np.searchsorted(self.losses, [0.0, MAX_EPSILON], side="right")
        losses, masses = self.losses[first:last], self.masses[first:last]
        losses, masses = losses[masses > 0], masses[masses > 0]
        beyond = self.infinite + float(self.masses[last:].sum()) + self.slack
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
        at = int(np.argmax(small))
        return float(np.log((ours[at] - delta) / theirs[at]))

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at an epsilon.

        Guarantees:
          - never below that of the pair that was discretised
        """
        over = self.losses > epsilon
        value = self.infinite - float(np.expm1(epsilon - self.losses[over]) @ self.masses[over])
        return min(1.0, value + self.slack)

    @property
    def variance(self) -> float:
        mean = float(self.losses @ self.masses)
        return float((self.losses - mean) ** 2 @ self.masses)


BothDirections = tuple[PrivacyLossDistribution, PrivacyLossDistribution]
Parts = Sequence[tuple[PrivacyLossDistribution, int]]


@lru_cache(maxsize=128)  # a run asks for the same rounds again, and so does whoever moves a knob
def discretise(pair: DominatingPair) -> BothDirections:
    """The losses of `P'` over `P` and of `P` over `P'`.

    Guarantees:
      - the divergence at every epsilon is at least the pair's, in both directions
    """
    low, high = pair.loss_range()
    spread = max(pair.loss_spread(), _FINEST)
    while True:
        nodes = _nodes(low, high, spread)
        full = _connect(pair.full(nodes), nodes)
        emptied = _connect(pair.emptied(-nodes[::-1]), -nodes[::-1])
        # `loss_spread` is rough, and nodes too far apart would spread the losses themselves
        found = np.sqrt(min(full.variance, emptied.variance))
        if found >= spread / 2 or spread == _FINEST:
            return full, emptied
        spread = max(found, spread / 32, _FINEST)


def _nodes(low: float, high: float, spread: float) -> Floats:
    """Losses from `low` to `high`, closest around 0 and at equal ratios far from it."""
    first, last = float(np.arcsinh(low / spread)), float(np.arcsinh(high / spread))
    count = int(np.ceil((last - first) * _NODES)) + 1
    nodes = np.clip(spread * np.sinh(np.linspace(first, last, count)), low, high)
    nodes[[0, -1]] = low, high
    centre = [0.0] if low < 0 < high else []  # a round without effect loses exactly nothing
    return np.unique(np.concatenate([nodes, centre]))


def _connect(deltas: Floats, nodes: Floats) -> PrivacyLossDistribution:
    if len(deltas) == 1:
        return PrivacyLossDistribution(nodes, 1 - deltas, float(deltas[0]))
    deltas = _enveloped(np.minimum.accumulate(deltas), nodes)
    falls, gaps = -np.diff(deltas), np.diff(nodes)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0]
    masses[1:] = falls / -np.expm1(-gaps)
    masses[:-1] -= falls / np.expm1(gaps)
    # Rounding leaves masses a little below zero. They are paid for by lower losses, never by
    # cutting: the total stays one, and losses only move up.
    above = np.maximum.accumulate(np.cumsum(masses[::-1]))[::-1]
    above[0] = 1 - deltas[-1]
    above = np.minimum(above, above[0])
    return PrivacyLossDistribution(nodes, -np.diff(above, append=0.0), float(deltas[-1]))


def _enveloped(deltas: Floats, nodes: Floats) -> Floats:
    """The largest convex function of `e^eps` below the given values.

    A true divergence is convex, so it lies below the chords of any points of a bound on it,
    whichever are kept. Points above the chord of their neighbours are dropped until none is:
    first of few points far apart, then of more, for a dent may be too shallow to show up close.
    """
    every = np.arange(len(deltas))
    keep = np.zeros(len(deltas), dtype=np.bool_)
    keep[[0, -1]] = True
    for stride in 1 << np.arange(len(deltas).bit_length())[::-1]:
        finer, kept = every[::stride], np.flatnonzero(keep)
        keep[finer] |= deltas[finer] <= _between(deltas, kept, finer, nodes)
        above = np.ones(1, dtype=np.bool_)
        while above.any():
            kept = np.flatnonzero(keep)
            left, middle, right = kept[:-2], kept[1:-1], kept[2:]
            above = deltas[middle] > _chord(deltas, left, middle, right, nodes) + _NOISE
            keep[middle[above]] = False
    return _between(deltas, np.flatnonzero(keep), every, nodes)


def _between(deltas: Floats, kept: Ints, at: Ints, nodes: Floats) -> Floats:
    """The chords of the kept points, read at others."""
    place = np.clip(np.searchsorted(kept, at, side="right"), 1, len(kept) - 1)
    return _chord(deltas, kept[place - 1], at, kept[place], nodes)


def _chord(deltas: Floats, left: Ints, at: Ints, right: Ints, nodes: Floats) -> Floats:
    """The chord from `left` to `right` in terms of `e^eps`, without leaving the exponents."""
    weight = np.expm1(nodes[at] - nodes[right]) / np.expm1(nodes[left] - nodes[right])
    value: Floats = weight * deltas[left] + (1 - weight) * deltas[right]
    return value


def compose(parts: Parts) -> PrivacyLossDistribution:
    """Independent losses added: each part that many times.

    Guarantees:
      - the result does not depend on the order of the parts
      - mass that the grid cannot hold counts as infinite loss
    """
    if any(part.infinite >= 1 or not part.masses.any() for part, _ in parts):
        return PrivacyLossDistribution(np.zeros(1), np.zeros(1), 1.0)
    rounds = sum(count for _, count in parts)
    log_finite = sum(count * np.log1p(-part.infinite) for part, count in parts)
    if log_finite < np.log(_WRAPPED):  # next to nothing stays finite
        return PrivacyLossDistribution(np.zeros(1), np.zeros(1), 1.0)
    step = _grid_step(parts)
    gridded = [(_on_grid(part, step), count) for part, count in parts]
    lower, upper = _support(gridded)
    size = upper - lower + 1
    length = fft.next_fast_len(size, real=True)
    spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
    for part, count in gridded:
        # sums are wanted modulo the length alone, so losses may be reduced as well
        circle = np.bincount(part.places % length, part.masses, length)
        spectrum *= _power(fft.rfft(circle), count)
    circular = fft.irfft(spectrum, length)
    masses = np.roll(circular, -(lower % length))[:size]
    return PrivacyLossDistribution(
        step * np.arange(lower, upper + 1, dtype=np.float64),
        np.maximum(masses, 0.0),  # cutting negative masses only adds to delta
        float(-np.expm1(log_finite)) + _TAILS * rounds + _WRAPPED,
        slack=_ROUNDING * rounds,
    )


def min_delta(rounds: int) -> float:
    """The least delta of which rounding errors of so many rounds take a small part."""
    return ((_ROUNDING + _TAILS) * rounds + _WRAPPED) / _MOST_SLACK


def max_rounds(delta: float) -> int:
    """The most rounds whose rounding errors take a small part of this delta."""
    return int((delta * _MOST_SLACK - _WRAPPED) / (_ROUNDING + _TAILS))


def _power(spectrum: npt.NDArray[np.complex128], count: int) -> npt.NDArray[np.complex128]:
    """By repeated squaring, several times faster than numpy's."""
    result = np.ones_like(spectrum)
    while count:
        if count & 1:
            result *= spectrum
        count >>= 1
        if count:
            spectrum = spectrum * spectrum
    return result


@dataclass(frozen=True)
class _Gridded:
    """Losses as multiples of a step, in any order; a place may occur more than once."""

    places: Ints
    masses: Floats


def _on_grid(part: PrivacyLossDistribution, step: float) -> _Gridded:
    """Each loss divided between the two nearest multiples, so that neither law's mass changes.

    Putting the two together again would give the loss back, so no divergence falls.
    """
    used = part.masses > 0
    losses, masses = part.losses[used], part.masses[used]
    below = np.floor(losses / step)
    share = np.expm1(step * below - losses) / np.expm1(-step)
    up = masses * np.clip(share, 0.0, 1.0)
    places = below.astype(np.int64)
    return _Gridded(np.concatenate([places, places + 1]), np.concatenate([masses - up, up]))


def _grid_step(parts: Parts) -> float:
    """A grid step that is fine enough to cost little epsilon, and coarse enough to be fast."""
    rounds = sum(count for _, count in parts)
    spread = np.sqrt(sum(count * part.variance for part, count in parts) / rounds)
    step = min(max(spread, _FINEST) / _STEPS_PER_SPREAD, _MAX_STEP)
    lower, upper = _support([(_on_grid(part, step), count) for part, count in parts])
    most = min(max(_FEW_POINTS, _POINTS_PER_ROOT_ROUND * np.sqrt(rounds)), _MOST_POINTS)
    return float(step * max(1.0, (upper - lower) / most))


def _support(parts: Sequence[tuple[_Gridded, int]]) -> tuple[int, int]:
    """A range of the grid outside which the sum has at most `_WRAPPED` mass."""
    variance = 0.0
    for part, count in parts:
        mean = part.places @ part.masses
        variance += count * float((part.places - mean) ** 2 @ part.masses)
    # the order at which Chernoff's bound is best for a Gaussian sum
    order = np.sqrt(2 * np.log(2 / _WRAPPED)) / max(np.sqrt(variance), 1.0)
    return -_range_end(parts, -order), _range_end(parts, order)


def _range_end(parts: Sequence[tuple[_Gridded, int]], order: float) -> int:
    """The end of the sum's range, on the right or (order below 0) on the left, by Chernoff's bound.

    The bound has one minimum over the order; heavier tails have it at a lower one.
    """
    sign = 1 if order > 0 else -1
    farthest = sum(count * int((sign * part.places).max()) for part, count in parts)
    bound = np.inf
    while True:
        exponent = np.log(2 / _WRAPPED)
        for part, count in parts:
            exponent += count * _log_mean_exp(np.float64(order) * part.places, part.masses)
        if exponent / abs(order) >= bound:
            return min(farthest, int(np.ceil(bound)))
        bound = exponent / abs(order)
        order *= 0.7


def _log_mean_exp(exponents: Floats, masses: Floats) -> float:
    top = float(exponents[masses > 0].max())
    return top + float(np.log(np.exp(np.minimum(exponents - top, 0.0)) @ masses))
