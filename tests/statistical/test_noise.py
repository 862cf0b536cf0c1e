"""The law of the noise, of secret uniform numbers and of dropout masks."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import dropout

from tests.mechanism.test_noise import COUNT, SOURCES, key_stream, sample
from uedp.mechanism import secret
from uedp.mechanism.noise import gaussians
from uedp.mechanism.sampling import draw_users
from uedp.mechanism.secret import SecretUniforms, secret_masks

CPU = torch.device("cpu")
MANY = 1 << 22


@pytest.mark.parametrize("name", SOURCES)
def test_the_right_law_passes_and_a_law_a_tenth_off_fails(name):
    """Kolmogorov-Smirnov at 200,000 values: false alarm 1e-6, and noise 10% too small is seen."""
    values = sample(SOURCES[name], 0.7)
    assert stats.kstest(values / 0.7, "norm").pvalue > 1e-6
    assert stats.kstest(values * 0.9 / 0.7, "norm").pvalue < 1e-12
    # far tails, which the test above hardly sees: 200,000 values have about 12.7 beyond 4
    beyond = int((np.abs(values) > 4 * 0.7).sum())
    assert 1 <= beyond <= 40


@pytest.mark.parametrize("name", SOURCES)
def test_entries_are_independent(name):
    values = sample(SOURCES[name], 1.0)
    # each correlation has deviation 1/sqrt(n); five of them. A block's pairs are half a block apart
    for lag in (1, 2, 7, 1 << 15, 1 << 16, COUNT // 2):
        correlation = np.corrcoef(values[:-lag], values[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(COUNT - lag)


@pytest.mark.parametrize("name", SOURCES)
def test_tails_are_neither_light_nor_heavy(name):
    """Counts beyond 3, 4 and 4.5 deviations on either side, at six deviations of a count.

    At 4 million values there are 5,662, 133 and 14 of them a side; 15% more or less noise is seen.
    """
    values = sample(SOURCES[name], 1.0, MANY)

    def fits(values: np.ndarray) -> bool:
        for limit in (3.0, 4.0, 4.5):
            expected = MANY * stats.norm.sf(limit)
            for side in (values, -values):
                if abs(int((side > limit).sum()) - expected) > 6 * np.sqrt(expected):
                    return False
        return True

    assert fits(values)
    assert not fits(values * 0.85)
    assert not fits(values * 1.15)


def pairs_look_independent(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether both are Gaussian, and the length and angle of pairs as independent ones have them.

    False alarms below 1e-5; 260,000 pairs show a correlation of 0.02.
    """
    uniform = np.exp(-(x**2 + y**2) / 2)
    angle = np.arctan2(y, x) / (2 * np.pi) + 0.5
    cells = np.histogram2d(uniform, angle, bins=16, range=[[0, 1], [0, 1]])[0]
    laws = [stats.kstest(v, "norm").pvalue for v in (x, y)]
    laws += [stats.kstest(v, "uniform").pvalue for v in (uniform, angle)]
    laws.append(stats.chisquare(cells.ravel()).pvalue)
    related = [np.corrcoef(a, b)[0, 1] for a, b in ((x, y), (x**2, y**2), (np.abs(x), y))]
    return min(laws) > 1e-6 and max(np.abs(related)) < 6 / np.sqrt(len(x))


def test_the_two_values_of_a_pair_are_independent():
    words = key_stream(1 << 19)
    x, y = gaussians(words, 1.0).view(2, -1).numpy()
    assert pairs_look_independent(x, y)
    # what a slip in the transform would give: one word for both, half the angles, a wrong length
    radius, angle = words.view(2, -1)
    for slip in (torch.stack((radius, radius)), torch.stack((radius, angle >> 1))):
        assert not pairs_look_independent(*gaussians(slip.view(-1), 1.0).view(2, -1).numpy())
    assert not pairs_look_independent(x * 1.01, y * 1.01)
    assert not pairs_look_independent(x, np.where(x > 2, np.abs(y), y))


def test_uniform_numbers_have_their_law():
    """False alarms below 1e-5: right law passes, rates off by a third fail."""
    values = SecretUniforms().random(COUNT)
    assert values.dtype == np.float64
    assert values.min() >= 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-6
    assert stats.kstest(values ** (4 / 3), "uniform").pvalue < 1e-12
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(COUNT)
    bits = (values * 2**53).astype(np.uint64)
    assert (bits * 2.0**-53 == values).all()
    for bit in range(53):  # each is heads half of the time
        heads = ((bits >> np.uint64(bit)) & np.uint64(1)).sum()
        assert abs(float(heads) - COUNT / 2) < 6 * np.sqrt(COUNT) / 2
    drawn = len(draw_users(COUNT, 0.05, SecretUniforms()))
    deviation = np.sqrt(COUNT * 0.05 * 0.95)
    assert abs(drawn - 0.05 * COUNT) < 6 * deviation
    assert abs(drawn - 0.05 * 4 / 3 * COUNT) > 6 * deviation


@pytest.mark.parametrize("by_the_generator", [False, True])
def test_masks_drop_at_their_rate(by_the_generator, monkeypatch):
    """At 200,000 entries: six deviations; a rate a third off is seen."""
    if by_the_generator:
        monkeypatch.setattr(secret, "_seeds_masks_with_a_word", lambda: True)
    for rate in (0.1, 0.5):
        with secret_masks(CPU):
            dropped = int((dropout(torch.ones(COUNT), rate) == 0).sum())
        deviation = np.sqrt(COUNT * rate * (1 - rate))
        assert abs(dropped - COUNT * rate) < 6 * deviation
        assert abs(dropped - COUNT * rate * 4 / 3) > 6 * deviation
