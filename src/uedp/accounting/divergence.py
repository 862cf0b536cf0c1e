"""Hockey-stick divergences of one round, exact in closed form and vectorised over epsilon.

A round's output differs between the emptied corpus `D` and the full corpus `D'` by Gaussian
noise `N(0, z^2)` against the same noise shifted by a random amount (`docs/privacy.md`, section
5). Everything here is in units of the update clip beta.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats = npt.NDArray[np.float64]

# Mass in either tail of a round that is not resolved but counted as infinite loss. A million
# rounds of it are still 1e-14.
TAIL_MASS = 1e-20
# Larger losses count as infinite: an epsilon of hundreds promises nothing.
MAX_EPSILON = 500.0
# Binomial outcomes rarer than this count as the largest, and so many at most are told apart.
_RARE = 1e-18
_MAX_OUTCOMES = 400


class DominatingPair(Hashable, Protocol):
    """A dominating pair of a round: no adversary learns more than from a sample of it.

    `full(eps)` is `H_{e^eps}(P' || P)` and `emptied(eps)` is `H_{e^eps}(P || P')`, with `P` the
    output on the emptied corpus. Both are non-increasing and convex in `e^eps`.
    """

    def full(self, epsilons: Floats) -> Floats: ...

    def emptied(self, epsilons: Floats) -> Floats: ...

    def loss_range(self) -> tuple[float, float]:
        """An interval of losses of `full` that holds all but `TAIL_MASS` of `P` and of `P'`."""

    def loss_spread(self) -> float:
        """The standard deviation of the loss, roughly: it sets the grid, not the result."""


@dataclass(frozen=True)
class ShiftedGaussian:
    """`N(0, z^2)` against `sum_i p_i N(s_i, z^2)` on a line, shifts `s_i >= 0`."""

    noise: float
    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        # a shift of probability zero would put log 0 into every sum
        kept = [(s, p) for s, p in zip(self.shifts, self.probabilities, strict=True) if p > 0]
        object.__setattr__(self, "shifts", tuple(s for s, _ in kept))
        object.__setattr__(self, "probabilities", tuple(p for _, p in kept))

    def full(self, epsilons: Floats) -> Floats:
        low, high = self.loss_range()
        result, inside = _outside(epsilons, low, high)
        eps = epsilons[inside]
        at = _log_sum_root(*self._terms, eps, self.noise)
        value = self._mass(-at, 1.0) - np.exp(eps + special.log_ndtr(-at / self.noise))
        result[inside] = np.clip(value, 0.0, 1.0)
        return result

    def emptied(self, epsilons: Floats) -> Floats:
        low, high = self.loss_range()
        result, inside = _outside(epsilons, -high, -low)
        eps = epsilons[inside]
        at = _log_sum_root(*self._terms, -eps, self.noise)
        value = special.ndtr(at / self.noise) - np.exp(eps) * self._mass(at, -1.0)
        result[inside] = np.clip(value, 0.0, 1.0)
        return result

    def loss(self, at: Floats) -> Floats:
        """`ln(dP'/dP)` at points of the line."""
        logs, shifts = self._terms
        value: Floats = special.logsumexp(logs + log_ratio(shifts, at, self.noise), axis=0)
        return value

    def loss_range(self) -> tuple[float, float]:
        if not any(self.shifts):
            return 0.0, 0.0
        ends = [
            s + self.noise * special.ndtri(np.clip(TAIL_MASS / p, 0.0, 0.5)) * -1.0
            for s, p in zip(self.shifts, self.probabilities, strict=True)
        ]
        low = min(0.0, min(2 * s - e for s, e in zip(self.shifts, ends, strict=True)))
        low = min(low, self.noise * special.ndtri(TAIL_MASS))
        lowest, highest = np.clip(self.loss(np.array([low, max(ends)])), -MAX_EPSILON, MAX_EPSILON)
        return float(lowest), float(highest)

    def loss_spread(self) -> float:
        if not any(self.shifts):
            return 0.0
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        weights = weights / weights.sum()
        first = second = 0.0
        for s, p in zip(self.shifts, self.probabilities, strict=True):
            loss = self.loss(s + self.noise * nodes)
            first += p * float(weights @ loss)
            second += p * float(weights @ loss**2)
        return float(np.sqrt(max(second - first**2, 0.0)))

    @property
    def _terms(self) -> tuple[Floats, Floats]:
        return np.log(self.probabilities)[:, None], np.asarray(self.shifts)[:, None]

    def _mass(self, at: Floats, sign: float) -> Floats:
        """`sum_i p_i Phi((at + sign * s_i) / z)`."""
        total = np.zeros_like(at)
        for s, p in zip(self.shifts, self.probabilities, strict=True):
            total += p * special.ndtr((at + sign * s) / self.noise)
        return total


def sampled_gaussian(noise: float, user_rate: float) -> ShiftedGaussian:
    """The sampled Gaussian mechanism: one user's update, present if the user was drawn."""
    return ShiftedGaussian(noise, (0.0, 1.0), (1 - user_rate, user_rate))


