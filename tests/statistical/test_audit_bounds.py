"""Bounds on mechanisms whose epsilon is known: they hold as often as they say, and come close."""

import numpy as np
import pytest
from scipy import special

from tests.audit.test_bounds import false_alarms_allowed, gaussian_scores
from uedp.accounting.proven import UserLevelProfile, guarantee
from uedp.audit.bounds import (
    Curve,
    Scores,
    Trial,
    gaussian_epsilon,
    gaussian_mu,
    largest_noise,
    threshold_epsilon,
)


def test_points_hold_with_their_confidence_however_many_attacks():
    """Guarantee of Trial: 300 trials, ten attacks each, confidence 80%."""
    rng, misses, repetitions = np.random.default_rng(0), 0, 300
    for _ in range(repetitions):
        trial = Trial(gaussian_scores(rng, 0.3, 200, useless=9), 0.8)
        point = trial.test(lambda right, wrong, _: threshold_epsilon(right, wrong, 0.0))
        mu = 0.3 if point.attack == "best" else 0.0
        cut = point.threshold
        guessed, other = (0.0, -mu) if not point.full else (mu, 0.0)
        true_right, true_wrong = special.ndtr(guessed - cut), special.ndtr(other - cut)
        misses += point.right > true_right or point.wrong < true_wrong
    assert misses <= false_alarms_allowed(repetitions, 0.2)
    assert misses > 0


def test_choosing_and_testing_on_the_same_scores_would_not_hold(monkeypatch):
    """Why scores are split: among enough useless attacks one looks good."""
    monkeypatch.setattr(Scores, "split", lambda scores: (scores, scores))
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        attacks = gaussian_scores(rng, 0.0, 100, useless=19)
        point = Trial(attacks, 0.8).test(lambda r, w, _: threshold_epsilon(r, w, 0.0))
        alarms += point.right > point.wrong  # truly, every attack is as often right as wrong
    assert alarms > false_alarms_allowed(100, 0.2)


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 0.05), (1.0, 1e-2), (2.0, 1e-3)])
def test_threshold_and_gaussian_bounds_on_a_gaussian(mu, delta):
    """At 90% confidence, 200 repetitions: seldom above the truth, and most near it."""
    rng, true, repetitions = np.random.default_rng(2), gaussian_epsilon(mu, delta), 200
    cuts, fits = [], []
    for _ in range(repetitions):
        trial = Trial(gaussian_scores(rng, mu, 4000), 0.9)
        cut = trial.test(lambda r, w, _: threshold_epsilon(r, w, delta))
        fit = trial.test(lambda r, w, _: gaussian_mu(r, w))
        cuts.append(float(threshold_epsilon(np.array(cut.right), np.array(cut.wrong), delta)))
        found = float(gaussian_mu(np.array(fit.right), np.array(fit.wrong)))
        fits.append(gaussian_epsilon(found, delta))
    for bounds in (cuts, fits):
        assert np.sum(np.array(bounds) > true) <= false_alarms_allowed(repetitions, 0.1)
    assert np.median(fits) > 0.55 * true
    assert np.median(cuts) > 0.3 * true


def test_noise_is_bounded_with_confidence():
    """Guarantee of largest_noise: 60 repetitions at 90%."""
    rng, alarms, found = np.random.default_rng(3), 0, []
    curves = {}

    def curve_of(noise: float) -> Curve:
        if noise not in curves:
            curves[noise] = Curve.of(guarantee([(UserLevelProfile(noise, 1.0), 1)]), 40)
        return curves[noise]

    for _ in range(60):
        largest, point = largest_noise(
            Trial(gaussian_scores(rng, 1.0, 2000), 0.9), curve_of, 1.0, 0.02
        )
        alarms += largest < 1
        found.append(largest)
        rates = np.array([point.right]), np.array([point.wrong])
        assert curve_of(1.05 * largest).excess(*rates, point.full)[0] > 0
    assert alarms <= false_alarms_allowed(60, 0.1)
    assert np.median(found) < 1.3
