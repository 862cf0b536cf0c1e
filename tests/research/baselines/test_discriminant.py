"""The linear classifier."""

import numpy as np
import pytest

from research.baselines.discriminant import Discriminant


def test_the_error_is_near_the_smallest_possible() -> None:
    """Two Gaussian classes, coordinates of unequal scale: the smallest error is known."""
    rng = np.random.default_rng(0)
    scales, shift = np.array([1.0, 0.1, 5.0]), np.array([1.0, 0.1, 5.0])
    labels = np.arange(20_000) % 2
    rows = rng.normal(size=(len(labels), 3)) * scales + labels[:, None] * shift
    classify = Discriminant(rows[:10_000], labels[:10_000])
    error = (classify(rows[10_000:]) != labels[10_000:]).mean()
    assert error == pytest.approx(0.1932, abs=0.015)  # of a normal beyond sqrt(3) / 2


def test_constant_rows_are_accepted() -> None:
    labels = np.array([0, 1, 0, 1])
    assert set(Discriminant(np.zeros((4, 3)), labels)(np.zeros((4, 3)))) <= {0, 1}
    rows = np.eye(2)[labels]
    assert np.array_equal(Discriminant(rows, labels)(rows), labels)
