"""The accountant: the profiles of the methods, and the epsilon that is proven of their rounds.

A profile gives the dominating pairs of one round (`docs/privacy.md`), one per kind of entity; the
privacy-loss distributions of rounds compose. Symbols are the paper's: `q_u` user rate, `q_e` entity
rate, `q_s` extended rate, `z` noise, `s` entity share, all in units of the update clip beta.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from uedp.accounting.divergence import (
    DominatingPair,
    PointwiseMax,
    PointwiseMin,
    RevealedMixture,
    ShiftedGaussian,
    binomial,
    sampled_gaussian,
)
from uedp.accounting.hidden_draw import hidden_draw, revealed_draw
from uedp.accounting.hidden_holders import HiddenHolders
from uedp.accounting.pld import (
    BothDirections,
    PrivacyLossDistribution,
    compose,
    discretise,
    max_rounds,
    min_delta,
)
from uedp.accounting.profile import MIN_NOISE, PrivacyEvent, Profile, check_rates, register_profile
from uedp.accounting.shared_parts import MissedParts, SharedParts
from uedp.errors import UserError

MAX_ROUNDS = 10_000_000  # of a run; composing more takes minutes
_MAX_HIDDEN = 6  # holders beside the lent one; the work grows with the cube of their number
_TINY = 1e-20  # smaller rates and shares count as this: their squares would underflow

_GROUP = "one group of texts put together at random"
_NOT_PEOPLE = "Groups are not people: whoever wrote more than one group holds is protected less"


@register_profile
@dataclass(frozen=True)
class UserLevelProfile(Profile):
    """User-level DP-SGD: Poisson-drawn users, one clipped update each. Entities: no guarantee."""

    method = "user-level"
    unit = (
        "one user: all text the user wrote. Entities that several users mention are not protected"
    )
    unit_of_groups = f"{_GROUP}. {_NOT_PEOPLE}. Entities are not protected"
    short_unit = "one user; entities that several users mention are not protected"
    protects_entities = False

    def pairs(self) -> Mapping[str, DominatingPair]:
        return {"user": sampled_gaussian(self.noise, self.user_rate)}

    def user_alone(self) -> "UserLevelProfile":
        return self


@dataclass(frozen=True)
class EntityProfile(Profile):
    """A user, and an entity that moves the updates of drawn users by `entity_share` together.

    A sentence without detected entities has the same share.
    """

    unit = (
        "one user together with one sensitive entity: all text the user wrote, and all text of "
        "anyone that mentions the entity; a sentence with no detected entity counts as one"
    )
    unit_of_groups = (
        f"{_GROUP}, and one sensitive entity: all text of the group, and all text that mentions "
        f"the entity; a sentence with no detected entity counts as one. {_NOT_PEOPLE}"
    )
    short_unit = "one user together with one sensitive entity"
    protects_entities = True
    largest_share: ClassVar[float]

    entity_share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.entity_share <= self.largest_share:
            raise UserError(
                f"entity share {self.entity_share}: must lie in 0..{self.largest_share:g}, in "
                "units of the update clip"
            )

    def user_alone(self) -> UserLevelProfile:
        return UserLevelProfile(self.noise, self.user_rate)

    def variants(self) -> Mapping[str, Self]:
        changed = {
            "half the entity share": replace(self, entity_share=self.entity_share / 2),
            "half the user rate": replace(self, user_rate=self.user_rate / 2),
        }
        if 2 * self.user_rate < 1:
            changed["twice the user rate"] = replace(self, user_rate=2 * self.user_rate)
        return changed


@register_profile
@dataclass(frozen=True)
class RotationProfile(EntityProfile):
    """Rotation (section 5): an entity moves one drawn user's update.

    `reveal_draw=True` asks for Theorem 1 even where Theorem 2 applies, as a cross-check.
    """

    method = "rotation"
    largest_share = 2.0

    entity_rate: float = 1.0
    extended_rate: float = 1.0
    reveal_draw: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(entity_rate=self.entity_rate, extended_rate=self.extended_rate)

    def pairs(self) -> Mapping[str, DominatingPair]:
        return {
            "user and entity": self._pair(self.entity_rate),
            "user and sentence": self._pair(self.extended_rate),
        }

    def missed(
        self, users: int, sentences: int | None, sentences_per_user: int | None = None
    ) -> "MissedProfile":
        sentences, share = _missed(self, sentences, sentences_per_user)
        return MissedProfile(self, users, sentences, share)

    def in_some_sentences(self) -> PrivacyEvent:
        return self if self.entity_rate == 1 else SomeSentences(self)

    def _pair(self, coin: float) -> DominatingPair:
        return _one_holder(self, coin, self.reveal_draw)


@dataclass(frozen=True)
class SomeSentences:
    """Rotation, where sentences that mention the entity are left as they are beside emptied ones.

    These show on either side whether the coin of the entity came up: so it is revealed. And a
    sentence may be without an entity in some rounds and have one in others: both count as either.
    """

    rotation: RotationProfile

    @property
    def noise(self) -> float:
        return self.rotation.noise

    @property
    def user_rate(self) -> float:
        return self.rotation.user_rate

    def pairs(self) -> Mapping[str, DominatingPair]:
        base = self.rotation
        heads = replace(base, entity_rate=1.0).pairs()["user and entity"]
        tails = sampled_gaussian(base.noise, base.user_rate)
        coin = base.entity_rate
        revealed = RevealedMixture((1 - coin, coin), (tails, heads))
        either = PointwiseMax((revealed, base.pairs()["user and sentence"]))
        return {"user and entity": either, "user and sentence": either}


@register_profile
@dataclass(frozen=True)
class FairSharesProfile(EntityProfile):
    """Fair shares (section 5): an entity moves any number of drawn users' updates (Theorem 7).

    What it moves each of them by adds up to `entity_share`, drawn or not. Rounding comes on top: by
    `margin` once any holder was drawn, which nothing makes rare (section 8).
    """

    method = "fair-shares"
    largest_share = 1.0

    extended_rate: float = 1.0
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(extended_rate=self.extended_rate)
        if not 0 <= self.margin < math.inf:
            raise UserError(f"margin {self.margin}: must not be negative")

    @property
    def kept_share(self) -> float:
        """The share that sentences are clipped to, in update clips; `Clips` refuses one of 0."""
        return max(self.entity_share - self.margin * (1 - self.entity_share), _TINY)

    @property
    def noise_on_sum(self) -> float:
        """The noise in update clips, as it was raised."""
        return self.noise * (1 + self.margin)

    def with_margin(self, margin: float) -> Self:
        return replace(self, margin=margin)

    def pairs(self) -> Mapping[str, DominatingPair]:
        one = _one_holder(self, 1.0)
        entity, rate = one, max(self.user_rate, _TINY)
        if 0 < self.user_rate < 1 and self.entity_share > 0:
            entity = SharedParts(self.noise_on_sum, rate, self.kept_share, self.margin)
            if self.margin:  # so that an entity counts for no less than a sentence
                entity = PointwiseMax((entity, one))
        return {
            "user and entity": entity,
            "user and sentence": _one_holder(self, self.extended_rate),
        }

    def missed(
        self, users: int, sentences: int | None, sentences_per_user: int | None = None
    ) -> "FairMissedProfile":
        sentences, share = _missed(self, sentences, sentences_per_user)
        return FairMissedProfile(self, users, min(2.0, sentences * share))


def _one_holder(
    profile: RotationProfile | FairSharesProfile, coin: float, reveal_draw: bool = False
) -> DominatingPair:
    """The pair for an entity that moves one user."""
    if profile.entity_share == 0 or coin == 0:
        return sampled_gaussian(profile.noise, profile.user_rate)
    rate, share = max(profile.user_rate, _TINY), max(profile.entity_share, _TINY)
    if rate < 1 and not reveal_draw:
        return hidden_draw(profile.noise, rate, share, coin)
    return revealed_draw(profile.noise, rate, share, coin)


def _missed(
    profile: EntityProfile, sentences: int | None, sentences_per_user: int | None
) -> tuple[int, float]:
    """How many sentences of a user were missed, and by how much each moves its update.

    Where all were missed and nothing bounds them, an update may turn around.
    """
    if sentences is None:
        sentences = sentences_per_user
    elif sentences_per_user is not None:
        sentences = min(sentences, sentences_per_user)
    return (1, 2.0) if sentences is None else (sentences, profile.entity_share)


@dataclass(frozen=True)
class FairMissedProfile:
    """Fair shares for an entity that was missed in the texts of `users` more users.

    Each of them, if drawn, moves by up to `moves` besides what its detected mentions move.

    Guarantees:
      - never below the epsilon of an entity of which nothing was missed
    """

    fair: FairSharesProfile
    users: int
    moves: float

    def __post_init__(self) -> None:
        if self.users < 0 or not 0 <= self.moves <= 2:
            raise UserError(
                f"missed in {self.users} users, each moves by {self.moves}: must not be negative, "
                "and at most 2"
            )

    @property
    def noise(self) -> float:
        return self.fair.noise

    @property
    def user_rate(self) -> float:
        return self.fair.user_rate

    def pairs(self) -> Mapping[str, DominatingPair]:
        return {"user and missed entity": self._pair()}

    def _pair(self) -> DominatingPair:
        nothing_missed = self.fair.pairs()["user and entity"]
        if self.users == 0 or self.moves == 0:
            return nothing_missed
        rate, share = max(self.user_rate, _TINY), self.fair.kept_share
        noise, margin = self.fair.noise_on_sum, self.fair.margin
        if rate == 1:
            farthest = share + margin + self.users * self.moves
            return _with_user(noise, rate, ((farthest, 1.0),))
        missed = MissedParts(noise, rate, share, self.users, self.moves, margin)
        return PointwiseMax((nothing_missed, missed))


@dataclass(frozen=True)
class MissedProfile:
    """Rotation for an entity whose mention was missed, or has another id, in `holders` more users.

    A round selects at most `per_user` such sentences of each of them; each moves its user's update
    by `sentence_share`. In some rounds the entity is lent to one of these users, in others not, so
    every round counts as whichever is worse at each epsilon (Theorem 3). With
    `rotation.reveal_draw`, or more than a few holders, every draw is revealed.

    Guarantees:
      - never below the epsilon of an entity of which nothing was missed
      - never above the epsilon with every draw revealed, but for a thousandth of it
    """

    rotation: RotationProfile
    holders: int
    per_user: int
    sentence_share: float

    def __post_init__(self) -> None:
        if self.holders < 0 or self.per_user < 0 or not 0 <= self.sentence_share <= 2:
            raise UserError(
                f"missed in {self.holders} users, {self.per_user} sentences each, "
                f"share {self.sentence_share}: must not be negative, the share at most 2"
            )

    @property
    def noise(self) -> float:
        return self.rotation.noise

    @property
    def user_rate(self) -> float:
        return self.rotation.user_rate

    def pairs(self) -> Mapping[str, DominatingPair]:
        base = self.rotation
        missed = min(2.0, self.per_user * self.sentence_share)
        lent_too = min(2.0, base.entity_share + self.per_user * self.sentence_share)
        elsewhere = self._pair(self.holders, missed, 0.0, base.entity_share)
        if self.holders == 0:
            return {"user and missed entity": elsewhere}
        one_of_them = self._pair(self.holders - 1, missed, missed, lent_too)
        return {"user and missed entity": PointwiseMax((elsewhere, one_of_them))}

    def _pair(self, others: int, missed: float, tails: float, heads: float) -> DominatingPair:
        """`others` holders who move by `missed`; the lent one by `tails` or `heads` of its coin."""
        base = self.rotation
        rate, coin = max(base.user_rate, _TINY), base.entity_rate
        if base.reveal_draw or rate == 1 or others >= _MAX_HIDDEN:
            return self._revealed(others, missed, tails, heads)
        up, down = (
            HiddenHolders(base.noise, rate, lent, others, missed) for lent in (heads, tails)
        )
        if coin == 1:
            return up
        known_coin = RevealedMixture((1 - coin, coin), (down, up))
        return PointwiseMin((known_coin, self._revealed(others, missed, tails, heads)))

    def _revealed(self, others: int, missed: float, tails: float, heads: float) -> DominatingPair:
        base = self.rotation
        q, coin = base.user_rate, base.entity_rate
        weights, pairs = [], []
        for count, chance in binomial(others, q):
            for drawn, probability in ((False, 1 - q), (True, q)):
                shift = count * missed
                shifts: Sequence[tuple[float, float]] = ((shift, 1.0),)
                if drawn:
                    shifts = ((shift + tails, 1 - coin), (shift + heads, coin))
                weights.append(chance * probability)
                pairs.append(_with_user(base.noise, q, shifts))
        return RevealedMixture(tuple(weights), tuple(pairs))


@register_profile
@dataclass(frozen=True)
class UedpAlgProfile(Profile):
    """UeDP-Alg as published (section 3), for an entity that `holders` users mention.

    They are counted beside a protected user. If all users mention the entity there is no other,
    but the entity alone moves all of them, so that all count (section 3).

    `noise` is the paper's `z`; in units of `max(w_u) beta` its noise is `z (q_u |U| + 1)`. A user
    whose text is emptied must give a zero update: no local weight decay.
    """

    method = "uedp-alg"
    unit = (
        "one user together with one sensitive entity that at most the stated number of other users "
        "mention"
    )
    unit_of_groups = (
        f"{_GROUP}, and one sensitive entity that at most the stated number of other groups "
        f"mention. {_NOT_PEOPLE}"
    )
    short_unit = RotationProfile.short_unit
    protects_entities = True

    users: int
    holders: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holders <= self.users:
            raise UserError(f"holders {self.holders}: must lie in 0..{self.users}")

    def pairs(self) -> Mapping[str, DominatingPair]:
        scale = self.noise * (self.user_rate * self.users + 1)
        cases = list(binomial(self.holders, self.user_rate))
        pairs = tuple(
            _with_user(scale, self.user_rate, ((2.0 * count, 1.0),)) for count, _ in cases
        )
        return {"user and entity": RevealedMixture(tuple(chance for _, chance in cases), pairs)}

    def user_alone(self) -> "UedpAlgProfile":
        return replace(self, holders=0)


_NO_LOSS = PrivacyLossDistribution(np.zeros(1), np.ones(1), 0.0)
_INFINITE_LOSS = PrivacyLossDistribution(np.zeros(1), np.zeros(1), 1.0)

Events = Sequence[tuple[PrivacyEvent, int]]


@dataclass(frozen=True)
class Guarantee:
    """The composed privacy losses of some rounds, for each unit protected, in both directions."""

    losses: Mapping[str, BothDirections]
    rounds: int

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that holds for every unit, in both directions."""
        check_delta(delta)
        if delta > 0 and self.rounds > max_rounds(delta):
            raise UserError(
                f"delta {delta:g}: lost in rounding after {self.rounds:,} rounds; "
                f"choose at least {1.05 * min_delta(self.rounds):.2g}"
            )
        return max(side.epsilon(delta) for both in self.losses.values() for side in both)

    def delta(self, epsilon: float) -> float:
        return max(side.delta(epsilon) for both in self.losses.values() for side in both)


