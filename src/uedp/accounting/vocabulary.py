"""The cost of a vocabulary that is taken privately from the corpus (Theorem 4, `docs/privacy.md`).

Words are counted by the users who contribute them, noise is added, and words at or above a
threshold are released. `k` is the most words of a user, `k_s` the most of a sentence, `z` the noise
in units of `sqrt(k)` (how far a user can move the counts), `tau` the threshold, in users.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import special

from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import DominatingPair, Floats, RevealedMixture, ShiftedGaussian
from uedp.accounting.profile import MIN_NOISE, check_noise
from uedp.errors import UserError

# The part of delta for words that cross the threshold by chance. Ten times as much would lower the
# threshold by only 6%, and missed mentions need more of it.
_FAILURE_SHARE = 0.01


@dataclass(frozen=True)
class VocabularyRelease:
    """One private vocabulary: noise, threshold, and how many words one may contribute.

    With `words_per_sentence` an entity is protected together with a user: it is lent to one user,
    one of whose selected sentences mentions it. Without, users alone are protected.

    Guarantees:
      - rounds of `RotationProfile` (with `words_per_sentence`) or of `UserLevelProfile` (without)
        and this release add up
      - a word that crosses the threshold by chance is in its pairs, as a probability of infinite
        loss: composing them charges it to delta
    """

    user_rate: ClassVar[float] = 1.0  # every user takes part

    noise: float
    threshold: float
    words_per_user: int
    words_per_sentence: int | None

    def __post_init__(self) -> None:
        check_noise(self.noise, "vocabulary noise")
        if not 0 <= self.threshold < math.inf:
            raise UserError(f"vocabulary threshold {self.threshold}: must be a number of users")
        if self.words_per_user < 1:
            raise UserError(f"words per user {self.words_per_user}: must be at least 1")
        of_sentence = self.words_per_sentence
        if of_sentence is not None and not 1 <= of_sentence <= self.words_per_user:
            raise UserError(
                f"words per sentence {of_sentence}: must lie in 1..{self.words_per_user}, the "
                "words per user"
            )

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a count, in users."""
        return self.noise * math.sqrt(self.words_per_user)

    @property
    def failure(self) -> float:
        """The largest probability that a word is released which only the protected hold."""
        return _failure(self, self._moved())

    def pairs(self) -> Mapping[str, DominatingPair]:
        pair = _pair(self, self._moved())
        if self.words_per_sentence is None:
            return {"user": pair}
        return {"user and entity": pair, "user and sentence": pair}

    def user_alone(self) -> "VocabularyRelease":
        """The same release, for a user without an entity."""
        return replace(self, words_per_sentence=None)

    def missed(self, users: int, sentences: int | None) -> "MissedInVocabulary":
        """The same release, for an entity missed in `sentences` of each of `users`; None: all."""
        return MissedInVocabulary(self, users, sentences)

    def _moved(self) -> tuple[int, ...]:
        of_sentence = self.words_per_sentence
        return (self.words_per_user,) + (() if of_sentence is None else (of_sentence,))


@dataclass(frozen=True)
class MissedInVocabulary:
    """A release for an entity whose mention was missed, or has another id, in `holders` more users.

    At most `per_user` sentences of each of them are such; None: all words of theirs come from them.
    """

    user_rate: ClassVar[float] = 1.0

    release: VocabularyRelease
    holders: int
    per_user: int | None = None

    @property
    def noise(self) -> float:
        return self.release.noise

    def pairs(self) -> Mapping[str, DominatingPair]:
        own, of_sentence = self.release.words_per_user, self.release.words_per_sentence
        each = own
        if self.per_user is not None and of_sentence is not None:
            each = min(own, self.per_user * of_sentence)
        moved = sorted((each,) * self.holders + self.release._moved(), reverse=True)
        return {"user and missed entity": _pair(self.release, moved)}


@dataclass(frozen=True)
class _Disjoint:
    """Two outputs that never agree: infinite loss."""

    def full(self, epsilons: Floats) -> Floats:
        return np.ones_like(epsilons)

    def emptied(self, epsilons: Floats) -> Floats:
        return np.ones_like(epsilons)

    def loss_range(self) -> tuple[float, float]:
        return 0.0, 0.0

    def loss_spread(self) -> float:
        return 0.0


def _pair(release: VocabularyRelease, moved: Sequence[int]) -> DominatingPair:
    """The pair for sets of words, one per user who moves, of at most these sizes, largest first."""
    # a word on which the n-th set falls already moved by n - 1 at most: n^2 - (n - 1)^2 more
    squares = sum((2 * n - 1) * size for n, size in enumerate(moved, 1))
    shift = math.sqrt(squares / release.words_per_user)
    failure = _failure(release, moved)
    return RevealedMixture(
        (1 - failure, failure), (ShiftedGaussian(release.noise, (shift,), (1.0,)), _Disjoint())
    )


def _failure(release: VocabularyRelease, moved: Sequence[int]) -> float:
    """The largest probability that a word is released which only these sets hold."""
    if release.noise < MIN_NOISE:
        return 1.0
    # log probability that a word of so many users stays below the threshold
    stays = special.log_ndtr((release.threshold - np.arange(len(moved) + 1)) / release.deviation)
    # a word of the n-th set is in this set only, or at most n - 1 other sets hold it too
    costs = np.minimum(stays[1], np.diff(stays))
    return float(-np.expm1(np.dot(moved, costs)))


def with_threshold(
    noise: float, words_per_user: int, words_per_sentence: int | None, failure: float
) -> VocabularyRelease:
    """The release of least threshold (to 1e-9 of it) that fails with at most this probability."""
    if not 0 < failure < 1:
        raise UserError(f"failure probability {failure}: must lie in 0..1, without 0 and 1")
    if noise < MIN_NOISE:
        raise UserError(f"vocabulary noise {noise}: no threshold hides a word; choose more")

    def at(threshold: float) -> VocabularyRelease:
        return VocabularyRelease(noise, threshold, words_per_user, words_per_sentence)

    low, high = 0.0, 2.0
    while at(high).failure > failure:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if at(middle).failure > failure:
            low = middle
        else:
            high = middle
    return at(high)


def release_for(
    target: float,
    delta: float,
    share: float = 0.3,
    words_per_user: int = 64,
    words_per_sentence: int | None = 16,
) -> VocabularyRelease:
    """The vocabulary's part of a budget: on its own it has `share` of the target epsilon at delta.

    Gaussian releases compose like the root of the sum of squares, not like the sum: a share of 0.3
    costs the rounds about a twentieth. `noise_for` with this release `beside` finds their noise.

    Guarantees:
      - the release on its own has an epsilon of at most `share * target` at `delta`
      - it fails with a probability of at most a hundredth of delta, which delta includes
    """
    if not 0 < share <= 1:
        raise UserError(f"vocabulary share {share}: must lie in 0..1, without 0")

    def release(noise: float) -> VocabularyRelease:
        return with_threshold(noise, words_per_user, words_per_sentence, _FAILURE_SHARE * delta)

    return release(noise_for(share * target, delta, 1, release))
