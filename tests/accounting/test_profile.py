"""Profiles: a method of one's own is recorded, certified and verified without an edit in `src`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.accounting.plans import planned
from uedp.accounting.certificate import issue, verify
from uedp.accounting.divergence import DominatingPair, ShiftedGaussian
from uedp.accounting.ledger import CorpusLedger, RunLedger
from uedp.accounting.profile import (
    Profile,
    profile_from_record,
    profile_to_record,
    profile_type,
    register_profile,
)
from uedp.accounting.proven import (
    MissedProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
)
from uedp.errors import UserError


@register_profile
@dataclass(frozen=True)
class HalfUser(Profile):
    """A toy: users whose updates are clipped to `reach`."""

    method: ClassVar[str] = "half-user"
    unit: ClassVar[str] = "half of one user"
    unit_of_groups: ClassVar[str] = "half of one group"
    short_unit: ClassVar[str] = "half a user"
    protects_entities: ClassVar[bool] = False

    reach: float = 0.5

    def pairs(self) -> Mapping[str, DominatingPair]:
        rate = self.user_rate
        return {"half a user": ShiftedGaussian(self.noise, (0.0, self.reach), (1 - rate, rate))}

    def user_alone(self) -> "HalfUser":
        return self


TOY = HalfUser(2.0, 0.1)
BUILT_IN = [
    RotationProfile(2, 0.1, 0.5, 0.7, 0.9, True),
    UserLevelProfile(1.5, 0.1),
    UedpAlgProfile(2.0, 0.1, 9, 3),
]


@pytest.mark.parametrize("profile", [*BUILT_IN, TOY])
def test_profiles_survive_the_file(profile):
    assert profile_type(profile.method) is type(profile)
    record = json.loads(json.dumps(profile_to_record(profile)))
    assert profile_from_record(record) == profile


def test_a_method_of_ones_own_is_recorded_certified_and_verified(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    corpus = CorpusLedger(tmp_path)
    plan = planned("run-1", "digest", TOY, 20, chosen_by="me")
    corpus.reserve(plan)
    with RunLedger.open(folder, plan, tmp_path) as ledger:
        ledger.spend(5)
        ledger.record_corpus(corpus.total(1e-5))
    shown = issue(folder)
    assert verify(folder, corpus=tmp_path) == shown
    assert shown.method == "half-user"
    assert shown.epsilon == shown.epsilon_user_alone == epsilon(TOY, 20, 1e-5)
    assert shown.epsilon < epsilon(UserLevelProfile(2.0, 0.1), 20, 1e-5)
    assert shown.parameters["reach"] == 0.5
    assert shown.unit == "half of one user"
    assert "-differentially private for half of one user." in shown.statement
    assert shown.caveats == shown.missed_mentions == ()  # it protects no entities
    assert (shown.corpus_total.unit, shown.corpus_total.runs) == ("half a user", 1)


def test_the_total_is_for_what_the_weakest_method_protects(tmp_path):
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("one", "digest", RotationProfile(2.0, 0.1, 0.3), 5))
    assert corpus.total(1e-5).unit == "one user together with one sensitive entity"
    corpus.reserve(planned("two", "digest", UserLevelProfile(2.0, 0.1), 5))
    assert corpus.total(1e-5).unit.startswith("one user; entities that several users mention")


def test_a_record_of_an_earlier_release_is_read_or_refused_with_a_remedy():
    rotation = BUILT_IN[0]
    record = profile_to_record(rotation)
    assert profile_from_record({**record, "extended_share": None}) == rotation
    with pytest.raises(ValueError, match="no extended_share; use the release"):
        profile_from_record({**record, "extended_share": 0.5})


def test_unknown_methods_are_refused_by_name():
    with pytest.raises(UserError, match=r"'none-such': must be one of .*rotation.*user-level"):
        profile_type("none-such")


def test_unregistered_profiles_cannot_be_recorded():
    @dataclass(frozen=True)
    class Unregistered(HalfUser):
        pass

    for profile in (Unregistered(1.0, 0.1), MissedProfile(BUILT_IN[0], 1, 1, 0.3)):
        with pytest.raises(TypeError, match="not registered"):
            profile_to_record(profile)


def test_a_name_is_given_once():
    class Other(HalfUser):
        method: ClassVar[str] = "rotation"

    with pytest.raises(ValueError, match="RotationProfile"):
        register_profile(Other)
    assert profile_type("rotation") is RotationProfile


@pytest.mark.parametrize("profile", BUILT_IN)
def test_words_differ_where_users_are_groups(profile):
    assert "Groups are not people" in profile.unit_of_groups
    assert profile.unit != profile.unit_of_groups


def test_user_alone():
    rotation, user, alg = BUILT_IN
    assert rotation.user_alone() == UserLevelProfile(2, 0.1)
    assert user.user_alone() == user
    assert alg.user_alone() == UedpAlgProfile(2.0, 0.1, 9, 0)


def test_only_rotation_promises_anything_for_missed_mentions():
    rotation, *others = BUILT_IN
    assert rotation.missed(2, 3) == MissedProfile(rotation, 2, 3, 0.5)
    assert rotation.missed(2, 3, 1) == MissedProfile(rotation, 2, 1, 0.5)
    assert rotation.missed(2, None, 4) == MissedProfile(rotation, 2, 4, 0.5)
    assert rotation.missed(2, None) == MissedProfile(rotation, 2, 1, 2.0)  # may turn around
    assert [profile.missed(1, 1) for profile in others] == [None, None]
