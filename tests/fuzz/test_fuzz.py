"""A slice of `make fuzz`, and that it would notice."""

import os
from pathlib import Path

import pytest

from tests.fuzz import __main__ as runner
from tests.fuzz import cases

EACH = 40


@pytest.mark.parametrize("kind", cases.READERS)
def test_no_input_does_more_than_be_refused(kind, tmp_path):
    outcomes = [cases.run(kind, f"test/{kind}/{n}", _place(tmp_path, n)) for n in range(EACH)]
    assert {"read", "refused"} == set(outcomes)


def test_no_corpus_does_more_than_be_refused(tmp_path):
    kind = cases.CORPUS
    outcomes = [cases.run(kind, f"test/{kind}/{n}", _place(tmp_path, n)) for n in range(EACH)]
    assert {"read", "refused"} == set(outcomes)


def _place(folder: Path, number: int) -> Path:
    place = folder / str(number)
    place.mkdir()
    return place


def test_a_case_is_the_same_every_time(tmp_path):
    for number, kind in enumerate(cases.KINDS):
        outcomes = [
            cases.run(kind, f"same/{kind}", _place(tmp_path, 2 * number + again))
            for again in range(2)
        ]
        assert outcomes[0] == outcomes[1]


WORKER = """
import os, sys, time
from tests.fuzz import __main__ as runner

def run(kind, seed, folder):
    number = int(seed.rpartition("/")[2])
    if number == 3:
        raise KeyError("a traceback")
    if number == 5:
        os.abort()
    if number == 7:
        time.sleep(60)
    return "read"

runner.run, runner.SECONDS = run, 1.0
sys.exit(runner.main())
"""


def test_tracebacks_crashes_and_hangs_are_told_apart(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    start = runner.subprocess.Popen

    def other(command, **options):
        assert command[1:3] == ["-m", "tests.fuzz"]
        options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *_paths()])}
        return start([command[0], str(script), *command[3:]], **options)

    monkeypatch.setattr(runner.subprocess, "Popen", other)
    report = runner.fuzz(0, 10, 0, 1)
    assert [case for case, _ in report.failures] == [("corpus", number) for number in (3, 5, 7)]
    traceback, crash, hang = (said for _, said in report.failures)
    assert "KeyError" in traceback
    assert crash.startswith("crashed (exit code -6)")
    assert hang.startswith("hung")
    assert report.outcomes["corpus", "read"] == 7
    assert "corpus" in str(report)


def _paths() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)
