"""The queue of trials: order, resumption, failures, and workers that die."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from research import runs, trial_queue
from research.runs import TrainingTrial, Workspace

NAMES = ("one", "two", "three")
TRIALS = [TrainingTrial(name, "conll", {}) for name in NAMES]
DONE = {"measure": "perplexity", "seconds": 1.0}
DONE |= {part: {"perplexity": 9.0} for part in ("validation", "test")}

# a worker whose training writes its result, and fails or dies where it is told to
WORKER = """
import json, os, sys
from pathlib import Path
from research import runs, trial_queue
from uedp.files import write_atomically

def run(trial, workspace):
    with (workspace.out / "order").open("a") as file:
        file.write(trial.name + "\\n")
    if (workspace.out / f"{trial.name}.fails").exists():
        raise ValueError("it fails")
    if (workspace.out / f"{trial.name}.dies").exists():
        (workspace.out / f"{trial.name}.dies").unlink()
        os.kill(os.getpid(), 9)
    write_atomically(workspace.result(trial), sys.argv[2])

runs.run = run
trial_queue._release_memory = lambda: None
trial_queue.work(Path(sys.argv[1]))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    out = tmp_path / "out"
    out.mkdir()
    return Workspace(tmp_path, {}, out, None, out / "results")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(command: list[str]) -> "subprocess.Popen[bytes]":
        return real([sys.executable, "-c", WORKER, command[-1], json.dumps(DONE)])

    real: Callable[[list[str]], subprocess.Popen[bytes]] = subprocess.Popen
    monkeypatch.setattr(trial_queue.subprocess, "Popen", started)
    monkeypatch.setattr(trial_queue, "_WAIT", 0.02)


def order(workspace: Workspace) -> list[str]:
    path = workspace.out / "order"
    return path.read_text().split() if path.exists() else []


def run(workspace: Workspace, jobs: int = 1, deadline: float = float("inf")) -> list[str]:
    said: list[str] = []
    trial_queue.run_queue(TRIALS, workspace, jobs, deadline, said.append)
    return said


def test_trials_run_in_order_and_only_once(workspace: Workspace) -> None:
    assert workspace.results is not None
    workspace.results.mkdir()
    workspace.result(TRIALS[1]).write_text(json.dumps(DONE))
    said = run(workspace)
    assert order(workspace) == ["one", "three"]
    assert trial_queue.finished(TRIALS, workspace) == list(NAMES)
    assert {line.split("] ")[1].split(":")[0] for line in said} == set(NAMES)
    assert "validation 9, test 9 perplexity" in said[0]


def test_a_failed_trial_stops_nobody_and_is_tried_twice(workspace: Workspace) -> None:
    (workspace.out / "two.fails").touch()
    run(workspace)
    assert sorted(order(workspace)) == ["one", "three", "two", "two"]
    assert trial_queue.finished(TRIALS, workspace) == ["one", "three"]
    assert "it fails" in (workspace.out / "two.log").read_text()


def test_a_worker_that_dies_is_replaced_and_its_trial_resumed(workspace: Workspace) -> None:
    (workspace.out / "one.dies").touch()
    run(workspace, jobs=2)
    assert sorted(order(workspace)) == ["one", "one", "three", "two"]
    assert trial_queue.finished(TRIALS, workspace) == list(NAMES)


def test_what_somebody_is_at_work_on_is_left_alone(workspace: Workspace) -> None:
    (workspace.out / "one.claim").write_text(f"{os.getppid()}\n")
    run(workspace)
    assert order(workspace) == ["two", "three"]


def test_nothing_starts_after_the_deadline(workspace: Workspace) -> None:
    run(workspace, deadline=-1)
    assert order(workspace) == []


def test_a_workers_trial_is_run_by_the_runner() -> None:
    assert trial_queue.runs.run is runs.run
