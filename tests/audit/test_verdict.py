"""Scores, bounds and words: what is saved, and what an audit says it found."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.audit.plans import worlds
from uedp.accounting.proven import UserLevelProfile
from uedp.audit.bounds import Scores, gaussian_epsilon
from uedp.audit.verdict import Alarm, Claim, MechanismAudit, conclusion, document, judge
from uedp.report.audit_plots import values

USER = UserLevelProfile(1.0, 1.0)
(WORLD,) = worlds(USER, "user")


def scores(mu: float, runs: int = 3000) -> list[Scores]:
    """The likelihoods of one round of a Gaussian mechanism."""
    rng = np.random.default_rng(0)
    return [Scores("best", mu * rng.normal(mu, 1, runs), mu * rng.normal(0, 1, runs))]


CLAIM = Claim("UserLevel", "user", USER, 1, 0.01)


def judged(mu: float, published: float | None = None, **options) -> MechanismAudit:
    return judge(scores(mu), replace(CLAIM, published=published), **options)


RIGHT = judged(1.0)


def test_a_result_can_be_saved_and_read():
    found = judged(1.0, worlds=[WORLD], multiplier=1.0, published=0.3, seed=4)
    for one in (found, RIGHT):
        saved = json.dumps(asdict(one), allow_nan=False)
        assert MechanismAudit.of(json.loads(saved)) == one


def test_bounds_of_either_direction():
    """The best is one of the two, and each is told by the corpus it guesses."""
    for name in ("threshold", "gaussian"):
        both = {side: RIGHT.directions[side][name] for side in ("full", "emptied")}
        assert [both[side].guessed for side in both] == ["full", "emptied"]
        assert getattr(RIGHT, name) in both.values()
        for bound in both.values():
            assert 0.3 < bound.epsilon < gaussian_epsilon(1.0, 0.01)


def test_one_direction_may_say_nothing():
    """Who is never seen on the emptied corpus gives the full one away, and not the other way."""
    rng = np.random.default_rng(1)
    seen = rng.random(4000) < 0.2
    odd = Scores("rare", np.where(seen, 5.0, 0.0), np.zeros(4000))
    found = judge([odd], CLAIM)
    assert found.directions["full"]["threshold"].epsilon > 4
    assert found.directions["emptied"]["threshold"].epsilon < 0.3
    assert found.threshold == found.directions["full"]["threshold"]


def test_runs_are_counted_and_worlds_give_what_is_attainable():
    found = judged(1.0, worlds=[WORLD], multiplier=1.0)
    assert found.runs == 3000
    assert found.attainable == pytest.approx(found.proven, rel=0.01)
    assert found.curve.epsilon < found.proven
    assert (RIGHT.attainable, RIGHT.curve) == (None, None)


def test_what_is_right_is_said_to_be():
    assert conclusion([RIGHT, RIGHT]) == ["no lower bound exceeds the proven epsilon"]
    assert document([RIGHT])["alarm"] is False


def test_what_is_wrong_raises_an_alarm():
    wrong = replace(judged(2.0), method="rotation")
    assert wrong.alarm.raised
    (line,) = conclusion([RIGHT, wrong])
    assert line == (
        f"ALARM: rotation, user: the attack does better than the proven epsilon "
        f"{wrong.proven:.4g} allows"
    )
    found = document([RIGHT, wrong])
    assert found["alarm"] is True
    assert found["verdict"] == [line]
    assert "not a privacy guarantee" in found["published"]
    assert [MechanismAudit.of(one) for one in found["audits"]] == [RIGHT, wrong]
    json.dumps(found, allow_nan=False)


def test_a_bound_above_without_an_alarm_says_so():
    """One in twenty is above by chance; that is no reason to stop a release."""
    above = replace(RIGHT, excess=0.001, alarm=Alarm(0.999, 0.0, -0.001, False))
    (line,) = conclusion([above, RIGHT])
    assert "not with the confidence of an alarm" in line


def test_a_gaussian_fit_above_is_no_alarm():
    above = replace(RIGHT, gaussian=replace(RIGHT.gaussian, epsilon=RIGHT.proven + 1))
    lines = conclusion([above])
    assert lines[0] == "no lower bound exceeds the proven epsilon"
    assert "assumes a shape" in lines[1]


def test_what_was_published_is_refuted_in_words():
    """The lower bound is rounded down."""
    bound = replace(RIGHT.threshold, epsilon=0.4699)
    low = replace(RIGHT, method="uedp-alg", published=0.1, threshold=bound)
    assert conclusion([low])[1] == (
        "uedp-alg, user: the published epsilon 0.10 is refuted; it is at least 0.46"
    )
    assert len(conclusion([replace(RIGHT, published=9.0)])) == 1


def test_no_proven_epsilon_is_none_and_no_alarm():
    found = judge(scores(1.0), replace(CLAIM, profile=UserLevelProfile(1e-7, 1.0)))
    assert found.proven is None
    assert found.excess is None
    assert not found.alarm.raised


def test_what_a_figure_shows():
    found = judged(1.0, worlds=[WORLD], multiplier=1.0, published=0.3)
    shown = values(found)
    assert list(shown.values()) == [
        found.threshold.epsilon,
        found.gaussian.epsilon,
        found.curve.epsilon,
        found.proven,
        0.3,
    ]
    assert list(shown)[-1] == "published (not a privacy guarantee)"
    assert values(RIGHT)["lower bound, proven curve"] is None
