"""Fair shares: all sentences that mention an entity divide its share, in every round."""

from typing import ClassVar

from uedp.accounting.profile import Profile
from uedp.accounting.proven import FairSharesProfile
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, SharingRule, check_sharing_rule, fair_shares
from uedp.mechanism.sampling import Floats, draw_weighted, rounded_down
from uedp.methods.base import PrivacySettings, RoundSettings, register_method
from uedp.methods.entity_level import EntityLevel, Schedule, ScheduledDraw

_SIZE_PER_ROUND = 100_000  # sentences and mentions; their weights take a tenth of a second


@register_method
class FairShares(EntityLevel):
    """Users and entities together (section 5 of docs/privacy.md, Theorem 7).

    A subclass may use another sharing rule; `check_sharing_rule` checks it in every round.
    """

    name = "fair-shares"
    profile_type = FairSharesProfile
    sharing_rule: ClassVar[SharingRule] = staticmethod(fair_shares)

    @classmethod
    def check(cls, privacy: PrivacySettings) -> None:
        super().check(privacy)
        if privacy.entity_share > FairSharesProfile.largest_share:
            raise ValueError(
                f"privacy.entity_share {privacy.entity_share:g}: must be at most "
                f"{FairSharesProfile.largest_share:g} for {cls.name}; or choose privacy.method "
                "rotation"
            )
        if privacy.entity_rate < 1:
            raise ValueError(
                f"{cls.name} uses every entity in every round; leave out privacy.entity_rate, or "
                "choose privacy.method rotation"
            )
        if privacy.sentences_per_entity is not None:
            raise ValueError(
                f"{cls.name} divides the share of an entity among all sentences that mention it; "
                "leave out privacy.sentences_per_entity, or choose privacy.method rotation"
            )

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        return FairSharesProfile(
            noise, privacy.user_rate, privacy.entity_share, extended_rate=privacy.extended_rate
        )

    @classmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> ScheduledDraw[Floats]:
        sharing = Sharing(settings.clips.share, settings.sampling.per_user)
        return ScheduledDraw(
            sharing_schedule(cls.sharing_rule, incidence, sharing, settings.seed),
            lambda uniforms, key, weights: draw_weighted(
                incidence, settings.sampling, uniforms, weights
            ),
        )


def sharing_schedule(
    rule: SharingRule, incidence: Incidence, sharing: Sharing, seed: int | None
) -> Schedule[Floats]:
    """The weights of each round.

    Guarantees:
      - a rule other than `fair_shares` that gives away more than the share of an entity, or is not
        a function of the incidence, the settings and the key, is refused in the round in which it
        does
    """

    def weights(key: int) -> Floats:
        if rule is not fair_shares:  # somebody's own: a wrong one would void the guarantee
            check_sharing_rule(rule, incidence, sharing, [key])
        return rounded_down(rule(incidence, sharing, key))

    size = incidence.sentences + len(incidence.sentence_entities.values)
    return Schedule(weights, 1 + size // _SIZE_PER_ROUND, seed)
