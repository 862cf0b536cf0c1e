"""Membership inference by groups, and its figure."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from research.membership import membership
from research.plots.membership import membership_figure
from uedp.audit.ranks import Roc, share


def test_groups_are_judged_by_one_threshold() -> None:
    others = np.arange(10_000.0)
    # the 11th best of the others is 9,989: ten are above it, one in a thousand
    members = np.array([9_989.0, 9_989.5, 10_001.0, 10_002.0, 5_000.0, 0.5])
    rates = membership(Roc(members, others), ["few", "few", "many", "many", "many", "few"])
    assert (rates["members"], rates["others"]) == (6, 10_000)
    first = rates["at"][0]
    assert (first["false_positives"], first["resolved"]) == (0.001, True)
    assert first["true_positives"]["share"] == pytest.approx(3 / 6)
    few, many = rates["groups"]["few"], rates["groups"]["many"]
    assert few["at"][0]["true_positives"]["share"] == pytest.approx(1 / 3)
    assert many["at"][0]["true_positives"]["share"] == pytest.approx(2 / 3)
    assert few["above"] == [10, 11, 9_999]
    assert many["above"] == [0, 0, 5_000]
    for part in (rates, few, many):
        rate = part["at"][0]["true_positives"]
        hits = round(rate["share"] * part["members"])
        assert rate == share([True] * hits + [False] * (part["members"] - hits))


def test_membership_can_be_computed_again_from_counts() -> None:
    chance = np.random.default_rng(0)
    members, others = chance.normal(0.5, 1, 300), chance.normal(0, 1, 4_000)
    rates = membership(Roc(members, others), ["1"] * 100 + ["4"] * 200)
    above = np.concatenate([group["above"] for group in rates["groups"].values()])
    for rate in rates["at"]:
        caught = np.mean(above <= rate["false_positives"] * rates["others"])
        assert rate["true_positives"]["share"] == pytest.approx(caught)
    assert rates["area"] == pytest.approx(1 - above.mean() / len(others))


@pytest.mark.slow
def test_the_interval_covers_the_true_rate() -> None:
    """Members score like others, so 1% are above the threshold that 1% of the others are above.

    With 100,000 others the threshold is almost the true one; of 500 intervals at 95%, more than 45
    misses have a chance below 1e-4.
    """
    chance, misses = np.random.default_rng(0), 0
    others = chance.normal(0, 1, 100_000)
    for _ in range(500):
        rates = membership(Roc(chance.normal(0, 1, 1_000), others), ["all"] * 1_000)
        rate = rates["at"][1]["true_positives"]
        misses += not rate["low"] <= 0.01 <= rate["high"]
    assert misses <= 45


def test_the_figure_of_membership_is_drawn_from_what_is_stored(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    others = chance.normal(0, 1, 2_000)
    rates = {
        name: membership(Roc(chance.normal(shift, 1, 40), others), ["1"] * 20 + ["64"] * 20)
        for name, shift in (("noiseless", 4.0), ("rotation-8", 0.0))
    }
    membership_figure(json.loads(json.dumps(rates)), tmp_path / "found.png")
    assert imread(tmp_path / "found.png").std() > 0
