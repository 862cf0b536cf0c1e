"""Rotation: each entity is lent to one of its holders at a time, and affects one update only."""

import secrets
from typing import ClassVar

from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile
from uedp.incidence import Incidence
from uedp.mechanism.lending import LendingRule, Mask, check_lending_rule, lend
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Participants, Uniforms, draw
from uedp.methods.base import Draw, PrivacySettings, RoundSettings, register_method
from uedp.methods.clipped import ClippedMethod

_MENTIONS_PER_ROUND = 750_000  # lending these takes a tenth of a second


@register_method
class Rotation(ClippedMethod):
    """Users and entities together (section 5 of docs/privacy.md, Theorems 1 and 2).

    A subclass may use another lending rule; `check_lending_rule` checks it in every round.
    """

    name = "rotation"
    profile_type = RotationProfile
    lending_rule: ClassVar[LendingRule] = staticmethod(lend)

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        return RotationProfile(
            noise,
            privacy.user_rate,
            privacy.entity_share,
            entity_rate=privacy.entity_rate,
            extended_rate=privacy.extended_rate,
        )

    @classmethod
    def clips(cls, privacy: PrivacySettings, margin: float) -> Clips:
        return Clips(privacy.update_clip, privacy.entity_share, margin)

    @classmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> Draw:
        schedule = LendingSchedule(cls.lending_rule, incidence, settings.seed)

        def participants(number: int, uniforms: Uniforms, key: int) -> Participants:
            usable = schedule.usable(number)
            return draw(incidence, settings.sampling, uniforms, key, usable)

        return participants


class LendingSchedule:
    """The usable sentences of each round; on large corpora recomputed only every few rounds.

    Lending may be public and may be reused; sampling and coins are fresh in every round.

    Guarantees:
      - a rule other than `lend` that lends an entity to two users, or is not a function of the
        incidence and the key, is refused in the round in which it does
      - with a seed, the usable sentences of a round depend on the seed and its number only
    """

    def __init__(self, rule: LendingRule, incidence: Incidence, seed: int | None) -> None:
        self._rule, self._incidence, self._seed = rule, incidence, seed
        self._rounds = 1 + len(incidence.sentence_entities.values) // _MENTIONS_PER_ROUND
        self._period: int | None = None
        self._usable: Mask

    def usable(self, number: int) -> Mask:
        period = number // self._rounds
        if period != self._period:
            key = secrets.randbits(62) if self._seed is None else self._seed * 2**31 + period
            if self._rule is not lend:  # somebody's own: a wrong one would void the guarantee
                check_lending_rule(self._rule, self._incidence, [key])
            self._period, self._usable = period, self._rule(self._incidence, key)
        return self._usable
