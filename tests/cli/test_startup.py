"""Importing the package and asking for help must not load the libraries of training."""

import resource
import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "matplotlib", "scipy", "numpy", "pydantic")


@pytest.mark.parametrize("modules", ["uedp", "uedp, uedp.cli"])
def test_imports_are_light(modules):
    code = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_import_takes_under_half_a_second_of_cpu():
    """About 0.03 s; CPU time, so that a busy machine does not count, and the best of five."""

    def child_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    shortest = float("inf")
    for _ in range(5):
        before = child_seconds()
        subprocess.run([sys.executable, "-c", "import uedp"], check=True)
        shortest = min(shortest, child_seconds() - before)
    assert 0 < shortest < 0.5


def test_help_is_quick():
    """About 0.4 s on a quiet machine; with torch it takes ten times as long."""
    arguments = [sys.executable, "-m", "uedp", "--help"]
    shortest = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(arguments, capture_output=True, check=True)
        shortest = min(shortest, time.perf_counter() - began)
    assert shortest < 3
