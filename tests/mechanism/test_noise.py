"""Noise has the law it should, and never the same values twice."""

import numpy as np
import pytest
import torch
from scipy import stats

from uedp.mechanism.noise import SecureNoise, SystemNoise, grid_of

SOURCES = {"system": SystemNoise, "secure": SecureNoise}
COUNT = 200_000


def sample(source, deviation: float, count: int = COUNT) -> np.ndarray:
    total = torch.zeros(count)
    source().add_([total], deviation)
    return total.double().numpy()


@pytest.mark.parametrize("name", SOURCES)
def test_the_right_law_passes_and_a_law_a_tenth_off_fails(name):
    """Kolmogorov-Smirnov at 200,000 values: false alarm 1e-6, and noise 10% too small is seen."""
    values = sample(SOURCES[name], 0.7)
    assert stats.kstest(values, "norm", args=(0, 0.7)).pvalue > 1e-6
    assert stats.kstest(values * 0.9, "norm", args=(0, 0.7)).pvalue < 1e-12
    # far tails, which the test above hardly sees: 200,000 values have about 12.7 beyond 4
    beyond = int((np.abs(values) > 4 * 0.7).sum())
    assert 1 <= beyond <= 40


@pytest.mark.parametrize("name", SOURCES)
def test_entries_are_independent(name):
    values = sample(SOURCES[name], 1.0)
    # each correlation has deviation 1/sqrt(n); five of them
    for lag in (1, 2, 7, COUNT // 2):
        correlation = np.corrcoef(values[:-lag], values[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(COUNT - lag)


@pytest.mark.parametrize("name", SOURCES)
def test_two_rounds_never_share_noise(name):
    source = SOURCES[name]()
    rounds = []
    for _ in range(5):
        total = torch.zeros(1000)
        source.add_([total], 1.0)
        rounds.append(tuple(total.tolist()))
    assert len(set(rounds)) == 5
    assert not set(rounds[0]) & set(rounds[1])


@pytest.mark.parametrize("name", SOURCES)
def test_every_tensor_gets_its_own_and_values_are_kept(name):
    sums = [torch.full((500,), 3.0), torch.full((20, 25), 3.0)]
    SOURCES[name]().add_(sums, 0.1)
    assert not torch.equal(sums[0], sums[1].flatten())
    for total in sums:
        assert float(total.mean()) == pytest.approx(3.0, abs=5 * 0.1 / np.sqrt(500))


def test_secure_noise_lies_on_a_grid():
    """So that the low bits tell nothing: every release is a multiple of one power of two."""
    deviation = 0.37
    total = torch.rand(10_000, dtype=torch.float64)
    SecureNoise().add_([total], deviation)
    grid = grid_of(deviation)
    assert np.log2(grid) == int(np.log2(grid))
    assert deviation * 2.0**-25 < grid <= deviation * 2.0**-24
    multiples = total / grid
    assert torch.equal(multiples, multiples.round())


def test_a_fixed_seed_repeats_itself_and_says_so():
    def twice(seed: int | None) -> list[torch.Tensor]:
        source = SystemNoise(seed)
        sums = [torch.zeros(10), torch.zeros(10)]
        for total in sums:
            source.add_([total], 1.0)
        return sums

    first, again = twice(7), twice(7)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])  # but not from round to round
    assert not torch.equal(twice(None)[0], twice(None)[0])
    assert SystemNoise(7).source == "fixed seed"
    assert SystemNoise().source == "system"
    assert SecureNoise().source == "secure"


def test_no_noise_is_no_change():
    for source in SOURCES.values():
        total = torch.ones(5)
        source().add_([total], 0.0)
        assert torch.equal(total, torch.ones(5))
