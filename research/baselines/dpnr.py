"""DPNR: word-level local DP for the representation of a text (Lyu, He and Li 2020).

A text loses each word with probability mu, a frozen encoder makes `k` numbers of what is left,
these are moved and scaled to reach from 0 to 1, and each gets Laplace noise of scale `1 / epsilon`.
Published with the budget `epsilon`; what holds is `k epsilon`, and `ln((1-mu) e^(k epsilon) + mu)`
with dropout. Proofs: `docs/baselines.md`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.pld import PrivacyLossDistribution, compose, discretise, grid_step
from uedp.errors import UserError

Extract = Callable[[Sequence[str]], npt.NDArray[np.floating]]
"""Texts to vectors, one row each; a row must depend on its own text alone."""

Change = Literal["replaced", "removed", "text"]
"""How two texts differ: one word for another, one word less, or in anything at all."""


@dataclass(frozen=True)
class Dpnr:
    """The mechanism and its budgets.

    `epsilon` is the published one: it sets the noise. A dropped word leaves no trace, or, if
    `blank` is given, that in its place.

    Guarantees:
      - what is released of a text is `proven(k)`-differentially private for `k` dimensions, and
        (`proven_at(delta, k)`, `delta`), whatever the encoder: for texts that differ as `changed`
        says, up to the rounding of the noise
      - `published` is no such guarantee: for every `k` above 1 there are an encoder and two texts
        that differ in one word whose outputs are exactly `proven(k)` apart

    Not covered: floating-point noise betrays low bits of what it was added to (Mironov 2012).
    """

    epsilon: float
    dropout: float = 0.0
    blank: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"epsilon {self.epsilon}: must be positive and finite")
        if not 0 <= self.dropout <= 1:
            raise UserError(f"dropout {self.dropout}: must lie in 0..1")

    def release(self, texts: Sequence[str], extract: Extract, rng: np.random.Generator) -> Floats:
        """The noisy representation of each text."""
        left = drop_words(texts, self.dropout, rng, self.blank)
        return noisy(normalised(extract(left)), self.epsilon, rng)

    @property
    def published(self) -> float:
        """The budget as claimed. Not a privacy guarantee."""
        return _hidden(self.epsilon, self.dropout)

    def proven(self, dimensions: int, releases: int = 1, changed: Change = "replaced") -> float:
        """Epsilon of so many releases of one text, each with its own dropout and noise.

        Noise drawn `t` times for one draw of the words is one release of `t` times the dimensions.
        """
        _check(dimensions, releases)
        return releases * _hidden(dimensions * self.epsilon, self._hiding(changed))

    def proven_at(
        self, delta: float, dimensions: int, releases: int = 1, changed: Change = "replaced"
    ) -> float:
        """Epsilon at a delta, by composing the coordinates exactly; never above `proven`.

        Of more than one release it leaves out what dropout hides: an upper bound.
        """
        pure = self.proven(dimensions, releases, changed)
        mu = self._hiding(changed) if releases == 1 else 0.0
        if not 0 < delta < 1:
            raise UserError(f"delta {delta}: must lie between 0 and 1")
        if delta >= 1 - mu:
            return 0.0  # a change that is seen no more often than this
        losses = _opposite_corners(self.epsilon, dimensions * releases)
        if losses is None:
            return pure
        return min(pure, _hidden(losses.epsilon(delta / (1 - mu)), mu))

    def least_error(self, dimensions: int, classes: int) -> float:
        """No encoder and no classifier of one release of each text errs less often, on average.

        Guarantees:
          - holds for classes that are equally frequent, over the draw of the noise
        """
        _check(dimensions, 1)
        if classes < 2:
            raise UserError(f"classes {classes}: there must be at least two to tell apart")
        losses = _opposite_corners(self.epsilon, dimensions)
        apart = 1.0 if losses is None else losses.delta(0.0)
        return (1 - apart) * (classes - 1) / classes

    def _hiding(self, changed: Change) -> float:
        """The chance that dropout makes both texts the same.

        A blank stands where a word was: a text with a word less is still shorter. Texts that differ
        in more than a word have hardly any common rest.
        """
        meets = changed == "replaced" or (changed == "removed" and self.blank is None)
        return self.dropout if meets else 0.0


def drop_words(
    texts: Sequence[str], rate: float, rng: np.random.Generator, blank: str | None = None
) -> list[str]:
    """The texts, words apart by one blank, without those that a coin of this rate took.

    Guarantees:
      - coins are independent, and read nothing of a text but how many words it has
    """
    found = []
    for text in texts:
        words = text.split()
        found.append(kept_words(words, rng.random(len(words)) >= rate, blank))
    return found


def kept_words(
    words: Sequence[str], kept: Sequence[bool] | npt.NDArray[np.bool_], blank: str | None
) -> str:
    """A text after its coins came up."""
    pairs = zip(words, kept, strict=True)
    left = (word if stays else blank for word, stays in pairs)
    return " ".join(word for word in left if word is not None)


def normalised(representations: npt.NDArray[np.floating]) -> Floats:
    """Each row moved and scaled so that its least value is 0 and its largest 1.

    Guarantees:
      - every value lies in 0..1: one that is constant, or not finite, gives a row of zeros
      - a row depends on that row alone
    """
    rows = np.asarray(representations, dtype=np.float64)
    usable = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(usable, rows, 0.0) / 2  # the span of what is halved cannot overflow
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    span = high - low
    return np.where(span > 0, (rows - low) / np.where(span > 0, span, 1.0), 0.0)


def noisy(rows: Floats, epsilon: float, rng: np.random.Generator, shared: bool = False) -> Floats:
    """Laplace noise of scale `1 / epsilon` on every value.

    `shared` draws one value for a whole row, as the code released with the paper does. It protects
    nothing: subtracting the least value of a row leaves the row as it was.
    """
    shape = (len(rows), 1) if shared else rows.shape
    return rows + rng.laplace(scale=1 / epsilon, size=shape)


def pair_epsilon(one: Floats, other: Floats, epsilon: float) -> Floats:
    """Exactly how far apart the outputs on normalised rows are, without dropout.

    The logarithm of the densities' ratio is largest where the output lies, in every coordinate,
    beyond the one row seen from the other; there it is epsilon times the sum of the differences.
    """
    distance: Floats = np.abs(one - other).sum(axis=-1)
    return epsilon * distance


def _hidden(epsilon: float, mu: float) -> float:
    """`ln((1 - mu) e^epsilon + mu)`, also where the exponential is too large for a number."""
    if mu == 0:
        return epsilon
    if mu == 1:
        return 0.0
    return float(np.logaddexp(math.log1p(-mu) + epsilon, math.log(mu)))


def _check(dimensions: int, releases: int) -> None:
    if dimensions < 1:
        raise UserError(f"dimensions {dimensions}: a representation has at least one")
    if releases < 1:
        raise UserError(f"releases {releases}: must be at least 1")


# --- the worst two representations: opposite corners of the unit cube ----------------------------


@dataclass(frozen=True)
class _Coordinate:
    """Laplace noise of scale `1 / epsilon` around 0 and around 1; alike in both directions."""

    epsilon: float

    def full(self, epsilons: Floats) -> Floats:
        inside = -np.expm1((epsilons - self.epsilon) / 2)
        value: Floats = np.where(epsilons <= -self.epsilon, -np.expm1(epsilons), inside)
        return np.where(epsilons < self.epsilon, value, 0.0)

    def emptied(self, epsilons: Floats) -> Floats:
        return self.full(epsilons)

    def loss_range(self) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def loss_spread(self) -> float:
        return min(self.epsilon, 1.0)


def _opposite_corners(epsilon: float, dimensions: int) -> PrivacyLossDistribution | None:
    """The privacy loss between opposite corners; None where all of it is too large to tell."""
    coordinate = _Coordinate(epsilon)
    if dimensions * (epsilon + math.expm1(-epsilon)) > MAX_EPSILON:  # the mean loss
        return None
    one, _ = discretise(coordinate, grid_step([coordinate]))
    return compose([(one, dimensions)])
