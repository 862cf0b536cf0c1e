"""Plans, mechanisms and cases of given profiles, built as training builds them."""

from dataclasses import replace
from functools import cache

import numpy as np

from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import (
    EntityProfile,
    FairMissedProfile,
    MissedProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
)
from uedp.audit.mechanism import Case, Mechanism
from uedp.audit.verdict import Claim
from uedp.audit.worlds import World, _rotated, threats
from uedp.incidence import Incidence
from uedp.mechanism.sampling import Sampling
from uedp.training.config import parse_config
from uedp.training.plan import Plan, build_plan

DELTA = 1e-5


@cache
def plan(profile: PrivacyEvent, **privacy) -> Plan:
    """One round of what a profile describes; `privacy` are further fields of that section."""
    if isinstance(profile, MissedProfile):
        profile = profile.rotation
    if isinstance(profile, FairMissedProfile):
        profile = profile.fair
    fields = {"noise": profile.noise, "user_rate": profile.user_rate, "rounds": 1, **privacy}
    if isinstance(profile, EntityProfile):
        fields |= {
            "method": profile.method,
            "entity_share": profile.entity_share,
            "entity_rate": getattr(profile, "entity_rate", 1.0),
            "extended_rate": profile.extended_rate,
        }
    else:
        assert isinstance(profile, UserLevelProfile | UedpAlgProfile)
        users_only = isinstance(profile, UserLevelProfile)
        fields.setdefault("method", "user-level" if users_only else "uedp-alg")
    if isinstance(profile, UedpAlgProfile):
        fields = {"entity_rate": 0.5, **fields}
    config = parse_config(
        {"privacy": fields, "data": {"train": "corpus"}, "model": {"name": "model"}}
    )
    users, none = int(np.ceil(6 / profile.user_rate)), np.zeros(0, dtype=int)
    return build_plan(config, Incidence.build(np.arange(users), none, none, users, 0))


def worlds(profile: PrivacyEvent, target: str, sampling: Sampling | None = None) -> list[World]:
    """The worst worlds known for a target, without the large one of many holders."""
    some = sampling or Sampling(profile.user_rate, 0.5)
    (found,) = (one.worlds for one in threats(profile, some) if one.target == target)
    return [world for world in found if "10 holders" not in world.name]


def many_holders(profile: RotationProfile, holders: int) -> World:
    """An entity that many mention, and nothing else: lending must let only one of them use it."""
    sampling = Sampling(profile.user_rate)
    return _rotated(profile, "user and entity", "nothing else", sampling, holders=holders)


def mechanism(profile: PrivacyEvent, **privacy) -> Mechanism:
    planned = plan(profile, **privacy)
    if isinstance(profile, UedpAlgProfile):
        multiplier = profile.noise * (profile.user_rate * profile.users + 1)
        return replace(Mechanism.of(planned), multiplier=multiplier)
    return Mechanism.of(planned)


def audit(profile, target, rounds, delta=DELTA, *, attacked=None, against=None, **options):
    """Of what training would do, in the worst worlds known, unless others are given."""
    case = Case(
        Claim(type(profile).__name__, target, profile, rounds, delta),
        attacked or mechanism(profile),
        worlds(profile, target) if against is None else against,
    )
    return case.audit(**options)