def guarantee(events: Events) -> Guarantee:
    """Compose rounds, which may differ, for every unit that all of them protect.

    Guarantees:
      - both directions are composed on their own; the larger epsilon counts
      - the order of the rounds does not matter
      - the result is never below the true value
    """
    for _, count in events:
        if count < 0:
            raise UserError(f"rounds {count}: must not be negative")
    # a round that draws no one reads nothing
    events = [(event, count) for event, count in events if count and event.user_rate]
    if not events:
        return Guarantee({"nothing happened": (_NO_LOSS, _NO_LOSS)}, 0)
    if any(event.noise < MIN_NOISE for event, _ in events):
        return Guarantee({"no noise": (_INFINITE_LOSS, _INFINITE_LOSS)}, 0)
    by_event, counts = [event.pairs() for event, _ in events], [count for _, count in events]
    if len({tuple(pairs) for pairs in by_event}) > 1:
        raise UserError("rounds that protect different things do not add up to one guarantee")
    composed: dict[tuple[DominatingPair, ...], BothDirections] = {}
    losses = {}
    for unit in by_event[0]:
        pairs = tuple(own[unit] for own in by_event)
        if pairs not in composed:  # an entity and a sentence often have the same pair
            composed[pairs] = _composed(pairs, counts)
        losses[unit] = composed[pairs]
    return Guarantee(losses, sum(counts))


def _composed(pairs: Sequence[DominatingPair], counts: Sequence[int]) -> BothDirections:
    sides = zip(*map(discretise, pairs), strict=True)
    full, emptied = (compose([*zip(side, counts, strict=True)]) for side in sides)
    return full, emptied


def epsilon(
    event: PrivacyEvent, rounds: int, delta: float, *beside: tuple[PrivacyEvent, int]
) -> float:
    """The proven epsilon of equal rounds, and of other events beside them."""
    return guarantee([(event, rounds), *beside]).epsilon(delta)


def check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise UserError(f"delta {delta}: must lie in 0..1, below 1")


def _with_user(
    noise: float, user_rate: float, others: Sequence[tuple[float, float]]
) -> ShiftedGaussian:
    """Shifts by others, each with its probability, plus the user's own with probability `q_u`."""
    shifts = tuple(shift + mine for shift, _ in others for mine in (0.0, 1.0))
    chances = tuple(c * p for _, c in others for p in (1 - user_rate, user_rate))
    return ShiftedGaussian(noise, shifts, chances)
