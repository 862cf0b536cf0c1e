"""Chains under fire: killed writers, torn and flipped bytes, full disks, two writers at once."""

import json
import os
import random
import resource
import signal
import time

import pytest

from tests.accounting.chains import PROFILE, ROUND, in_child, sealed, write_some
from tests.accounting.plans import planned
from uedp.accounting import chain as chains
from uedp.accounting.chain import Chain, read_chain
from uedp.accounting.ledger import RUN_LEDGER, RunLedger, spent_rounds
from uedp.errors import UserError


@pytest.mark.slow
def test_a_writer_killed_two_hundred_times_loses_no_acknowledged_round(tmp_path):
    rng = random.Random(5)
    path = tmp_path / RUN_LEDGER
    acknowledged = repairs = 0
    for _ in range(200):
        if rng.random() < 0.3 and path.exists():
            with path.open("ab") as file:  # so that some die while mending
                file.write(b'{"record": {"count": 1, "first'[: rng.randrange(1, 30)])
            repairs += 1
        receive, send = os.pipe()

        def writer(send: int = send) -> None:
            with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 1_000_000)) as ledger:
                while True:
                    ledger.spend()
                    os.write(send, b".")

        child = in_child(writer)
        os.close(send)
        with os.fdopen(receive, "rb", buffering=0) as pipe:
            # some die before their first round, while opening or mending; most, in full swing
            seen = len(pipe.read(1)) if rng.random() < 0.8 else 0
            time.sleep(rng.random() * 0.004)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            acknowledged += seen + len(pipe.read())
        if path.exists():
            spent = spent_rounds(read_chain(path)[0])
            # one that was on disk, but not yet acknowledged, may remain: that is the safe side
            assert acknowledged <= spent <= acknowledged + 1
            acknowledged = spent
    assert acknowledged > 200
    assert repairs > 20
    with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 1_000_000)) as ledger:
        assert ledger.spent == acknowledged
    firsts = [r["first"] for r in read_chain(path)[0] if r["kind"] == "rounds"]
    assert firsts == list(range(acknowledged))


def test_torn_at_every_byte(tmp_path):
    """Whatever prefix of the file is left, whole lines stay, the torn one goes, on record."""
    path = tmp_path / "chain"
    whole = write_some(path, 2)
    lines = whole.splitlines(keepends=True)
    full = read_chain(path)[0]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept, ends = 0, 0
        while kept < len(lines) and ends + len(lines[kept]) <= size:
            ends += len(lines[kept])
            kept += 1
        assert read_chain(path)[0] == full[:kept]
        with Chain(path) as chain:
            torn = [{"kind": "torn line removed", "bytes": size - ends}] if size > ends else []
            assert chain.records == full[:kept] + torn
            chain.append(ROUND)
        assert read_chain(path)[0] == [*full[:kept], *torn, ROUND]


def test_a_lost_tail_of_zeros_is_a_torn_line(tmp_path):
    """Some file systems leave zeros after a power cut."""
    path = tmp_path / "chain"
    write_some(path, 2)
    with path.open("ab") as file:
        file.write(bytes(100))
    with Chain(path) as chain:
        assert [r["kind"] for r in chain.records] == ["rounds", "rounds", "torn line removed"]


