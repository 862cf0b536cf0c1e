"""A lower bound on epsilon from a single run with many canaries (Steinke, Nasr, Jagielski 2023).

Each canary is in the corpus or out of it by a fair coin of its own, and an attacker who sees the
output of the run guesses the coins, of as many canaries as it likes. If the run is
(epsilon, delta)-private for every canary, the correct guesses among `r` are at most as many as
heads of `r` coins that come up with `e^epsilon / (1 + e^epsilon)`, plus a few that delta gives
away, `2 m delta` of `m` canaries on average. More than that refutes the epsilon.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.audit.bounds import check_confidence
from uedp.errors import UserError
from uedp.mechanism.lending import Mask

_ALIKE = 0.02  # in standard deviations of the scores: smaller gaps are not cut


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many correct guesses, under (epsilon, delta)-privacy.

    With `f(v)` the probability that a binomial of `guesses` trials reaches `v`, the theorem has
    `f(v) + 2 m delta max_i (f(v - i) - f(v)) / i`: delta is best spent on falling `i` guesses
    short. That is for a number of guesses fixed in advance. If the number follows from the output
    of the run, delta may all go to outcomes where it is worth most. Its worth, the maximum, is a
    mean of probabilities of exactly so many heads and not all; with coins that are fair or better
    none of these exceeds a half, so `f(v) + m delta` suffices.

    Guarantees:
      - not below the probability of this many correct guesses, or more, whatever the mechanism and
        whatever the attacker does, so long as at most `guesses` coins are guessed
    """
    if not 0 <= correct <= guesses <= canaries:
        raise UserError(
            f"{correct} correct of {guesses} guesses of {canaries} canaries: each must be at most "
            "the next"
        )
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise UserError(f"epsilon {epsilon}, delta {delta}: not negative, delta at most 1")
    right = 1 / (1 + math.exp(-epsilon))
    return min(float(stats.binom.sf(correct - 1, guesses, right)) + canaries * delta, 1.0)


def lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """An epsilon that the run exceeds, at this delta; 0 if nothing is proven.

    Guarantees:
      - if every canary is protected by (epsilon, delta), the bound exceeds epsilon with a
        probability of `1 - confidence` at most, so long as guesses follow from the run's output
      - it does not fall with the number of correct guesses
    """
    check_confidence(confidence)

    def refuted(epsilon: float) -> bool:
        # a smaller epsilon implies this one: one refuted is enough
        return p_value(canaries, guesses, correct, epsilon, delta) <= 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > MAX_EPSILON:
            return MAX_EPSILON
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Cuts:
    """How scores are read: in if above `high`, out if not above `low`, else no guess."""

    high: float
    low: float


@dataclass(frozen=True)
class OneRunBound:
    """The guesses, and the epsilon that they prove the run to exceed."""

    canaries: int
    guesses: int
    correct: int
    epsilon: float


def choose_cuts(scores: Floats, inside: Mask, canaries: int, confidence: float = 0.95) -> Cuts:
    """Where to cut, from canaries whose coins the attacker was shown, to guess `canaries` others.

    Of all pairs of cuts, the one that would prove most if the others, half of them in, behave alike
    (delta, which changes little, left out). Rates are smoothed by half a canary on either side of
    each cut, or the very highest and lowest scores would always seem best.
    """
    ranked = np.sort(scores)
    # between two scores, nearer to the side that scatters less
    spreads = [float(np.std(scores[side])) if side.any() else 0.0 for side in (~inside, inside)]
    nearer = np.clip(spreads[0] / sum(spreads), 0.1, 0.9) if sum(spreads) else 0.5
    gaps = np.diff(ranked)
    apart = gaps > _ALIKE * np.std(scores)
    cuts = np.concatenate([[-np.inf], (ranked[:-1] + nearer * gaps)[apart], [np.inf]])

    def above(side: Mask) -> Floats:
        """How many of those guessed will be above each cut, if they are in, or if they are out."""
        number = (scores[side] > cuts[:, None]).sum(1)
        share = (number + 0.5) / (side.sum() + 1)
        return np.where(np.isinf(cuts), cuts < 0, share) * canaries / 2

    hits, misses = above(inside), above(~inside)
    low, high = np.nonzero(np.tri(len(cuts), dtype=np.bool_).T)
    right = hits[high] + canaries / 2 - misses[low]
    wrong = misses[high] + canaries / 2 - hits[low]
    guesses = np.round(right + wrong)
    correct = np.minimum(np.floor(right), guesses)
    # without delta, the bound is an interval of Clopper and Pearson (1934)
    chance = special.betaincinv(np.maximum(correct, 1), guesses - correct + 1, 1 - confidence)
    best = int(np.argmax(np.where(correct > 0, chance, 0.0)))
    return Cuts(high=float(cuts[high[best]]), low=float(cuts[low[best]]))


def prove(
    cuts: Cuts, scores: Floats, inside: Mask, delta: float, confidence: float = 0.95
) -> OneRunBound:
    """Guess canaries that nothing was chosen on, and bound epsilon.

    Guarantees:
      - the bound holds with the confidence, however the scores and the cuts were made from the
        output of the run and from the coins of other canaries
    """
    into = scores > cuts.high
    out = (scores <= cuts.low) & ~into
    guesses, correct = int((into | out).sum()), int((into & inside).sum() + (out & ~inside).sum())
    epsilon = lower_bound(len(scores), guesses, correct, delta, confidence)
    return OneRunBound(len(scores), guesses, correct, epsilon)
