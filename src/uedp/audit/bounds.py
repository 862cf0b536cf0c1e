"""From an attacker's scores to lower bounds on epsilon.

An attack guesses from a score which of two corpora a run was on. How often it is right and wrong,
bounded by Clopper and Pearson's (1934) exact intervals, bounds the epsilon of the mechanism from
below. Attack, direction and threshold are chosen on one part of the scores and tested on
the other, so that choosing costs no confidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.proven import Guarantee
from uedp.errors import UserError
from uedp.incidence import Ints

# the best threshold is flat: choosing it roughly costs less than a wider interval in the test
_SHARE_FOR_CHOOSING = 0.15
_RANKS = 30  # of candidate thresholds: more would only overfit the part for choosing

Merit = Callable[[Floats, Floats, bool], Floats]
"""How much the rates of right and wrong guesses, of the full corpus or not, would prove."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of runs on either corpus; high ones speak for `guessed`, low ones for `other`.

    `full` says whether the corpus guessed is the full one, so that a score bounds
    `H(P' || P)`; else it is the emptied one.
    """

    name: str
    guessed: Floats
    other: Floats
    full: bool = True

    def reversed(self) -> "Scores":
        """The same attack, guessing the other corpus."""
        return Scores(self.name, -self.other, -self.guessed, not self.full)

    def split(self) -> tuple["Scores", "Scores"]:
        """A part for choosing, and a larger one for testing."""
        sides = (self.guessed, self.other)
        first, second = (max(1, round(_SHARE_FOR_CHOOSING * len(side))) for side in sides)
        return (
            Scores(self.name, self.guessed[:first], self.other[:second], self.full),
            Scores(self.name, self.guessed[first:], self.other[second:], self.full),
        )


@dataclass(frozen=True)
class GuessCounts:
    """How often a threshold guessed a corpus: in `right` runs on it, in `wrong` on the other."""

    right: int
    right_of: int
    wrong: int
    wrong_of: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """A lower bound on the rate of right guesses, and an upper one on that of wrong ones.

        Guarantees:
          - both hold at once with the given confidence, if the threshold was chosen on other runs
        """
        check_confidence(confidence)
        alpha = (1 - confidence) / 2
        low = at_least(np.array([self.right]), self.right_of, alpha)
        high = at_most(np.array([self.wrong]), self.wrong_of, alpha)
        return float(low[0]), float(high[0])

    def epsilon(self, delta: float, confidence: float) -> float:
        """What these guesses prove of any mechanism."""
        right, wrong = (np.array([rate]) for rate in self.rates(confidence))
        return min(float(threshold_epsilon(right, wrong, delta)[0]), MAX_EPSILON)


@dataclass(frozen=True)
class Point:
    """Bounds on the rates of guesses at a threshold: right at least, wrong at most so often."""

    attack: str
    full: bool
    threshold: float
    right: float
    wrong: float
    counts: GuessCounts

    def merit(self, merit: Merit) -> float:
        """What its rates come to."""
        return float(merit(np.array([self.right]), np.array([self.wrong]), self.full)[0])


def at_least(hits: Ints, trials: int, alpha: float) -> Floats:
    """A lower bound on a probability, from how often the event occurred.

    Guarantees:
      - at most the probability, but in a fraction `alpha` of all cases
    """
    low = special.betaincinv(np.maximum(hits, 1), trials - hits + 1.0, alpha)
    return np.where(hits > 0, low, 0.0).astype(np.float64)


def at_most(hits: Ints, trials: int, alpha: float) -> Floats:
    """An upper bound on a probability: the complement of the lower bound on its complement."""
    high = special.betaincinv(hits + 1.0, np.maximum(trials - hits, 1), 1 - alpha)
    return np.where(hits < trials, high, 1.0).astype(np.float64)


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence}: must lie between 0 and 1")


class Trial:
    """Attacks, in both directions, chosen among on one part of their scores, tested on the other.

    Guarantees:
      - `right` of a point tested is at most, and `wrong` at least, the attack's true rate at the
        threshold, both at once with the given confidence, whatever the merit and however many
        attacks there are
    """

    def __init__(self, attacks: Sequence[Scores], confidence: float) -> None:
        check_confidence(confidence)
        self.confidence = confidence
        self._alpha = (1 - confidence) / 2
        self._ways = []
        for way in (way for one in attacks for way in (one, one.reversed())):
            choose, test = way.split()
            thresholds = _thresholds(choose)
            self._ways.append((test, thresholds, *_rates(choose, thresholds, self._alpha)))

    def most(self, merit: Merit) -> float:
        """The largest merit on the part for choosing."""
        return max(float(merit(r, w, way.full).max()) for way, _, r, w in self._ways)

    def test(self, merit: Merit) -> Point:
        """The attack, direction and threshold of most merit, with their rates on the other part."""
        merits = [merit(right, wrong, way.full) for way, _, right, wrong in self._ways]
        way, thresholds, _, _ = self._ways[int(np.argmax([m.max() for m in merits]))]
        threshold = thresholds[[int(np.argmax(max(merits, key=np.max)))]]
        # counting millions takes a tenth of sorting them
        right, wrong = (np.count_nonzero(part >= threshold) for part in (way.guessed, way.other))
        counts = GuessCounts(int(right), len(way.guessed), int(wrong), len(way.other))
        rates = counts.rates(self.confidence)
        return Point(way.name, way.full, float(threshold[0]), *rates, counts)


def _rates(scores: Scores, thresholds: Floats, alpha: float) -> tuple[Floats, Floats]:
    def hits(values: Floats) -> Ints:
        return len(values) - np.searchsorted(np.sort(values), thresholds, side="left")

    return (
        at_least(hits(scores.guessed), len(scores.guessed), alpha),
        at_most(hits(scores.other), len(scores.other), alpha),
    )


def _thresholds(scores: Scores) -> Floats:
    """Candidate thresholds, close together in the tails, where small probabilities differ."""
    candidates = []
    for values in (scores.guessed, scores.other):
        ranks = np.unique(np.geomspace(1, len(values), _RANKS).astype(int)) - 1
        candidates += [np.sort(values)[ranks], np.sort(values)[-1 - ranks]]
    return np.unique(np.concatenate(candidates))


def threshold_epsilon(right: Floats, wrong: Floats, delta: float) -> Floats:
    """`ln((right - delta) / wrong)`: what one point proves of any mechanism; at least 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(np.maximum(right - delta, 0.0)) - np.log(wrong)
    positive: Floats = np.maximum(value, 0.0)
    return positive


