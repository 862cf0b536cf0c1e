"""A pool of named processes; each writes a JSON file and a log."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Process = subprocess.Popen[bytes]


def start_process(name: str, command: Sequence[str], out: Path) -> Process:
    """Start a process whose output is appended to NAME.log."""
    with (out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run_processes(
    jobs: Mapping[str, Callable[[], Process]],
    out: Path,
    limit: int = 1,
    deadline: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
    ended: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run all jobs in order and wait for them. Returns the failed ones, each with its last line.

    Guarantees:
      - at most `limit` jobs run at the same time
      - no job starts after `deadline` seconds; the remaining ones are named to `say`
      - the last line of a job's log goes to `say` when the job ends
      - an interrupt terminates the running jobs
    """
    start, waiting, failed = time.monotonic(), dict(jobs), []
    running: dict[str, Process] = {}
    try:
        while waiting or running:
            if waiting and time.monotonic() - start > deadline:
                say(f"not started: {', '.join(waiting)}")
                waiting.clear()
            while waiting and len(running) < limit:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    ended()
                    last = _last_line(out, name)
                    say(f"[{time.monotonic() - start:.0f} s] {last}")
                    if process.returncode:
                        failed.append(f"{name}: {last}")
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
    return failed


def read_results(names: Iterable[str], out: Path) -> dict[str, Any]:
    """The results of finished jobs, by name."""
    paths = {name: out / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def _last_line(out: Path, name: str) -> str:
    lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{name}: no output"
