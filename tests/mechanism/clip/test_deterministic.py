"""Models that carry one sentence's text to others, or share chance, are refused by the check."""

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.reference import clipped_sum
from uedp.training.tasks import Classification

WORDS, WIDTH = 20, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.plain = torch.zeros(WIDTH)
        self.chance = np.random.default_rng(0)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.layer(self.embed(ids)))
        h = self.between(h) if self.training else h
        logits = self.head(h).transpose(1, 2)
        return nn.functional.cross_entropy(logits, ids.roll(-1, 1), reduction="none").mean(1)


class StateThroughData(Model):
    """As codebooks of VQ layers are kept: `.data` has a version counter of its own."""

    def between(self, h: Tensor) -> Tensor:
        self.mean.data.mul_(0.99).add_(0.01 * h.detach().mean((0, 1)))
        return h - self.mean.clone()


class StateInAnAttribute(Model):
    def between(self, h: Tensor) -> Tensor:
        self.plain = 0.99 * self.plain + 0.01 * h.detach().mean((0, 1))
        return h - self.plain


class NoiseScaledByTheBatch(Model):
    """Noise is replaced by its mean, zero, and what it was multiplied by is gone with it."""

    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn_like(h) * h.std(0, unbiased=False)


class StatisticsOfLargerBatches(Model):
    """The check tries four sentences."""

    def between(self, h: Tensor) -> Tensor:
        return h - h.mean((0, 1)) if len(h) > 8 else h


class LockedDropout(Model):
    """One mask for all sentences, drawn anew for every chunk: nobody holds it."""

    def between(self, h: Tensor) -> Tensor:
        return h * nn.functional.dropout(torch.ones(1, 1, h.shape[2]), 0.5)


class SharedUniforms(Model):
    def between(self, h: Tensor) -> Tensor:
        return h * (torch.rand(1, 1, h.shape[2]) < 0.7)


class OneBernoulli(Model):
    """A single number for all sentences: refused from `torch.rand`, not from `torch.bernoulli`."""

    def between(self, h: Tensor) -> Tensor:
        return h * torch.bernoulli(torch.full((1,), 0.5))


class ChanceOfNumpy(Model):
    def between(self, h: Tensor) -> Tensor:
        return h + 0.02 * torch.from_numpy(self.chance.standard_normal(h.shape[2])).float()


@pytest.mark.parametrize(
    "kind",
    [
        StateThroughData,
        StateInAnAttribute,
        NoiseScaledByTheBatch,
        StatisticsOfLargerBatches,
        LockedDropout,
        SharedUniforms,
        OneBernoulli,
        ChanceOfNumpy,
    ],
)
def test_what_mixes_sentences_or_shares_chance_is_refused(kind):
    torch.manual_seed(0)
    model = kind().train()
    engine = Engine(model)
    ids = torch.randint(WORDS, (12, 7))

    def losses(order):
        return model(ids[list(order)])

    with pytest.raises(UserError):
        engine.check(losses, 4)


class TokensAndFirst(nn.Module):
    """A layer for every token, and one for the first token of the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.tokens = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        return self.tokens(h).square().sum((1, 2)) + self.first(h[:, 0]).square().sum(1)


def test_a_layer_that_reads_the_first_token_is_not_taken_for_one_that_reads_all():
    """They have the same address."""
    torch.manual_seed(0)
    model, ids = TokensAndFirst(), torch.randint(WORDS, (4, 6))
    Engine(model).check(lambda order: model(ids[list(order)]), 4)


def test_dropout_of_relative_positions_is_refused():
    """DeBERTa drops parts of its relative positions, once for all sentences of a pass."""
    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        relative_attention=True,
        pos_att_type="p2c|c2p",
        share_att_key=True,
        position_biased_input=False,
        max_relative_positions=16,
        num_labels=3,
    )
    model = DebertaV2ForSequenceClassification(config).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("value_proj" in name or "classifier" in name)
    ids, labels = torch.randint(5, 40, (4, 8)), torch.randint(3, (4,))

    def losses(order):
        some = ids[list(order)]
        logits = model(input_ids=some, attention_mask=torch.ones_like(some)).logits
        return nn.functional.cross_entropy(logits, labels[list(order)], reduction="none")

    with pytest.raises(UserError, match="sentences of a pass share"):
        Engine(model).check(losses, 4)


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
    found = engine.clipped_sum(loss_of, owners, torch.ones(count), 1.0)
    _, norms = clipped_sum(model, lambda i: loss_of([i])[0], owners, [1.0] * count, 1.0)
    assert torch.allclose(found.sentence_norms.double(), norms, rtol=1e-3)


def test_the_trial_finds_gradients_that_are_given_to_another_sentence():
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
