"""Several processes give what one gives, and a run survives the death of any of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from tests.distributed.trainers import GONE, together
from tests.training import worlds
from tests.training.test_killed import check
from uedp.accounting import certificate as certificates
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import RUN_LEDGER, spent_rounds
from uedp.distributed import process_group
from uedp.distributed.process_group import ProcessGroup, _hash_of_tokens, _reduce
from uedp.errors import UserError
from uedp.mechanism.processes import PartialSum
from uedp.training import loop
from uedp.training.plan import build_plan
from uedp.training.tasks import NextWord

DIED = -9


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


def log(out: Path, rank: int = 0) -> str:
    return (out.parent / f"{out.name}-{rank}.log").read_text()


@pytest.mark.parametrize("method", ["rotation", "fair-shares", "user-level"])
def test_two_and_four_processes_train_the_model_that_one_trains(tmp_path, saved, method):
    """With a seed, which decides draws and noise; sums differ by rounding only."""
    changes = {"privacy__method": method, "privacy__seed": 5, "model__train": "lora"}
    config = worlds.config(saved(), **changes)
    loop.run(config, tmp_path / "one", data=worlds.training_data(tmp_path / "corpus-1"))
    alone = load_file(tmp_path / "one" / "model.safetensors")
    for count in (2, 4) if method == "rotation" else (2,):
        out = tmp_path / f"of-{count}"
        assert together(count, config, out, tmp_path / f"corpus-{count}") == [0] * count, log(out)
        shared = load_file(out / "model.safetensors")
        assert shared.keys() == alone.keys()
        for name, values in alone.items():
            assert float((shared[name] - values).abs().max()) < 1e-6, name


def test_a_run_of_two_processes_has_a_certificate_that_verifies(tmp_path, saved, corpus):
    out = tmp_path / "run"
    assert together(2, worlds.config(saved()), out, corpus) == [0, 0], log(out)
    check(out, corpus, 4)
    assert certificates.verify(out, corpus=corpus).epsilon > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_stops_the_round_and_the_run_resumes(tmp_path, saved, corpus, rank):
    config, out = worlds.config(saved()), tmp_path / "run"
    codes = together(2, config, out, corpus, dies=(rank, 3))
    assert codes[rank] == DIED
    assert codes[1 - rank] == GONE
    assert "is gone" in log(out, 1 - rank)
    assert together(2, config, out, corpus, resume=True) == [0, 0], log(out)
    check(out, corpus, 4)  # four rounds, each spent once
    # the lead has no time to save the weights that the round began with
    assert ("counts as spent" if rank == 0 else "same participants") in log(out)


def test_an_interrupted_announcement_leaves_nobody_waiting(tmp_path, saved, corpus):
    config, out = worlds.config(saved()), tmp_path / "run"
    assert together(2, config, out, corpus, interrupted=3) == [0, 0], log(out)
    assert "this round is not spent" in log(out)
    assert together(2, config, out, corpus, resume=True) == [0, 0], log(out)
    check(out, corpus, 4)


def test_a_process_that_dies_after_its_part_was_added_has_spent_nothing(tmp_path, saved, corpus):
    """The sum may be complete by then; it is thrown away, and the round repeated."""
    config, out = worlds.config(saved()), tmp_path / "run"
    codes = together(2, config, out, corpus, dies=(1, 3), summed=True)
    assert codes == [GONE, DIED]
    records, _ = read_chain(out / RUN_LEDGER)
    assert spent_rounds(records) == 2
    assert together(2, config, out, corpus, resume=True) == [0, 0], log(out)
    check(out, corpus, 4)
    assert "same participants" in log(out)


def test_the_noise_of_two_processes_is_the_noise_of_one(tmp_path, saved, corpus):
    """A thousand clips in every entry, against which updates vanish; false alarms: 1 in 10^6."""
    sgd = {"name": "sgd", "rate": 1.0, "warm_up": 0.0, "decay": "none", "average": 0.0}
    changes = {f"optimiser__{name}": value for name, value in sgd.items()}
    config = worlds.config(
        saved(), privacy__rounds=1, privacy__noise=1000.0, privacy__update_clip=1e-3, **changes
    )
    out = tmp_path / "run"
    assert together(2, config, out, corpus) == [0, 0], log(out)
    before, after = (load_file(folder / "model.safetensors") for folder in (saved(), out))
    moved = torch.cat([(after[name] - before[name]).flatten() for name in after])
    plan = build_plan(config, worlds.incidence())
    settings = plan.round_settings
    deviation = settings.noise * settings.clips.unit_of_noise / settings.expected_users
    assert len(moved) > 1000
    assert stats.kstest(moved.numpy(), "norm", args=(0, deviation)).pvalue > 1e-6
    # that of two draws, or of half of one, is told apart
    for wrong in (deviation * 2**0.5, deviation / 2**0.5):
        assert stats.kstest(moved.numpy(), "norm", args=(0, wrong)).pvalue < 1e-6


def test_what_a_process_refuses_all_refuse(tmp_path, saved, corpus):
    """An LSTM whose weights are dropped for all sentences at once."""
    out = tmp_path / "run"
    lstm = {"name": "awd-lstm", "tokenizer": "bytes", "train": "full", "dropout": 0.5}
    sizes = {"embedding_size": 4, "hidden_size": 4, "num_hidden_layers": 1}
    changes = {f"model__{name}": value for name, value in (lstm | {"sizes": sizes}).items()}
    assert together(2, worlds.config("", **changes), out, corpus) == [GONE, 0]
    assert "model.dropout" in log(out)
    assert not out.exists()


def test_a_method_of_one_process_is_refused(tmp_path, saved, corpus):
    out = tmp_path / "run"
    config = worlds.config(saved(), privacy__method="noiseless")
    assert together(2, config, out, corpus) == [GONE, 0]
    assert "one process" in log(out)


def test_processes_that_are_not_alike_are_refused(tmp_path, saved, corpus):
    """A text moves users from one process to another: their updates must not change by that."""
    out = tmp_path / "run"
    assert together(2, worlds.config(saved()), out, corpus, unlike=True) == [GONE, 0]
    assert "device: another GPU, where process 0 has cpu" in log(out)
    assert not out.exists()


def test_other_tokens_of_the_same_texts_are_noticed():
    words, letters = (_Tokens([[1, 2], ids]) for ids in ([3, 4], [3, 5]))
    assert _hash_of_tokens(words) == _hash_of_tokens(_Tokens([[1, 2], [3, 4]]))
    assert _hash_of_tokens(words) != _hash_of_tokens(letters)
    assert _hash_of_tokens(words) != _hash_of_tokens(_Tokens([[1], [2, 3, 4]]))


class _Tokens(NextWord):
    def __init__(self, ids):
        self._own, self.longest = ids, 2
        self.lengths = np.array([len(one) for one in ids])

    def tokens_of(self, sentences):
        return np.concatenate([self._own[i] for i in sentences]), self.lengths[sentences]


def test_a_sum_on_an_accelerator_is_waited_for(monkeypatch):
    """There a reduction returns at once, and the ledger would be told of a sum that is not there.

    Without an accelerator: the calls and their order.
    """
    done = []
    total = SimpleNamespace(is_cuda=True, device="cuda:0")
    monkeypatch.setattr(torch.distributed, "reduce", lambda *arguments: done.append("queued"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(f"wait {device}"))
    _reduce(total)
    assert done == ["queued", "wait cuda:0"]


@pytest.mark.parametrize(
    ("value", "complete"), [(0.9, True), (1.1, False), (float("nan"), False), (1e30, False)]
)
def test_a_sum_that_no_updates_add_up_to_is_not_released(monkeypatch, value, complete):
    """Two users with a clip of a half each, and a process whose part is something else."""
    group = object.__new__(ProcessGroup)
    group._clip = 0.5
    monkeypatch.setattr(process_group, "_reduce", lambda total: total.fill_(value / 2))
    monkeypatch.setattr(group, "_gather", lambda own: [own, own], raising=False)
    own = PartialSum(torch.zeros(4), np.zeros(3, dtype=bool), np.ones(1))
    if complete:
        assert len(group.add_up(own).updates) == 2
    else:
        with pytest.raises(UserError, match="longer than they can be, or not finite"):
            group.add_up(own)
