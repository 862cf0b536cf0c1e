"""A process that trains or generates, to be killed. Imported once by a server that forks it."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import peft  # noqa: F401  # all that takes long to import, so that it is there already
import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401

from tests.training import worlds
from uedp.accounting import certificate as certificates
from uedp.accounting.ledger import CorpusLedger, RunLedger
from uedp.accounting.marks import Mark
from uedp.mechanism import release
from uedp.methods import ClippedMethod
from uedp.training import checkpoint, engine, loop, public_phase, synthetic
from uedp.training import run_dir as folder
from uedp.training.config import Config
from uedp.training.round_key import RoundKey

torch.set_num_threads(1)  # as in the tests: sums over threads round differently

# where a process can be made to die, in the order of a run: what is called there
POINTS: dict[str, tuple[Any, str]] = {
    "before it has a name": (folder, "name_run"),
    "named, before it is reserved": (CorpusLedger, "reserve"),
    "reserved, before its config": (engine, "write_atomically"),
    "before its ledger": (RunLedger, "open"),
    "before the first checkpoint": (checkpoint, "write_checkpoint"),
    "before a round has a key": (RoundKey, "begin"),
    "before a round is drawn": (ClippedMethod, "round"),
    "in the sum of a round": (release, "_add"),
    "before a round is spent": (RunLedger, "spend"),
    "spent, before its mark": (Mark, "advance"),
    "spent, before its key goes": (RoundKey, "end"),
    "spent, before its noise": (release, "add_once_"),
    "in a checkpoint": (checkpoint, "fsync_tree"),
    "before older checkpoints go": (checkpoint.shutil, "rmtree"),
    "before the model": (engine, "save_model"),
    "saved, before its files are entered": (RunLedger, "record_saved"),
    "before it is closed": (CorpusLedger, "close"),
    "before what all runs come to": (RunLedger, "record_corpus"),
    "in the certificate": (certificates, "_compute"),
    "before the result": (loop, "write_result"),
}


# and before that, where there is public text
PUBLIC_POINTS: dict[str, tuple[Any, str]] = {
    "in a step": (public_phase, "mean_gradient"),
    "recorded, before the first checkpoint of rounds": (engine.PrivateRun, "save_checkpoint"),
    "before its checkpoints go": (loop, "remove_checkpoints"),
}


def train(
    config: Config, out: Path, corpus: Path, resume: bool, point: str | None = None, nth: int = 1
) -> None:
    if point is not None:
        _die_at(*(POINTS | PUBLIC_POINTS)[point], nth)
    public = worlds.public_text() if config.public.steps else None
    loop.run(config, out, data=worlds.training_data(corpus, public=public), resume=resume)


def _die_at(owner: Any, name: str, nth: int) -> None:
    """As a `kill -9` at the n-th call would: nothing is cleared away."""
    original, calls = getattr(owner, name), []

    def dies(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, name, dies)


def write_texts(model: Path, out: Path, point: str, nth: int, **settings: Any) -> None:
    _die_at(synthetic, point, nth)
    synthetic.write_texts(model, out, resume=True, **settings)


def process(
    *arguments: Any, target: Callable[..., None] = train, **options: Any
) -> ForkServerProcess:
    """A started process that runs `train`, or the target, with these arguments."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    started = context.Process(target=target, args=arguments, kwargs=options)
    started.start()
    return started
