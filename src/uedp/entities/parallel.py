"""Running detectors over batches of sentences, in this process or several, in order."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from uedp.corpus.sentence import Sentence, Span
from uedp.entities.detectors import Detector, load

BATCH = 256  # sentences handed to a detector at once
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
        loaded = [load(name) for name in detectors]
        for batch in batches:
            yield batch, _run(loaded, batch)
        return
    with _pool(detectors, workers) as pool:
        waiting: deque[tuple[Sequence[Sentence], Future[Found]]] = deque()
        for batch in batches:
            waiting.append((batch, pool.submit(_run_here, batch)))
            if len(waiting) >= AHEAD * workers:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _batches(sentences: Iterable[Sentence]) -> Iterator[Sequence[Sentence]]:
    stream = iter(sentences)
    while batch := tuple(islice(stream, BATCH)):
        yield batch


def _run(detectors: Sequence[Detector], batch: Sequence[Sentence]) -> Found:
    found: Found = [[] for _ in batch]
    for detector in detectors:
        for hits, spans in zip(found, detector.detect(batch), strict=True):
            hits.extend(Hit(span, detector.propagates) for span in spans)
    return found


# --- in the worker processes -------------------------------------------------------------------

_names: Sequence[str] = ()
_loaded: list[Detector] | None = None


def _remember(names: Sequence[str]) -> None:
    global _names
    _names = names


def _run_here(batch: Sequence[Sentence]) -> Found:
    global _loaded
    if _loaded is None:  # in the first task, not at start-up, so that a failure reaches the caller
        _loaded = [load(name) for name in _names]
    return _run(_loaded, batch)


@contextmanager
def _pool(detectors: Sequence[str], workers: int) -> Iterator[ProcessPoolExecutor]:
    # Each worker computes on one thread: the processes are the parallelism.
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    # spawn: the libraries behind detectors start threads, which a forked child would find broken
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_remember, initargs=(detectors,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
