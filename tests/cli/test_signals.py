"""A command that is stopped: gone at once, and nothing of it left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LINE = b'{"user": "a", "text": "mail a@x.example"}\n'


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def children(process: int) -> set[int]:
    """The processes that descend from this one."""
    path = Path(f"/proc/{process}/task/{process}/children")
    direct = set(map(int, path.read_text().split())) if path.exists() else set()
    return direct.union(*map(children, direct))


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, and its parent has not looked yet


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 1),
        (signal.SIGHUP, 1),
        (signal.SIGINT, 2),
        (signal.SIGTERM, 2),
    ],
)
def test_a_stopped_command_leaves_nothing(number, workers, tmp_path):
    """A pipe that never ends keeps `detect` busy until the signal comes."""
    os.mkfifo(tmp_path / "pipe")
    options = ["pipe", "--reader", "jsonl", "--workers", str(workers), "--out", "a/b/corpus"]
    process = subprocess.Popen(
        [sys.executable, "-m", "uedp", "detect", *options],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
        pipe.write(LINE * 300)  # a batch and more
        wait_for(lambda: list(tmp_path.glob("a/b/.corpus.*/new/*.arrow")))
        if workers > 1:
            wait_for(lambda: len(children(process.pid)) >= 2)  # a worker and what tracks it
        started = children(process.pid)
        began = time.monotonic()
        # Ctrl-C goes to the workers as well, a kill to the one process
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number
    assert errors == b""
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    wait_for(lambda: not any(map(alive, started)), 5)
