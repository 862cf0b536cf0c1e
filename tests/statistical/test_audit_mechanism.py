"""Audits of correct mechanisms: bounds hold as often as they say, and come close."""

import pytest
from scipy import stats

from tests.audit.plans import DELTA, audit
from uedp.accounting.calibrate import noise_for
from uedp.accounting.proven import MissedProfile, RotationProfile, UedpAlgProfile, UserLevelProfile

RIGHT = [
    (UserLevelProfile(1.0, 0.5), "user"),
    (RotationProfile(1.2, 0.4, 0.5), "user and entity"),
    (RotationProfile(1.2, 0.4, 0.5), "entity"),
    (UedpAlgProfile(4.0, 0.4, 10, 9), "user and entity"),
    (MissedProfile(RotationProfile(1.5, 0.4, 0.5), 1, 1, 0.5), "missed mention"),
]


@pytest.mark.parametrize(("profile", "kind"), RIGHT)
def test_no_bound_exceeds_what_is_proven(profile, kind):
    """Guarantees of audit: 40 audits at 95%; more than 7 above come once in a thousand times, and
    an alarm in any of them, for all cases together, once in twenty times."""
    repetitions, beaten, crossed = 40, 0, 0
    options = {"attacks": ["likelihood"], "fit_curve": False, "among": 40 * len(RIGHT)}
    for seed in range(repetitions):
        found = audit(profile, kind, 4, 0.02, runs=400, seed=seed, **options)
        beaten += found.threshold.epsilon > found.proven
        crossed += found.excess > 0
        assert found.proven > 1
        assert not found.alarm.raised
    assert max(beaten, crossed) <= stats.binom.ppf(0.999, repetitions, 0.05)


@pytest.mark.parametrize(
    ("profile", "kind", "target"),
    [
        (lambda z: UserLevelProfile(z, 0.1), "user", 2.0),
        (lambda z: RotationProfile(z, 0.1, 0.3), "user and entity", 8.0),
    ],
)
def test_what_is_proven_is_nearly_reached(profile, kind, target):
    noise = noise_for(target, DELTA, 50, profile)
    found = audit(profile(noise), kind, 50, DELTA, runs=20_000, seed=0, attacks=["likelihood"])
    assert 0.7 * found.proven <= found.curve.epsilon <= found.proven
    assert 0.55 * found.proven <= found.gaussian.epsilon <= found.proven
    assert 0.97 * found.proven <= found.attainable <= 1.001 * found.proven
    assert not found.refutes_proven
