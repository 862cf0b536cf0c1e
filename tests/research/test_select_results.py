"""Selecting the best setting."""

import math

from research.select_results import Row, best_setting, epsilon_of, mean_test, targets_of


def test_settings_are_chosen_by_validation_and_never_by_test() -> None:
    """Guarantee of `chosen`."""
    rows: list[Row] = [
        {"setting": "a", "name": "a", "validation": 2.0, "test": 1.0, "method": "m"},
        {"setting": "b", "name": "b", "validation": 1.0, "test": 5.0, "method": "m"},
        {"setting": "b", "name": "b-repeat-2", "validation": 2.5, "test": 7.0, "method": "m"},
        {"setting": "c", "name": "c", "validation": None, "test": None, "method": "m"},
        {"setting": "d", "name": "d", "validation": 0.1, "test": 0.1, "method": "other"},
    ]
    assert best_setting(rows, method="m") == [rows[1], rows[2]]
    assert mean_test(best_setting(rows, method="m")) == 6.0
    assert best_setting(rows, method="none") == []
    assert mean_test([]) is None


def test_targets_come_the_largest_first() -> None:
    rows: list[Row] = [{"target": target} for target in (2.0, None, 8.0, 2.0)]
    assert targets_of(rows) == [8.0, 2.0, None]


def test_an_epsilon_holds_for_all_rows() -> None:
    rows: list[Row] = [{"target": 8.0, "epsilon": 7.99}, {"target": 8.0, "epsilon": 8.1}]
    assert epsilon_of(rows) == 8.1
    assert epsilon_of(rows[:1]) == 8.0
    assert epsilon_of([*rows, {"target": None, "epsilon": None}]) == math.inf
