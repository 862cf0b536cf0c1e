"""A ledger that cannot forget: killed writers, torn lines, flipped bytes, two writers, budgets."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from uedp.accounting.chain import Chain, read
from uedp.accounting.ledger import (
    Budget,
    CorpusLedger,
    RunLedger,
    from_record,
    spent_rounds,
    to_record,
)
from uedp.accounting.proven import Alg, Rotation, UserLevel, epsilon
from uedp.errors import UserError

ROTATION = Rotation(1.5, 0.1, 0.3)


def append_until_killed(path: Path, acknowledged: int) -> None:
    """In a child: append records for ever, and say through a pipe which are on disk."""
    with Chain(path) as chain:
        while True:
            number = len([r for r in chain.records if r["kind"] == "rounds"])
            chain.append({"kind": "rounds", "first": number, "count": 1})
            os.write(acknowledged, f"{number}\n".encode())


def test_a_writer_killed_200_times_loses_no_acknowledged_round(tmp_path):
    path = tmp_path / "ledger.jsonl"
    rng = random.Random(0)
    highest = -1
    for _ in range(200):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - ends by SIGKILL
            os.close(reader)
            try:
                append_until_killed(path, writer)
            finally:
                os._exit(1)
        os.close(writer)
        time.sleep(rng.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            lines = pipe.read().splitlines()
        highest = max([highest, *map(int, lines)])
        kept = (
            [record["first"] for record in read(path)[0] if record["kind"] == "rounds"]
            if path.exists()
            else []
        )
        assert kept == list(range(len(kept)))  # in order, none twice
        assert len(kept) > highest  # every acknowledged round is there
    assert highest > 100  # the writers got to write


def filled(path: Path, records: int = 4) -> bytes:
    with Chain(path) as chain:
        for number in range(records):
            chain.append({"kind": "rounds", "first": number, "count": 1})
    return path.read_bytes()


def test_a_torn_line_is_removed_and_recorded_wherever_it_was_torn(tmp_path):
    path = tmp_path / "ledger.jsonl"
    content = filled(path)
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        assert len(read(path)[0]) == whole
        with Chain(path) as chain:
            chain.append({"kind": "rounds", "first": whole, "count": 1})
        records, _ = read(path)
        assert spent_rounds(records) == whole + 1
        torn = cut not in (0, *ends)
        assert any(r["kind"] == "torn line removed" for r in records) == torn


def test_a_flipped_byte_anywhere_is_found(tmp_path):
    path = tmp_path / "ledger.jsonl"
    content = filled(path, 3)
    for position in range(len(content)):
        for flip in (0x01, 0x20, 0x80):
            changed = bytearray(content)
            changed[position] ^= flip
            path.write_bytes(bytes(changed))
            with pytest.raises(UserError, match="was changed here"):
                read(path)


def test_two_processes_cannot_write_at_once(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Chain(path) as chain:
        chain.append({"kind": "note"})
        with pytest.raises(UserError, match="another process"):
            Chain(path)
    with Chain(path) as chain:
        assert len(chain.records) == 1


@pytest.mark.parametrize(
    "profile",
    [
        ROTATION,
        UserLevel(1.0, 0.05),
        Alg(2.0, 0.05, 946, 12),
        Rotation(1.0, 0.1, 0.3, 0.5, 0.2, 0.9),
    ],
)
def test_profiles_survive_the_record(profile):
    assert from_record(json.loads(json.dumps(to_record(profile)))) == profile


def test_rounds_are_spent_before_use_and_never_beyond_the_plan(tmp_path):
    with RunLedger.open(tmp_path, "run-1", "digest", ROTATION, rounds=10) as ledger:
        ledger.spend(4)
        on_disk, _ = read(tmp_path / "ledger.jsonl")
        assert spent_rounds(on_disk) == 4
        assert (ledger.spent, ledger.left) == (4, 6)
        with pytest.raises(UserError, match="4 of 10 planned rounds"):
            ledger.spend(7)
        assert ledger.spent == 4


def test_resuming_continues_and_another_plan_is_refused(tmp_path):
    for _ in range(3):
        with RunLedger.open(tmp_path, "run-1", "digest", ROTATION, rounds=10) as ledger:
            ledger.spend(2)
    assert ledger.spent == 6
    plan = read(tmp_path / "ledger.jsonl")[0][0]
    resumed = epsilon(from_record(plan["profile"]), plan["rounds"], 1e-5)
    assert resumed == epsilon(ROTATION, 10, 1e-5)  # as if never interrupted
    for changed in (Rotation(1.4, 0.1, 0.3), ROTATION):
        rounds = 10 if changed != ROTATION else 11
        with (
            pytest.raises(UserError, match="planned differently"),
            RunLedger.open(tmp_path, "run-1", "digest", changed, rounds),
        ):
            pass


def test_runs_on_one_incidence_add_up(tmp_path):
    ledger = CorpusLedger(tmp_path)
    ledger.reserve("a", "one", ROTATION, 30)
    ledger.reserve("b", "one", Rotation(2.0, 0.05, 0.2), 50)
    ledger.reserve("c", "two", ROTATION, 30)
    alone = epsilon(ROTATION, 30, 1e-5)
    assert ledger.epsilon("two", 1e-5) == pytest.approx(alone)
    assert ledger.epsilon("one", 1e-5) > alone
    assert ledger.runs("one") == ["a", "b"]
    ledger.reserve("a", "one", ROTATION, 30)  # the same run again, as on resume
    assert ledger.runs("one") == ["a", "b"]
    with pytest.raises(UserError, match="another plan"):
        ledger.reserve("a", "one", ROTATION, 31)


def test_a_budget_is_refused_before_the_round_and_leaves_no_trace(tmp_path):
    ledger = CorpusLedger(tmp_path)
    budget = Budget(1.2 * epsilon(ROTATION, 30, 1e-5), 1e-5)
    ledger.reserve("a", "one", ROTATION, 30, budget)
    before = ledger.path.read_bytes()
    with pytest.raises(UserError, match="plan fewer rounds"):
        ledger.reserve("b", "one", ROTATION, 30, budget)
    assert ledger.path.read_bytes() == before
    ledger.reserve("b", "two", ROTATION, 30, budget)  # another incidence has its own
