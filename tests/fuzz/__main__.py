"""Run the cases in processes that may crash or hang, and say which did.

    python -m tests.fuzz [--readers 10000] [--corpora 1000] [--seed 0] [--workers 2]
    python -m tests.fuzz --only hf:17

A case is named by its kind and number and, with the seed, made the same every time. It must be read
or refused with a UserError of one line; a traceback, a crash or a hang fails the whole.
"""

import argparse
import contextlib
import faulthandler
import json
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.fuzz.cases import CORPUS, KINDS, run

SECONDS = 20.0  # one case takes milliseconds
MEMORY = 12 << 30  # bytes of address space: a length that was made up must not take the machine
BATCH = 50  # cases handed to a worker at once

Case = tuple[str, int]


@dataclass
class Report:
    """What became of the cases."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Case, str]] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{'input':<20}{'cases':>8}{'read':>8}{'refused':>9}{'failed':>8}{'seconds':>9}"]
        for kind in KINDS:
            read, refused, failed = (
                self.outcomes[kind, outcome] for outcome in ("read", "refused", "failed")
            )
            total = read + refused + failed
            if total:
                rows.append(
                    f"{kind:<20}{total:>8,}{read:>8,}{refused:>9,}{failed:>8,}"
                    f"{self.seconds[kind]:>9.1f}"
                )
        return "\n".join(rows)


def fuzz(readers: int, corpora: int, seed: int, workers: int) -> Report:
    """Run so many cases in all readers together, and so many corpora."""
    kinds = [kind for kind in KINDS if kind != CORPUS]
    cases = [(kinds[number % len(kinds)], number // len(kinds)) for number in range(readers)]
    cases += [(CORPUS, number) for number in range(corpora)]
    batches: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
    for start in range(0, len(cases), BATCH):
        batches.put(cases[start : start + BATCH])
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        threads = [
            threading.Thread(target=_work, args=(batches, seed, Path(folder), report))
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return report


def _work(
    batches: "queue.SimpleQueue[list[Case]]", seed: int, folder: Path, report: Report
) -> None:
    """Hand batches to a worker process; one that dies is replaced and goes on behind the case."""
    worker: subprocess.Popen[str] | None = None
    own = Path(tempfile.mkdtemp(dir=folder))
    with tempfile.TemporaryFile("w+") as errors:
        while True:
            try:
                left = batches.get_nowait()
            except queue.Empty:
                break
            while left:
                if worker is None or worker.poll() is not None:
                    worker = _start(seed, own, errors)
                left = _batch(worker, left, errors, report)
        if worker is not None:
            _end(worker)


def _start(seed: int, folder: Path, errors: IO[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(seed), "--worker", str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    )


def _end(worker: "subprocess.Popen[str]") -> int:
    """Let a worker end that has nothing more to do, or is dead already."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.close()
    code = worker.wait()
    worker.stdout.close()
    return code


def _batch(
    worker: "subprocess.Popen[str]", cases: list[Case], errors: IO[str], report: Report
) -> list[Case]:
    """Run cases in a worker; those that are left if it dies."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(cases) + "\n")
    worker.stdin.flush()
    for number, case in enumerate(cases):
        began = time.monotonic()
        line = worker.stdout.readline()
        report.seconds[case[0]] += time.monotonic() - began  # type: ignore[assignment]
        if not line:
            code = _end(worker)
            errors.seek(0)
            said = errors.read()[-2000:]
            errors.seek(0)
            errors.truncate()
            how = "hung" if "Timeout" in said else f"crashed (exit code {code})"
            report.outcomes[case[0], "failed"] += 1
            report.failures.append((case, f"{how}\n{said}"))
            return cases[number + 1 :]
        outcome, said = json.loads(line)
        report.outcomes[case[0], outcome] += 1
        if outcome == "failed":
            report.failures.append((case, said))
    return []


def work(seed: int, folder: Path, lines: Iterator[str]) -> None:
    """In a worker: run the cases of each line, with one line in answer to each case."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in lines:
        for kind, number in json.loads(line):
            print(json.dumps(one(kind, number, seed, folder)), flush=True)


def one(kind: str, number: int, seed: int, folder: Path) -> tuple[str, str]:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")  # nothing may be printed either
            return run(kind, f"{seed}/{kind}/{number}", Path(place)), ""
    except Exception:
        return "failed", traceback.format_exc()[-2000:]
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--readers", type=int, default=10_000, help="cases of all readers together")
    parser.add_argument("--corpora", type=int, default=1_000, help="cases of the corpus folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one case again, in this process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    faulthandler.enable()
    if options.worker:
        work(options.seed, Path(options.worker), iter(sys.stdin))
        return 0
    if options.only:
        kind, _, number = options.only.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            outcome, said = one(kind, int(number), options.seed, Path(folder))
        print(outcome, said, sep="\n")
        return int(outcome == "failed")
    began = time.monotonic()
    report = fuzz(options.readers, options.corpora, options.seed, options.workers)
    print(report)
    total = sum(report.outcomes.values())
    print(f"{total:,} cases, seed {options.seed}, {time.monotonic() - began:.0f} s")
    for (kind, number), said in report.failures[:20]:
        print(f"\npython -m tests.fuzz --seed {options.seed} --only {kind}:{number}\n{said}")
    return int(bool(report.failures) or total != options.readers + options.corpora)


if __name__ == "__main__":
    sys.exit(main())
