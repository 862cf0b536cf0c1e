"""High-water marks: ledgers that were cut or copied are refused."""

import os
import random
import shutil
import signal
import time

import pytest

from tests.accounting.chains import PROFILE, in_child, marked_run
from tests.accounting.plans import planned
from uedp.accounting.chain import Chain
from uedp.accounting.ledger import RUN_LEDGER, RunLedger
from uedp.accounting.marks import mark_path
from uedp.errors import UserError


@pytest.mark.parametrize("lines", [0, 1, 2, 3])
def test_a_ledger_that_was_cut_is_refused(tmp_path, lines):
    plan, run, corpus = marked_run(tmp_path)
    path = run / RUN_LEDGER
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:lines]))
    with (
        pytest.raises(UserError, match=r"not the ledger that had 3 .*rounds would be repeated"),
        RunLedger.open(run, plan, corpus),
    ):
        pass
    assert path.read_bytes() == b"".join(whole[:lines])
    path.write_bytes(b"".join(whole))
    with RunLedger.open(run, plan, corpus) as ledger:
        assert ledger.spent == 3


def test_a_copy_of_a_run_is_not_resumed_beside_it(tmp_path):
    plan, run, corpus = marked_run(tmp_path)
    shutil.copytree(run, tmp_path / "copy")
    with RunLedger.open(run, plan, corpus) as ledger:
        ledger.spend()
        with pytest.raises(UserError, match="another process"):
            RunLedger.open(tmp_path / "copy", plan, corpus).__enter__()
    with (
        pytest.raises(UserError, match="not the ledger that had 4"),
        RunLedger.open(tmp_path / "copy", plan, corpus),
    ):
        pass


def test_a_mark_that_is_gone_is_missed(tmp_path):
    plan, run, corpus = marked_run(tmp_path)
    mark_path(corpus, "run-1").unlink()
    with (
        pytest.raises(UserError, match=r"missing, but .* has 3 rounds"),
        RunLedger.open(run, plan, corpus),
    ):
        pass


def test_a_round_that_was_not_marked_yet_is_no_harm(tmp_path):
    """Killed between the ledger and the mark: the ledger is ahead."""
    plan, run, corpus = marked_run(tmp_path)
    with Chain(run / RUN_LEDGER) as chain:
        chain.append({"kind": "rounds", "first": 3, "count": 1})
    with RunLedger.open(run, plan, corpus) as ledger:
        assert ledger.spent == 4


def test_a_marked_writer_killed_forty_times_can_always_go_on(tmp_path):
    rng = random.Random(6)
    plan = planned("run", "digest", PROFILE, 1_000_000)
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    run.mkdir()
    acknowledged = 0
    for _ in range(40):
        receive, send = os.pipe()

        def writer(send: int = send) -> None:
            with RunLedger.open(run, plan, corpus) as ledger:
                while True:
                    ledger.spend()
                    os.write(send, b".")

        child = in_child(writer)
        os.close(send)
        with os.fdopen(receive, "rb", buffering=0) as pipe:
            # refused, the child would end without a word, and so would this loop
            assert pipe.read(1)
            time.sleep(rng.random() * 0.004)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            acknowledged += 1 + len(pipe.read())
    with RunLedger.open(run, plan, corpus) as ledger:
        assert acknowledged <= ledger.spent <= acknowledged + 40


def test_names_that_are_no_file_names_are_refused(tmp_path):
    for name in ("a/b", "..\n", ""):
        with pytest.raises(UserError, match="a name has letters"):
            mark_path(tmp_path, name)
