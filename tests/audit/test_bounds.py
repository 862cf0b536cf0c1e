"""Bounds on mechanisms whose epsilon is known: they hold as often as they say, and come close."""

import math

import numpy as np
import pytest
from scipy import special, stats

from uedp.accounting.proven import RotationProfile, UserLevelProfile, guarantee
from uedp.audit.bounds import (
    Curve,
    Scores,
    Trial,
    at_least,
    at_most,
    gaussian_delta,
    gaussian_epsilon,
    largest_noise,
    threshold_epsilon,
)
from uedp.errors import UserError


def false_alarms_allowed(trials: int, rate: float) -> int:
    """More than this many false alarms would come by chance once in a thousand times."""
    return int(stats.binom.ppf(0.999, trials, rate))


def gaussian_scores(rng, mu: float, runs: int, useless: int = 0) -> list[Scores]:
    """The best attack on a Gaussian mechanism, and some that know nothing."""
    best = Scores("best", rng.normal(mu, 1, runs), rng.normal(0, 1, runs))
    others = [
        Scores(f"useless {i}", rng.normal(size=runs), rng.normal(size=runs)) for i in range(useless)
    ]
    return [*others, best]


@pytest.mark.parametrize("trials", [5, 60, 400])
@pytest.mark.parametrize("alpha", [0.025, 0.2])
def test_intervals_miss_no_more_often_than_they_say(trials, alpha):
    """Guarantee of at_least, and its mirror, over every outcome."""
    hits = np.arange(trials + 1)
    low, high = at_least(hits, trials, alpha), at_most(hits, trials, alpha)
    assert np.allclose(low, 1 - at_most(trials - hits, trials, alpha))
    for chance in (0.001, 0.02, 0.3, 0.5, 0.97):
        likely = stats.binom.pmf(hits, trials, chance)
        assert likely[low > chance].sum() <= alpha
        assert likely[high < chance].sum() <= alpha
    missed = stats.binom.pmf(hits, trials, 0.3)[low > 0.3].sum()
    assert trials < 60 or missed > alpha / 3  # and not for being useless


def test_gaussian_epsilon_is_that_of_the_accountant():
    for mu in (0.3, 1.0, 4.0):
        composed = guarantee([(UserLevelProfile(2 / mu, 1.0), 4)])  # four rounds of mu / 2
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(composed.epsilon(1e-5), rel=1e-3)
        assert gaussian_delta(mu, 1.0) == pytest.approx(composed.delta(1.0), rel=1e-3, abs=1e-9)
    assert gaussian_epsilon(0.0, 1e-5) == 0


def test_delta_is_taken_off():
    assert threshold_epsilon(np.array([0.5]), np.array([0.1]), 0.3)[0] == pytest.approx(math.log(2))
    assert threshold_epsilon(np.array([0.2]), np.array([0.1]), 0.3)[0] == 0


def test_a_curve_allows_what_is_true_and_nothing_beyond():
    """Guarantee of Curve.excess, for the best attack on one round of sampled users."""
    z, q = 1.0, 0.3
    cuts = np.linspace(-3, 4, 200)
    wrong = special.ndtr(-cuts / z)
    right = (1 - q) * wrong + q * special.ndtr((1 - cuts) / z)
    for full, rates in ((True, (right, wrong)), (False, (1 - wrong, 1 - right))):
        curve = Curve.of(guarantee([(UserLevelProfile(z, q), 1)]))
        assert curve.excess(*rates, full).max() <= 1e-9
        assert curve.excess(*rates, full).max() > -1e-3
        less = Curve.of(guarantee([(UserLevelProfile(1.05 * z, q), 1)]))
        assert less.excess(*rates, full).max() > 1e-3


def test_attacks_without_use_bound_nothing():
    rng = np.random.default_rng(4)
    trial = Trial(gaussian_scores(rng, 0.0, 1000), 0.99)
    profile = RotationProfile(5.0, 0.1, 0.3)
    largest, _ = largest_noise(
        trial, lambda z: Curve.of(guarantee([(RotationProfile(z, 0.1, 0.3), 1)])), profile.noise
    )
    assert largest == math.inf
    assert trial.most(lambda r, w, _: threshold_epsilon(r, w, 0.1)) == 0


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(UserError, match="confidence"):
        Trial(gaussian_scores(np.random.default_rng(5), 1.0, 10), confidence)
