"""Detectors run over batches of sentences, in this process or in several."""

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

from uedp.corpus.sentence import Sentence, Span
from uedp.entities.categories import category_of
from uedp.entities.detectors import Detector, load_detector, own_loaders, register_detector
from uedp.entities.detectors.forms.dates import refined
from uedp.entities.detectors.labels import Labels
from uedp.signals import deferred

BATCH = 256  # sentences handed to a detector at once,
CHARACTERS = 1 << 20  # fewer if they are documents
AHEAD = 3  # batches in flight per worker, so that none is idle
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# Of each sentence in a batch: span, number of the detector, and whether that detector propagates.
Hits = list[list[tuple[Span, int, bool]]]


def detect_batches(
    sentences: Iterable[Sentence | None], detectors: Sequence[str], workers: int = 1
) -> Iterator[tuple[Sequence[Sentence], Hits]]:
    """Batches of sentences with the hits of all named detectors; None ends a batch.

    Guarantees:
      - the order is kept, and the result does not depend on the number of workers
      - at most `AHEAD` batches per worker are held at a time
    """
    batches = in_batches(sentences)
    if workers <= 1:
        loaded = [load_detector(name) for name in detectors]
        for batch in batches:
            yield batch, run_detectors(loaded, batch)
        return
    with _pool(detectors, workers) as pool:
        in_flight: deque[tuple[Sequence[Sentence], Future[Hits]]] = deque()
        for batch in batches:
            with _starting_workers():
                in_flight.append((batch, pool.submit(_run_here, batch)))
            if len(in_flight) >= AHEAD * workers:
                done, future = in_flight.popleft()
                yield done, future.result()
        for done, future in in_flight:
            yield done, future.result()


def in_batches(sentences: Iterable[Sentence | None]) -> Iterator[Sequence[Sentence]]:
    """Batches for the detectors: full ones, and one that ends at each None."""
    batch: list[Sentence] = []
    characters = 0
    for sentence in sentences:
        if sentence is not None:
            batch.append(sentence)
            characters += len(sentence.text)
        if len(batch) >= BATCH or characters >= CHARACTERS or (sentence is None and batch):
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def run_detectors(detectors: Sequence[Detector], batch: Sequence[Sentence]) -> Hits:
    """The hits of all detectors in one batch."""
    hits_of_batch: Hits = [[] for _ in batch]
    texts = [sentence.text for sentence in batch]
    for number, detector in enumerate(detectors):
        if isinstance(detector, Labels):
            spans_of_texts: Iterable[Sequence[Span]] = detector.marks(batch)
        else:
            spans_of_texts = map(_refined, texts, detector.detect(texts))
        for hits, spans in zip(hits_of_batch, spans_of_texts, strict=True):
            hits.extend((span, number, bool(detector.propagates)) for span in spans)
    return hits_of_batch


def _refined(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans, with labels of their own where a date is only a year, a month or a weekday."""
    result = []
    for span in spans:
        category = category_of(span.label)
        narrower = refined(category, text[span.start : span.end])
        result.append(span if narrower == category else span._replace(label=narrower.upper()))
    return result


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
    """End this worker when its parent is killed, which could not stop it any more."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        # immediate, even inside a library's own code
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        connection.wait([parent.sentinel])  # returns at once if it is dead already
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_here(batch: Sequence[Sentence]) -> Hits:
    global _loaded
    if _loaded is None:  # in the first task, not at start-up, so that a failure reaches the caller
        _loaded = [load_detector(name) for name in _names]
    return run_detectors(_loaded, batch)


@contextmanager
def _pool(detectors: Sequence[str], workers: int) -> Iterator[ProcessPoolExecutor]:
    # One thread per worker: the processes are the parallelism.
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    others = set(multiprocessing.active_children())
    # spawn: the libraries of detectors start threads, which do not survive a fork
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
            worker.kill()  # its batch may take minutes, and its result is not needed
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
    """Start workers that ignore Ctrl-C: this process handles it for all.

    The signal mask is inherited, so that even a worker that is still importing shows no traceback.
    """
    with deferred():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
