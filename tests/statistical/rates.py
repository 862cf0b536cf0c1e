"""A test of a probability with power on both sides."""

import math


def check_rate(successes: int, trials: int, expected: float, *, off: float) -> None:
    """Assert that successes are binomial of rate `expected`, and that rate `off` would show.

    Five standard deviations separate the acceptance region from either law.
    """
    deviation = math.sqrt(expected * (1 - expected) / trials)
    assert abs(off - expected) > 10 * deviation, "too few trials to tell the two rates apart"
    assert abs(successes / trials - expected) < 5 * deviation
