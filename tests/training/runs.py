"""Runs that tests watch, stop, crash and compare."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from uedp.accounting.chain import read_chain
from uedp.errors import UserError
from uedp.methods import ClippedMethod
from uedp.training.metrics import FILE

PRIVATE = ("rotation", "user-level", "uedp-alg")
PLAIN = ("noiseless", "deidentified")
DEEP = b"[" * 100_000  # JSON nested deeper than a parser's stack


def refused(action) -> str:
    """The one line of the error that an action ends in."""
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


class RoundWatcher:
    """A progress bar that calls back after every round."""

    def __init__(self, after=lambda done: None):
        self.after, self.notes, self.texts = after, [], []

    @contextmanager
    def stage(self, name, total, unit) -> Iterator["RoundWatcher"]:
        self.resumed = None
        yield self

    def advance(self, items, position=None):
        if self.resumed is None:
            self.resumed = position
        else:
            self.after(position)

    def within(self, part, text):
        self.texts.append((part, text))

    def note(self, text):
        self.notes.append(text)


def stopping_after(done: int, number: int = signal.SIGINT, times: int = 1) -> RoundWatcher:
    def stop(position):
        if position == done:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return RoundWatcher(stop)


class SimulatedCrashError(Exception):
    """Stands in for a killed process; test_killed.py kills a real one."""


@contextmanager
def crashing_in(number: int, kind=ClippedMethod) -> Iterator[None]:
    """A method crashes in this round: the round is spent, and its result is lost."""
    round_ = kind.round

    def crashes(self, at, attempt):
        gradient = round_(self, at, attempt)
        if at == number:
            raise SimulatedCrashError
        return gradient

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "round", crashes)
        yield


def spent(folder: Path):
    records, _ = read_chain(folder / "ledger.jsonl")
    return [(r["first"], r["count"]) for r in records if r["kind"] == "rounds"]


def metrics(folder: Path):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def weights(folder: Path):
    return load_file(folder / "model.safetensors")


def same_tensors(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def snapshot(*folders: Path):
    """Every file with its content and modification time."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }
