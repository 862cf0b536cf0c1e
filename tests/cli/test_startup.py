"""Importing the package and asking for help must not load the libraries of training."""

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


def test_help_is_quick():
    """About 0.4 s on a quiet machine; with torch it takes ten times as long."""
    arguments = [sys.executable, "-m", "uedp", "--help"]
    shortest = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(arguments, capture_output=True, check=True)
        shortest = min(shortest, time.perf_counter() - began)
    assert shortest < 3
