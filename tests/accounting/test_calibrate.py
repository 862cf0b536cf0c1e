"""Searches for noise, rounds and share: on the right side of the target, and close to it."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uedp.accounting import calibrate
from uedp.accounting.calibrate import noise_for, rounds_for, share_for
from uedp.accounting.pld import max_rounds
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.errors import UserError

DELTA = 1e-5
targets = st.floats(0.1, 20)
rates = st.sampled_from([0.05, 0.3, 1.0])
shares = st.sampled_from([0.0, 0.1, 0.5, 2.0])
FEW = settings(max_examples=4, deadline=None)
_LITTLE_LESS = 0.995  # the bound itself is uneven: at single values it is up to 0.2% higher


@FEW
@given(target=targets, rate=rates, share=shares, rounds=st.integers(1, 500))
def test_noise_meets_the_target_and_little_less_does_not(target, rate, share, rounds):
    def rotation(z: float) -> Profile:
        return RotationProfile(z, rate, share, reveal_draw=True)

    noise = noise_for(target, DELTA, rounds, rotation)
    assert epsilon(rotation(noise), rounds, DELTA) <= target
    assert epsilon(rotation(_LITTLE_LESS * noise), rounds, DELTA) > target


@FEW
@given(target=st.floats(0.5, 5), rate=rates, share=shares, noise=st.floats(0.5, 3))
def test_one_round_more_is_too_many(target, rate, share, noise):
    profile = RotationProfile(noise, rate, share, reveal_draw=True)
    rounds = rounds_for(target, DELTA, profile)
    assert epsilon(profile, rounds, DELTA) <= target < epsilon(profile, rounds + 1, DELTA)


@FEW
@given(target=targets, rate=rates, rounds=st.integers(1, 200), spare=st.floats(1, 2))
def test_share_meets_the_target_and_little_more_does_not(target, rate, rounds, spare):
    noise = spare * noise_for(target, DELTA, rounds, lambda z: UserLevelProfile(z, rate))

    def rotation(share: float) -> Profile:
        return RotationProfile(noise, rate, share, reveal_draw=True)

    share = share_for(target, DELTA, rounds, rotation)
    assert epsilon(rotation(share), rounds, DELTA) <= target
    more = share / _LITTLE_LESS + 1e-5
    assert more >= 2 or epsilon(rotation(more), rounds, DELTA) > target


def test_the_searches_agree():
    noise = noise_for(8.0, DELTA, 200, lambda z: RotationProfile(z, 0.05, 0.33))
    assert noise == pytest.approx(0.956, rel=0.01)
    assert rounds_for(8.0, DELTA, RotationProfile(noise, 0.05, 0.33)) in (200, 201)
    share = share_for(8.0, DELTA, 200, lambda s: RotationProfile(noise, 0.05, s))
    assert share == pytest.approx(0.33, rel=2e-3)


def test_the_papers_mechanism_can_be_calibrated():
    def alg(z: float) -> Profile:
        return UedpAlgProfile(z, 0.05, 100, 10)

    noise = noise_for(0.5, DELTA, 50, alg)
    assert epsilon(alg(noise), 50, DELTA) <= 0.5 < epsilon(alg(0.999 * noise), 50, DELTA)


def test_few_evaluations(monkeypatch):
    tried = []

    def counted(profile: Profile, rounds: int, delta: float) -> float:
        tried.append(profile.noise)
        return epsilon(profile, rounds, delta)

    monkeypatch.setattr(calibrate, "epsilon", counted)
    for target in (0.01, 8.0, 100.0):
        tried.clear()
        noise_for(target, DELTA, 100, lambda z: UserLevelProfile(z, 0.05))
        assert len(tried) <= 25


def test_infinite_epsilons_on_the_way_do_not_mislead():
    """A target near the largest epsilon that is told apart; most noises tried have none."""
    noise = noise_for(490.0, DELTA, 1, lambda z: UserLevelProfile(z, 1.0))
    assert epsilon(UserLevelProfile(noise, 1.0), 1, DELTA) <= 490
    assert epsilon(UserLevelProfile(0.99 * noise, 1.0), 1, DELTA) > 490
    noise = noise_for(1e6, DELTA, 1, lambda z: UserLevelProfile(z, 1.0))
    assert epsilon(UserLevelProfile(noise, 1.0), 1, DELTA) < math.inf


def test_nobody_drawn_needs_no_noise_and_no_end():
    assert noise_for(1.0, DELTA, 10, lambda z: UserLevelProfile(z, 0.0)) < 0.01
    assert rounds_for(1.0, DELTA, UserLevelProfile(1.0, 0.0)) == 10_000_000
    assert share_for(1.0, DELTA, 10, lambda s: RotationProfile(1.0, 0.0, s)) == 2.0


def test_not_even_one_round():
    assert rounds_for(0.01, DELTA, UserLevelProfile(0.5, 0.5)) == 0
    assert rounds_for(1.0, DELTA, UserLevelProfile(0.0, 0.5)) == 0


def test_rounds_stop_where_delta_is_lost_in_rounding():
    """A small delta can be computed for few rounds only: more are not promised."""
    profile, delta = UserLevelProfile(1000.0, 0.1), 1e-11
    rounds = rounds_for(1.0, delta, profile)
    assert rounds == max_rounds(delta)
    assert epsilon(profile, rounds, delta) <= 1.0
    with pytest.raises(UserError, match="rounding"):
        epsilon(profile, rounds + 1, delta)


def test_rounds_near_the_most_are_found_exactly(monkeypatch):
    """Not only powers of two below the limit."""
    monkeypatch.setattr(calibrate, "MAX_ROUNDS", 1000)
    assert rounds_for(5.0, DELTA, UserLevelProfile(500.0, 0.1)) == 1000


def test_a_share_of_almost_nothing_is_found_soon():
    """The user alone meets the target by a hair: the search must not halve its way to zero."""
    noise = 1.0
    target = epsilon(UserLevelProfile(noise, 0.05), 100, DELTA) * (1 + 1e-12)
    began = time.process_time()
    share = share_for(target, DELTA, 100, lambda s: RotationProfile(noise, 0.05, s))
    assert share < 0.01
    assert time.process_time() - began < 5


def user(z: float) -> Profile:
    return UserLevelProfile(z, 0.1)


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("epsilon 0", lambda: noise_for(0.0, DELTA, 10, user)),
        ("epsilon -1", lambda: rounds_for(-1.0, DELTA, user(1.0))),
        ("epsilon nan", lambda: noise_for(math.nan, DELTA, 10, user)),
        ("epsilon inf", lambda: noise_for(math.inf, DELTA, 10, user)),
        ("delta 0", lambda: noise_for(1.0, 0.0, 10, user)),
        ("delta 1", lambda: noise_for(1.0, 1.0, 10, user)),
        ("delta nan", lambda: share_for(1.0, math.nan, 10, user)),
        ("delta 1e-300", lambda: noise_for(1.0, 1e-300, 10, user)),
        ("delta 1e-300", lambda: rounds_for(1.0, 1e-300, user(1.0))),
        ("rounds 0", lambda: noise_for(1.0, DELTA, 0, user)),
        ("rounds -5", lambda: share_for(1.0, DELTA, -5, user)),
        ("no noise reaches", lambda: noise_for(1e-12, 1e-9, 1000, user)),
        ("raise it", lambda: share_for(0.1, DELTA, 100, lambda s: RotationProfile(1.0, 0.5, s))),
    ],
)
def test_nonsense_is_refused_by_name(words, bad):
    began = time.process_time()
    with pytest.raises(UserError, match=words):
        bad()
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("target", "delta", "rounds", "share", "coin"),
    [(1.0, 1e-8, 10_000, 0.3, 1.0), (8.0, 1e-5, 100, 0.1, 1.0), (2.0, 1e-6, 1000, 0.3, 0.5)],
)
def test_a_small_rate_takes_few_evaluations_and_little_time(
    target, delta, rounds, share, coin, monkeypatch
):
    """At most 3 s is the target; it takes about 0.5 s. Equidistant losses took up to 23 s."""
    evaluations = []

    def counted(profile: Profile, rounds: int, delta: float) -> float:
        evaluations.append(profile.noise)
        return epsilon(profile, rounds, delta)

    def rotation(z: float) -> Profile:
        return RotationProfile(z, 0.0005, share, coin, coin)

    monkeypatch.setattr(calibrate, "epsilon", counted)
    began = time.process_time()
    noise = noise_for(target, delta, rounds, rotation)
    assert time.process_time() - began < 3
    assert len(evaluations) <= 10
    spent = epsilon(rotation(noise), rounds, delta)
    assert 0.999 * target <= spent <= target < epsilon(rotation(0.9998 * noise), rounds, delta)
