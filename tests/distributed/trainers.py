"""Processes that train together, imported once by a server that forks them."""

import os
import signal
import socket
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import peft  # noqa: F401  # all that takes long to import, so that it is there already
import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401

from tests.training import worlds
from uedp.distributed import process_group
from uedp.distributed.process_group import ProcessGroup, train_together
from uedp.errors import UserError
from uedp.methods import ClippedMethod
from uedp.training import loop
from uedp.training.config import Config

torch.set_num_threads(1)
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
GONE = 3  # the exit code of a process whose training was refused or broken off


def _join(
    rank: int,
    environment: Mapping[str, str],
    config: Config,
    out: Path,
    corpus: Path,
    resume: bool,
    dies: tuple[int, int] | None,
    unlike: bool,
    summed: bool,
    interrupted: int | None,
) -> None:
    os.environ.update(environment, RANK=str(rank))
    (out.parent / f"{out.name}-{rank}.log").write_text("")
    if dies is not None and dies[0] == rank:
        _die_in_round(rank, dies[1], summed)
    if interrupted is not None and rank == 0:
        _interrupt_when_announced(interrupted)
    if unlike and rank:
        process_group._device_name = lambda device: "another GPU"
    lines: list[str] = []
    try:
        train_together(
            lambda watch: loop.run(
                config,
                out,
                data=worlds.training_data(corpus),
                resume=resume,
                say=lines.append,
                watch=watch,
            ),
            lambda config: worlds.training_data(corpus, held_out=False),
        )
    except UserError as error:
        lines.append(f"error: {error}")
    (out.parent / f"{out.name}-{rank}.log").write_text("\n".join(lines))
    if lines and lines[-1].startswith("error: "):
        os._exit(GONE)


def _die_in_round(rank: int, nth: int, summed: bool) -> None:
    """As a `kill -9` in the n-th round would; the lead, when its own part is computed."""
    owner, name = (ProcessGroup, "add_up") if rank == 0 else (ClippedMethod, "part_of_round")
    if summed:
        owner, name = process_group, "_reduce"
    original, calls = getattr(owner, name), []

    def counted(*arguments: object) -> object:
        calls.append(name)
        result = original(*arguments) if summed else None
        if len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if summed else original(*arguments)

    setattr(owner, name, counted)


def _interrupt_when_announced(nth: int) -> None:
    """Ctrl-C when the n-th round was announced, and its weights were not sent."""
    original, rounds = ProcessGroup._send, []

    def sent(group: ProcessGroup, message: object) -> object:
        found = original(group, message)
        if isinstance(message, process_group._Round):
            rounds.append(message)
            if len(rounds) == nth:
                os.kill(os.getpid(), signal.SIGINT)
        return found

    ProcessGroup._send = sent


def together(
    processes: int,
    config: Config,
    out: Path,
    corpus: Path,
    resume: bool = False,
    dies: tuple[int, int] | None = None,
    unlike: bool = False,
    summed: bool = False,
    interrupted: int | None = None,
) -> list[int | None]:
    """Train with so many processes.

    Args:
        dies: a process and the round in which it is killed.
        summed: whether it is killed once its part is in the sum, not before.
        unlike: whether the others say that they run on another device than the lead.
        interrupted: the round in which the lead gets Ctrl-C, at an awkward moment.

    Returns:
        The exit code of each.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    started: list[ForkServerProcess] = []
    for rank in range(processes):
        fails = (dies, unlike, summed, interrupted)
        arguments = (rank, environment, config, out, corpus, resume, *fails)
        started.append(_CONTEXT.Process(target=_join, args=arguments))
        started[-1].start()
    for process in started:
        process.join(timeout=120)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in started]
