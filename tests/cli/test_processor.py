"""Threads sleep soon while they wait, and are no more than a container may use."""

import os
import subprocess
import sys

import pytest

from uedp.cli.processor import set_up_threads


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu.max": "150000 100000\n"}, "2"),
        ({"cpu.max": "50000 100000\n"}, "1"),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "6400000 100000\n"}, None),  # more than there are
        ({"cpu.max": "damaged"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "3"),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_threads_are_those_that_the_container_allows(files, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {}
    set_up_threads(environment, tmp_path)
    assert environment.get("OMP_NUM_THREADS") == threads
    assert environment["GOMP_SPINCOUNT"] == "10000"


def test_what_the_environment_sets_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    (tmp_path / "cpu.max").write_text("200000 100000")
    for policy in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}):
        given = {"OMP_NUM_THREADS": "7", **policy}
        environment = dict(given)
        set_up_threads(environment, tmp_path)
        assert environment == given


def test_the_command_sets_them_before_pytorch_is_loaded():
    code = (
        "import os, sys; from uedp.cli import main; assert 'torch' not in sys.modules\n"
        "try: main(['categories'])\n"
        "except SystemExit: pass\n"
        "print(os.environ['GOMP_SPINCOUNT'])"
    )
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "10000"
