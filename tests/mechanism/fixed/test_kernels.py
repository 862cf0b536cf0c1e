"""On an accelerator: every kernel against plain PyTorch, recorded passes against the oracle."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.mechanism.fixed.small import (
    LONGEST,
    POISON,
    TOKENS,
    UPDATE_CLIP,
    adapted,
    agrees,
    padded_losses,
    poisoned,
    randomised,
    rows,
    some,
)
from uedp.mechanism.clip import Engine
from uedp.mechanism.fixed import frozen, token_loss
from uedp.mechanism.fixed.attention import _by_sentence
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences, fixed_pass
from uedp.mechanism.fixed.short_attention import short_attention
from uedp.mechanism.fixed.trial import refuse_difference

pytestmark = pytest.mark.gpu

# A CPU is enough for most of them with TRITON_INTERPRET=1, in float32.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = [torch.float32, torch.bfloat16]


def near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Up to rounding once, of what was computed in float32."""
    off = 1e-4 if dtype == torch.float32 else 0.02
    scale = max(float(expected.float().abs().max()), 1e-6)
    assert float((found.float() - expected.float()).abs().max()) <= off * scale


def both(kernel, plain, inputs: list[Tensor], dtype: torch.dtype) -> None:
    """Outputs and gradients: of the kernel in a precision, and of plain PyTorch in float32."""
    rounded = [tensor.to(DEVICE, dtype) for tensor in inputs]
    ours = [tensor.clone().requires_grad_() for tensor in rounded]
    theirs = [tensor.float().requires_grad_() for tensor in rounded]
    found, expected = kernel(*ours), plain(*theirs)
    near(found.detach(), expected.detach(), dtype)
    torch.manual_seed(1)
    grad = torch.randn(expected.shape).to(DEVICE, dtype)
    grads = torch.autograd.grad(found, ours, grad.to(found.dtype))
    for own, other in zip(grads, torch.autograd.grad(expected, theirs, grad.float()), strict=True):
        near(own, other, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("longest", [16, 33, 64])
def test_short_attention(longest, width, dtype):
    lengths = [5, longest, 1, 0, longest - 1, 2]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    tokens, count = int(bounds[-1]) + 7, len(lengths)
    where = torch.tensor([*bounds, tokens], dtype=torch.int32, device=DEVICE)
    torch.manual_seed(0)
    inputs = [torch.randn(tokens, heads, width) for heads in (6, 2, 2)]

    def kernel(q, k, v):
        return short_attention(q, k, v, where, torch.tensor(count, device=DEVICE), longest, 0.3)

    def plain(q, k, v):
        found = _by_sentence(
            q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), where.cpu(), 0.3
        )
        real = torch.arange(tokens, device=DEVICE) < int(bounds[-1])
        return found * real[:, None, None]

    both(kernel, plain, inputs, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [48, 576, 1000])
