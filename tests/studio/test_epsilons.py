"""The numbers of the Budget page are the accountant's."""

import json
import math
import shlex
from dataclasses import replace

import pytest

from tests.training import worlds
from uedp.accounting.calibrate import calibrate_entity_level, entity_level_profile
from uedp.accounting.missed import MISSED_CASES, missed_epsilon
from uedp.accounting.proven import UserLevelProfile, epsilon
from uedp.errors import UserError
from uedp.studio import epsilons
from uedp.studio.budget import in_words, meaning
from uedp.studio.commands import check_command, train_command
from uedp.studio.epsilons import ENTITY, METHODS, MISSED, UNITS, USER, EpsilonBound, Knobs, percent
from uedp.training.plan import build_plan

QUICK = Knobs(user_rate=0.1, rounds=50, entity_share=0.2, noise=4.0)


def found(knobs, unit):
    return epsilons.bound(unit.event(knobs.profile(knobs.noise)), knobs.rounds, knobs.delta)


@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_those_of_the_accountant(method):
    knobs = replace(QUICK, method=method)
    alone = epsilon(UserLevelProfile(4.0, 0.1), 50, 1e-5)
    assert found(knobs, USER).epsilon == alone
    if method == "user-level":
        profile = knobs.profile(4.0)
        assert [unit.event(profile) for unit in UNITS[1:]] == [None] * 4
        return
    profile = entity_level_profile(4.0, 0.1, 0.2, method=method)
    assert found(knobs, ENTITY).epsilon == epsilon(profile, 50, 1e-5) > alone
    for unit, case in zip(MISSED, MISSED_CASES, strict=True):
        assert found(knobs, unit).epsilon == missed_epsilon(profile, 50, 1e-5, *case)
        assert found(knobs, unit).epsilon > found(knobs, ENTITY).epsilon


@pytest.mark.parametrize(
    ("method", "target"),
    [*((method, None) for method in METHODS), ("rotation", 4.0), ("user-level", 4.0)],
)
def test_the_command_prints_the_same(run, method, target):
    knobs = replace(QUICK, method=method, target=target)
    noise = epsilons.solved_noise(knobs)
    outcome = run(*shlex.split(check_command(knobs))[1:], "--json")
    assert outcome.code == 0
    answer = json.loads(outcome.out)
    unit = ENTITY if knobs.protects_entities else USER
    assert answer["epsilon"] == found(replace(knobs, noise=noise), unit).epsilon
    if target is not None:
        assert answer["noise"] == noise
        assert answer["epsilon"] <= target


def test_a_target_is_solved_as_calibration_does():
    knobs = replace(QUICK, target=2.0)
    solved = calibrate_entity_level(2.0, 1e-5, 0.1, rounds=50, entity_share=0.2)
    assert epsilons.solved_noise(knobs) == solved.noise
    assert epsilons.solved_noise(replace(knobs, noise=9.0, users=7777)) == solved.noise
    assert epsilons.solved_noise(replace(knobs, target=None)) == 4.0


def test_nothing_is_solved_for_somebody_who_left():
    with pytest.raises(epsilons.StoppedError):
        epsilons.solved_noise(replace(QUICK, target=3.21), waiting=lambda: False)


def test_curves_are_the_accountants_points():
    knobs = replace(QUICK, method="user-level")
    for begin, moved in ((epsilons.noise_curves, "noise"), (epsilons.rounds_curves, "rounds")):
        curves, work = begin(knobs, knobs.noise)
        assert len(list(work)) == curves.total == len(curves.points)
        x, y = curves.of(USER)
        assert min(x) < getattr(knobs, moved) < max(x)
        for at, value in zip(x, y, strict=True):
            assert value == found(replace(knobs, **{moved: at}), USER).epsilon


