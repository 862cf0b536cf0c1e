"""The budget experiment on small data."""

from typing import cast

import numpy as np
import pytest

from research.base import Result
from research.experiments import budget
from research.paper import EPSILONS
from tests.research.conftest import Make
from uedp.accounting import published
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.incidence import Incidence


@pytest.fixture(scope="module")
def result(shared: Make) -> Result:
    return budget.measure(shared("budget"))


def test_every_printed_epsilon_is_reproduced(result: Result) -> None:
    rows = [row for own in result["data"].values() for row in own["published"]["printed"]]
    assert len(rows) == 15
    for row in rows:
        assert row["accountant"] == pytest.approx(row["printed"], abs=0.01), row
    assert "15 of the 15 epsilons" in budget.table(result)


def test_published_curves_pass_through_the_printed_values(result: Result) -> None:
    at = {count: place for place, count in enumerate(result["rounds"])}
    for own in result["data"].values():
        curves = own["published"]
        assert curves["is"] == published.NOT_A_GUARANTEE
        for row in curves["printed"]:
            curve = curves[row["method"]]
            curve = curve[row["category"]] if row["method"] == "f_e_plus" else curve
            assert curve[at[row["rounds"]]] == row["accountant"]


def test_proven_is_what_the_accountant_proves(result: Result) -> None:
    proven = result["data"]["conll"]["proven"]
    assert proven["users"] == 3
    rate = 50 / 946
    assert proven["user_rate"] == rate
    assert proven["noise_in_updates"] == pytest.approx(2 * (3 * rate + 1))
    at = result["rounds"].index(50)

    def alg(holders: int) -> float:
        return epsilon(UedpAlgProfile(2.0, rate, 3, holders), 50, 1e-5)

    every = proven["categories"]["all"]
    assert (every["median_holders"], every["most_holders"]) == (1, 2)
    assert every["median"][at] == alg(1)
    assert every["most"][at] == alg(2)
    assert proven["everybody"][at] == alg(3)
    assert proven["categories"]["loc"]["most"][at] == alg(1)
    assert proven["user_alone"][at] == epsilon(
        UserLevelProfile(proven["noise_in_updates"], rate), 50, 1e-5
    )
    assert proven["user_level_at_its_noise"][at] == epsilon(UserLevelProfile(2.0, rate), 50, 1e-5)


def test_published_at_the_counts_here(result: Result) -> None:
    places = result["data"]["conll"]["proven"]["categories"]["loc"]
    rate = 50 / 946 * 0.5 * 2 / 5  # two of five sentences name a place
    assert places["published_f_e_plus"] == published.curve(rate, 2.0, result["rounds"], 1e-5)


def test_a_category_nobody_mentions_has_no_curve(result: Result) -> None:
    empty = result["data"]["edgar"]["proven"]["categories"]["gpe"]
    assert (empty["entities"], empty["most_holders"], empty["most"]) == (0, None, None)
    assert empty["published_f_e_plus"] is None  # the accountant's floor says nothing here
    assert "| EDGAR, gpe |" in budget.table(result)


def test_more_holders_more_rounds_never_cost_less(result: Result) -> None:
    for own in result["data"].values():
        proven = own["proven"]
        every = proven["categories"]["all"]
        curves = [proven["user_alone"], every["median"], every["most"], proven["everybody"]]
        assert all(curve == sorted(curve) for curve in curves)
        assert (np.diff(np.array(curves), axis=0) >= -1e-9).all()


def test_rotation_has_the_noise_to_signal_of_the_mechanism(result: Result) -> None:
    """EDGAR's entities have one holder each: all sentences can be used, so `n` is their number."""
    proven = result["data"]["edgar"]["proven"]
    signal = np.minimum(1, 0.3 * np.array([2, 1, 1])).mean()
    rotation = proven["rotation"]
    assert rotation["signal"] == pytest.approx(signal)
    per_signal = rotation["noise"] / (proven["user_rate"] * proven["users"] * signal)
    assert per_signal == pytest.approx(proven["noise_to_signal"])
    profile = RotationProfile(rotation["noise"], proven["user_rate"], 0.3)
    assert rotation["epsilon"] == [epsilon(profile, count, 1e-5) for count in result["rounds"]]


@pytest.mark.parametrize(
    ("claimed", "within"), [(1.0, 5), (1e-9, -1), (1e6, 11)], ids=["some", "none", "all"]
)
def test_the_number_of_holders_within_the_claim(
    claimed: float, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an accountant that counts holders, the search finds where it exceeds the claim."""
    monkeypatch.setitem(EPSILONS, ("edgar", published.PublishedMethod.f_e_plus, "all", 50), claimed)
    monkeypatch.setattr(budget, "noise_for", lambda *arguments: 1.0)
    # user i has a sentence of its own for each entity from i on: entity e has e + 1 holders
    pairs = [(user, entity) for user in range(12) for entity in range(user, 12)]
    users, entities = (np.array(side) for side in zip(*pairs, strict=True))
    incidence = Incidence.build(users, np.arange(len(pairs)), entities, 12, 12)
    claim = budget._claim(
        "edgar",
        incidence,
        lambda holders: UedpAlgProfile(2.0, 0.1, 12, min(holders, 11)),
        lambda profile: 0.1 + 0.17 * cast(UedpAlgProfile, profile).holders,
        rate=0.1,
        norms=6.0,
    )
    assert claim["of_any_entity"] == pytest.approx(0.1 + 0.17 * 11)
    assert claim["most_holders_within"] == within
    assert claim["entities_beyond"] == 12 - max(within, 0)
    assert claim["sentences_beyond"] == sum(e + 1 for e in range(12) if e + 1 > within)
    assert claim["rotation_noise_to_signal"] == pytest.approx(1.0 / 0.6)


def test_the_noise_for_the_claim_proves_the_claim(result: Result) -> None:
    claim = result["data"]["conll"]["proven"]["claim"]
    profile = RotationProfile(claim["rotation_noise"], 50 / 946, 0.3)
    assert claim["epsilon"] == 0.52
    assert 0.5 < epsilon(profile, 50, 1e-5) <= 0.52


def test_published_and_proven_epsilons_never_share_a_column(result: Result) -> None:
    for line in budget.table(result).splitlines():
        if line.startswith("| data"):
            published_columns = [c for c in line.split("|") if "published" in c]
            assert published_columns
            assert not any("proven" in c for c in published_columns)


def test_a_finished_proof_is_reused(
    result: Result, shared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "epsilon", None)
    assert budget.measure(shared("budget")) == result
