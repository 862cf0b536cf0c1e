"""`kill -9`: whenever it comes, the run goes on, and no round is forgotten or done twice."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.training import victim, worlds
from uedp.accounting import certificate as certificates
from uedp.accounting.chain import read_chain
from uedp.errors import UserError
from uedp.training import checkpoint, loop, round_key, synthetic
from uedp.training.decoding import TokenSampling
from uedp.training.metrics import FILE, parse_round
from uedp.training.outcome import Outcome
from uedp.training.run_dir import IDENTITY, RESULT


def begun(folder: Path) -> bool:
    path = folder / IDENTITY
    return path.is_file() and path.stat().st_size > 0


def spent(folder: Path):
    records, _ = read_chain(folder / "ledger.jsonl")
    return [(r["first"], r["count"]) for r in records if r["kind"] == "rounds"]


def check(folder: Path, corpus: Path, rounds: int):
    """All that must hold of a finished run, however it came about."""
    assert spent(folder) == [(number, 1) for number in range(rounds)]
    certificate = certificates.verify(folder, corpus=corpus)
    assert certificate.files
    assert (certificate.rounds_planned, certificate.rounds_spent) == (rounds, rounds)
    reserved, _ = read_chain(corpus / "ledger.jsonl")
    plans = [r for r in reserved if r["kind"] == "reserved"]
    assert [r["rounds"] for r in reserved if r["kind"] == "closed"] == [rounds]
    assert [(plan["run"], plan["rounds"]) for plan in plans] == [(certificate.run, rounds)]
    assert [p.name for p in (folder / checkpoint.FOLDER).iterdir()] == [f"{rounds:08d}"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    lines = (folder / FILE).read_text().splitlines()
    numbers = [parse_round(line) for line in lines]
    assert numbers == sorted(set(numbers) - {0})  # some may be missing, none is there twice


def finished(config, out: Path, corpus: Path, said: list[str] | None = None) -> Outcome:
    say = (lambda line: None) if said is None else said.append
    return loop.run(config, out, data=worlds.training_data(corpus), resume=begun(out), say=say)


# how many rounds the ledger then has, and whether round 2 is repeated
IN_ROUND_2 = {
    "before a round has a key": (1, False),
    "before a round is drawn": (1, True),
    "before a round is spent": (1, True),
    "spent, before its key goes": (2, False),
    "spent, before its noise": (2, False),
}


@pytest.mark.parametrize("point", victim.POINTS)
def test_a_run_killed_at_any_point_resumes(point, saved, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "uedp.accounting.statement.MISSED_CASES", ()
    )  # in this process: it is the last
    config = worlds.config(saved(), privacy__rounds=3, run__checkpoint_seconds=0)
    out, corpus = tmp_path / "run", tmp_path / "corpus"
    points = list(victim.POINTS)
    first, last = points.index("before a round has a key"), points.index("in a checkpoint")
    often = first <= points.index(point) <= last  # in the second round
    killed = victim.process(config, out, corpus, False, point, 2 if often else 1)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert not (out / RESULT).exists()
    spent_before = spent(out) if (out / "ledger.jsonl").is_file() else []
    said = []
    outcome = finished(config, out, corpus, said)
    assert outcome.finished
    check(out, corpus, 3)
    assert not (out / round_key.FILE).exists()
    if point in IN_ROUND_2:
        in_ledger, repeated = IN_ROUND_2[point]
        assert len(spent_before) == in_ledger
        again = "round 2 was interrupted before anything of it was released: it is done again"
        assert any(again in line for line in said) == repeated
        assert not any("cannot be repeated" in line for line in said)


def test_a_killed_run_resumes_from_its_last_checkpoint(saved, tmp_path, monkeypatch):
    """With a seed: killed between a checkpoint and the next round, a run ends as if it had not."""
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    config = worlds.config(saved(), privacy__rounds=3, privacy__seed=1, run__checkpoint_seconds=0)
    out, corpus = tmp_path / "run", tmp_path / "corpus"
    victim.process(config, out, corpus, False, "before a round is spent", 3).join(60)
    assert len(spent(out)) == 2
    broken = finished(config, out, corpus)
    whole = finished(config, tmp_path / "whole", tmp_path / "other")
    found = whole.model.state_dict()
    assert all(torch.equal(found[n], t) for n, t in broken.model.state_dict().items())


def test_a_run_in_use_by_another_process_is_refused(saved, tmp_path):
    config = worlds.config(saved(), privacy__rounds=10_000)
    out, corpus = tmp_path / "run", tmp_path / "corpus"
    living = victim.process(config, out, corpus, False)
    try:
        until = time.monotonic() + 60
        while not (begun(out) and (out / FILE).is_file()):
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(UserError, match="another process is using this run"):
            finished(config, out, corpus)
        assert living.is_alive()
    finally:
        living.kill()
        living.join(60)


def killed_at_random(times: int, config, folder: Path, seed: int) -> None:
    """A run killed so many times, each at a moment between its start and about its end."""
    moments, longest, attempt = random.Random(seed), 1.2, 0
    kills = 0
    while kills < times:
        out, corpus = folder / f"run{attempt}", folder / f"corpus{attempt}"
        process = victim.process(config, out, corpus, begun(out))
        process.join(moments.uniform(0.05, longest))
        process.kill()
        process.join(60)
        if process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # a quick machine: it was done too soon
            assert process.exitcode == 0
            attempt, kills, longest = attempt + 1, 0, longest / 2
    process = victim.process(config, out, corpus, begun(out))
    process.join(120)
    assert process.exitcode == 0
    check(out, corpus, config.privacy.rounds)


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_a_run_killed_twice_resumes(seconds, saved, tmp_path):
    config = worlds.config(saved(), privacy__rounds=40, run__checkpoint_seconds=seconds)
    killed_at_random(2, config, tmp_path, seed=1)


def test_a_run_interrupted_at_random_moments_resumes(saved, tmp_path):
    """With one signal, the process ends by itself, and soon; the ledger has each round once."""
    config = worlds.config(saved(), privacy__rounds=40, run__checkpoint_seconds=0.2)
    out, corpus, moments = tmp_path / "run", tmp_path / "corpus", random.Random(3)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        process = victim.process(config, out, corpus, begun(out))
        until = time.monotonic() + 60
        while not (out / FILE).is_file():  # before, it is not trained
            assert time.monotonic() < until
            time.sleep(0.01)
        process.join(moments.uniform(0.2, 0.5))
        os.kill(process.pid, number)
        process.join(20)
        assert process.exitcode is not None
    finished(config, out, corpus)
    check(out, corpus, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seconds", [0, 0.2])
def test_a_run_killed_ten_times_resumes(seconds, seed, saved, tmp_path):
    config = worlds.config(saved(), privacy__rounds=400, run__checkpoint_seconds=seconds)
    killed_at_random(10, config, tmp_path, seed)


def test_texts_killed_at_random_points_end_as_if_they_had_not(saved, tmp_path):
    settings = {
        "count": 11,
        "seed": 5,
        "at_once": 3,
        "sampling": TokenSampling(tokens=8),
        "prompts": synthetic.Prompts(texts=("Hi", "", "Hello there")),
    }
    synthetic.write_texts(saved(), tmp_path / "whole.jsonl", **settings)
    out, rng, sizes = tmp_path / "killed.jsonl", random.Random(3), set()
    points = ["sample_texts", "fsync_file", "write_atomically", "_kept"]
    kills = [("write_about", 1), *((p, rng.choice((1, 2))) for p in rng.sample(points, 4))]
    for point, nth in kills:  # the first before anything is known of the file
        killed = victim.process(saved(), out, point, nth, target=victim.write_texts, **settings)
        killed.join(60)
        assert killed.exitcode in (-signal.SIGKILL, 0)  # 0: nothing was left to do
        sizes.add(out.stat().st_size)
        if len(sizes) > 1 and rng.random() < 0.7:  # as if a power failure had torn a write
            with out.open("ab") as file:
                file.write(b'{"id": 7, "te')
    assert len(sizes) > 2
    about = synthetic.write_texts(saved(), out, resume=True, **settings)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert about == synthetic.read_about(tmp_path / "whole.about.json")
    before = out.stat().st_mtime_ns
    assert synthetic.write_texts(saved(), out, resume=True, **settings) == about
    assert out.stat().st_mtime_ns == before
