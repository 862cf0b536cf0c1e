"""DPNR: word-level local DP for the representation of a text (Lyu, He and Li 2020).

Each word of a text is dropped with probability mu. A frozen encoder maps the remaining words to `k`
numbers, which are shifted and scaled to the range 0..1; each gets Laplace noise of scale
`1 / epsilon`. The published budget is `epsilon`. The proven budget is `k epsilon`, and with dropout
`ln((1-mu) e^(k epsilon) + mu)`. Proofs: `docs/baselines.md`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.pld import PrivacyLossDistribution, compose, discretise
from uedp.errors import UserError

Extract = Callable[[Sequence[str]], npt.NDArray[np.floating]]
"""Maps texts to vectors, one row each; a row must depend only on its own text."""

Change = Literal["replaced", "removed", "text"]
"""How two texts differ: one word replaced, one word removed, or arbitrarily."""


@dataclass(frozen=True)
class Dpnr:
    """The mechanism and its budgets.

    `epsilon` is the published budget; it sets the noise. A dropped word is removed, or replaced by
    `blank` if that is given.

    Guarantees:
      - the release of a text is `proven(k)`-differentially private for `k` dimensions, and
        (`proven_at(delta, k)`, `delta`)-private, for every encoder and for texts that differ as
        `changed` says, up to the rounding of the noise
      - `published` is no such guarantee: for every `k` above 1 there are an encoder and two texts
        that differ in one word whose outputs are exactly `proven(k)` apart

    Not covered: floating-point noise reveals low bits of its input (Mironov 2012).
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
        dropped = drop_words(texts, self.dropout, rng, self.blank)
        return noisy(normalised(extract(dropped)), self.epsilon, rng)

    @property
    def published(self) -> float:
        """The budget as claimed. Not a privacy guarantee."""
        return _hidden(self.epsilon, self.dropout)

    def proven(self, dimensions: int, releases: int = 1, changed: Change = "replaced") -> float:
        """Epsilon of several releases of one text, each with its own dropout and noise.

        Noise drawn `t` times for one dropout is one release of `t` times the dimensions.
        """
        _check(dimensions, releases)
        return releases * _hidden(dimensions * self.epsilon, self._hiding(changed))

    def proven_at(
        self, delta: float, dimensions: int, releases: int = 1, changed: Change = "replaced"
    ) -> float:
        """Epsilon at a delta, by exact composition of the coordinates; never above `proven`.

        For more than one release it ignores dropout, which gives an upper bound.
        """
        pure = self.proven(dimensions, releases, changed)
        mu = self._hiding(changed) if releases == 1 else 0.0
        if not 0 < delta < 1:
            raise UserError(f"delta {delta}: must lie between 0 and 1")
        if delta >= 1 - mu:
            return 0.0  # the change survives dropout no more often than that
        losses = _opposite_corners(self.epsilon, dimensions * releases)
        if losses is None:
            return pure
        return min(pure, _hidden(losses.epsilon(delta / (1 - mu)), mu))

    def least_error(self, dimensions: int, classes: int) -> float:
        """A lower bound on the error rate of every encoder and classifier of one release per text.

        Guarantees:
          - holds for balanced classes, in expectation over the noise
        """
        _check(dimensions, 1)
        if classes < 2:
            raise UserError(f"classes {classes}: must be at least 2")
        losses = _opposite_corners(self.epsilon, dimensions)
        distance = 1.0 if losses is None else losses.delta(0.0)  # total variation
        return (1 - distance) * (classes - 1) / classes

    def _hiding(self, changed: Change) -> float:
        """The probability that dropout makes both texts the same.

        Blanks keep the number of words, so a removed word still shows. Texts that differ in more
        than a word are almost never the same after dropout.
        """
        coincide = changed == "replaced" or (changed == "removed" and self.blank is None)
        return self.dropout if coincide else 0.0


def drop_words(
    texts: Sequence[str], rate: float, rng: np.random.Generator, blank: str | None = None
) -> list[str]:
    """The texts with each word dropped with probability `rate`; words separated by one space.

    Guarantees:
      - drops are independent, and depend on nothing in a text but its number of words
    """
    split = [text.split() for text in texts]
    return [kept_words(words, rng.random(len(words)) >= rate, blank) for words in split]


def kept_words(
    words: Sequence[str], kept: Sequence[bool] | npt.NDArray[np.bool_], blank: str | None
) -> str:
    """The text of the words that were kept."""
    pairs = zip(words, kept, strict=True)
    rest = (word if stays else blank for word, stays in pairs)
    return " ".join(word for word in rest if word is not None)


def normalised(representations: npt.NDArray[np.floating]) -> Floats:
    """Each row shifted and scaled so that its smallest value is 0 and its largest 1.

    Guarantees:
      - every value is in 0..1; a row that is constant or not finite becomes zeros
      - a row depends on that row only
    """
    rows = np.asarray(representations, dtype=np.float64)
    usable = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(usable, rows, 0.0) / 2  # halved, so that the span cannot overflow
    low, high = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True)
    span = high - low
    return np.where(span > 0, (rows - low) / np.where(span > 0, span, 1.0), 0.0)


def noisy(rows: Floats, epsilon: float, rng: np.random.Generator, shared: bool = False) -> Floats:
    """Laplace noise of scale `1 / epsilon` on every value.

    `shared` draws one value for a whole row, as the code released with the paper does. It protects
    nothing: subtracting the smallest value of a row restores the row.
    """
    shape = (len(rows), 1) if shared else rows.shape
    return rows + rng.laplace(scale=1 / epsilon, size=shape)


def pair_epsilon(one: Floats, other: Floats, epsilon: float) -> Floats:
    """The exact epsilon between pairs of normalised rows, without dropout.

    The log density ratio is largest at outputs that lie, in every coordinate, beyond the one row as
    seen from the other; there it is epsilon times the sum of the absolute differences.
    """
    distance: Floats = np.abs(one - other).sum(axis=-1)
    return epsilon * distance


def _hidden(epsilon: float, mu: float) -> float:
    """`ln((1 - mu) e^epsilon + mu)`, without overflow of the exponential."""
    if mu == 0:
        return epsilon
    if mu == 1:
        return 0.0
    return float(np.logaddexp(math.log1p(-mu) + epsilon, math.log(mu)))


def _check(dimensions: int, releases: int) -> None:
    if dimensions < 1:
        raise UserError(f"dimensions {dimensions}: must be at least 1")
    if releases < 1:
        raise UserError(f"releases {releases}: must be at least 1")


# --- the worst two representations: opposite corners of the unit cube ----------------------------


@dataclass(frozen=True)
class _Coordinate:
    """Laplace noise of scale `1 / epsilon` around 0 and around 1; the same in both directions."""

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
    """The privacy loss between opposite corners; None where it is too large to represent."""
    coordinate = _Coordinate(epsilon)
    if dimensions * (epsilon + math.expm1(-epsilon)) > MAX_EPSILON:  # the mean loss
        return None
    one, _ = discretise(coordinate)
    return compose([(one, dimensions)])
