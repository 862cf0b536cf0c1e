"""Writers of chains, in this process and in children."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.accounting.plans import planned
from uedp.accounting import chain as chains
from uedp.accounting.chain import Chain
from uedp.accounting.ledger import CorpusLedger, RunLedger
from uedp.accounting.proven import RotationProfile

PROFILE = RotationProfile(1.0, 0.05, 0.33)
ROUND = {"kind": "rounds", "first": 0, "count": 1}


def in_child(work: Callable[[], None]) -> int:
    """Fork, do the work, leave at once; the child's process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def write_some(path: Path, count: int = 4) -> bytes:
    with Chain(path) as chain:
        for number in range(count):
            chain.append({"kind": "rounds", "first": number, "count": 1, "noise": 0.1 * number})
    return path.read_bytes()


def sealed(record: object) -> bytes:
    """The first line of a ledger, of what is no record."""
    return chains._line(record, chains._seal(chains.FIRST_SEAL, record))  # type: ignore[arg-type]


def marked_run(tmp_path, rounds=3):
    """A run of so many of its ten rounds, whose corpus keeps a mark."""
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    run.mkdir()
    plan = planned("run-1", "digest", PROFILE, 10)
    CorpusLedger(corpus).reserve(plan)
    with RunLedger.open(run, plan, corpus) as ledger:
        for _ in range(rounds):
            ledger.spend()
    return plan, run, corpus
