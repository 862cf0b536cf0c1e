"""The digest of a plan is that of everything its guarantee depends on."""

import dataclasses

import pytest

from uedp.accounting.plan_digest import plan_digest
from uedp.accounting.proven import RotationProfile, UserLevelProfile
from uedp.methods import PrivacySettings

PROFILE = RotationProfile(1.2, 0.05, 0.3)
PRIVACY = PrivacySettings(epsilon=8.0).model_dump(mode="json")


def digest(**changes) -> str:
    plan = {"profile": PROFILE, "rounds": 40, "delta": 1e-5, "privacy": PRIVACY, "options": {}}
    return plan_digest(**plan | changes)


@pytest.mark.parametrize("name", PRIVACY)
def test_every_setting_counts_but_how_the_noise_was_found_and_who_decided(name):
    """Also one that is added later."""
    changed = digest(privacy=PRIVACY | {name: "another"}) != digest()
    assert changed == (name not in ("epsilon", "noise", "seed", "chosen_by", "corpus_budget"))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(RotationProfile)])
def test_every_field_of_the_profile_counts(name):
    changed = {"reveal_draw": True, "entity_rate": 0.5, "extended_rate": 0.5}.get(name, 0.07)
    assert digest(profile=dataclasses.replace(PROFILE, **{name: changed})) != digest()


def test_everything_else_counts():
    changes = (
        {"profile": UserLevelProfile(1.2, 0.05)},
        {"rounds": 41},
        {"delta": 1e-6},
        {"options": {"sentences": 2}},
        {"precision": "float32"},
        {"precision": "bfloat16"},
    )
    assert len({digest(), *(digest(**change) for change in changes)}) == len(changes) + 1
