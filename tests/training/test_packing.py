"""Whether sentences that share rows, or a model's own shapes, can reach each other's gradients."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.reference import clipped_sum
from uedp.training.tasks import Classification, NextWord, keeps_apart

TEXTS = ["the cat sat", "a cat", "the other", "on and on", "the cat", "by far"]


def summed(model, task, spoilt=()):
    """Norms of the sentences, each of another user, and their clipped sum."""

    def losses(order):
        found = task.losses(model, np.array(order))
        if not spoilt:
            return found
        scale = torch.tensor([math.nan if place in spoilt else 1.0 for place in order])
        return replace(found, losses=found.losses * scale, alone=lambda: found.alone() * scale)

    count = len(TEXTS)
    return Engine(model).clipped_sum(
        losses, list(range(count)), torch.ones(count), 1.0, torch.ones(count)
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_loss_that_is_not_finite_takes_no_neighbour_with_it(kind, attention):
    """Attention's backward has 0 * nan: one sentence's text decides over its whole row."""
    model = getattr(tiny, kind)(attn_implementation=attention)
    task = NextWord(TEXTS, tiny.tokenizer(), 32)
    task.pack_for(model)
    assert task.packed
    fine = summed(model, task).sentence_norms
    found = summed(model, task, spoilt=(1,)).sentence_norms
    others = [place for place in range(len(TEXTS)) if place != 1]
    assert torch.allclose(found[others], fine[others], rtol=1e-3)
    assert not float(found[1])


def test_a_token_that_is_not_finite_takes_no_neighbour_with_it():
    """The same in the forward pass: one token's embedding has run away."""
    model = tiny.llama()
    tokenizer = tiny.tokenizer()
    task = NextWord(TEXTS, tokenizer, 32)
    task.pack_for(model)
    rare = set(task._ids[5]) - {token for own in task._ids[:5] for token in own}
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # untied
    fine = summed(model, task).sentence_norms
    with torch.no_grad():
        model.get_input_embeddings().weight[sorted(rare)[0]] = math.inf
    found = summed(model, task).sentence_norms
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
    apart = summed(model, task).sentence_norms
    task.pack_for(model)
    assert task.packed
    Engine(model).check(lambda order: task.losses(model, np.array(order)), 4)
    assert torch.allclose(summed(model, task).sentence_norms, apart, rtol=1e-3)


# --- attribution: whose gradient is whose --------------------------------------------------------


class TimeFirst(torch.nn.Module):
    """A layer that is handed (tokens, sentences, features)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).square().sum((0, 2))


def _wrong_or_refused(model, loss_of, owners):
    """The engine refuses the model, or its norms are those of gradients formed one by one."""
    count = len(owners)
    engine = Engine(model)
    try:
        engine.check(loss_of, count)
    except UserError:
        return
    found = engine.clipped_sum(loss_of, owners, torch.ones(count), 1.0, torch.ones(count))
    _, norms = clipped_sum(
        model, lambda i: loss_of([i])[0], owners, [1.0] * count, 1.0, [1.0] * count
    )
    assert torch.allclose(found.sentence_norms.double(), norms, rtol=1e-3)


def test_the_try_finds_gradients_that_are_given_to_another_sentence():
    """`check` compares unclipped sums, which do not change when sentences are mixed up."""
    torch.manual_seed(0)
    x = torch.randn(4, 4, 4) * torch.tensor([0.1, 1.0, 3.0, 9.0])[:, None, None]
    model = TimeFirst()
    _wrong_or_refused(model, lambda order: model(x[list(order)]), [0, 1, 2, 3])


def test_a_table_of_relative_positions_is_not_split_among_sentences():
    """MPNet looks its bias up once for all, as (queries, keys, heads)."""
    config = transformers.MPNetConfig(
        vocab_size=tiny.WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_labels=2,
    )
    model = tiny._new(transformers.MPNetForSequenceClassification, config)
    for name, parameter in model.named_parameters():  # beside all others the error is small
        parameter.requires_grad_("relative_attention_bias" in name)
    texts = ["the cat sat on", "a cat", "the other", "on and on"]
    labels = ["x", "y", "y", "x"]
    task = Classification(texts, labels, ("x", "y"), tiny.tokenizer(pad_token="<|end|>"), 64)
    _wrong_or_refused(model, lambda order: task.losses(model, np.array(order)), [0, 1, 2, 3])