@pytest.mark.parametrize(
    "flip",
    [lambda b: b ^ 0x01, lambda b: b ^ 0x20, lambda b: b ^ 0x80, lambda b: 0x0A, lambda b: 0],
    ids=["lowest bit", "case", "highest bit", "to newline", "to zero"],
)
def test_a_flipped_byte_anywhere_is_found(tmp_path, flip):
    path = tmp_path / "chain"
    whole = write_some(path)
    for place, byte in enumerate(whole):
        changed = flip(byte)
        if changed == byte:
            continue
        path.write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
        with pytest.raises(UserError, match="ledger was changed"):
            read_chain(path)
        with pytest.raises(UserError, match="ledger was changed"):
            Chain(path)
        assert path.read_bytes()[place] == changed  # nothing was mended away


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], b"\n", *lines[1:]],
        lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]],
        lambda lines: [lines[0].replace(b"\n", b"\r\n"), *lines[1:]],
        lambda lines: [lines[0].replace(b'{"record"', b'{"extra": 1, "record"'), *lines[1:]],
        lambda lines: [lines[0].replace(b'"count": 1', b'"count": NaN'), *lines[1:]],
        lambda lines: [b"[" * 100_000 + b"\n", *lines],
        lambda lines: [b'"record"\n', *lines],
        lambda lines: [sealed([]), *lines],
        lambda lines: [sealed("rounds"), *lines],
    ],
)
def test_lines_dropped_moved_repeated_or_dressed_up_are_found(tmp_path, change):
    path = tmp_path / "chain"
    lines = write_some(path).splitlines(keepends=True)
    path.write_bytes(b"".join(change(lines)))
    with pytest.raises(UserError, match=r"chain:\d+: the ledger was changed"):
        read_chain(path)


def test_lines_cut_off_the_end_leave_another_seal(tmp_path):
    path = tmp_path / "chain"
    whole = write_some(path)
    seal = read_chain(path)[1]
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert read_chain(path)[1] != seal


def test_only_one_hand_writes(tmp_path):
    path = tmp_path / "chain"
    ready, go = os.pipe(), os.pipe()

    def holder() -> None:
        with Chain(path) as chain:
            chain.append(ROUND)
            os.write(ready[1], b".")
            os.read(go[0], 1)

    child = in_child(holder)
    os.read(ready[0], 1)
    with pytest.raises(UserError, match="another process is writing"):
        Chain(path)
    assert read_chain(path)[0] == [ROUND]  # reading is always allowed
    os.write(go[1], b".")
    os.waitpid(child, 0)
    with Chain(path) as chain:
        assert chain.records == [ROUND]
        with pytest.raises(UserError, match="another process is writing"):
            Chain(path)
    for descriptor in (*ready, *go):
        os.close(descriptor)


def test_a_full_disk_ends_the_writer_and_loses_nothing(tmp_path):
    path = tmp_path / "chain"
    size = len(write_some(path, 3))
    result = tmp_path / "result"

    def writer() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
        outcomes = []
        chain = Chain(path)
        for _ in range(2):
            try:
                chain.append(ROUND)
            except (OSError, ValueError) as error:
                outcomes.append(type(error).__name__)
        result.write_text(json.dumps(outcomes))

    os.waitpid(in_child(writer), 0)
    # the second is not tried on top of half a line
    assert json.loads(result.read_text()) == ["OSError", "ValueError"]
    assert path.stat().st_size == size + 20
    with Chain(path) as chain:
        assert len(chain.records) == 4
        assert chain.records[-1] == {"kind": "torn line removed", "bytes": 20}


def test_an_interrupt_while_syncing_leaves_a_ledger_that_opens(tmp_path, monkeypatch):
    path = tmp_path / "chain"
    chain = Chain(path)

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chains.os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            chain.append(ROUND)
    with pytest.raises(ValueError, match="closed"):
        chain.append(ROUND)
    with Chain(path) as again:
        assert again.records == [ROUND]  # unacknowledged, but it was written: counted


def test_a_record_is_on_disk_before_append_returns(tmp_path, monkeypatch):
    path = tmp_path / "chain"
    with Chain(path) as chain:
        synced = []

        def sync(descriptor: int) -> None:
            synced.append(path.read_bytes().count(b"\n"))

        monkeypatch.setattr(chains.os, "fsync", sync)
        for number in range(1, 4):
            chain.append(ROUND)
            assert synced[-1] == number


def test_not_a_number_cannot_be_recorded(tmp_path):
    with Chain(tmp_path / "chain") as chain, pytest.raises(ValueError, match="JSON"):
        chain.append({"noise": float("nan")})
    assert (tmp_path / "chain").read_bytes() == b""


def test_no_such_ledger(tmp_path):
    with pytest.raises(UserError, match="no such ledger"):
        read_chain(tmp_path / "nothing")
    with pytest.raises(UserError, match="no such ledger"):
        read_chain(tmp_path)
