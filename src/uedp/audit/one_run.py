"""A lower bound on epsilon from a single run with many canaries (Steinke, Nasr, Jagielski 2023).

Each canary is in the corpus or out of it by a fair coin of its own, and an attacker who sees what
the run gave out guesses the coins, of as many canaries as it likes. If the run is
(epsilon, delta)-private for every canary, the correct guesses among `r` are at most as many as
heads of `r` coins that come up with `e^epsilon / (1 + e^epsilon)`, plus a few that delta gives
away, `2 m delta` of `m` canaries on average. More than that refutes the epsilon.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from uedp.accounting.divergence import LARGEST, Floats
from uedp.errors import UserError

Mask = npt.NDArray[np.bool_]


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most likely that so many correct guesses can be, under (epsilon, delta)-privacy.

    With `f(v)` the chance that a binomial of `guesses` trials reaches `v`, it is the theorem's
    `f(v) + 2 m delta max_i (f(v - i) - f(v)) / i`: what delta gives away is best spent on falling
    `i` guesses short.

    Guarantees:
      - not below the chance of this many correct guesses, or more, whatever the mechanism and
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
    reached = float(stats.binom.sf(correct - 1, guesses, right))
    if not (delta and correct):
        return min(reached, 1.0)
    short = stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)
    worst = float((np.cumsum(short) / np.arange(1, correct + 1)).max())
    return min(reached + 2 * canaries * delta * worst, 1.0)


def lower_bound(
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.95,
    *,
    number_fixed: bool = True,
    precision: float = 1e-4,
) -> float:
    """An epsilon that the run exceeds, at this delta; 0 if nothing can be said.

    The theorem is for a number of guesses fixed in advance. If the number follows from what the
    run gave out, all that delta gives away may go to outcomes where it is worth most. What it is
    worth, `max_i (f(v - i) - f(v)) / i`, is a mean of chances of single numbers of heads; none of
    these is larger than the likeliest one's among as few coins as could refute epsilon at all, and
    that takes its place.

    Guarantees:
      - if every canary is protected by (epsilon, delta), the bound exceeds epsilon with a chance
        of `1 - confidence` at most, so long as guesses follow from what the run gave out
      - it does not fall with the number of correct guesses, where `2 m delta` is at most 1
    """
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence}: must lie between 0 and 1")
    alpha = 1 - confidence

    def refuted(epsilon: float) -> bool:
        # whoever keeps a smaller epsilon keeps this one too: one refuted is enough
        if number_fixed:
            return p_value(canaries, guesses, correct, epsilon, delta) <= alpha
        reached = p_value(canaries, guesses, correct, epsilon, 0.0)
        return reached + 2 * canaries * delta * _likeliest(epsilon, alpha) <= alpha

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > LARGEST:
            return LARGEST
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _likeliest(epsilon: float, alpha: float) -> float:
    """The chance of the likeliest number of heads, of the fewest coins that can refute epsilon.

    More coins spread wider.
    """
    right = 1 / (1 + math.exp(-epsilon))
    if right == 1:  # nothing refutes it
        return 1.0
    fewest = math.ceil(math.log(alpha) / math.log(right))
    return float(stats.binom.pmf(math.floor((fewest + 1) * right), fewest, right))


# --- from scores to guesses ----------------------------------------------------------------------


@dataclass(frozen=True)
class Guessing:
    """What scores are guessed to mean: in if above `high`, out if not above `low`, else nothing."""

    high: float
    low: float


@dataclass(frozen=True)
class OneRun:
    """How guesses went, and the epsilon they prove the run to exceed."""

    canaries: int
    guesses: int
    correct: int
    epsilon: float


def choose(scores: Floats, inside: Mask, canaries: int, confidence: float = 0.95) -> Guessing:
    """Where to cut, from canaries whose coins the attacker was shown, to guess `canaries` others.

    Of all pairs of cuts, the one that would prove most if the others behave alike (delta, which
    changes little, left out). Rates of few guesses are taken with a grain of salt, half a right
    and half a wrong guess more, or the very highest and lowest scores would always seem best.
    """
    order = np.argsort(scores, kind="stable")
    ranked, coins = scores[order], inside[order]
    shown = len(ranked)
    # between two scores, nearer to the side that scatters less
    spreads = [float(np.std(scores[side])) if side.any() else 0.0 for side in (~inside, inside)]
    nearer = np.clip(spreads[0] / sum(spreads), 0.1, 0.9) if sum(spreads) else 0.5
    between = ranked[:-1] + nearer * np.diff(ranked)
    cuts = np.concatenate([[-np.inf], between, [np.inf]])

    counts = np.arange(shown + 1)
    share = counts * canaries / max(shown, 1)
    right_in = share * (np.cumsum([0, *coins[::-1]]) + 0.5) / (counts + 1)
    right_out = share * (np.cumsum([0, *~coins]) + 0.5) / (counts + 1)
    top, bottom = np.nonzero(counts[:, None] + counts <= shown)
    guesses = np.round(share[top] + share[bottom])
    correct = np.minimum(np.floor(right_in[top] + right_out[bottom]), guesses)
    with np.errstate(divide="ignore"):
        # without delta, the bound is an interval of Clopper and Pearson (1934)
        chance = special.betaincinv(np.maximum(correct, 1), guesses - correct + 1, 1 - confidence)
    best = int(np.argmax(np.where(correct > 0, chance, 0.0)))
    return Guessing(float(cuts[shown - top[best]]), float(cuts[bottom[best]]))


def prove(
    guessing: Guessing, scores: Floats, inside: Mask, delta: float, confidence: float = 0.95
) -> OneRun:
    """Guess canaries that nothing was chosen on, and see what it proves.

    Guarantees:
      - the bound holds with the confidence, however the scores and the cuts were made from what
        the run gave out and from the coins of other canaries
    """
    into = scores > guessing.high
    out = (scores <= guessing.low) & ~into
    guesses, correct = int((into | out).sum()), int((into & inside).sum() + (out & ~inside).sum())
    epsilon = lower_bound(len(scores), guesses, correct, delta, confidence, number_fixed=False)
    return OneRun(len(scores), guesses, correct, epsilon)