def test_curves_begin_coarse_and_leave_the_slowest_for_the_end():
    curves, _ = epsilons.noise_curves(QUICK, 2.0)
    order = epsilons._coarse_then_fine(curves.units, curves.x)
    assert len(order) == len(set(order)) == curves.total
    assert {unit for unit, _ in order[: len(order) // 2]} >= {USER, ENTITY}
    assert order[-1][0] is epsilons.SLOWEST


def test_neighbouring_settings_share_points():
    """What was computed for one is known for the next."""
    assert len({*epsilons.noise_grid(1.5)} & {*epsilons.noise_grid(1.6)}) > 10
    assert len({*epsilons.rounds_grid(200)} & {*epsilons.rounds_grid(230)}) > 9
    assert min(epsilons.noise_grid(0.0)) > 0
    assert epsilons.rounds_grid(1)[0] == 1


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fair-shares", "entity_share": 1.5}, "must lie in 0..1"),
        ({"entity_share": 0.0}, "must be above 0"),
        ({"noise": -1.0}, "must lie in 0.."),
        ({"user_rate": 0.0}, "must be above 0"),
        ({"rounds": 0}, "must lie in 1.."),
        ({"users": 4}, "at least 5"),
        ({"delta": 0.0}, "above 0"),
        ({"method": "uedp-alg"}, "choose one of rotation, fair-shares, user-level"),
    ],
)
def test_what_the_mechanism_refuses_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        replace(QUICK, **changes).check()


@pytest.mark.parametrize("changes", [{"delta": 0.5}, {"user_rate": 0.01}])
def test_refusals_are_those_of_training(changes):
    """Training refuses the same settings for the same number of users, in the same words."""
    incidence = worlds.incidence()
    config = worlds.config("model", **{f"privacy__{name}": v for name, v in changes.items()})
    with pytest.raises(UserError) as training:
        build_plan(config, incidence)
    with pytest.raises(UserError) as page:
        replace(Knobs(users=incidence.users), **changes).check()
    assert str(page.value) == str(training.value)
    assert "privacy." not in in_words(str(page.value))


@pytest.mark.parametrize(
    ("field", "text"),
    [("rounds", "1.5"), ("rounds", "x"), ("noise", "nan"), ("noise", "1e999"), ("users", "<b>")],
)
def test_what_is_no_number_is_refused(field, text):
    with pytest.raises(UserError, match="must be a"):
        Knobs.read({field: text})


def test_knobs_are_read_from_a_form():
    values = {"method": "user-level", "users": "50", "noise": "2", "target": " ", "pace": "x"}
    assert Knobs.read(values) == Knobs("user-level", users=50, noise=2.0)
    assert Knobs.read({"target": "8"}).target == 8.0


# --- words ---------------------------------------------------------------------------------------


def test_percentages_are_never_rounded_down():
    for share in (0.5, 0.50001, 0.6949, 0.99, 0.9994, 0.99999, 0.9999999, 0.99999999999, 1.0):
        shown = float(percent(share).removesuffix("%")) / 100
        assert share <= shown * (1 + 1e-12)
        assert shown <= 1
    assert percent(0.69411) == "69.5%"
    assert percent(0.99941) == "99.95%"
    assert percent(1.0) == "100%"


def test_the_whole_curve_says_more_of_an_attacker_than_epsilon():
    bound = found(QUICK, ENTITY)
    assert 0.5 < bound.success < bound.success_by_epsilon < 1
    words = " ".join(meaning(ENTITY, bound))
    assert percent(bound.success) in words
    assert percent(bound.success_by_epsilon) in words
    assert bound.text in words


def test_no_finite_epsilon_is_said():
    none = EpsilonBound(math.inf, 1e-5, 1.0)
    assert none.text == "no finite epsilon"
    assert "nothing is guaranteed" in meaning(USER, none)[0]


def test_a_command_quotes_the_corpus(tmp_path):
    assert "'my corpus; rm x'" in train_command(QUICK, tmp_path / "my corpus; rm x").replace(
        str(tmp_path) + "/", ""
    )
    assert train_command(QUICK).startswith("uedp train --corpus CORPUS --model MODEL ")
