"""Filters of noisy gradients, against their formulas and for what they are used for."""

import pytest
import torch
from pydantic import ValidationError

from uedp.training.config import OptimiserSettings as Settings
from uedp.training.filters import Kalman, LowPass, build_filter

GAIN = 0.4


def gradients(count: int, seed: int = 1):
    made = torch.Generator().manual_seed(seed)
    return [[torch.randn(5, generator=made, dtype=torch.float64)] for _ in range(count)]


def zeros():
    return [torch.zeros(5, dtype=torch.float64)]


def test_by_default_nothing_is_filtered():
    assert build_filter(Settings(), zeros()) is None


def test_low_pass_matches_its_recursion():
    used = build_filter(Settings(filter="low-pass", filter_gain=GAIN), zeros())
    mean, weight, last, begun = zeros()[0], 0.0, zeros()[0], 0.0
    for (given,) in gradients(6):
        mean = (1 - GAIN) * mean + GAIN / 2 * (given + last)
        weight = (1 - GAIN) * weight + GAIN / 2 * (1 + begun)
        last, begun = given, 1.0
        with used.ahead():
            found = used.filtered([given.clone()])[0]
        used.stepped()
        assert torch.allclose(found, mean / weight, rtol=1e-6)


@pytest.mark.parametrize("kind", ["low-pass", "kalman"])
def test_a_constant_passes_and_noise_shrinks(kind):
    used = build_filter(Settings(filter=kind, filter_gain=GAIN), zeros())
    ones = torch.ones(5, dtype=torch.float64)
    for _ in range(20):
        assert torch.allclose(used.filtered([ones])[0], ones)
    used, left = build_filter(Settings(filter=kind, filter_gain=GAIN), zeros()), []
    for given in gradients(400):
        left.append(used.filtered(given)[0])
    # white noise behind a filter: the sum of its squared weights
    expected = {"low-pass": GAIN / 2, "kalman": GAIN / (2 - GAIN)}[kind]
    assert float(torch.stack(left[20:]).var()) == pytest.approx(expected, rel=0.2)


def test_kalman_tracks_a_gradient_that_is_linear_in_the_weights():
    """Without noise, the estimate is the gradient at the weights themselves, after every step."""
    weights = [torch.tensor([3.0, -2.0], dtype=torch.float64)]
    slopes = torch.tensor([0.5, 2.0], dtype=torch.float64)
    used, plain = Kalman(weights, GAIN), Kalman(weights, GAIN)
    apart = []
    for _ in range(10):
        here = weights[0].clone()
        with used.ahead():
            ahead = slopes * weights[0]
        assert torch.equal(weights[0], here)
        found = used.filtered([ahead])[0]
        assert torch.allclose(found, slopes * here, rtol=1e-9)
        apart.append(float((plain.filtered([slopes * here])[0] - slopes * here).norm()))
        weights[0].sub_(0.1 * found)
        used.stepped()
    assert apart[0] == 0
    assert min(apart[1:]) > 0.01  # a mean of past gradients lags behind


def test_weights_come_back_if_a_round_is_interrupted():
    weights = [torch.ones(5, dtype=torch.float64)]
    used = Kalman(weights, GAIN)
    weights[0].add_(1)
    used.stepped()
    seen = []

    def interrupted():
        with used.ahead():
            seen.append(float(weights[0][0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [pytest.approx(2 + (1 - GAIN) / GAIN)]
    assert torch.equal(weights[0], torch.full((5,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("kind", [LowPass, Kalman])
def test_a_restored_filter_continues_identically(kind):
    weights = zeros()
    first = kind(weights, GAIN)
    for given in gradients(3):
        weights[0].sub_(first.filtered(given)[0])
        first.stepped()
    second = kind([weights[0].clone()], GAIN)
    second.restore({name: value.clone() for name, value in first.state().items()})
    (more,) = gradients(1, seed=9)
    assert torch.equal(first.filtered(more)[0], second.filtered(more)[0])
    assert first.state().keys() == second.state().keys()


def test_noise_is_not_subtracted_behind_a_filter():
    with pytest.raises(ValidationError, match="leave out one"):
        Settings(filter="kalman", subtract_noise=True)
