"""Rotation: each entity is lent to one of its holders at a time, and affects one update only."""

from typing import ClassVar

from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile
from uedp.incidence import Incidence
from uedp.mechanism.lending import LendingRule, Mask, check_lending_rule, lend
from uedp.mechanism.sampling import draw
from uedp.methods.base import PrivacySettings, RoundSettings, register_method
from uedp.methods.entity_level import EntityLevel, Schedule, ScheduledDraw

_MENTIONS_PER_ROUND = 750_000  # lending these takes a tenth of a second


@register_method
class Rotation(EntityLevel):
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
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> ScheduledDraw[Mask]:
        return ScheduledDraw(
            lending_schedule(cls.lending_rule, incidence, settings.seed),
            lambda uniforms, key, usable: draw(incidence, settings.sampling, uniforms, key, usable),
        )


def lending_schedule(rule: LendingRule, incidence: Incidence, seed: int | None) -> Schedule[Mask]:
    """The usable sentences of each round.

    Guarantees:
      - a rule other than `lend` that lends an entity to two users, or is not a function of the
        incidence and the key, is refused in the round in which it does
    """

    def usable(key: int) -> Mask:
        if rule is not lend:  # somebody's own: a wrong one would void the guarantee
            check_lending_rule(rule, incidence, [key])
        return rule(incidence, key)

    mentions = len(incidence.sentence_entities.values)
    return Schedule(usable, 1 + mentions // _MENTIONS_PER_ROUND, seed)