def gaussian_mu(right: Floats, wrong: Floats) -> Floats:
    """The mu-GDP curve through a point (Dong, Roth and Su 2022); 0 if guesses were useless."""
    with np.errstate(invalid="ignore"):
        mu = special.ndtri(right) - special.ndtri(wrong)
    return np.maximum(np.nan_to_num(mu, nan=0.0, neginf=0.0), 0.0)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The hockey-stick divergence of `N(0, 1)` and `N(mu, 1)`."""
    if mu <= 0:
        return 0.0
    ahead = special.ndtr(mu / 2 - epsilon / mu)
    return float(ahead - np.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at a delta of mu-GDP.

    A bound on a mechanism only as far as the mechanism's curve is that of a Gaussian: it
    extrapolates from a point measured at frequent errors to a rare delta.
    """
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    return float(optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-9))


@dataclass(frozen=True, eq=False)
class Curve:
    """The divergences a guarantee allows at some epsilons, in either direction."""

    epsilons: Floats
    full: Floats
    emptied: Floats

    @classmethod
    def of(cls, guarantee: Guarantee, points: int = 120) -> "Curve":
        top = min(guarantee.epsilon(1e-6), MAX_EPSILON)
        epsilons = np.linspace(0.0, max(top, 0.1), points)
        losses = [
            [[one.delta(e) for e in epsilons] for one in b] for b in guarantee.losses.values()
        ]
        return cls(epsilons, *np.max(losses, axis=0))

    def excess(self, right: Floats, wrong: Floats, full: bool) -> Floats:
        """By how much guesses beat what is allowed at the worst epsilon; above 0, it is refuted.

        Guarantees:
          - not above 0 for the true rates of any attack, if the guarantee holds
        """
        mine, opposite = (self.full, self.emptied) if full else (self.emptied, self.full)
        factor = np.exp(self.epsilons)[:, None]
        over = right - factor * wrong - mine[:, None]
        # the same guess read backwards: who is not guessed
        under = (1 - wrong) - factor * (1 - right) - opposite[:, None]
        worst: Floats = np.maximum(over, under).max(axis=0)
        return worst


def largest_noise(
    trial: Trial, curve_of: Callable[[float], Curve], claimed: float, precision: float = 0.002
) -> tuple[float, Point]:
    """A bound on the noise of a mechanism whose curve is one of a family, more noise allowing less.

    Sought from `claimed / 4096` to `claimed * 64`; infinite if all of that allows what was seen.

    Guarantees:
      - the curve of more noise than is returned does not allow the point, so that a mechanism of
        the family has at most this noise, with the confidence of the trial
    """

    def bisected(allowed: Callable[[Curve], bool]) -> float:
        low = high = claimed
        while allowed(curve_of(high)):
            low, high = high, 2 * high
            if high > 64 * claimed:
                return math.inf
        while not allowed(curve_of(low)) and low > claimed / 4096:
            low, high = low / 2, low
        while high - low > precision * high:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if allowed(curve_of(middle)) else (low, middle)
        return high

    # the threshold that refutes least noise is chosen first, on the part for choosing
    chosen = bisected(lambda curve: trial.most(curve.excess) <= 0)
    point = trial.test(curve_of(min(chosen, 64 * claimed)).excess)
    return bisected(lambda curve: point.merit(curve.excess) <= 0), point
