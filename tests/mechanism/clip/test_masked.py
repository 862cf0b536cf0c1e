"""AWD-LSTM under clipping: dropped weights, and every other dropout, against the oracle."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import peft
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.mechanism.clip.test_engine import (
    LENGTHS,
    OWNERS,
    VOCABULARY,
    ragged,
    token_losses,
)
from tests.mechanism.clip.test_engine import agree as agree_with_oracle
from uedp.errors import UserError
from uedp.mechanism.clip import ClippedSum, Engine, masked
from uedp.mechanism.clip.layout import Grams, Layout
from uedp.mechanism.clip.masked import MaskedProduct
from uedp.mechanism.clip.shared import held_masks, shared_masks
from uedp.models import awd_lstm
from uedp.models.awd_lstm import (
    AwdLstmConfig,
    AwdLstmForCausalLM,
    AwdLstmForSequenceClassification,
)

Losses = Callable[..., Tensor]


class Logits(NamedTuple):
    logits: Tensor


KINDS = ("embedding", "input", "weight", "layer", "output")


class Masks:
    """Stands in for the drawing of masks of single sentences.

    The n-th mask of a pass is the same in every pass, for the sentences that `begin` names.
    """

    def __init__(self) -> None:
        self.all: list[Tensor] = []

    def begin(self, order: Sequence[int]) -> None:
        self.order, self.drawn = list(order), 0

    def __call__(self, shape: Sequence[int], rate: float, like: Tensor) -> Tensor:
        if self.drawn == len(self.all):
            self.all.append((torch.rand(len(LENGTHS), *shape[1:]) >= rate) / (1 - rate))
        self.drawn += 1
        return self.all[self.drawn - 1][self.order].to(like)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Masks:
    found = Masks()
    monkeypatch.setattr(awd_lstm, "draw_mask", found)
    return found


def small(dropout: float = 0.0, **changes: Any) -> AwdLstmConfig:
    torch.manual_seed(0)
    rates = {f"{kind}_dropout": dropout for kind in KINDS}
    sizes = {"vocab_size": VOCABULARY, "embedding_size": 8, "hidden_size": 12, "num_labels": 4}
    return AwdLstmConfig(**{**sizes, **rates, **changes})


def next_words(masks: Masks, net: nn.Module, order: list[int], padding: int = 0) -> Tensor:
    ids, mask = (nn.functional.pad(part, (0, padding)) for part in ragged(LENGTHS, 3))
    masks.begin(order)
    logits = net(input_ids=ids[order], attention_mask=mask[order].long()).logits
    labels = ids.masked_fill(~mask, -100)[order]
    return token_losses(logits[:, :-1], labels[:, 1:])


def classes(masks: Masks, net: nn.Module, order: list[int], padding: int = 0) -> Tensor:
    ids, mask = (nn.functional.pad(part, (0, padding)) for part in ragged(LENGTHS, 3))
    masks.begin(order)
    logits = net(input_ids=ids[order], attention_mask=mask[order].long()).logits
    return nn.functional.cross_entropy(logits, torch.tensor(order) % 4, reduction="none")


def agree(
    model: nn.Module, losses: Losses, owners: Sequence[int], *clips: float, tolerance: float = 1e-5
) -> ClippedSum:
    """As for other models, within a round."""
    with held_masks(shared_masks(model)):
        losses(model, [0])  # draws the masks, so that the oracle's copy of the model has them too
        return agree_with_oracle(model, losses, owners, *clips, tolerance)


@pytest.mark.parametrize("clips", [(0.2, 0.3), (100.0, 100.0)], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["no dropout", "all dropouts"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_language_model(masks, tied, dropout, clips):
    model = AwdLstmForCausalLM(small(dropout, tie_word_embeddings=tied)).train()
    found = agree(model, functools.partial(next_words, masks), OWNERS, *clips)
    assert len(masks.all) == (0 if dropout == 0 else 4)  # input, two between layers, output
    dropped = [mask for mask in shared_masks(model) if mask.last is not None]
    assert len(dropped) == (0 if dropout == 0 else 4)  # words, three weights
    assert set(found.gradients) == set(model.parameters())
    assert all(gradient.any() for gradient in found.gradients.values())
    assert all(p.grad is None for p in model.parameters())  # no ordinary gradients were formed


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["no dropout", "all dropouts"])
@pytest.mark.parametrize("tied", [True, False], ids=["narrow", "wide"])
def test_classifier(masks, tied, dropout):
    model = AwdLstmForSequenceClassification(small(dropout, tie_word_embeddings=tied)).train()
    found = agree(model, functools.partial(classes, masks), OWNERS, 0.2, 0.3)
    assert set(found.gradients) == set(model.parameters())


@settings(max_examples=30, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=len(LENGTHS), max_size=len(LENGTHS)),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)),
    rates=st.tuples(*[st.sampled_from([0.0, 0.2, 0.6])] * len(KINDS)),
    tied=st.booleans(),
    clips=st.tuples(st.sampled_from([1e-3, 0.3, 100.0]), st.sampled_from([1e-3, 0.5, 100.0])),
    max_bytes=st.sampled_from([1, 5_000, 1 << 20]),
)
def test_random_sizes_and_rates(owners, sizes, rates, tied, clips, max_bytes):
    masks = Masks()
    names = ("embedding_size", "hidden_size", "num_hidden_layers")
    changes = dict(zip(names, sizes, strict=True))
    changes |= {f"{kind}_dropout": rate for kind, rate in zip(KINDS, rates, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(awd_lstm, "draw_mask", masks)
        patch.setattr(masked, "_MAX_BYTES", max_bytes)
        model = AwdLstmForCausalLM(small(tie_word_embeddings=tied, **changes)).train()
        agree(model, functools.partial(next_words, masks), owners, *clips, tolerance=2e-5)


@pytest.mark.parametrize("part", ["recurrent", "layers.2", "lm_head", "input_projection.bias"])
def test_parts_trained_alone(masks, part):
    model = AwdLstmForCausalLM(small(0.3, tie_word_embeddings=False)).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)
    found = agree(model, functools.partial(next_words, masks), OWNERS, 0.1, 0.1)
    assert set(found.gradients) == {p for p in model.parameters() if p.requires_grad}


def test_adapters(masks):
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["input_projection"])
    model = peft.get_peft_model(AwdLstmForCausalLM(small(0.3)), adapters).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    agree(model, functools.partial(next_words, masks), OWNERS, 0.05, 0.1)


def clipped(model: nn.Module, losses: Losses, inside: Sequence[int] = range(8)) -> ClippedSum:
    return Engine(model).clipped_sum(
        lambda order: losses(model, [inside[i] for i in order]),
        [OWNERS[i] for i in inside],
        torch.full((len(inside),), 0.2),
        0.3,
    )


def close(found: ClippedSum, expected: ClippedSum) -> None:
    torch.testing.assert_close(found.sentence_norms, expected.sentence_norms)
    for parameter, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[parameter], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("head", [AwdLstmForCausalLM, AwdLstmForSequenceClassification])
def test_longer_padding_changes_no_gradient(masks, head):
    model = head(small(0.3)).train()
    losses = functools.partial(next_words if head is AwdLstmForCausalLM else classes, masks)
    with held_masks(shared_masks(model)):
        close(clipped(model, functools.partial(losses, padding=5)), clipped(model, losses))


def test_a_sentence_that_is_not_finite_contributes_nothing(masks):
    model = AwdLstmForCausalLM(small(0.3)).train()

    def losses(factor: float) -> Losses:
        def scaled(net: nn.Module, order: list[int]) -> Tensor:
            factors = torch.tensor([factor if i == 2 else 1.0 for i in order])
            return next_words(masks, net, order) * factors

        return scaled

    with held_masks(shared_masks(model)):
        close(clipped(model, losses(float("nan"))), clipped(model, losses(0.0)))


def test_chunks_of_a_round_add_up():
    shared = {"weight_dropout": 0.4, "embedding_dropout": 0.4}
    model = AwdLstmForCausalLM(small(**shared)).train()
    losses = functools.partial(next_words, Masks())
    users = [(0, 3), (1, 2)]
    chunks = [[i for i, owner in enumerate(OWNERS) if owner in some] for some in users]
    with Engine(model).one_round():
        whole = clipped(model, losses)
        parts = [clipped(model, losses, chunk) for chunk in chunks]
    for parameter, gradient in whole.gradients.items():
        total = sum(part.gradients[parameter] for part in parts)
        torch.testing.assert_close(total, gradient, rtol=1e-4, atol=1e-7)
    with Engine(model).one_round():
        other = clipped(model, losses, chunks[0])
    assert not torch.allclose(other.sentence_norms, parts[0].sentence_norms)


@pytest.mark.parametrize("kind", ["weight", "embedding"])
def test_shared_masks_outside_of_a_round_are_refused(kind):
    model = AwdLstmForCausalLM(small(**{f"{kind}_dropout": 0.3})).train()
    losses = functools.partial(next_words, Masks())
    with pytest.raises(UserError, match="one_round"):
        clipped(model, losses)
    clipped(model.eval(), losses)


def test_bfloat16_autocast():
    model = AwdLstmForCausalLM(small(weight_dropout=0.3)).train()

    def losses(net: nn.Module, order: list[int]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_words(Masks(), net, order)

    with held_masks(shared_masks(model)):
        half = clipped(model, losses)
        full = clipped(model, functools.partial(next_words, Masks()))
    torch.testing.assert_close(half.sentence_norms, full.sentence_norms, rtol=0.03, atol=0.01)
    assert all(g.dtype == torch.float32 for g in half.gradients.values())


def test_the_engines_own_check_passes(masks):
    model = AwdLstmForCausalLM(small(0.3)).train()
    Engine(model).check(lambda order: next_words(masks, model, list(order)), 3)
    assert model.training


def test_a_dropped_weight_used_elsewhere_is_refused():
    model = AwdLstmForCausalLM(small(weight_dropout=0.3, tie_word_embeddings=False)).train()
    model.model.layers[1].recurrent.weight = model.model.layers[0].recurrent.weight
    with pytest.raises(UserError, match="share a parameter in a way no rule covers"):
        clipped(model, functools.partial(next_words, Masks()))


# --- the rule alone ------------------------------------------------------------------------------


class Formed:
    """Masked gradients of random sentences, formed one by one, and the rule for the same."""

    def __init__(
        self,
        owners: Sequence[int],
        tokens: int,
        shape: tuple[int, int],
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layout = Layout.of(owners)  # rows are taken to lie in its order
        self.owner = torch.tensor(self.layout.owner, device=device)
        inputs = torch.randn(len(owners), tokens, shape[1], dtype=dtype, device=device)
        grads = torch.randn(len(owners), tokens, shape[0], dtype=dtype, device=device)
        mask = ((torch.rand(shape) > 0.4) / 0.6).to(device)
        self.rule_of = functools.partial(
            MaskedProduct, nn.Parameter(torch.empty(shape)), inputs, grads, mask
        )
        self.gradients = torch.einsum("sto,sti->soi", grads.double(), inputs.double()) * mask
        self.factors = torch.rand(len(owners), device=device)

    def user_sums(self) -> list[Tensor]:
        scaled = self.gradients * self.factors[:, None, None]
        return [scaled[self.owner == user].sum(0) for user in range(len(self.layout.users))]

    @torch.no_grad()
    def agrees_with(self, rule: MaskedProduct, tolerance: float) -> None:
        grams = Grams(self.layout, self.owner, 1)
        rule.add_products(grams)
        norms = self.gradients.flatten(1).norm(dim=1).float()
        close = {"rtol": tolerance, "atol": tolerance * float(norms.max())}
        torch.testing.assert_close(grams.sentence_squares().sqrt().float(), norms, **close)
        squares = grams.user_squares(self.factors.double())
        rule.add_user_squares(squares, self.layout, self.factors)
        expected = torch.stack([total.norm() for total in self.user_sums()]).float()
        torch.testing.assert_close(squares.clamp(min=0).sqrt().float(), expected, **close)
        (found,) = rule.weighted(self.factors).values()
        summed = torch.stack(self.user_sums()).sum(0).float()
        torch.testing.assert_close(found, summed, **close)


@settings(max_examples=100, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    tokens=st.integers(1, 5),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    max_bytes=st.integers(1, 10_000),
    seed=st.integers(0, 10**6),
)
def test_norms_and_sums_are_those_of_explicit_gradients(owners, tokens, shape, max_bytes, seed):
    torch.manual_seed(seed)
    formed = Formed(owners, tokens, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked, "_MAX_BYTES", max_bytes)
        formed.agrees_with(formed.rule_of(), 1e-4)


@settings(max_examples=50, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    max_bytes=st.integers(1, 10_000),
)
def test_no_more_bytes_are_held_than_allowed(owners, shape, max_bytes):
    formed = Formed(owners, 3, shape)
    sizes: list[int] = []
    product = masked.exact_product

    def measured(left: Tensor, right: Tensor) -> Tensor:
        found = product(left, right)
        sizes.append(found.numel() * found.element_size())
        return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(masked, "exact_product", measured)
        patch.setattr(masked, "_MAX_BYTES", max_bytes)
        formed.rule_of().add_products(Grams(formed.layout, formed.owner, 1))
    largest_bin = max(bucket.each for bucket in formed.layout.buckets)
    assert max(sizes) <= max(max_bytes, 4 * largest_bin * shape[1])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)], ids=["32", "16"]
)
@pytest.mark.parametrize("shape", [(5, 3), (64, 128), (300, 200)])
@pytest.mark.parametrize("tokens", [1, 24, 70])
def test_squares_in_one_kernel(tokens, shape, dtype, tolerance):
    torch.manual_seed(0)
    formed = Formed(OWNERS * 3, tokens, shape, "cuda", dtype)
    formed.agrees_with(formed.rule_of(), tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_on_an_accelerator_as_elsewhere(tied):
    shared = {"weight_dropout": 0.4, "embedding_dropout": 0.4, "tie_word_embeddings": tied}
    model = AwdLstmForCausalLM(small(**shared)).train()
    there = copy.deepcopy(model).cuda()

    def on_device(net: nn.Module, order: list[int]) -> Tensor:
        def call(**tensors: Tensor) -> Any:
            return net(**{name: tensor.cuda() for name, tensor in tensors.items()})

        return next_words(Masks(), lambda **t: Logits(call(**t).logits.cpu()), order)

    with held_masks(shared_masks(model)), held_masks(shared_masks(there)):
        expected = clipped(model, functools.partial(next_words, Masks()))
        for ours, theirs in zip(shared_masks(there), shared_masks(model), strict=True):
            ours.kept = theirs.kept
        found = clipped(there, on_device)
    torch.testing.assert_close(found.sentence_norms.cpu(), expected.sentence_norms)
    for ours, theirs in zip(there.parameters(), model.parameters(), strict=True):
        gradient = found.gradients[ours].cpu()
        torch.testing.assert_close(gradient, expected.gradients[theirs], rtol=1e-4, atol=1e-6)
