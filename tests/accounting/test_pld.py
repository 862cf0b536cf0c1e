"""Few losses instead of many, grids, and a million rounds: never below the truth, and close."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_accounting
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, special

from uedp.accounting import pld
from uedp.accounting.pld import PrivacyLossDistribution, compose, discretise
from uedp.accounting.proven import (
    MissedProfile,
    Profile,
    RotationProfile,
    UserLevelProfile,
    epsilon,
    guarantee,
)

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "accounting.py"))


# --- the fast way against the slow one ------------------------------------------------------------

SLOW = [
    (RotationProfile(0.6, 0.0005, 0.3), 1000, 1e-6),
    (RotationProfile(0.45, 0.002, 1.0), 100, 1e-8),
    (RotationProfile(0.9, 0.005, 0.1, 0.5, 0.5), 1000, 1e-5),
    (RotationProfile(1.5, 0.1, 0.4), 200, 1e-5),
    (UserLevelProfile(0.5, 0.001), 10_000, 1e-7),
    (UserLevelProfile(0.7, 1.0), 3, 1e-5),
    (MissedProfile(RotationProfile(0.9, 0.005, 0.3), 2, 1, 0.3), 300, 1e-6),
]


@pytest.mark.parametrize(("profile", "rounds", "delta"), SLOW)
def test_few_losses_cost_hardly_more_than_a_fine_grid(profile, rounds, delta, monkeypatch):
    """The slow way evaluates the divergences at every point of an equidistant grid."""

    def equidistant(low: float, high: float, spread: float) -> pld.Floats:
        return np.linspace(low, high, 60_001)

    fast = epsilon(profile, rounds, delta)
    monkeypatch.setattr(pld, "_nodes", equidistant)
    discretise.cache_clear()
    slow = epsilon(profile, rounds, delta)
    discretise.cache_clear()
    assert fast == pytest.approx(slow, rel=3e-4)


@pytest.mark.parametrize("rate", [0.0005, 0.01])
def test_more_losses_never_show_that_fewer_were_too_low(rate, monkeypatch):
    """At eight times the resolution epsilon is a little smaller, at every delta."""
    profile = RotationProfile(0.6, rate, 0.3)
    coarse = guarantee([(profile, 200)])
    monkeypatch.setattr(pld, "_NODES", 8 * pld._NODES)
    monkeypatch.setattr(pld, "_STEPS_PER_SPREAD", 4 * pld._STEPS_PER_SPREAD)
    monkeypatch.setattr(pld, "_FEW_POINTS", 8 * pld._FEW_POINTS)
    discretise.cache_clear()
    fine = guarantee([(profile, 200)])
    discretise.cache_clear()
    for delta in (1e-4, 1e-6, 1e-8, 1e-10):
        assert fine.epsilon(delta) <= coarse.epsilon(delta) * (1 + 1e-9)
        assert coarse.epsilon(delta) <= fine.epsilon(delta) * (1 + 2e-4)


losses = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(1e-6, 1)),
    min_size=1,
    max_size=12,
    unique_by=lambda x: x[0],
)


@settings(max_examples=100, deadline=None)
@given(atoms=losses, step=st.floats(1e-3, 2))
def test_a_grid_keeps_both_masses_and_lowers_no_divergence(atoms, step):
    at, weights = np.array(sorted(atoms)).T
    one = PrivacyLossDistribution(at, weights / weights.sum(), 0.0)
    gridded = pld._on_grid(one, step)
    places = step * gridded.places
    assert (gridded.masses >= 0).all()
    assert gridded.masses.sum() == pytest.approx(1, rel=1e-12)
    theirs = float(np.exp(-at) @ one.masses)
    assert np.exp(-places) @ gridded.masses == pytest.approx(theirs, rel=1e-9)
    order = np.argsort(places)
    on_grid = PrivacyLossDistribution(places[order], gridded.masses[order], 0.0)
    for eps in np.linspace(-6, 6, 25):
        assert on_grid.delta(eps) >= one.delta(eps) - 1e-12


def test_losses_too_close_to_resolve_stay_a_distribution():
    """Differences of divergences are all rounding here, and a million rounds multiply it."""
    for profile in (UserLevelProfile(0.05, 1e-9), RotationProfile(1e6, 1e-4, 0.3)):
        (pair,) = set(profile.pairs().values())
        for side in discretise(pair):
            assert (side.masses >= 0).all()
            assert side.masses.sum() + side.infinite == pytest.approx(1, abs=1e-15)
            assert compose([(side, 10**6)]).masses.sum() == pytest.approx(1, abs=1e-7)


# --- against others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta"), [(0.0005, 0.6, 1000, 1e-7), (0.005, 1.2, 10_000, 1e-6)]
)
def test_small_rates_are_dp_accountings(rate, noise, rounds, delta):
    """Their grid is coarser, and pessimistic as well."""
    theirs = dp_accounting.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=2e-4
    )
    upper = theirs.self_compose(rounds).get_epsilon_for_delta(delta)
    ours = epsilon(UserLevelProfile(noise, rate), rounds, delta)
    assert upper * (1 - 2e-3) <= ours <= upper * (1 + 1e-4)


def test_the_exact_epsilon_is_the_gaussians():
    """The reference itself, where a closed form is known: rounds of Gaussians are one."""
    one = BENCHMARK["losses_between"]([(1.0, 1.0)], [(0.0, 1.0)], 40.0)
    found = BENCHMARK["exact_epsilon"](*one, 400, 1e-6)
    left, right = special.ndtr([0.25 - found / 0.5, -0.25 - found / 0.5])  # mean shift 1/2
    assert left - np.exp(found) * right == pytest.approx(1e-6, rel=1e-6)


MILLION: list[tuple[Profile, float]] = [
    (UserLevelProfile(2.3, 0.001), 1e-6),
    (UserLevelProfile(50.0, 0.01), 1e-8),
    (RotationProfile(1.7, 0.0005, 0.3), 1e-6),
    (RotationProfile(9.9, 0.01, 0.3), 1e-8),
]


@pytest.mark.parametrize(("profile", "delta"), MILLION)
def test_a_million_rounds_are_within_a_hundredth_of_the_truth(profile, delta):
    """A tenth of the smaller delta is charged for rounding. The target is two hundredths."""
    share = profile.entity_share if isinstance(profile, RotationProfile) else 0.0
    setting = (profile.user_rate, share, profile.noise, 10**6, delta)
    exact = BENCHMARK["of_theorem" if share else "of_worlds"](*setting)
    ours = epsilon(profile, 10**6, delta)
    assert exact <= ours <= exact * (1.01 if delta < 1e-7 else 1.001)


@pytest.mark.parametrize(
    "profile", [RotationProfile(20.0, 0.01, 0.3), UserLevelProfile(0.3, 1e-7)], ids=["many", "few"]
)
def test_slack_covers_the_transform_of_a_million_rounds(profile, monkeypatch):
    """The transform in extended precision finds no more than a third of the slack beyond ours."""
    monkeypatch.setattr(pld, "_MOST_POINTS", 1 << 17)
    rounds = 10**6
    (pair,) = set(profile.pairs().values())
    for side in discretise(pair):
        ours = compose([(side, rounds)])
        extended = SimpleNamespace(
            next_fast_len=fft.next_fast_len,
            rfft=lambda values: fft.rfft(values.astype(np.longdouble)),
            irfft=lambda values, length: np.asarray(fft.irfft(values, length), dtype=np.float64),
        )
        with monkeypatch.context() as patch:
            patch.setattr(pld, "fft", extended)
            reference = compose([(side, rounds)])
        lost = [reference.delta(eps) - ours.delta(eps) for eps in np.linspace(0, 10, 200)]
        assert max(lost) <= ours.slack / 3
