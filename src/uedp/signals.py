"""Handlers for the signals that stop a command."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Send Ctrl-C, a kill and a closed terminal to `handler` during the block.

    Python sets handlers in the main thread only; in another thread this does nothing.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            # an ignored signal, as under nohup, stays ignored; None is a handler outside Python
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def deferred() -> Iterator[None]:
    """Delay signals that arrive during the block until it ends."""
    waiting: list[int] = []
    try:
        with handled_by(lambda number, frame: waiting.append(number)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])
