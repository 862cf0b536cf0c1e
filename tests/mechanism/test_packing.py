"""How sentences share rows, and whether those in one row stay apart."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tests.models import tiny
from uedp.mechanism.clip import Engine
from uedp.mechanism.packing import (
    ONE_PER_ROW,
    SHARED_ROWS,
    SharedRows,
    cut_up,
    keeps_apart,
    packing_for,
    piece_width,
)
from uedp.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from uedp.training.tasks import Classification, NextWord

TEXTS = ["the cat sat", "a cat", "the other", "on and on", "the cat", "by far"]


def summed(model, task, packing, spoilt=()):
    """Norms of the sentences, each of another user, and their clipped sum."""

    def losses(order):
        found = task.losses(model, np.array(order), packing)
        if not spoilt:
            return found
        scale = torch.tensor([math.nan if place in spoilt else 1.0 for place in order])
        return replace(
            found, losses=found.losses * scale, recompute=lambda: found.recompute() * scale
        )

    count = len(TEXTS)
    return Engine(model).clipped_sum(losses, list(range(count)), torch.ones(count), 1.0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_loss_that_is_not_finite_takes_no_neighbour_with_it(kind, attention):
    """Attention's backward has 0 * nan: one sentence's text decides over its whole row."""
    model = getattr(tiny, kind)(attn_implementation=attention)
    task = NextWord(TEXTS, tiny.tokenizer(), 32)
    packing = task.packing_for(model)
    assert packing.shares_rows
    fine = summed(model, task, packing).sentence_norms
    found = summed(model, task, packing, spoilt=(1,)).sentence_norms
    others = [place for place in range(len(TEXTS)) if place != 1]
    assert torch.allclose(found[others], fine[others], rtol=1e-3)
    assert not float(found[1])


def test_a_token_that_is_not_finite_takes_no_neighbour_with_it():
    """The same in the forward pass: one token's embedding has run away."""
    model = tiny.llama()
    tokenizer = tiny.tokenizer()
    task = NextWord(TEXTS, tokenizer, 32)
    packing = task.packing_for(model)
    assert packing.shares_rows
    rare = set(task._ids[5]) - {token for own in range(5) for token in task._ids[own]}
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # untied
    fine = summed(model, task, packing).sentence_norms
    with torch.no_grad():
        model.get_input_embeddings().weight[sorted(rare)[0]] = math.inf
    found = summed(model, task, packing).sentence_norms
    assert torch.allclose(found[:5], fine[:5], rtol=1e-3)


class Flattened(torch.nn.Module):
    """Parts sentences as FlashAttention does in Transformers: in a batch of one row only."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids, position_ids, use_cache):
        from transformers.modeling_flash_attention_utils import _is_packed_sequence

        apart = _is_packed_sequence(position_ids, input_ids.shape[0])
        mask = None if apart else torch.ones_like(input_ids)
        return self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask,
            use_cache=use_cache,
        )


def test_what_is_tried_has_the_shape_of_what_is_trained():
    """A try of one row would pass; rounds have two or more."""
    assert not keeps_apart(Flattened(tiny.llama()))


class Blind(torch.nn.Module):
    """Lets every token see all before it, through branches that begin at zero."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("o_proj.weight"):
                    parameter.zero_()

    def forward(self, input_ids, position_ids, use_cache):
        mask = torch.ones_like(input_ids)
        return self.model(input_ids=input_ids, attention_mask=mask, position_ids=position_ids)


def test_what_shows_only_after_a_step_is_not_trusted():
    """Zero-initialised branches hide at first that sentences are mixed; training opens them."""
    assert not keeps_apart(Blind(tiny.llama()))


