"""Other divisions of a share (benchmarks/divisions.py), and what docs/privacy.md says of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import divisions
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, check_sharing_rule, fair_shares

ROOT = Path(__file__).parents[1]


def some_incidence(seed, sentences=60, users=12, entities=15):
    rng = np.random.default_rng(seed)
    mentions = rng.integers(0, sentences, 2 * sentences)
    return Incidence.build(
        rng.integers(0, users, sentences),
        mentions,
        rng.integers(0, entities, len(mentions)),
        users,
        entities,
    )


@pytest.mark.parametrize("power", [4.0, 1.0, 0.3])
def test_other_divisions_keep_the_limits_of_entities(power):
    def rule(incidence, sharing, key):
        return divisions.divided(incidence, sharing, power)

    for seed in range(3):
        check_sharing_rule(rule, some_incidence(seed), Sharing(0.5, 8), [0])


def test_what_is_nearly_max_min_fair_is_near_fair_shares():
    incidence, sharing = some_incidence(5), Sharing(0.3)
    fair = fair_shares(incidence, sharing, 0)
    near, far = (divisions.divided(incidence, sharing, power) for power in (8.0, 0.3))
    assert np.abs(near - fair).max() < 0.1 < np.abs(far - fair).max()
    assert far.sum() > fair.sum()


def test_the_page_has_the_measured_gains():
    rows = json.loads((ROOT / "benchmarks/results/divisions.json").read_text())
    page = " ".join((ROOT / "docs/privacy.md").read_text().split())

    def gain(data):
        return f"{max(row['figure'] for row in rows if row['data'] == data) - 1:.1%}"

    told = (
        f"gains {gain('conll')} on CoNLL-2003, {gain('edgar')} on EDGAR, "
        f"{gain('ag-sentences')} on AG's sentences and {gain('blogs')} on blogs of 8,000 people"
    )
    assert told in page
    for data in {row["data"] for row in rows}:
        least = [row["smallest"] for row in rows if row["data"] == data]
        assert least[-1] < least[0] / 10
