"""On an accelerator: the noise kernel against PyTorch's operations, the law, secret masks."""

import os

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import dropout

from tests.mechanism.entropy import Entropy, bits_that_matter, operating_system
from uedp.mechanism import chacha, noise
from uedp.mechanism.noise import SecureNoise, add_by_operations_, grid_of
from uedp.mechanism.secret import secret_masks

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def kernel():
    noise_kernel = pytest.importorskip("uedp.mechanism.noise_kernel")
    return noise_kernel.add_


def test_the_kernel_is_what_runs():
    kernel()
    assert noise._kernel(torch.device("cuda", 0)) is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [0, 1, 2**32 - 7, 2**40 + 3])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100_003])
def test_the_kernel_is_what_the_operations_give(kind, first, count):
    """To the bit, but for entries that lie within rounding of two grid points: one in 10^11."""
    key = chacha.key_of(os.urandom(32), CUDA)
    values = torch.randn(count, device=CUDA, dtype=torch.float64).mul_(10).to(kind)
    for deviation, grid in ((4096.0, 2.0**-12), (8191.9, 2.0**-20)):
        one, other = values.clone(), values.clone()
        kernel()(one, key, first, deviation, grid)
        add_by_operations_(other, key, first, deviation, grid)
        assert not torch.equal(one, values)
        assert int((one != other).sum()) <= 1
        assert float((one.double() - other.double()).abs().max()) <= grid
        # and what the host gives for the same key, whose logarithm and angle may be rounded apart
        host = values.cpu()
        add_by_operations_(host, key.cpu(), first, deviation, grid)
        assert int((one.cpu() != host).sum()) <= 1


def test_operations_on_the_device_give_the_key_stream_of_the_host():
    key = chacha.key_of(bytes(range(32)))
    found = chacha.words(key.to(CUDA), 2**32 - 50, 1000).cpu()
    assert torch.equal(found, chacha.words(key, 2**32 - 50, 1000))


@pytest.mark.parametrize("by_kernel", [True, False])
def test_the_law_and_the_grid(by_kernel, monkeypatch):
    if not by_kernel:
        monkeypatch.setattr(noise, "_kernel", lambda device: None)
    total = torch.zeros(4_000_000, device=CUDA)
    SecureNoise().add_([total], 0.7)
    values = total.cpu().double().numpy()
    assert stats.kstest(values / 0.7, "norm").pvalue > 1e-6
    assert stats.kstest(values * 0.9 / 0.7, "norm").pvalue < 1e-12
    steps = values / grid_of(0.7)
    assert (steps == steps.round()).all()
    for limit in (3.0, 4.0, 4.5):
        expected = len(values) * 2 * stats.norm.sf(limit)
        found = int((np.abs(values) > limit * 0.7).sum())
        assert abs(found - expected) < 6 * np.sqrt(expected)


def test_tensors_over_several_launches_views_and_half_precision(monkeypatch):
    monkeypatch.setattr(noise, "_AT_ONCE", 1 << 12)
    sums = [
        torch.zeros(10_001, device=CUDA),
        torch.zeros(5000, 2, device=CUDA)[:, 0],
        torch.zeros(5000, device=CUDA, dtype=torch.bfloat16),
        torch.zeros(0, device=CUDA),
        torch.zeros(5000),
    ]
    SecureNoise().add_(sums, 1.0)
    for total in sums:
        assert float((total == 0).float().sum()) <= 10
    values = sums[0].cpu()
    for lag in (1, 1 << 9, 1 << 12, 5000):  # no block is used again
        assert int((values[lag:] == values[:-lag]).sum()) <= 12


def test_each_bit_of_the_key_matters():
    def released():
        total = torch.zeros(16, device=CUDA)
        SecureNoise().add_([total], 1.0)
        return total.tolist()

    released()  # what is tried before the first release
    assert bits_that_matter(released) == 256


def masks(turned: int | None = None) -> list[float]:
    with operating_system(Entropy(turned)), secret_masks(CUDA):
        return dropout(torch.ones(4096, device=CUDA)).tolist()


def test_masks_depend_on_seed_and_offset():
    usual = masks()
    assert masks() == usual
    seed, offset = 8 * 624 * 4, 8 * (624 * 4 + 8)
    for bit in (seed, seed + 31, seed + 63, offset + 4, offset + 40, offset + 63):
        assert masks(bit) != usual


def test_the_callers_generators_are_left_alone():
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    with secret_masks(CUDA):
        dropout(torch.ones(100, device=CUDA))
    assert torch.equal(torch.cuda.get_rng_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
