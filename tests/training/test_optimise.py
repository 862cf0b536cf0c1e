import math
from itertools import pairwise

import pytest
import torch

from uedp.training.config import OptimiserSettings as Settings
from uedp.training.optimise import (
    Adam,
    Average,
    Momentum,
    build_average,
    build_optimiser,
    learning_rate,
)

SHAPES = ((3, 2), (4,))
RATES = (0.1, 0.05, 0.2)  # as a schedule would have it


def parameters(seed: int = 0):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES]


def stepped(optimiser, values, deviation: float = 0.0):
    for number, rate in enumerate(RATES):
        optimiser.step([g.clone() for g in parameters(number + 1)], rate, deviation)
    return values


def torch_stepped(kind, **options):
    values = [torch.nn.Parameter(p) for p in parameters()]
    optimiser = kind(values, lr=1.0, **options)
    for number, rate in enumerate(RATES):
        optimiser.param_groups[0]["lr"] = rate
        for value, gradient in zip(values, parameters(number + 1), strict=True):
            value.grad = gradient
        optimiser.step()
    return [value.detach() for value in values]


def same(found, expected, **tolerance) -> bool:
    return all(torch.allclose(f, e, **tolerance) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_matches_pytorch(momentum):
    values = parameters()
    found = stepped(Momentum(values, momentum), values)
    assert same(found, torch_stepped(torch.optim.SGD, momentum=momentum), rtol=1e-12)


def test_adam_matches_pytorch():
    values = parameters()
    found = stepped(Adam(values, 0.9, 0.99, subtract_noise=False), values)
    expected = torch_stepped(torch.optim.Adam, betas=(0.9, 0.99), eps=1e-12)
    assert same(found, expected, rtol=1e-9)
    assert not same(found, torch_stepped(torch.optim.Adam, betas=(0.9, 0.9)), rtol=1e-3)


def test_noise_subtraction_matches_tang_et_al():
    """Tang et al. 2023: `m / sqrt(max(v - deviation^2, floor))`, both moments corrected first."""
    deviation, first, second = 0.8, 0.9, 0.99
    values = parameters()
    found = stepped(Adam(values, first, second, subtract_noise=True), values, deviation)
    expected = parameters()
    mean = [torch.zeros_like(p) for p in expected]
    square = [torch.zeros_like(p) for p in expected]
    floored = 0
    for number, rate in enumerate(RATES):
        for i, gradient in enumerate(parameters(number + 1)):
            mean[i] = first * mean[i] + (1 - first) * gradient
            square[i] = second * square[i] + (1 - second) * gradient**2
            rest = square[i] / (1 - second ** (number + 1)) - deviation**2
            floored += int((rest < 0.01 * deviation**2).sum())
            rest = rest.clamp(min=0.01 * deviation**2)
            expected[i] -= rate * mean[i] / (1 - first ** (number + 1)) / rest.sqrt()
    assert same(found, expected, rtol=1e-9)
    assert 0 < floored < 30  # both sides of the floor were met
    values = parameters()
    assert not same(stepped(Adam(values, first, second, False), values, deviation), expected)


def test_without_noise_there_is_nothing_to_subtract():
    one, other = parameters(), parameters()
    stepped(Adam(one, 0.9, 0.99, subtract_noise=True), one)
    stepped(Adam(other, 0.9, 0.99, subtract_noise=False), other)
    assert same(one, other, rtol=0, atol=0)


def test_most_of_pure_noise_is_subtracted():
    """The second moment of pure noise is its variance: what is left of it is near the floor."""
    made = torch.Generator().manual_seed(0)
    zeros = [torch.zeros(20_000)]
    plain, corrected = [torch.zeros(20_000)], zeros
    optimisers = (Adam(plain, 0.9, 0.999, False), Adam(corrected, 0.9, 0.999, True))
    for _ in range(200):
        noise = torch.empty(20_000).normal_(0, 3.0, generator=made)
        for optimiser in optimisers:
            optimiser.step([noise.clone()], 1.0, 3.0)
    assert float(corrected[0].std() / plain[0].std()) > 2


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_a_restored_optimiser_continues_identically(name):
    settings = Settings(name=name)
    whole, first = parameters(), parameters()
    one, old = build_optimiser(settings, whole), build_optimiser(settings, first)
    gradients = [parameters(n) for n in range(1, 5)]
    for gradient in gradients:
        one.step(gradient, 0.1, 0.0)
    for gradient in gradients[:2]:
        old.step(gradient, 0.1, 0.0)
    new = build_optimiser(settings, first)
    new.restore({name: tensor.clone() for name, tensor in old.state().items()})
    for gradient in gradients[2:]:
        new.step(gradient, 0.1, 0.0)
    assert same(first, whole, rtol=0, atol=0)
    assert all(isinstance(tensor, torch.Tensor) for tensor in new.state().values())


def test_sgd_ignores_momentum():
    values = parameters()
    stepped(build_optimiser(Settings(name="sgd", momentum=0.9), values), values)
    assert same(values, torch_stepped(torch.optim.SGD), rtol=1e-12)


# --- schedule ------------------------------------------------------------------------------------


def rates(**settings):
    return [learning_rate(Settings(rate=2.0, **settings), done, 100) for done in range(100)]


def test_warm_up_rises_to_the_learning_rate():
    found = rates(warm_up=0.1, decay="none")
    assert all(a < b for a, b in pairwise(found[:11]))
    assert 0 < found[0] < 0.3
    assert found[10:] == [2.0] * 90


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_falls_to_a_hundredth(decay):
    found = rates(warm_up=0.1, decay=decay)
    assert max(found) == found[10] == 2.0
    assert all(a >= b for a, b in pairwise(found[10:]))
    assert found[-1] == pytest.approx(0.02, rel=0.2)
    half = learning_rate(Settings(rate=2.0, warm_up=0.0, decay=decay), 50, 100)
    assert half == pytest.approx(1.0)


def test_a_single_round_has_a_positive_rate():
    assert all(
        0 < learning_rate(Settings(warm_up=warm, decay=decay), 0, 1) <= 1e-3
        for warm in (0.0, 0.05, 0.9)
        for decay in ("none", "linear", "cosine")
    )


# --- averaging -----------------------------------------------------------------------------------


def test_the_average_is_exponential_and_forgets_its_start():
    value = [torch.tensor([100.0], dtype=torch.float64)]
    average = Average(value, 0.9)
    expected = 100.0
    for step in range(1, 200):
        value[0].fill_(math.sin(step))
        average.update(step)
        decay = min(0.9, step / (step + 9))
        expected = decay * expected + (1 - decay) * math.sin(step)
        if step == 10:
            assert abs(expected) < 1  # 100 is forgotten soon
    assert float(average.values[0]) == pytest.approx(expected, rel=1e-12)
    assert float(value[0]) == math.sin(199)  # what is averaged is left alone


def test_a_restored_average_continues_identically():
    value = [torch.ones(3)]
    average = Average(value, 0.5)
    value[0].fill_(5.0)
    average.update(1)
    other = Average([torch.zeros(3)], 0.5)
    other.restore(average.state())
    assert same(other.values, average.values)


def test_the_average_over_the_last_rounds_is_their_mean():
    value = [torch.zeros((), dtype=torch.float64)]
    average = build_average(Settings(average=0.9, average_tail=0.25), value, 10)
    for step in range(1, 11):
        value[0].fill_(step**2)
        average.update(step)
        if step <= 8:  # nothing is averaged yet
            assert float(average.values[0]) == step**2
    assert float(average.values[0]) == pytest.approx((64 + 81 + 100) / 3)


def test_no_average_is_kept_unless_one_is_asked_for():
    assert build_average(Settings(), parameters(), 10) is None
