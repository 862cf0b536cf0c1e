"""The signals that stop a command, and the moments in which they have to wait."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)  # Windows has no SIGHUP
)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C, a kill and a closed terminal go to `handler` for as long as the block lasts.

    Only the main thread may say so; elsewhere this does nothing.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            # one that is ignored, as under nohup, stays so; None is a handler outside Python
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes during the block takes effect after it."""
    waiting: list[int] = []
    try:
        with handled_by(lambda number, frame: waiting.append(number)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])
