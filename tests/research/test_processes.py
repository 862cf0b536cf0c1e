"""The pool of processes."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from research.processes import Process, read_results, run_processes, start_process

Job = Callable[[], Process]
WRITES = """
import json, pathlib, sys
print("began"); print("done", sys.argv[1])
pathlib.Path(sys.argv[2]).write_text(json.dumps({"name": sys.argv[1]}))
"""
WAITS = "import time; time.sleep(60)"


def job(name: str, script: str, out: Path) -> Job:
    command = [sys.executable, "-S", "-c", script, name, str(out / f"{name}.json")]
    return partial(start_process, name, command, out)


def test_results_are_read_by_name(tmp_path: Path) -> None:
    said: list[str] = []
    ended: list[int] = []
    jobs = {name: job(name, WRITES, tmp_path) for name in ("one", "two")}
    failed = run_processes(jobs, tmp_path, 2, say=said.append, ended=lambda: ended.append(1))
    assert failed == []
    assert read_results(("two", "one", "three"), tmp_path) == {
        "two": {"name": "two"},
        "one": {"name": "one"},
    }
    assert sorted(line.partition("] ")[2] for line in said) == ["done one", "done two"]
    assert len(ended) == 2


def test_a_failed_job_is_named_with_its_last_line_and_the_others_run(tmp_path: Path) -> None:
    jobs = {
        "bad": job("bad", "import sys; print('first'); sys.exit('no room')", tmp_path),
        "mute": job("mute", "import sys; sys.exit(3)", tmp_path),
        "good": job("good", WRITES, tmp_path),
    }
    assert run_processes(jobs, tmp_path) == ["bad: no room", "mute: mute: no output"]
    assert read_results(jobs, tmp_path) == {"good": {"name": "good"}}


class Counted:
    """A job that ends at its third poll, and counts of the jobs that run at the same time."""

    running = most = 0
    order: tuple[str, ...] = ()
    returncode = 0

    def __init__(self, name: str, out: Path) -> None:
        (out / f"{name}.log").touch()
        self._left = 3
        Counted.order += (name,)
        Counted.running += 1
        Counted.most = max(Counted.most, Counted.running)

    def poll(self) -> int | None:
        self._left -= 1
        if self._left:
            return None
        Counted.running -= 1
        return 0


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_jobs_start_in_order_and_at_most_limit_run_at_a_time(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(Counted, "most", 0)
    monkeypatch.setattr(Counted, "order", ())
    jobs: dict[str, Any] = {name: partial(Counted, name, tmp_path) for name in "cabde"}
    assert run_processes(jobs, tmp_path, limit) == []
    assert Counted.most == limit
    assert Counted.order == tuple("cabde")


def test_no_job_starts_after_the_deadline_and_the_rest_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(Counted, "order", ())
    said: list[str] = []
    jobs: dict[str, Any] = {name: partial(Counted, name, tmp_path) for name in ("a", "b", "c")}
    assert run_processes(jobs, tmp_path, deadline=2, say=said.append) == []
    assert Counted.order == ("a",)
    assert said[0] == "not started: b, c"
    assert len(said) == 2  # a runs to its end, and nothing is said twice


def test_an_interrupt_terminates_running_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    started: list[Process] = []

    def start() -> Process:
        started.append(job("long", WAITS, tmp_path)())
        return started[0]

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_processes({"long": start}, tmp_path)
    assert started[0].wait(timeout=30) < 0


def test_logs_are_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        run_processes({"one": job("one", WRITES, tmp_path)}, tmp_path)
    assert (tmp_path / "one.log").read_text().count("done one") == 2
