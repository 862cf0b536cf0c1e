"""Passes of one shape against the oracle, and what they must refuse."""

import numpy as np
import pytest
import torch

from tests.mechanism.clip.test_rounding import SIZES
from tests.mechanism.fixed.small import (
    LONGEST,
    POISON,
    TOKENS,
    UPDATE_CLIP,
    WORDS,
    adapted,
    agrees,
    oracle,
    poisoned,
    randomised,
    rows,
    some,
)
from uedp.errors import UserError
from uedp.mechanism.fixed import fixed_pass
from uedp.mechanism.fixed.adapters import Adapted
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences

KINDS = [
    ("llama", "lora", 4),
    ("llama", "lora", 3),  # padded to the width that tensor cores read
    ("llama", "lora", 19),  # in two parts
    ("llama", "lora-b", 5),
    ("llama", "lora:1", 4),
    ("gpt2", "lora", 4),
    ("gpt2", "lora-b:1", 17),
]


@pytest.mark.parametrize(("kind", "how", "rank"), KINDS)
def test_sums_and_norms_are_the_oracles(kind, how, rank):
    model = adapted(kind, how, rank)
    agrees(FixedPass(model, TOKENS, LONGEST), model, some())


def test_adapters_are_read_anew_in_every_refresh():
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST)
    for seed in (2, 3):
        agrees(one, randomised(model, seed), some())


@pytest.mark.parametrize(
    ("lengths", "owners"),
    [([], []), ([0], [0]), ([0, 0, 7], [0, 1, 2]), ([1, 1], [0, 1]), ([LONGEST] * 5, [0] * 5)],
)
def test_few_or_empty_sentences(lengths, owners):
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST)
    found = one.clipped_sum(batch := some(lengths, owners), UPDATE_CLIP)
    assert bool(found.finite)
    assert len(found.sentence_norms) == len(lengths)
    assert len(found.user_norms) == len(set(owners))
    total, norms = oracle(model, batch) if lengths else (torch.zeros(1), torch.zeros(0))
    torch.testing.assert_close(found.sentence_norms.double(), norms.double(), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(
        found.total.norm().double(), total.norm().double(), rtol=1e-3, atol=0
    )


def test_a_sentence_is_computed_alike_in_any_company_and_place():
    one = FixedPass(adapted(), TOKENS, LONGEST)
    target = some([11], [0])

    def norm(before: list[int], after: list[int]) -> float:
        others = some([*before, *after], [0] * len([*before, *after]), seed=5)
        parts = rows(others)
        ids = [*parts[: len(before)], target.ids, *parts[len(before) :]] if others else [target.ids]
        lengths = np.array([*before, 11, *after])
        owners = np.arange(len(lengths))
        batch = Sentences(np.concatenate(ids), lengths, owners, torch.ones(len(lengths)))
        return float(one.clipped_sum(batch, 1.0).sentence_norms[len(before)])

    alone = norm([], [])
    for before, after in (([4], []), ([30, 2], [9]), ([1, 0], [LONGEST, LONGEST]), ([], [3] * 8)):
        # products of other rows may round differently in another place
        assert norm(before, after) == pytest.approx(alone, rel=1e-6)


def test_nothing_of_the_model_changes():
    model = adapted()
    before = {n: (p.dtype, p.data_ptr(), p.detach().clone()) for n, p in model.named_parameters()}
    config = model.config._attn_implementation
    one = FixedPass(model, TOKENS, LONGEST, torch.bfloat16)
    one.clipped_sum(some(), UPDATE_CLIP)
    for name, parameter in model.named_parameters():
        dtype, place, values = before[name]
        assert (parameter.dtype, parameter.data_ptr()) == (dtype, place), name
        assert torch.equal(parameter, values), name
        assert parameter.grad is None, name
    assert model.config._attn_implementation == config
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("clips", [(1e-4, 1.0), (1.0, 1e-4), (1e-3, 2e-3)])
def test_nothing_is_added_above_its_clip(clips):
    one = FixedPass(adapted(), TOKENS, LONGEST)
    sentence, update = clips
    for lengths in ([9], [2, 30, 17], [8] * 9):
        ids = np.random.default_rng(1).integers(0, WORDS, sum(lengths))
        each = torch.full((len(lengths),), sentence)
        batch = Sentences(ids, np.array(lengths), np.zeros(len(lengths), int), each)
        found = one.clipped_sum(batch, update)
        most = min(update, sentence * len(lengths))
        assert 0 < float(found.total.double().norm()) <= most


def test_a_gradient_that_is_not_finite_makes_the_sum_zero():
    one = FixedPass(poisoned(), TOKENS, LONGEST)
    batch = some()
    assert bool(one.clipped_sum(batch, UPDATE_CLIP).finite)
    batch.ids[7] = POISON
    found = one.clipped_sum(batch, UPDATE_CLIP)
    assert not bool(found.finite)
    assert not found.total.any()
    batch.ids[7] = 0
    assert one.clipped_sum(batch, UPDATE_CLIP).total.any()


def test_half_precision_is_near_the_oracle():
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST, torch.bfloat16)
    agrees(one, model, some(), 0.03)


