"""Exit codes that scripts rely on, and output that ends early or does not fit the terminal."""

import os
import subprocess
import sys

import pytest

from tests.conftest import marked
from uedp.entities.build import build_corpus
from uedp.errors import CheckFailedError, UserError
from uedp.sample.generate import write_sentences

RAISED = {
    UserError("no"): 2,
    CheckFailedError("no"): 1,
    PermissionError(13, "Permission denied", "file"): 2,
    OSError(28, "No space left on device"): 2,
    RuntimeError("a bug"): 70,
    KeyboardInterrupt(): 130,
}


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_is_raised_has_its_code(error, run, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("uedp.corpus.store.Corpus", fail)
    done = run("inspect", "corpus")
    assert (done.code, done.out) == (RAISED[error], "")
    if RAISED[error] in (1, 2):
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
    assert ("Traceback" in done.err) == (RAISED[error] == 70)


def test_a_full_disk_is_named(run, monkeypatch):
    def fail(*_):
        raise OSError(28, "Error writing bytes to file")

    monkeypatch.setattr("uedp.corpus.store.Corpus", fail)
    told = "error: no space left on the disk; free some, or choose another disk\n"
    assert run("inspect", "corpus").err == told


def test_success_and_the_version(run):
    done = run("--version")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("uedp ")
    longer = run("--version", "--verbose")
    assert longer.out.startswith(done.out)
    assert "\ntorch " in longer.out
    assert run("--verbose").code == 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    names = [f"Zoë 王 {n}" for n in range(400)]
    rows = [marked(f"u{n}", f"Call {name} now.", (name, "PERSON")) for n, name in enumerate(names)]
    write_sentences(rows, folder / "m.jsonl")
    build_corpus(
        folder / "m.jsonl", folder / "corpus", detectors=("labels",), on_warning=lambda _: None
    )
    return folder / "corpus"


def started(*words, **environment):
    arguments = [sys.executable, "-m", "uedp", *map(str, words)]
    return subprocess.Popen(
        arguments,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_that_closes_early(corpus):
    with started("entities", corpus, "--per-page", 0) as command:
        command.stdout.close()
        assert command.wait() == 141
        assert command.stderr.read() == b""


def test_names_that_the_terminal_cannot_show(corpus):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "30"}
    with started("entities", corpus, "--find", "399", **ascii_only) as command:
        out, err = command.communicate()
    assert (command.returncode, err) == (0, b"")
    assert rb"Zo\xeb \u738b 399" in out
