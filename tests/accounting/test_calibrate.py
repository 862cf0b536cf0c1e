import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uedp.accounting.calibrate import noise_for, rounds_for, share_for
from uedp.accounting.proven import Rotation, UserLevel, epsilon
from uedp.errors import UserError

DELTA = 1e-5


@settings(max_examples=12, deadline=None)
@given(
    target=st.sampled_from([0.5, 1.0, 2.0, 8.0, 20.0]),
    rate=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    rounds=st.sampled_from([1, 50, 1000]),
)
def test_noise_meets_the_target_and_hardly_more(target, rate, share, rounds):
    noise = noise_for(target, DELTA, rounds, lambda z: Rotation(z, rate, share))
    assert epsilon(Rotation(noise, rate, share), rounds, DELTA) <= target
    assert epsilon(Rotation(0.998 * noise, rate, share), rounds, DELTA) > target * (1 - 1e-3)


def test_rounds_meet_the_target_and_one_more_does_not():
    profile = Rotation(1.1, 0.05, 0.33)
    rounds = rounds_for(4.0, DELTA, profile)
    assert epsilon(profile, rounds, DELTA) <= 4.0 < epsilon(profile, rounds + 1, DELTA)


def test_no_round_at_all_may_be_the_answer():
    assert rounds_for(0.1, DELTA, UserLevel(0.5, 0.5)) == 0


def test_share_meets_the_target_and_hardly_less():
    def profile(share: float) -> Rotation:
        return Rotation(1.5, 0.05, share)

    share = share_for(4.0, DELTA, 200, profile)
    assert epsilon(profile(share), 200, DELTA) <= 4.0 < epsilon(profile(1.002 * share), 200, DELTA)
    assert share_for(100.0, DELTA, 200, profile) == 2.0


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
def test_a_target_must_be_a_positive_number(target):
    with pytest.raises(UserError, match="epsilon"):
        noise_for(target, DELTA, 10, lambda z: UserLevel(z, 0.1))


def test_what_cannot_be_reached_is_refused():
    with pytest.raises(UserError, match="delta 0"):
        noise_for(1.0, 0.0, 10, lambda z: UserLevel(z, 0.1))
    with pytest.raises(UserError, match="rounds"):
        noise_for(1.0, DELTA, 0, lambda z: UserLevel(z, 0.1))
    with pytest.raises(UserError, match="user alone"):
        share_for(0.5, DELTA, 200, lambda s: Rotation(0.6, 0.2, s))
