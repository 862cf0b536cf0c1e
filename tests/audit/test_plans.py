"""The plans to audit, and the cases they come to: every method with what it protects."""

import pytest

from uedp.accounting.proven import MissedProfile, epsilon
from uedp.audit.mechanism import Case, cases
from uedp.audit.plans import plan_of
from uedp.errors import UserError

METHODS = ("rotation", "user-level", "uedp-alg")


def all_cases(methods=METHODS, **settings) -> list[Case]:
    return [case for method in methods for case in cases(plan_of(method, **settings))]


def test_every_method_with_what_it_protects():
    found = all_cases(rounds=5, noise=3.0)
    both = ("user", "entity", "user and entity")
    assert [(case.claim.method, case.claim.target) for case in found] == [
        *(("rotation", target) for target in (*both, "missed mention")),
        ("user-level", "user"),
        *(("uedp-alg", target) for target in both),
    ]
    for case in found:
        assert (case.claim.rounds, case.claim.delta, case.claim.published) == (5, 1e-5, None)
        assert case.claim.profile.noise == 3.0
    assert len(found[2].worlds[-1].incidence.holders[0]) == 10


def test_a_target_is_met_by_every_method():
    for case in all_cases(rounds=5, epsilon=4.0, entity_share=0.5, user_rate=0.2):
        profile = case.claim.profile
        assert profile.user_rate == 0.2
        if case.claim.target == "user and entity" or case.claim.method == "user-level":
            assert epsilon(profile, 5, 1e-5) == pytest.approx(4.0, rel=0.01)
        if isinstance(profile, MissedProfile):
            assert profile.rotation.entity_share == profile.sentence_share == 0.5


def test_by_default_epsilon_8_after_50_rounds():
    for case in all_cases():
        if case.claim.target in ("user and entity", "user") and case.claim.method != "uedp-alg":
            assert epsilon(case.claim.profile, 50, 1e-5) == pytest.approx(8, rel=0.01)
    alg = all_cases(["uedp-alg"])[-1].claim.profile
    assert (alg.user_rate, alg.users, alg.holders) == (0.1, 60, 6)


def test_more_seconds_are_more_runs_and_larger_worlds_fewer():
    (small, *_), (*_, large) = (all_cases([m], noise=2.0) for m in ("rotation", "uedp-alg"))
    assert small.runs_in(1) < small.runs_in(10)
    assert small.runs_in(1) > 4 * large.runs_in(1)
    assert (large.runs_in(1e-9), small.runs_in(1e9)) == (300, 1_000_000)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"epsilon": 1.0, "noise": 1.0}, "`epsilon=...` and `noise=...`: give one of them"),
        ({"rounds": 0}, "privacy.rounds"),
        ({"delta": 0.0}, "privacy.delta"),
        ({"delta": 1.0}, "privacy.delta"),
        ({"user_rate": 0.0}, "privacy.user_rate"),
        ({"user_rate": 1.5}, "privacy.user_rate"),
        ({"entity_share": 0.0}, "privacy.entity_share"),
        ({"entity_share": 2.5}, "privacy.entity_share"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, why):
    with pytest.raises(UserError, match=why):
        plan_of("rotation", **wrong)


@pytest.mark.parametrize("method", ["rotate", "noiseless"])
def test_a_method_without_a_guarantee_is_refused(method):
    with pytest.raises(UserError, match="privacy"):
        plan_of(method)