def count(module, arguments) -> None:
    module.seen.add_(1)


def test_models_that_are_refused():
    def refused(model, match: str) -> None:
        with pytest.raises(UserError, match=match):
            FixedPass(model, TOKENS, LONGEST)

    refused(adapted("mistral", sliding_window=16), "window")
    FixedPass(adapted("mistral", sliding_window=LONGEST), TOKENS, LONGEST)
    trained = adapted()
    trained.get_base_model().model.norm.weight.requires_grad_(True)
    refused(trained, "something else")
    refused(adapted("gpt2", resid_pdrop=0.5), "random")
    refused(adapted("gpt2", attn_pdrop=0.5), "plain causal")
    counting = adapted()
    counting.register_buffer("seen", torch.zeros(()))
    counting.register_forward_pre_hook(count)
    refused(counting, "changes a parameter or a buffer")
    merged = adapted()
    merged.merge_adapter()
    refused(merged, "something else")


def cancelling(one: FixedPass, dtype: torch.dtype, size: float, apart: float) -> None:
    """Let every layer see pairs of tokens whose gradients cancel but for a part `apart`."""
    half, device = one.tokens // 2, one.parameters[0].device

    def pairs(width: int, sign: float, moved: float, scale: float = 1.0) -> torch.Tensor:
        first = scale * torch.randn(half, 1, width)
        second = sign * first * (1 + moved * torch.randn(half, 1, width))
        return torch.cat([first, second], 1).flatten(0, 1).to(device, dtype)

    def pass_() -> None:
        one._formed = []
        for wave in reversed(one._waves):
            for group in wave.groups:
                thin = group.down.shape[0]
                group.record = Adapted(
                    pairs(group.weight.shape[1], 1, apart, size),
                    pairs(thin, 1, apart, size),
                    pairs(len(group.weight), -1, 0),
                    pairs(thin, -1, 0),
                )
            one._form(wave)

    one._graphs, one._pass = [], pass_


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_nothing_is_added_above_its_clip_whatever_cancels(dtype, device):
    """An adversary chooses what every layer sees, as in the engine's `test_rounding`."""
    one, clip, worst = FixedPass(adapted().to(device), 2 * TOKENS, LONGEST, dtype), 1e-3, 0.0
    torch.manual_seed(0)
    for size, apart in SIZES:
        cancelling(one, dtype, size, apart)
        for lengths, sentence, update in (([LONGEST], clip, 1.0), ([LONGEST] * 7, 1.0, clip)):
            batch = some(lengths, [0] * len(lengths))
            each = torch.full((len(lengths),), sentence)
            batch = Sentences(batch.ids, batch.lengths, batch.owners, each)
            found = one.clipped_sum(batch, update)
            assert bool(found.finite)
            worst = max(worst, float(found.total.double().norm()) / clip)
    assert 0.9 < worst <= 1 + 1e-6


def test_adapters_of_which_the_engine_forms_no_gradients_are_refused(monkeypatch):
    """Both would allow for different rounding, and who fits in a pass depends on texts."""
    monkeypatch.setattr(fixed_pass, "FORMED", 10)
    with pytest.raises(UserError, match="more than 10 entries"):
        FixedPass(adapted(), TOKENS, LONGEST)
