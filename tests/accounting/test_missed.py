"""Missed mentions by sentences: what is printed, and what moves it."""

import pytest

from uedp.accounting import missed
from uedp.accounting.missed import MISSED_CASES, missed_epsilon, missed_words, neighbours
from uedp.accounting.proven import MissedProfile, RotationProfile, epsilon

DELTA, ROUNDS = 1e-5, 10
PLAN = RotationProfile(2.0, 0.1, 0.3)


def spent(users: int, sentences: int | None, *bounds) -> float:
    return missed_epsilon(PLAN, ROUNDS, DELTA, users, sentences, *bounds)


def test_misses_count_by_sentences():
    by_sentences = [spent(1, sentences) for sentences in (1, 2, 4, None)]
    assert by_sentences == sorted(by_sentences)
    assert by_sentences[0] > epsilon(PLAN, ROUNDS, DELTA)
    assert spent(1, 1) == epsilon(MissedProfile(PLAN, 1, 1, 0.3), ROUNDS, DELTA)
    assert spent(1, 1) < spent(5, 1)


def test_saying_less_never_gives_less():
    assert spent(1, None, 3) <= spent(1, None)
    assert spent(1, 2, 1) <= spent(1, 2) <= spent(1, None)
    assert spent(1, None, 7) == pytest.approx(spent(1, None), rel=1e-6)  # 7 x 0.3 is above 2


def test_plain_words():
    assert [missed_words(*case) for case in MISSED_CASES] == [
        "one sentence",
        "five sentences of five users",
        "all sentences of one user",
    ]
    assert missed_words(1, 3) == "three sentences of one user"
    assert missed_words(7, 2) == "2 sentences of each of 7 users"
    assert missed_words(5, None) == "all sentences of five users"


def test_neighbours_have_the_plans_epsilon(monkeypatch):
    """In two cases of three: many users take most of the time."""
    monkeypatch.setattr(missed, "MISSED_CASES", cases := (MISSED_CASES[0], MISSED_CASES[2]))
    plan, *others = neighbours(PLAN, ROUNDS, DELTA, per_user=4)
    assert plan.change == "this plan"
    assert plan.epsilons == tuple(spent(*case, 4) for case in cases)
    changes = {row.change: row for row in others}
    assert len(changes) == 6  # 4 sentences per user is the plan's own
    target = epsilon(PLAN, ROUNDS, DELTA)
    for row in others:
        assert 0.99 * target < epsilon(row.profile, ROUNDS, DELTA) <= target
    assert changes["half the entity share"].epsilons[0] < plan.epsilons[0]
    one = changes["at most 1 sentence per user"]
    assert one.epsilons == (plan.epsilons[0],) * 2
    assert changes["any number of sentences per user"].epsilons[1] > plan.epsilons[1]
