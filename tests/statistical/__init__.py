"""Tests of laws that only a distribution shows: sampling rates, noise, releases.

Every test has power on both sides. The right law passes (a false alarm is at five standard
deviations, 6e-7), and the number of trials is large enough for a law that is off by a third to fail
as clearly; `check_rate` asserts both.
"""