def test_norms(width, dtype):
    torch.manual_seed(0)
    scale = torch.rand(width).to(DEVICE)
    both(
        frozen._norm_of(scale.to(dtype), 1e-5),
        lambda x: nn.functional.rms_norm(x, (width,), eps=1e-5) * scale.to(dtype).float(),
        [torch.randn(1, 7, width)],
        dtype,
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("heads", "width"), [(3, 16), (9, 64), (1, 40)])
def test_rotations(heads, width, dtype):
    torch.manual_seed(0)
    cos, sin = torch.randn(2, 1, 5, width).to(DEVICE, dtype)
    both(
        lambda q, k: torch.cat(frozen.rotate(q, k, cos, sin), 1),
        lambda q, k: torch.cat(apply_rotary_pos_emb(q, k, cos.float(), sin.float()), 1),
        [torch.randn(1, 5, n, width).transpose(1, 2) for n in (heads, 1)],
        dtype,
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [30, 1024, 1536])
def test_gates(width, dtype):
    torch.manual_seed(0)
    both(
        frozen._Gate.apply,
        lambda gate, up: nn.functional.silu(gate) * up,
        [torch.randn(1, 5, width), torch.randn(1, 5, width)],
        dtype,
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("words", [61, 4096, 5000])
def test_losses_of_tokens(words, dtype):
    torch.manual_seed(0)
    labels = torch.tensor([3, token_loss.IGNORED, words - 1, 0, 17, 2, 2], device=DEVICE)
    both(
        lambda logits: token_loss._TokenLosses.apply(logits * 1, labels),
        lambda logits: nn.functional.cross_entropy(
            logits, labels, ignore_index=token_loss.IGNORED, reduction="none"
        ),
        [3 * torch.randn(7, words)],
        dtype,
    )


KINDS = [("llama", "lora", 4), ("llama", "lora", 19), ("llama", "lora-b", 3), ("gpt2", "lora", 8)]
WIDTHS = {"llama": {"hidden_size": 64, "num_key_value_heads": 2}, "gpt2": {"n_embd": 64}}


def on_device(kind: str, how: str = "lora", rank: int = 4) -> nn.Module:
    """With heads that the kernels take, and some that they leave to PyTorch."""
    return adapted(kind, how, rank, **WIDTHS[kind]).cuda()


@pytest.mark.parametrize("longest", [LONGEST, 150])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("kind", "how", "rank"), KINDS)
def test_recorded_passes_are_the_oracle_whatever_the_weights(kind, how, rank, dtype, longest):
    if kind == "gpt2":
        longest = min(longest, 64)
    model = on_device(kind, how, rank)
    one = FixedPass(model, 2 * TOKENS, longest, dtype)
    assert one._graphs
    off = 1e-4 if dtype == torch.float32 else 0.05
    for seed in (1, 2):
        agrees(one, randomised(model, seed), some(seed=seed), off)


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_that_moved_are_read_where_they_are(dtype):
    model = on_device("llama")
    one = FixedPass(model, TOKENS, LONGEST, dtype)
    for parameter in one.parameters:
        parameter.data = parameter.data.clone()
    agrees(one, randomised(model, 3), some(), 1e-4 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_sentence_is_computed_alike_in_any_company_and_place_bit_for_bit(kind, dtype):
    one = FixedPass(on_device(kind), 4 * TOKENS, LONGEST, dtype)
    target, rng, norms = some([21], [0]), np.random.default_rng(0), set()
    for _ in range(40):
        before, after = (rng.integers(0, LONGEST + 1, rng.integers(0, 9)) for _ in range(2))
        lengths = np.array([*before, 21, *after], dtype=np.int64)
        ids = rng.integers(0, 61, lengths.sum())
        start = int(before.sum())
        ids[start : start + 21] = target.ids
        owners = np.arange(len(lengths))
        batch = Sentences(ids, lengths, owners, torch.ones(len(lengths)))
        norms.add(float(one.clipped_sum(batch, 1.0).sentence_norms[len(before)]))
    assert len(norms) == 1


@pytest.mark.parametrize("dtype", HALVES)
def test_nothing_is_added_above_its_clip(dtype):
    one = FixedPass(on_device("llama"), TOKENS, LONGEST, dtype)
    for sentence, update in ((1e-4, 1.0), (1.0, 1e-4), (1e-3, 2e-3)):
        for lengths in ([9], [2, 30, 17], [8] * 9):
            batch = some(lengths, [0] * len(lengths))
            each = torch.full((len(lengths),), sentence)
            batch = Sentences(batch.ids, batch.lengths, batch.owners, each)
            length = float(one.clipped_sum(batch, update).total.double().norm())
            assert 0 < length <= min(update, sentence * len(lengths))


def test_a_gradient_that_is_not_finite_makes_the_sum_zero():
    one = FixedPass(poisoned().cuda(), TOKENS, LONGEST)
    batch = some()
    batch.ids[7] = POISON
    found = one.clipped_sum(batch, UPDATE_CLIP)
    assert not bool(found.finite)
    assert not found.total.any()
    batch.ids[7] = 0
    found = one.clipped_sum(batch, UPDATE_CLIP)
    assert bool(found.finite)
    assert found.total.any()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_recorded_passes_agree_with_the_engine(kind, half):
    model = on_device(kind)
    dtype = torch.bfloat16 if half else torch.float32
    one, batch = fixed_pass(model, None, LONGEST, dtype), some([4, 9, 16, 30], [0, 0, 1, 1])
    assert one is not None
    texts = rows(batch)

    def of_engine(order):
        return padded_losses(model, [texts[i] for i in order])

    def halved(order):
        with torch.autocast("cuda", torch.bfloat16):
            return of_engine(order)

    refuse_difference(one, Engine(model), of_engine, batch, halved if half else None)
    agrees(one, model, batch, 0.05 if half else 1e-4)
