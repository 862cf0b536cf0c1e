"""Evaluation in planned batches: the sums of the sentences one by one, whatever the plan."""

from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.models import tiny
from uedp.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from uedp.models.trainable import make_trainable
from uedp.training import evaluation
from uedp.training.evaluation import (
    Costs,
    Groups,
    faster_precision,
    loss_sums,
    loss_sums_by_group,
    padded_batches,
    plan_batches,
    shared_batches,
    summed,
)

COSTS = Costs(max_tokens=64, logits=tiny.WORDS * 5, batch=6, step=1)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(np.array)


def lstm() -> nn.Module:
    config = AwdLstmConfig(vocab_size=tiny.WORDS, embedding_size=8, hidden_size=12)
    return AwdLstmForCausalLM(config).eval()


def lora() -> nn.Module:
    model = make_trainable(tiny.llama(), "lora", rank=2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.2)
    return model.eval()


MODELS = {"gpt2": tiny.gpt2, "llama": tiny.llama, "opt": tiny.opt, "lstm": lstm, "lora": lora}


def sentences(count: int = 23, longest: int = 30) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, tiny.WORDS, n) for n in rng.integers(0, longest, count)]


@torch.no_grad()
def one_by_one(model: nn.Module, ids: list[Any]) -> np.ndarray:
    """The way it was: logits of the whole model, in full."""
    sums = []
    for own in ids:
        row = torch.from_numpy(own)[None]
        logits = model(input_ids=row).logits[0, :-1] if len(own) > 1 else torch.zeros(0, 2)
        sums.append(float(nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum")))
    return np.array(sums)


# --- rows ----------------------------------------------------------------------------------------


def covered(batches: list[Any], lengths: np.ndarray) -> None:
    """Every sentence once, within a row, and no place twice."""
    assert sorted(np.concatenate([b.sentences for b in batches])) == list(range(len(lengths)))
    for batch in batches:
        own = lengths[batch.sentences]
        assert (batch.starts % batch.width + own <= batch.width).all()
        places = np.concatenate([s + np.arange(n) for s, n in zip(batch.starts, own, strict=True)])
        assert len(set(places)) == len(places)
        assert places.max() < batch.places


@given(LENGTHS, st.integers(1, 200), st.booleans())
@settings(max_examples=60, deadline=None)
def test_padded_batches_hold_every_sentence_and_keep_the_limit(lengths, most, serial):
    batches = padded_batches(lengths, most, COSTS, serial)
    covered(batches, lengths)
    assert all(b.places <= most or len(b.sentences) == 1 for b in batches)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9).map(np.array), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_no_other_division_of_sorted_sentences_costs_less(lengths, each):
    def cost(parts: Any) -> float:
        return sum(each + len(part) * max(part) for part in parts)

    ordered, gaps = np.sort(lengths), range(1, len(lengths))
    ways = ([i for i in gaps if chosen >> i & 1] for chosen in range(0, 1 << len(lengths), 2))
    least = min(cost(np.split(ordered, way)) for way in ways)
    costs = Costs(10_000, 1, each, 0)
    found = padded_batches(lengths, 10_000, costs, False)
    assert cost([lengths[b.sentences] for b in found]) == least


@given(LENGTHS, st.integers(1, 2000))
@settings(max_examples=60, deadline=None)
def test_shared_rows_hold_every_sentence_whole(lengths, most):
    batches = shared_batches(lengths, most)
    covered(batches, lengths)
    assert all(b.rows >= 2 and (b.places <= most or b.rows == 2) for b in batches)
    rows = sum(len(set((b.starts // b.width).tolist())) for b in batches)
    assert rows <= 1 + 1.25 * lengths.sum() / batches[0].width  # little is left empty


def test_a_trial_is_made_only_where_sharing_rows_would_pay():
    asked = []

    def may_share() -> bool:
        asked.append(True)
        return True

    equal, ragged = np.full(64, 16), np.arange(1, 240)
    few = Costs(1 << 16, 1, 48, 1)
    assert not plan_batches(equal, 1 << 16, few, may_share=may_share)[0].shared
    assert not plan_batches(ragged, 1 << 16, few, serial=True, may_share=may_share)[0].shared
    assert not asked
    many = Costs(1 << 16, 1, 1 << 14, 1)
    assert plan_batches(ragged, 1 << 16, many, may_share=may_share)[0].shared
    assert asked
    assert not plan_batches(ragged, 1 << 16, many, may_share=lambda: False)[0].shared


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_sums_are_those_of_sentences_one_by_one(kind, monkeypatch):
    model, ids = MODELS[kind](), sentences()
    expected = one_by_one(model, ids)
    monkeypatch.setitem(evaluation._COSTS, "cpu", COSTS)  # logits of five tokens at a time
    for most in (1, 50, None):
        found = loss_sums(model, ids, 0, autocast=nullcontext, max_tokens=most)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert not found[[len(own) < 2 for own in ids]].any()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "lora"])
def test_shared_rows_give_the_same_sums(kind, monkeypatch):
    model, ids = MODELS[kind](), sentences(60)
    monkeypatch.setitem(evaluation._COSTS, "cpu", Costs(1024, 1 << 16, 1 << 14, 1))
    shared = []

    def may_share() -> bool:
        shared.append(True)
        return True

    found = loss_sums(model, ids, 0, autocast=nullcontext, may_share=may_share)
    assert shared
    assert found == pytest.approx(one_by_one(model, ids), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "lora", "lstm"])
def test_groups_of_tokens_are_summed_in_the_same_pass(kind, shared, monkeypatch):
    model, ids = MODELS[kind](), sentences(40)
    costs = Costs(1024, 1 << 16, 1 << 14, 1) if shared else COSTS
    monkeypatch.setitem(evaluation._COSTS, "cpu", costs)
    passes, embedding = [], next(m for m in model.modules() if isinstance(m, nn.Embedding))
    embedding.register_forward_hook(lambda *_: passes.append(True))
    rng = np.random.default_rng(1)
    codes = [rng.integers(0, 3, len(own)) for own in ids]
    settings = {"autocast": nullcontext, "may_share": lambda: True}
    loss_sums(model, ids, 0, **settings)  # the first has a trial before it
    passes.clear()
    plain, needed = loss_sums(model, ids, 0, **settings), len(passes)
    sums, by_group = loss_sums_by_group(model, ids, 0, groups=Groups(codes, 4), **settings)
    assert len(passes) == 2 * needed > 0
    assert np.array_equal(sums, plain)
    expected = np.zeros(4)
    with torch.no_grad():
        for own, groups in zip(ids, codes, strict=True):
            if len(own) > 1:
                row = torch.from_numpy(own)[None]
                logits = model(input_ids=row).logits[0, :-1]
                losses = nn.functional.cross_entropy(logits, row[0, 1:], reduction="none")
                np.add.at(expected, groups[1:], losses.numpy())
    assert by_group == pytest.approx(expected, rel=1e-4)
    assert by_group.sum() == pytest.approx(sums.sum(), rel=1e-13)
    assert by_group[3] == 0
    assert loss_sums_by_group(model, ids, 0, **settings)[1].size == 0


class Capped(nn.Module):
    """A model that caps its logits, as some families do."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.inner, self.cap = tiny.llama(), cap
        self.config, self.base_model = self.inner.config, self.inner.base_model
        self.get_output_embeddings = self.inner.get_output_embeddings

    def forward(self, input_ids: Any) -> Any:
        output = self.inner(input_ids=input_ids)
        output.logits = self.cap * torch.tanh(output.logits / self.cap)
        return output


def test_the_head_is_applied_in_chunks_only_where_it_gives_the_models_logits(monkeypatch):
    monkeypatch.setitem(evaluation._COSTS, "cpu", COSTS)
    largest = []
    plain = tiny.llama()
    plain.lm_head.register_forward_hook(lambda _, __, logits: largest.append(logits.numel()))
    loss_sums(plain, sentences(), 0, autocast=nullcontext)  # the first calls are the trial's
    assert max(largest[4:]) <= COSTS.logits
    for cap in (0.5, 30.0, 200.0):
        capped = Capped(cap)
        found = loss_sums(capped, sentences(), 0, autocast=nullcontext)
        assert found == pytest.approx(one_by_one(capped, sentences()), rel=1e-4, abs=1e-4)
        assert evaluation._split[capped] is False


@pytest.mark.parametrize("kind", MODELS)
def test_the_trial_recognises_a_body_and_a_head(kind):
    assert evaluation._is_body_and_head(MODELS[kind]())


def test_a_model_of_any_kind_is_evaluated_by_its_logits():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(tiny.WORDS, tiny.WORDS)

        def forward(self, input_ids: Any) -> Any:
            return type("Output", (), {"logits": self.table(input_ids)})

    model = Table()
    found = loss_sums(model, sentences(), 0, autocast=nullcontext)
    assert found == pytest.approx(one_by_one(model, sentences()), rel=1e-4)


@pytest.mark.parametrize("limit", [20, 60])
def test_a_batch_that_does_not_fit_is_halved(limit, monkeypatch):
    model, ids = tiny.llama(), sentences()
    expected = one_by_one(model, ids)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    forward = model.model.forward

    def short_of_memory(input_ids: Any, **others: Any) -> Any:
        if input_ids.numel() > limit and len(input_ids) > 1:
            raise torch.OutOfMemoryError
        return forward(input_ids=input_ids, **others)

    monkeypatch.setattr(model.model, "forward", short_of_memory)
    groups = Groups([np.ones_like(own) for own in ids], 2)
    found, by_group = loss_sums_by_group(model, ids, 0, autocast=nullcontext, groups=groups)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert by_group == pytest.approx([0, expected.sum()], rel=1e-4)
    alone = torch.OutOfMemoryError("even one sentence")
    monkeypatch.setattr(model.model, "forward", lambda **_: (_ for _ in ()).throw(alone))
    with pytest.raises(torch.OutOfMemoryError, match="even one"):
        loss_sums(model, ids, 0, autocast=nullcontext)


def test_a_model_trains_after_an_evaluation():
    """Nothing that it keeps of an evaluation is unfit for a backward pass."""
    model, ids = lora().train(), sentences()
    loss_sums(model, ids, 0, autocast=nullcontext)
    assert model.training
    logits = model(input_ids=torch.arange(12).view(2, 6)).logits
    logits.logsumexp(-1).sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_sums_of_measures_cover_every_sentence_once():
    lengths, chosen = np.arange(1, 30), np.arange(3, 20)
    seen: list[int] = []

    def measure(rows: np.ndarray) -> torch.Tensor:
        seen.extend(rows.tolist())
        return torch.tensor([float(len(rows)), float(lengths[rows].sum())])

    found = summed(nn.Linear(1, 1), measure, chosen, lengths, 64)
    assert sorted(seen) == chosen.tolist()
    assert found == [len(chosen), lengths[chosen].sum()]


# --- precision -----------------------------------------------------------------------------------


@contextmanager
def faster():
    yield


def chosen(
    differences: np.ndarray, tokens: int = 20, evaluations: int = 9, given: Any = nullcontext
) -> bool:
    """Whether a precision with these differences per token is chosen."""

    def sums(rows: np.ndarray, way: Any) -> np.ndarray:
        return 3.0 * tokens + (tokens * differences[rows] if way is faster else 0.0)

    each = np.full(len(differences), tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_faster", lambda device: [(20_000, faster)])
        found = faster_precision(nn.Linear(1, 1), sums, each, given, evaluations)
    assert found in (faster, given)
    return found is faster


def test_a_faster_precision_must_measure_the_same_within_a_thousandth():
    noise = np.random.default_rng(0).normal(size=5000)
    assert chosen(0.004 * noise)
    assert not chosen(0.004 * noise + 0.001)
    assert not chosen(0.004 * noise - 0.001)
    assert not chosen(0.04 * noise)  # the mean may be right, but nobody can tell


def test_a_faster_precision_is_tried_only_where_it_pays():
    same = np.zeros(1000)
    assert chosen(same, evaluations=4)
    assert not chosen(same, evaluations=3)
    assert chosen(np.zeros(10_000), evaluations=1)
    assert not chosen(np.zeros(40))  # too little text to judge it by


def test_a_run_in_half_precision_is_evaluated_in_half_precision():
    def half() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    assert not chosen(np.zeros(5000), given=half)


def test_half_precision_is_offered_where_the_processor_has_it(monkeypatch):
    offered = {}
    for has in (True, False):
        monkeypatch.setattr(evaluation, "_has_half_precision_products", lambda has=has: has)
        offered[has] = [way for _, way in evaluation._faster(torch.device("cpu"))]
    assert not offered[False]
    with offered[True][0]():
        assert torch.is_autocast_enabled("cpu")


def test_tf32_is_switched_back():
    before = torch.backends.cuda.matmul.fp32_precision
    with evaluation.tensor_float_32():
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before
