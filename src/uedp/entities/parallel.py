"""Running detectors over batches of sentences, in this process or several, in order."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from typing import NamedTuple

from uedp.corpus.sentence import Sentence, Span
from uedp.entities.detectors import Detector, load_detector, own_loaders, register_detector
from uedp.entities.detectors.labels import Labels
from uedp.signals import deferred

BATCH = 256  # sentences handed to a detector at once,
CHARACTERS = 1 << 20  # fewer if they are documents
AHEAD = 3  # batches out per worker, so that none waits for the next
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Hit(NamedTuple):
    """A detected span, and whether its surface counts wherever else it stands."""

    span: Span
    propagates: bool


Found = list[list[Hit]]


def detect(
    sentences: Iterable[Sentence], detectors: Sequence[str], workers: int = 1
) -> Iterator[tuple[Sequence[Sentence], Found]]:
    """Batches of sentences with the union of what the named detectors find in each.

    Guarantees:
      - order is kept, and the result does not depend on the number of workers
      - at most `AHEAD` batches per worker are held at a time
    """
    batches = _batches(sentences)
    if workers <= 1:
        loaded = [load_detector(name) for name in detectors]
        for batch in batches:
            yield batch, _run(loaded, batch)
        return
    with _pool(detectors, workers) as pool:
        waiting: deque[tuple[Sequence[Sentence], Future[Found]]] = deque()
        for batch in batches:
            with _starting_workers():
                future = pool.submit(_run_here, batch)
            waiting.append((batch, future))
            if len(waiting) >= AHEAD * workers:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()


def _batches(sentences: Iterable[Sentence]) -> Iterator[Sequence[Sentence]]:
    batch: list[Sentence] = []
    characters = 0
    for sentence in sentences:
        batch.append(sentence)
        characters += len(sentence.text)
        if len(batch) >= BATCH or characters >= CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _run(detectors: Sequence[Detector], batch: Sequence[Sentence]) -> Found:
    found: Found = [[] for _ in batch]
    texts = [sentence.text for sentence in batch]
    for detector in detectors:
        spans_of_texts = (
            detector.marks(batch) if isinstance(detector, Labels) else detector.detect(texts)
        )
        for hits, spans in zip(found, spans_of_texts, strict=True):
            hits.extend(Hit(span, detector.propagates) for span in spans)
    return found


# --- in the worker processes -------------------------------------------------------------------

_names: Sequence[str] = ()
_loaded: list[Detector] | None = None


def _begin(names: Sequence[str], own: Mapping[str, Callable[[str | None], Detector]]) -> None:
    global _names
    _names = names
    for kind, load in own.items():
        register_detector(kind)(load)
    _die_with_parent()


_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers, which would wait for it for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        # at once, even in the middle of a library's own code
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        connection.wait([parent.sentinel])  # also if it was dead before we came here
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_here(batch: Sequence[Sentence]) -> Found:
    global _loaded
    if _loaded is None:  # in the first task, not at start-up, so that a failure reaches the caller
        _loaded = [load_detector(name) for name in _names]
    return _run(_loaded, batch)


@contextmanager
def _pool(detectors: Sequence[str], workers: int) -> Iterator[ProcessPoolExecutor]:
    # Each worker computes on one thread: the processes are the parallelism.
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    others = set(multiprocessing.active_children())
    # spawn: the libraries behind detectors start threads, which a forked child would find broken
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(detectors, own_loaders(detectors)),
    )
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()  # a batch under way may take minutes, and nobody waits for it now
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _starting_workers() -> Iterator[None]:
    """A worker is started whole, and never hears Ctrl-C: this process deals with that for all.

    The block on the signal is inherited, so even a worker that is still importing has no
    traceback to show.
    """
    with deferred():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
