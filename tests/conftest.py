"""Small corpora and a way to run commands, for all tests."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.browser import browser as browser
from uedp.cli import main
from uedp.corpus.sentence import Sentence, Span

# The same examples every time: a change fails for what it changed. `make fuzz` tries new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("new-examples", deadline=None)
settings.load_profile(os.environ.get("UEDP_EXAMPLES", "repeatable"))

# Under nohup, or in the background of a script, some signals are ignored, here and in every process
# that is started from here; what is tested is what they do.
for _signal, _handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}.items():
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, _handler)

torch.set_num_threads(1)  # threads that wait for each other cost small tests more than they gain


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a `uedp` command in this process, as the shell would see it."""
    return command_runner(main, capsys)


def command_runner(main: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command line in this process, as the shell would see it."""

    def command(*arguments: object) -> Outcome:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


def marked(user: str, text: str, *surfaces: tuple[str, str], label: str | None = None) -> Sentence:
    """A sentence whose marks are the first occurrences of the given (surface, label) pairs."""
    spans = []
    for surface, kind in surfaces:
        start = text.index(surface)
        spans.append(Span(start, start + len(surface), kind))
    return Sentence(user, text, label, tuple(sorted(spans)))


@pytest.fixture
def conll(tmp_path: Path) -> Path:
    """Two users, four sentences, every way IOB1 begins an entity."""
    path = tmp_path / "toy.conll"
    path.write_text(
        "-DOCSTART- -X- O O\n\n"
        "EU NNP I-ORG\nrejects VBZ O\nGerman JJ I-MISC\ncall NN O\n\n"
        "Peter NNP I-PER\nBlackburn NNP I-PER\n\n"
        "-DOCSTART- -X- O O\n\n"
        "London NNP I-LOC\nParis NNP B-LOC\nmet VBD O\nEU NNP I-ORG\n\n"
        "nothing NN O\nhere RB O\n"
    )
    return path


def surfaces(sentence: Sentence) -> Sequence[tuple[str, str]]:
    return [(sentence.text[mark.start : mark.end], mark.label) for mark in sentence.marks]
