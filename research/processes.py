"""Named jobs, each a process of its own, several at once; each leaves one JSON file and a log."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Process = subprocess.Popen[bytes]


def start(name: str, command: Sequence[str], out: Path) -> Process:
    """A process that writes what it says to the end of NAME.log."""
    with (out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run_processes(
    jobs: Mapping[str, Callable[[], Process]],
    out: Path,
    at_once: int = 1,
    deadline: float = float("inf"),
    say: Callable[[str], None] = lambda line: None,
    ended: Callable[[], None] = lambda: None,
) -> list[str]:
    """Start the jobs in turn, wait for all, and give those that failed with their last words.

    Guarantees:
      - at most `at_once` are running
      - none is begun when `deadline` seconds have passed; those left are named to `say`
      - the last line of a job's log is told to `say` when it ends
      - whoever interrupts this ends the jobs that are running
    """
    began, waiting, failed = time.monotonic(), dict(jobs), []
    running: dict[str, Process] = {}
    try:
        while waiting or running:
            if waiting and time.monotonic() - began > deadline:
                say(f"not begun: {', '.join(waiting)}")
                waiting.clear()
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    ended()
                    last = _last_line(out, name)
                    say(f"[{time.monotonic() - began:.0f} s] {last}")
                    if process.returncode:
                        failed.append(f"{name}: {last}")
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
    return failed


def results(names: Iterable[str], out: Path) -> dict[str, Any]:
    """What jobs have left, by name."""
    paths = {name: out / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def _last_line(out: Path, name: str) -> str:
    lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{name}: no word"
