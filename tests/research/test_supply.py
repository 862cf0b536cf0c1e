"""The norms that updates can have."""

import numpy as np
import pytest

from research.supply import update_norms
from uedp.accounting.planning import Supply


def test_norms_count_the_expected_extended_sentences_until_the_clip_is_full() -> None:
    supply = Supply(3, np.array([2.0, 1.0, 2.0]), np.array([0.0, 1.0, 1.0]))
    assert update_norms(supply, 0.4) == pytest.approx(0.8 + 0.4 + 0.8)
    assert update_norms(supply, 0.4, 0.5) == pytest.approx(0.8 + 0.2 + 0.6)
    assert update_norms(supply, 0.4, 0.0) == pytest.approx(0.8 + 0.0 + 0.4)
    assert update_norms(supply, 1.0, 0.5) == pytest.approx(1.0 + 0.5 + 1.0)