def test_norms_of_heads_can_share_rows():
    """Qwen3 and Gemma 3 normalise each head: a layer that reads several rows of a token."""
    config = transformers.Qwen3Config(
        vocab_size=tiny.WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    model = tiny._new(transformers.Qwen3ForCausalLM, config)
    task = NextWord(TEXTS, tiny.tokenizer(), 32)
    Engine(model).check(lambda order: task.losses(model, np.array(order)), 4)
    apart = summed(model, task, ONE_PER_ROW).sentence_norms
    packing = task.packing_for(model)
    assert packing.shares_rows
    Engine(model).check(lambda order: task.losses(model, np.array(order), packing), 4)
    assert torch.allclose(summed(model, task, packing).sentence_norms, apart, rtol=1e-3)


class Forgetful(torch.nn.Module):
    """Reads positions, but lets every token see all before it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids, position_ids, use_cache):
        mask = torch.ones_like(input_ids)  # given one, no model looks for new beginnings
        return self.model(input_ids=input_ids, attention_mask=mask, position_ids=position_ids)


def lstm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AwdLstmConfig(vocab_size=tiny.WORDS, embedding_size=8, hidden_size=12)
        return AwdLstmForCausalLM(config).eval()


def test_only_a_model_that_keeps_sentences_apart_shares_rows():
    assert packing_for(tiny.llama(), 32) == SHARED_ROWS
    assert not keeps_apart(Forgetful(tiny.llama()))
    assert packing_for(lstm(), 32) == ONE_PER_ROW
    assert packing_for(tiny.llama(), 0) == ONE_PER_ROW  # no sentence at all
    assert NextWord(TEXTS, tiny.tokenizer(), 32).packing_for(lstm()) == ONE_PER_ROW


def test_a_model_is_tried_once_unless_sentences_are_longer(monkeypatch):
    tried = []
    trial = "uedp.mechanism.packing.keeps_apart"
    monkeypatch.setattr(trial, lambda model, longest: tried.append(longest) or True)
    model = tiny.llama()
    for longest in (32, 32, 16, 48, 32):
        assert packing_for(model, longest) == SHARED_ROWS
    packing_for(tiny.llama(), 32)
    assert tried == [32, 48, 32]  # shorter ones were covered


def test_a_classifier_gives_each_sentence_its_row():
    tokenizer = tiny.tokenizer(pad_token="<|end|>")
    task = Classification(TEXTS, ["x"] * len(TEXTS), ("x", "y"), tokenizer, 32)
    assert task.packing_for(tiny.gpt2(labels=2)) == ONE_PER_ROW


def test_trial_leaves_zero_weights_and_random_state_unchanged():
    model = tiny.llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    assert keeps_apart(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not model.lm_head.weight.any()


def test_tokens_count_padding_unless_rows_are_shared():
    lengths = np.array([2, 9, 4])
    assert SHARED_ROWS.tokens(lengths) == 15
    assert ONE_PER_ROW.tokens(lengths) == 27


DEVICES = st.sampled_from([None, torch.device("cpu")])  # in order, and tight


@given(st.lists(st.integers(2, 300), min_size=1, max_size=200), DEVICES)
def test_rows_hold_every_sentence_whole(lengths, device):
    layout = SharedRows.of(np.array(lengths), device)
    starts, width, rows = layout.starts, layout.width, layout.rows
    taken = [place for s, n in zip(starts, lengths, strict=True) for place in range(s, s + n)]
    assert len(set(taken)) == len(taken)
    assert max(taken) < rows * width
    assert all(s // width == (s + n - 1) // width for s, n in zip(starts, lengths, strict=True))
    assert rows >= 2 or len(lengths) == 1
    assert rows - (int(starts.max()) // width + 1) <= rows / 8


@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), DEVICES)
def test_rows_are_filled_at_each_sentences_place(lengths, device):
    layout = SharedRows.of(np.array(lengths), device)
    assert layout.by_sentence(torch.device("cpu")).spans == [
        slice(start, start + n) for start, n in zip(layout.starts, lengths, strict=True)
    ]
    filled = layout.fill([[place] * n for place, n in enumerate(lengths)], -1)
    assert filled.shape == (layout.rows, layout.width)
    assert torch.bincount(filled.flatten() + 1)[1:].tolist() == lengths
    starts = filled.flatten()[torch.from_numpy(layout.starts)]
    assert starts.tolist() == list(range(len(lengths)))
    positions = layout.positions().flatten()
    for start, length in zip(layout.starts.tolist(), lengths, strict=True):
        assert positions[start : start + length].tolist() == list(range(length))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 70))
def test_pieces_hold_every_token_once_and_first_ones_come_first(lengths, width):
    lengths = np.array(lengths)
    starts = np.cumsum(lengths) - lengths
    rows = cut_up(starts, lengths, width, int(lengths.sum()))
    assert rows.sentence[: len(lengths)].tolist() == list(range(len(lengths)))
    assert sorted(rows.places[rows.real].tolist()) == list(range(lengths.sum()))
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    assert (sentence_of[rows.places.numpy()] == rows.sentence[:, None].numpy()).all()
    assert (rows.places_or_end[~rows.real] == lengths.sum()).all()
    first = rows.places[: len(lengths), 0].numpy()
    assert np.array_equal(first, starts)


def test_pieces_are_narrow_where_few_sentences_are_long():
    assert piece_width(np.array([20] * 50 + [120])) == 32
    assert piece_width(np.array([100] * 50)) == 100
    assert piece_width(np.array([5])) == 5


def test_a_cpu_computes_hardly_any_padding():
    rng = np.random.default_rng(0)
    for count in (8, 40, 160, 600):
        lengths = np.clip(np.exp(rng.normal(np.log(19), 0.65, count)), 2, 124).astype(int)
        layout = SharedRows.of(lengths, torch.device("cpu"))
        assert layout.rows * layout.width <= 1.03 * lengths.sum()
        assert layout.width <= 256


def test_rows_of_scattered_tokens_have_no_spans():
    rows = cut_up(np.array([0, 5]), np.array([3, 4]), 4, 9)
    assert rows.spans == [slice(0, 3), slice(5, 9)]
    places = rows.places.clone()
    places[0, 2] = 7
    assert replace(rows, places=places).spans is None


def test_many_rows_come_in_few_shapes():
    lengths = np.full(2000, 20)
    shapes = {SharedRows.of(lengths[:count]).rows for count in range(1000, 2000)}
    assert len(shapes) <= 12
