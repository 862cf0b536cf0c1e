"""What a corpus has to offer a round, and which option a target epsilon leaves most signal."""

from functools import partial

import numpy as np
import pytest

from uedp.accounting.calibrate import noise_for
from uedp.accounting.planning import (
    ALIGNMENT,
    COVERAGE,
    RoughNoise,
    Supply,
    best_options,
    options,
    run_signal,
)
from uedp.accounting.proven import RotationProfile, epsilon
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.sampling import supply_of


@pytest.fixture
def supply() -> Supply:
    """Three users: two sentences of an own entity, one without entity, and both."""
    user = np.array([0, 0, 1, 2, 2])
    incidence = Incidence.build(user, np.array([0, 1, 3]), np.array([0, 0, 1]), 3, 2)
    return supply_of(incidence)


def test_usable_sentences_and_those_without_entity(supply: Supply) -> None:
    assert supply.sentences_per_user.tolist() == [2, 1, 2]
    assert supply.extended_per_user is not None
    assert supply.extended_per_user.tolist() == [0, 1, 1]


def test_without_the_corpus_only_the_full_rate_is_known() -> None:
    counted = Supply.of_counts(10, 100, 0.5)
    assert counted.usable(1.0).tolist() == [5]
    with pytest.raises(UserError, match=r"extended rate 0\.5"):
        counted.usable(0.5)


def test_every_option_meets_the_target_and_a_smaller_extended_rate_only_loses(
    supply: Supply,
) -> None:
    found = list(options(8.0, 1e-5, supply, [0.2], [20], [0.3], [0.0, 0.5, 1.0]))
    assert [option.extended_rate for option in found] == [0.0, 0.5, 1.0]
    for option in found:
        profile = RotationProfile(option.noise, 0.2, 0.3, extended_rate=option.extended_rate)
        assert epsilon(profile, 20, 1e-5) <= 8.0
        expected = run_signal(20, 0.2, supply.signal(0.3, option.extended_rate), option.noise)
        assert option.merit == pytest.approx(expected)
    assert found[0].merit < found[1].merit < found[2].merit
    # the entity needs as much noise whatever is done with sentences that have none
    assert found[0].noise == pytest.approx(found[2].noise, rel=1e-3)


def test_the_best_options_of_both_methods_meet_the_target() -> None:
    offers = {
        "rotation": lambda share: Supply(10, np.full(10, 2.0), sentences=40),
        "fair-shares": lambda share: Supply(10, np.full(10, 4.0), sentences=40),
    }
    one, two = best_options(8.0, 1e-5, offers, [0.2], [20, 2], [0.3], 2)
    assert [option.method for option in (one, two)] == ["fair-shares", "rotation"]
    for option in (one, two):
        assert option.rounds == 20  # two rounds are in no way better
        assert option.profile.method == option.method
        assert 7.9 < epsilon(option.profile, 20, 1e-5) <= 8.0
        signal = offers[option.method](0.3).signal(0.3)
        assert option.merit == pytest.approx(run_signal(20, 0.2, signal, option.noise))
    assert one.merit > two.merit


def test_rough_noise_is_about_the_noise_that_is_needed() -> None:
    cases = [(8.0, 0.2, 100, 0.4), (2.0, 0.1, 50, 0.2), (8.0, 0.02, 25, 1.0)]
    for target, rate, rounds, share in cases:
        profile = partial(RotationProfile, user_rate=rate, entity_share=share)
        exact = noise_for(target, 1e-5, rounds, profile)
        rough = RoughNoise(target, 1e-5)
        assert rough(rounds, rate, share) == pytest.approx(exact, rel=0.15)
        assert rough(rounds, rate) < rough(rounds, rate, share)


def test_the_second_sentence_of_a_user_adds_less_than_another_user() -> None:
    two, one = Supply(10, np.full(10, 2.0)), Supply(20, np.ones(20))
    for share in (0.1, 0.5, 1.0):
        assert two.signal(share, cap=1) == pytest.approx(one.signal(share) / 2)
        assert two.signal(share, cap=1) < two.signal(share) <= one.signal(share)
    # a short sum is not clipped, a long one is to 1, of which the aligned part counts
    assert two.signal(0.1) == pytest.approx(10 * 2 * 0.1 * ALIGNMENT)
    many = Supply(1, np.array([1e6])).signal(1.0)
    assert many == pytest.approx(1.0, rel=1e-3)


def test_what_has_to_wait_is_a_loss_beyond_its_share() -> None:
    offered = np.full(10, 4.0)
    whole, half = Supply(10, offered, sentences=40), Supply(10, offered, sentences=80)
    assert whole.signal(0.3) == Supply(10, offered).signal(0.3)
    assert half.signal(0.3) == pytest.approx(whole.signal(0.3) * 0.5**COVERAGE)
    # a cap saves time and leaves no sentence out for good
    assert half.signal(0.3, cap=1) == pytest.approx(whole.signal(0.3, cap=1) * 0.5**COVERAGE)


def test_the_figure_of_a_run_grows_with_signal_and_rounds_and_falls_with_noise() -> None:
    base = run_signal(100, 0.1, 5.0, 1.0)
    assert run_signal(100, 0.2, 5.0, 1.0) == pytest.approx(2 * base)
    assert run_signal(100, 0.1, 5.0, 2.0) == pytest.approx(base / 2)
    assert run_signal(10**6, 0.1, 5.0, 1.0) == pytest.approx(1e3 * 0.1 * 5.0, rel=1e-3)
    # short runs lose more than the root of their rounds
    assert run_signal(25, 0.1, 5.0, 1.0) < base / 2
