"""A queue of trials in order of priority, for a machine that may be taken away at any moment.

Workers take the next trial that nobody has and run it in their own process, one after the other: no
trial waits for imports. A trial with a result is not run again; one that was interrupted resumes
from its checkpoint. A worker that dies is replaced, and a trial that failed twice is left out.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from research import runs
from research.runs import TrainingTrial, Workspace
from uedp.files import write_atomically

_TRIES = 2
_WAIT = 0.5  # seconds between two looks at the workers
QUEUE = "queue.json"


def run_queue(
    trials: Sequence[TrainingTrial],
    workspace: Workspace,
    jobs: int,
    deadline: float = float("inf"),
    say: Callable[[str], None] = print,
) -> None:
    """Run trials with so many workers; returns when all have a result or failed.

    Guarantees:
      - trials start in the given order, and none starts after `deadline` seconds
      - each has its own log; a failed one does not stop the others
    """
    workspace.out.mkdir(parents=True, exist_ok=True)
    (workspace.results or workspace.out).mkdir(parents=True, exist_ok=True)
    begin = time.time()
    content = {
        "trials": [asdict(trial) for trial in trials],
        "workspace": asdict(workspace),
        "until": None if deadline == float("inf") else begin + deadline,
    }
    queue = workspace.out / QUEUE
    write_atomically(queue, json.dumps(content, default=str))
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(queue)]
    workers: list[subprocess.Popen[bytes]] = []
    told: set[str] = set()
    try:
        while True:
            for trial in trials:
                if trial.name not in told and workspace.result(trial).exists():
                    told.add(trial.name)
                    say(f"[{time.time() - begin:.0f} s] {_told(workspace, trial)}")
            workers = [worker for worker in workers if worker.poll() is None]
            open_ = time.time() - begin < deadline and any(
                _is_open(trial, workspace) for trial in trials
            )
            if not open_ and not workers:
                return
            if open_ and len(workers) < jobs:
                workers.append(subprocess.Popen(command))
            time.sleep(_WAIT)
    finally:
        for worker in workers:
            worker.terminate()


def work(queue: Path) -> None:
    """Run trials of a queue, as a worker, until none is left."""
    content = json.loads(queue.read_text(encoding="utf-8"))
    given, until = content["workspace"], content["until"]
    workspace = Workspace(
        Path(given["datasets"]),
        given["models"],
        Path(given["out"]),
        given["dry_rounds"],
        Path(given["results"]) if given["results"] else None,
    )
    trials = [TrainingTrial(**trial) for trial in content["trials"]]
    while (trial := _take(trials, workspace)) is not None:
        if until is not None and time.time() > until:
            _claim(trial, workspace).unlink(missing_ok=True)
            return
        log = (workspace.out / f"{trial.name}.log").open("a", buffering=1, encoding="utf-8")
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            runs.run(trial, workspace)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            sys.exit(1)  # the device may be in any state; the claim counts as a failure
        _release_memory()


def finished(trials: Iterable[TrainingTrial], workspace: Workspace) -> list[str]:
    """The names of trials with a result."""
    return [trial.name for trial in trials if workspace.result(trial).exists()]


def _claim(trial: TrainingTrial, workspace: Workspace) -> Path:
    """The file with the processes that took a trial, one per line."""
    return workspace.out / f"{trial.name}.claim"


def _claimants(trial: TrainingTrial, workspace: Workspace) -> list[int]:
    try:
        return [int(line) for line in _claim(trial, workspace).read_text().split()]
    except FileNotFoundError:
        return []


def _is_open(trial: TrainingTrial, workspace: Workspace) -> bool:
    """Whether a trial can be taken: no result, nobody at work on it, and not failed too often."""
    took = _claimants(trial, workspace)
    return (
        not workspace.result(trial).exists()
        and len(took) < _TRIES
        and not any(_alive(process) for process in took)
    )


def _take(trials: Sequence[TrainingTrial], workspace: Workspace) -> TrainingTrial | None:
    import fcntl

    with (workspace.out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for trial in trials:
            if _is_open(trial, workspace):
                with _claim(trial, workspace).open("a") as file:
                    file.write(f"{os.getpid()}\n")
                return trial
    return None


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False  # a trial of this worker that is over
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _told(workspace: Workspace, trial: TrainingTrial) -> str:
    result = json.loads(workspace.result(trial).read_text(encoding="utf-8"))
    measure = result["measure"]
    values = (f"{part} {result[part][measure]:.4g}" for part in ("validation", "test"))
    return f"{trial.name}: {', '.join(values)} {measure}, {result['seconds']:.0f} s"


def _release_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