class _Combined(ABC):
    """At each epsilon a combination of the divergences of several pairs."""

    pairs: tuple[DominatingPair, ...]

    @abstractmethod
    def _combine(self, divergences: Sequence[Floats]) -> Floats: ...

    def full(self, epsilons: Floats) -> Floats:
        return self._combine([pair.full(epsilons) for pair in self.pairs])

    def emptied(self, epsilons: Floats) -> Floats:
        return self._combine([pair.emptied(epsilons) for pair in self.pairs])

    def loss_range(self) -> tuple[float, float]:
        ranges = [pair.loss_range() for pair in self.pairs]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def loss_spread(self) -> float:
        return min(pair.loss_spread() for pair in self.pairs)


@dataclass(frozen=True)
class RevealedMixture(_Combined):
    """One of several pairs, drawn with these weights and revealed: divergences average."""

    weights: tuple[float, ...]
    pairs: tuple[DominatingPair, ...]

    def _combine(self, divergences: Sequence[Floats]) -> Floats:
        total = np.zeros_like(divergences[0])
        for weight, divergence in zip(self.weights, divergences, strict=True):
            total += weight * divergence
        return total

    def loss_spread(self) -> float:
        spreads = [pair.loss_spread() ** 2 for pair in self.pairs]
        return float(np.sqrt(np.dot(self.weights, spreads)))


@dataclass(frozen=True)
class PointwiseMax(_Combined):
    """Any of several pairs, another in every round: the largest divergence at each epsilon.

    A maximum of convex functions is convex, so this is the divergence of a pair, and it dominates
    each of them.
    """

    pairs: tuple[DominatingPair, ...]

    def _combine(self, divergences: Sequence[Floats]) -> Floats:
        largest: Floats = np.maximum.reduce(divergences)
        return largest


@dataclass(frozen=True)
class PointwiseMin(_Combined):
    """Several bounds on the same round: the smallest divergence at each epsilon.

    It bounds the round's own, which is convex; the minimum need not be, until it is enveloped.
    """

    pairs: tuple[DominatingPair, ...]

    def _combine(self, divergences: Sequence[Floats]) -> Floats:
        smallest: Floats = np.minimum.reduce(divergences)
        return smallest


def binomial(count: int, rate: float) -> list[tuple[int, float]]:
    """Outcomes and probabilities; some outcomes count as larger ones, which is the safe side."""
    mean, variance = count * rate, count * rate * (1 - rate)
    # Bernstein's inequality: at most `_RARE` lies farther from the mean
    distance = -np.log(_RARE) / 3 + np.sqrt(np.log(_RARE) ** 2 / 9 - 2 * np.log(_RARE) * variance)
    low, high = max(int(mean - distance), 0), min(int(np.ceil(mean + distance)), count)
    chances = stats.binom.pmf(np.arange(low, high + 1), count, rate)
    stride = -(-len(chances) // _MAX_OUTCOMES)
    grouped = np.add.reduceat(chances, np.arange(0, len(chances), stride)) / chances.sum()
    largest = np.minimum(low + stride * np.arange(1, len(grouped) + 1) - 1, high)
    cases = [*zip(largest.tolist(), grouped.tolist(), strict=True), (count, 2 * _RARE)]
    return [(n, p) for n, p in cases if p > 0]


def _outside(epsilons: Floats, low: float, high: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Divergences outside the losses from `low` to `high`, and a mask of the epsilons inside.

    Above all losses the divergence is the tail, below them `1 - e^eps` and the tail. Losses cut at
    `MAX_EPSILON` are inside, so that the mass beyond is kept.
    """
    result = np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0) + TAIL_MASS
    inside = (epsilons > low) & (epsilons < high) | (np.abs(epsilons) >= MAX_EPSILON)
    return result, inside & (low < high)


def _log_sum_root(logs: Floats, shifts: Floats, targets: Floats, noise: float) -> Floats:
    """Where `ln sum_i exp(logs_i + s_i (2y - s_i) / (2 z^2))` equals each target.

    The sum is convex and increasing in `y`, so Newton's steps from the right never overshoot.
    Terms are rows; shifts are not negative, and every target is above the terms of shift zero.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        starts = noise**2 * (targets - logs) / shifts + shifts / 2
    starts = np.where((shifts > 0) & np.isfinite(logs), starts, np.inf)
    at: Floats = starts.min(axis=0)
    for _ in range(200):
        value, slope, top = log_sum(logs, shifts, at, noise)
        excess = value - targets
        step = np.where(slope > 0, excess / np.where(slope > 0, slope, 1.0), 0.0)
        at = at - step
        # where the sum is flat, steps stay large while nothing is left to gain
        arrived = np.abs(step) <= 1e-14 * (np.abs(at) + noise)
        if np.all(arrived | (np.abs(excess) <= 4e-16 * (1 + np.abs(top)))):
            break
    return at


def log_sum(
    logs: Floats, shifts: Floats, at: Floats, noise: float
) -> tuple[Floats, Floats, Floats]:
    """`ln sum_i exp(logs_i + s_i (2y - s_i) / (2 z^2))`, its slope, and the largest exponent."""
    terms = logs + log_ratio(shifts, at, noise)
    top = terms.max(axis=0)
    parts = np.exp(terms - top)
    total = parts.sum(axis=0)
    return top + np.log(total), (parts * shifts).sum(axis=0) / (total * noise**2), top


def log_ratio(shifts: Floats | float, at: Floats, noise: float) -> Floats:
    """`ln N(shift) / N(0)` at points of the line."""
    value: Floats = shifts * (2 * at - shifts) / (2 * noise**2)
    return value
