"""Two memory-bound steps that read their data once: a Triton kernel each, or plain PyTorch."""

from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None


def scaled_rows(values: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """(sentences, tokens, features) times a float32 weight per sentence, as parts that add up.

    One part in float32; or, for bfloat16 on tensor cores, two in bfloat16, the second of which is
    the rounding error of the first.
    """
    if values.is_cuda and values.dtype == torch.bfloat16:
        if _fused(values):
            flat = values.contiguous()
            whole, rest = torch.empty_like(flat), torch.empty_like(flat)
            width = flat[0].numel()
            _scale_rows[(flat.shape[0], triton.cdiv(width, _BLOCK))](
                flat, weights, whole, rest, width, block=_BLOCK
            )
            return whole, rest
        return in_two(values.float() * weights[:, None, None])
    wide = values if values.dtype == torch.float64 else values.float()
    return (torch.mul(wide, weights[:, None, None]).float(),)


def in_two(values: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 as the sum of two bfloat16, with half its digits lost."""
    whole = values.to(torch.bfloat16)
    return whole, (values - whole.float()).to(torch.bfloat16)


def norm_gradients(x: Tensor, grads: Tensor, epsilon: float | None, centred: bool) -> Tensor:
    """Gradients per sentence of the scale of a norm: `sum over tokens of grads * normalised x`.

    `centred` for a layer norm, else an RMS norm; (sentences, features) in float32.
    """
    if _fused(x) and x.shape[2] <= _WIDEST:
        sentences, tokens, width = x.shape
        result = torch.empty(sentences, width, device=x.device, dtype=torch.float32)
        _norm_gradients[(sentences,)](
            x.contiguous(),
            grads.contiguous(),
            result,
            tokens,
            width,
            torch.finfo(x.dtype).eps if epsilon is None else epsilon,
            centred=centred,
            block=triton.next_power_of_2(width),
        )
        return result
    return normalised(x, epsilon, centred).mul_(grads).sum(1)


def normalised(x: Tensor, epsilon: float | None, centred: bool) -> Tensor:
    """What a norm multiplies by its scale, in float32."""
    shape, epsilon = x.shape[-1:], torch.finfo(x.dtype).eps if epsilon is None else epsilon
    norm: Any = nn.functional.layer_norm if centred else nn.functional.rms_norm
    result: Tensor = norm(x.float(), shape, eps=epsilon)
    return result


_BLOCK = 4096
_WIDEST = 8192  # features of a token that one program holds


def _fused(values: Tensor) -> bool:
    return triton is not None and values.is_cuda


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _scale_rows(values, weights, whole, rest, width, block: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
        sentence = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        weight = tl.load(weights + sentence)
        loaded = tl.load(values + sentence * width + column, mask=inside)
        scaled = loaded.to(tl.float32) * weight
        rounded = scaled.to(tl.bfloat16)
        place = sentence * width + column
        tl.store(whole + place, rounded, mask=inside)
        tl.store(rest + place, (scaled - rounded.to(tl.float32)).to(tl.bfloat16), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _norm_gradients(  # type: ignore[no-untyped-def]
        x, grads, result, tokens, width, epsilon, centred: tl.constexpr, block: tl.constexpr
    ) -> Any:
        sentence = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, block)
        inside = column < width
        total = tl.zeros((block,), dtype=tl.float32)
        start = sentence * tokens * width
        for token in range(tokens):
            row = start + token * width + column
            value = tl.load(x + row, mask=inside, other=0.0).to(tl.float32)
            if centred:
                value = tl.where(inside, value - tl.sum(value) / width, 0.0)
            scale = tl.rsqrt(tl.sum(value * value) / width + epsilon)
            grad = tl.load(grads + row, mask=inside, other=0.0).to(tl.float32)
            total += grad * value * scale
        tl.store(result + sentence * width + column, total, mask=inside)
