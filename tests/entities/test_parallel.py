"""Batches: how large, how many at a time, and what becomes of them when something fails."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.entities import parallel
from uedp.entities.detectors import register_detector
from uedp.entities.parallel import detect_batches
from uedp.errors import UserError


def test_batches_are_bounded_in_sentences_and_characters(monkeypatch):
    monkeypatch.setattr(parallel, "BATCH", 4)
    monkeypatch.setattr(parallel, "CHARACTERS", 100)
    texts = ["a"] * 9 + ["b" * 60] * 3 + ["c" * 1000, "d"]
    batches = [
        batch for batch, _ in parallel.detect_batches([Sentence("u", t) for t in texts], ["labels"])
    ]
    assert [len(batch) for batch in batches] == [4, 4, 3, 2, 1]
    assert [s.text for batch in batches for s in batch] == texts


def test_none_ends_a_batch(monkeypatch):
    monkeypatch.setattr(parallel, "BATCH", 3)
    texts = [None, "a", None, None, *"bcd", None, *"efgh", None]
    sentences = [text and Sentence("u", text) for text in texts]
    for workers in (1, 2):
        batches = [batch for batch, _ in detect_batches(sentences, ["labels"], workers)]
        assert ["".join(s.text for s in batch) for batch in batches] == ["a", "bcd", "efg", "h"]


def test_at_most_ahead_batches_per_worker_are_held(monkeypatch):
    """Guarantee of `detect`; and that many are, or a worker would wait."""
    monkeypatch.setattr(parallel, "BATCH", 2)
    limit = parallel.AHEAD * 2
    read = done = 0
    held = []

    def source() -> Iterator[Sentence]:
        nonlocal read
        for number in range(60):
            read += 1
            held.append((read + 1) // 2 - done)
            yield Sentence("u", f"mail a{number}@x.example")

    found = []
    for batch, hits in parallel.detect_batches(source(), ["patterns"], workers=2):
        found.extend(zip(batch, hits, strict=True))
        held.append(read // 2 - done)  # this one is still held by us
        done += 1
    assert max(held) == limit
    assert [s.text for s, _ in found] == [f"mail a{n}@x.example" for n in range(60)]
    assert all(len(hits) == 1 for _, hits in found)


def test_a_failure_does_not_wait_for_the_workers():
    def broken() -> None:
        with parallel._pool(["labels"], 1) as pool:
            assert pool.submit(abs, -1).result() == 1
            asleep = pool.submit(time.sleep, 20)
            while not asleep.running():
                time.sleep(0.01)
            raise UserError("broken on line 9")

    began = time.monotonic()
    with pytest.raises(UserError, match="line 9"):
        broken()
    assert time.monotonic() - began < 15
    assert multiprocessing.active_children() == []


ORPHANS = """
import multiprocessing, os, signal, sys, time
from uedp.entities import parallel
from uedp.entities.detectors import register_detector
from uedp.entities.parallel import detect_batches

if __name__ == "__main__":
    with parallel._pool(["labels"], 2) as pool:
        ids = {pool.submit(os.getpid).result() for _ in range(20)}
        for _ in range(4):
            pool.submit(time.sleep, 60)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _is_alive(number: int) -> bool:
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("watched", ["by the system", "by a thread"])
def test_workers_die_with_a_parent_that_is_killed(watched, tmp_path):
    script = tmp_path / "orphans.py"
    code = ORPHANS
    if watched == "by a thread":  # as where the system does not do it
        code = code.replace("from uedp", "sys.platform = 'elsewhere'\nfrom uedp", 1)
    script.write_text(code)
    said = tmp_path / "said"
    with said.open("w") as file:  # not a pipe, which those left behind would keep open
        done = subprocess.run([sys.executable, str(script)], stdout=file, stderr=file)
    assert done.returncode == -signal.SIGKILL, said.read_text()
    workers = [int(number) for number in said.read_text().split()]
    assert workers
    deadline = time.monotonic() + 10
    while any(map(_is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [worker for worker in workers if _is_alive(worker)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert left == []


def test_workers_do_not_hear_an_interrupt():
    with parallel._pool(["labels"], 1) as pool:
        with parallel._starting_workers():
            blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ())
        assert signal.SIGINT in blocked.result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@register_detector("dates-and-numbers")
class _DatesAndNumbers:
    """A stand-in for a model that calls the first word a date and the second a number."""

    propagates = True

    def __init__(self, argument):
        assert argument is None

    def detect(self, texts):
        for text in texts:
            space = text.index(" ")
            yield [Span(0, space, "DATE"), Span(space + 1, len(text), "CARDINAL")]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("1999 1776", ["YEAR", "YEAR"]),
        ("1980s 2003-2004", ["YEAR", "YEAR"]),
        ("Monday 42", ["CALENDAR", "CARDINAL"]),
        ("tomorrow 42", ["CALENDAR", "CARDINAL"]),
        ("mid-May 42", ["CALENDAR", "CARDINAL"]),
        ("Sept. may", ["CALENDAR", "CARDINAL"]),
        ("May-2004 42", ["DATE", "CARDINAL"]),
        ("mayor 42", ["DATE", "CARDINAL"]),
        ("1999-12 19999", ["DATE", "CARDINAL"]),
        ("the 42", ["DATE", "CARDINAL"]),
    ],
)
def test_a_models_date_that_is_only_a_year_or_a_weekday_has_a_label_of_its_own(text, labels):
    ((_, hits),) = detect_batches([Sentence("a", text)], ["dates-and-numbers"])
    assert [span.label for span, *_ in hits[0]] == labels


def test_what_a_person_marked_keeps_its_label():
    person = marked("a", "1999 or tomorrow", ("1999", "DATE"), ("tomorrow", "DATE"))
    ((_, hits),) = detect_batches([person], ["labels"])
    assert [span.label for span, *_ in hits[0]] == ["DATE", "DATE"]
