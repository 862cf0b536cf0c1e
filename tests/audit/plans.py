"""Plans of given profiles, built as training builds them."""

from functools import cache

import numpy as np

from uedp.accounting.profile import Profile
from uedp.accounting.proven import MissedProfile, RotationProfile, UedpAlgProfile, UserLevelProfile
from uedp.audit.mechanism import Mechanism
from uedp.incidence import Incidence
from uedp.training.config import parse_config
from uedp.training.plan import Plan, build_plan


@cache
def plan(profile: Profile, **privacy) -> Plan:
    """One round of what a profile describes; `privacy` are further fields of that section."""
    if isinstance(profile, MissedProfile):
        profile = profile.rotation
    fields = {"noise": profile.noise, "user_rate": profile.user_rate, "rounds": 1, **privacy}
    if isinstance(profile, RotationProfile):
        fields |= {
            "method": "rotation",
            "entity_share": profile.entity_share,
            "entity_rate": profile.entity_rate,
            "extended_rate": profile.extended_rate,
        }
    else:
        assert isinstance(profile, UserLevelProfile | UedpAlgProfile)
        fields["method"] = "user-level" if isinstance(profile, UserLevelProfile) else "uedp-alg"
    if isinstance(profile, UedpAlgProfile):
        fields["entity_rate"] = 0.5
    config = parse_config(
        {"privacy": fields, "data": {"train": "corpus"}, "model": {"name": "model"}}
    )
    users, none = int(np.ceil(6 / profile.user_rate)), np.zeros(0, dtype=int)
    return build_plan(config, Incidence.build(np.arange(users), none, none, users, 0))


def mechanism(profile: Profile, **privacy) -> Mechanism:
    if isinstance(profile, UedpAlgProfile):
        return Mechanism.of_alg(plan(profile, **privacy), profile)
    return Mechanism.of(plan(profile, **privacy))
