"""Tests that permute people: rare false alarms where nothing leaks, alarms where much does."""

import numpy as np
import pytest

from uedp.audit.people import compare_groups, compare_nearest, compare_people, user_groups

TRIALS = 200


def rejected(p_values: list[float], level: float = 0.05) -> float:
    return float(np.mean(np.array(p_values) <= level))


def test_people_found_at_random_rarely_raise_an_alarm_and_chosen_ones_do():
    rng = np.random.default_rng(0)
    chance, leak = [], []
    for _ in range(TRIALS):
        found = rng.choice(400, 30, replace=False)  # of 320 trained on and 80 held out
        inside = int((found < 320).sum())
        chance.append(compare_people(inside, 320, 30 - inside, 80).p_value)
        leak.append(compare_people(inside + 25, 320, 30 - inside, 80).p_value)
    assert rejected(chance) < 0.05 + 3 * 0.015  # three standard errors of 200 trials
    assert rejected(leak) > 0.3


def test_the_interval_of_the_ratio_covers_the_truth():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(TRIALS):
        inside, outside = rng.binomial(2000, 0.03), rng.binomial(500, 0.01)
        test = compare_people(inside, 2000, outside, 500)
        covered += test.low <= 3 and (test.high is None or test.high >= 3)
    assert covered / TRIALS > 0.95 - 3 * 0.015


def test_numbers_of_people_by_hand():
    test = compare_people(9, 80, 1, 20)
    assert test.ratio == pytest.approx((9 / 80) / (1 / 20))
    assert test.low < test.ratio < test.high
    all_inside = compare_people(3, 2, 0, 2)  # impossible counts do not arise; 2 of 2 do
    assert all_inside.high is None
    assert compare_people(2, 2, 0, 2).p_value == pytest.approx(1 / 6)
    nothing = compare_people(0, 80, 0, 20)
    assert (nothing.p_value, nothing.smallest, nothing.ratio) == (1.0, 1.0, None)
    few = compare_people(3, 80, 0, 20)
    assert few.smallest == few.p_value == pytest.approx(80 * 79 * 78 / (100 * 99 * 98))


def test_groups_at_random_rarely_raise_an_alarm_and_shifted_ones_do():
    rng = np.random.default_rng(2)
    chance, leak, covered = [], [], 0
    trials = 80
    for _ in range(trials):
        train, others = rng.exponential(1.0, 24), rng.exponential(1.0, 8)
        test = compare_groups(train, others, rng)
        chance.append(test.p_value)
        covered += test.low <= 0 <= test.high
        leak.append(compare_groups(train + 1.5, others, rng).p_value)
    assert rejected(chance) < 0.05 + 3 * 0.025
    assert rejected(leak) > 0.7
    assert covered / trials > 0.85
    same = compare_groups(np.zeros(4), np.zeros(3), rng)
    assert (same.excess, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_nearest_texts_that_pile_up_on_a_few_people_are_no_evidence():
    """A hundred texts nearest to one person are one person, not a hundred."""
    rng = np.random.default_rng(3)
    in_training = np.arange(100) < 80
    chance = []
    for _ in range(40):
        owners = rng.choice(rng.choice(100, 6, replace=False), 300)
        chance.append(compare_nearest(owners, in_training, rng).p_value)
    assert rejected(chance) < 0.05 + 3 * 0.035
    one = compare_nearest(np.zeros(500, dtype=int), in_training, rng)
    assert one.p_value > 0.7
    assert (one.share, one.expected, one.low, one.high) == (1.0, 0.8, 0.0, 1.0)
    many = compare_nearest(np.arange(80), in_training, rng)
    assert many.p_value == 1 / 2000
    assert many.high < 1


def test_groups_of_people_are_disjoint_and_of_one_size():
    rng = np.random.default_rng(4)
    groups, rest = user_groups(np.arange(5, 28), 4, 3, rng)
    assert [len(group) for group in groups] == [4, 4, 4]
    assert sorted(np.concatenate([*groups, rest]).tolist()) == list(range(5, 28))
    groups, rest = user_groups(np.arange(3), 4, 3, rng)
    assert (groups, len(rest)) == ([], 3)
