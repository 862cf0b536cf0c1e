"""Correlated noise (docs/privacy.md, section 5): the claim about cycles, and its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import correlated_noise

ROOT = Path(__file__).parents[2]
GRID = np.linspace(-14.0, 14.0, 701)


def density(at, mean):
    return np.exp(-((at - mean) ** 2) / 2) / np.sqrt(2 * np.pi)


def hockey_stick(rate, offset, g, noise):
    """The claimed bound: N(0) against shifts `offset` and `offset + 1`, in units of the noise."""
    step = 1e-3
    at = np.arange(-12.0, 14.0, step)
    mixed = (1 - rate) * density(at, offset / noise) + rate * density(at, (offset + 1) / noise)
    both = [(mixed - g * density(at, 0)), (density(at, 0) - g * mixed)]
    return [float(np.maximum(one, 0).sum() * step) for one in both]


def in_a_cycle(rate, parts, g, noise, turn, column, choose):
    """The divergences of an adaptive cycle of two rounds on a line.

    `u'` is of group `turn`; `parts` are those of the drawn holders in the two groups; `choose`
    gives the sign of what the second round adds, after the first row was seen.
    """
    first, second = GRID[:, None], GRID[None, :]
    area = (GRID[1] - GRID[0]) ** 2
    signs = choose(first)

    def world(drawn):
        added = parts[0] + drawn * (turn == 0)
        later = (parts[1] + drawn * (turn == 1)) * signs
        means = column[0] * added / noise, (column[1] * added + later) / noise
        return density(first, means[0]) * density(second, means[1])

    mixed = (1 - rate) * world(0) + rate * world(1)
    empty = density(first, 0) * density(second, 0)
    both = [mixed - g * empty, empty - g * mixed]
    return [float(np.maximum(one, 0).sum() * area) for one in both]


@pytest.mark.parametrize("turn", [0, 1])
def test_a_cycle_is_no_worse_than_one_round_at_the_rate_of_all_its_groups(turn):
    rng = np.random.default_rng(turn)
    choices = (np.ones_like, np.sign, lambda y: -np.sign(y), lambda y: np.where(y > 1, 1.0, -0.3))
    closest = 0.0
    for _ in range(60):
        share, angle = rng.uniform(0, 1), rng.uniform(0, np.pi / 2)
        part = rng.uniform(0, share)
        rate, noise = rng.uniform(0.05, 1), rng.uniform(0.7, 2)
        g = np.exp(rng.uniform(-1, 2))
        column = np.cos(angle), np.sin(angle)
        bound = hockey_stick(rate, share, g, noise)
        for choose in choices:
            parts = (part, share - part)
            found = in_a_cycle(rate, parts, g, noise, turn, column, choose)
            for own, most in zip(found, bound, strict=True):
                assert own <= most + 1e-3
                closest = max(closest, own / max(most, 1e-2))
    assert closest > 0.9  # or the bound would not be tried


def test_the_sum_of_a_cycle_has_the_noise_of_one_round():
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = rng.integers(1, 6)
        matrix = np.tril(rng.normal(size=(size, size)))
        matrix /= np.linalg.norm(matrix, axis=0)
        assert np.linalg.norm(np.linalg.solve(matrix.T, np.ones(size))) >= 1 - 1e-9


def test_columns_of_independent_noise_are_its_own_best_bands():
    weights = correlated_noise.weights_of_rounds(40, 0.9)
    plain = correlated_noise.relative_error(np.ones(1), weights)
    assert plain == pytest.approx(np.linalg.norm(weights))
    assert correlated_noise.relative_error(correlated_noise.best_bands(3, weights), weights) < plain


def test_the_table_has_the_measured_numbers():
    rows = json.loads((ROOT / "benchmarks/results/correlated_noise.json").read_text())
    page = (ROOT / "docs/privacy.md").read_text()
    five = [row for row in rows if row["bands"] == 5]
    assert len(five) == 6
    for row in five:
        errors = f"{row['relative_error']:.3f} | {row['relative_error_fewer_rounds']:.3f}"
        assert f"| {row['epsilon']:g} | {row['rate']:g} | {errors} |" in page


def test_a_row_is_computed_again():
    rows = json.loads((ROOT / "benchmarks/results/correlated_noise.json").read_text())
    row = next(r for r in rows if (r["epsilon"], r["rate"], r["bands"]) == (8.0, 0.1, 2))
    again = correlated_noise.row(8.0, 0.1, 2)
    assert again["noise"] == pytest.approx(row["noise"], rel=1e-6)
    assert again["error"] == pytest.approx(row["error"], rel=1e-3)
