"""Causal attention of short sentences that lie end to end, one program for each.

Kernels for long sequences work in blocks of 128 tokens, most of which a sentence leaves empty.
Here a program has a whole sentence and a key head, in the smallest block that holds it, and the
gradients of its keys add up in one place: the result is the same every time and in any company.
"""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

LONGEST = 128  # tokens of a sentence
_BLOCKS = {16: 1, 32: 2, 64: 4, 128: 8}  # tokens of a block, and its warps


def is_available(values: Tensor, longest: int) -> bool:
    """Whether attention of these queries, (..., features), can be computed here."""
    width = values.shape[-1]
    most = LONGEST if values.element_size() == 2 else LONGEST // 2  # that shared memory holds
    fits = longest <= most and 16 <= width <= 64 and width & (width - 1) == 0
    return triton is not None and values.is_cuda and fits


def short_attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, count: Tensor, longest: int, scale: float
) -> Tensor:
    """(tokens, heads, features) for sentences by their bounds; zero for tokens of none.

    Args:
        k: may have fewer heads, of which each serves several queries; like `v`.
        count: how many sentences there are.
    """
    result: Tensor = _ShortAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, bounds, count, longest, scale
    )
    return result


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, count: Tensor, longest: int,
        scale: float,
    ) -> Tensor:  # fmt: skip
        q, k, v = (_rows(tensor) for tensor in (q, k, v))
        output = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        for grid, constants in _launches(q, k, bounds, longest):
            _forward[grid](
                q, k, v, output, *_strides(q, k, v, output), bounds, count, scale, **constants
            )
        ctx.save_for_backward(q, k, v, bounds, count)
        ctx.longest, ctx.scale = longest, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bounds, count = ctx.saved_tensors
        grad = _rows(grads[0])
        made = [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
        for grid, constants in _launches(q, k, bounds, ctx.longest):
            _backward[grid](
                q, k, v, grad, *made, *_strides(q, k, v, grad, *made), bounds, count, ctx.scale,
                **constants,
            )  # fmt: skip
        return (*made, None, None, None, None)


def _rows(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _launches(q: Tensor, k: Tensor, bounds: Tensor, longest: int) -> list[Any]:
    """A launch for each block size: which sentences are how long is known to the device only."""
    grid = (len(bounds) - 1, k.shape[1])
    launches, above = [], 0
    for block, warps in _BLOCKS.items():
        constants = {
            "above": above,
            "block": block,
            "heads": q.shape[1] // k.shape[1],
            "width": q.shape[2],
            "num_warps": warps,
        }
        launches.append((grid, constants))
        above = block
        if block >= longest:
            break
    return launches


if triton is not None:

    @triton.jit
    def _head(values, row, token_stride, head, head_stride, feature, inside):  # type: ignore[no-untyped-def]
        """One head of a sentence's tokens."""
        place = row * token_stride + head * head_stride + feature[None, :]
        return tl.load(values + place, mask=inside, other=0.0)

    @triton.jit
    def _probabilities(q, k, token, length, scale):  # type: ignore[no-untyped-def]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = (token[None, :] <= token[:, None]) & (token[None, :] < length)
        scores = tl.where(seen, scores, float("-inf"))
        scores = tl.exp(scores - tl.max(scores, 1)[:, None])
        return scores / tl.sum(scores, 1)[:, None]

    @triton.jit  # type: ignore[untyped-decorator]
    def _forward(  # type: ignore[no-untyped-def]
        q, k, v, output, q_token, q_head, k_token, k_head, v_token, v_head, o_token, o_head,
        bounds, count, scale, above: tl.constexpr, block: tl.constexpr, heads: tl.constexpr,
        width: tl.constexpr,
    ):  # fmt: skip
        sentence = tl.program_id(0)
        start = tl.load(bounds + sentence)
        length = tl.load(bounds + sentence + 1) - start
        if (sentence < tl.load(count)) & (length > above) & (length <= block):
            key_head = tl.program_id(1)
            token = tl.arange(0, block)
            feature = tl.arange(0, width)
            inside = (token < length)[:, None]
            row = (start + token).to(tl.int64)[:, None]
            keys = _head(k, row, k_token, key_head, k_head, feature, inside)
            values = _head(v, row, v_token, key_head, v_head, feature, inside)
            for each in range(heads):
                head = key_head * heads + each
                queries = _head(q, row, q_token, head, q_head, feature, inside)
                shares = _probabilities(queries, keys, token, length, scale)
                attended = tl.dot(shares.to(values.dtype), values, input_precision="ieee")
                tl.store(
                    output + row * o_token + head * o_head + feature[None, :], attended, mask=inside
                )

    @triton.jit  # type: ignore[untyped-decorator]
    def _backward(  # type: ignore[no-untyped-def]
        q, k, v, grad, dq, dk, dv, q_token, q_head, k_token, k_head, v_token, v_head, g_token,
        g_head, dq_token, dq_head, dk_token, dk_head, dv_token, dv_head, bounds, count, scale,
        above: tl.constexpr, block: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    ):  # fmt: skip
        sentence = tl.program_id(0)
        start = tl.load(bounds + sentence)
        length = tl.load(bounds + sentence + 1) - start
        if (sentence < tl.load(count)) & (length > above) & (length <= block):
            key_head = tl.program_id(1)
            token = tl.arange(0, block)
            feature = tl.arange(0, width)
            inside = (token < length)[:, None]
            row = (start + token).to(tl.int64)[:, None]
            keys = _head(k, row, k_token, key_head, k_head, feature, inside)
            values = _head(v, row, v_token, key_head, v_head, feature, inside)
            key_grads = tl.zeros((block, width), dtype=tl.float32)
            value_grads = tl.zeros((block, width), dtype=tl.float32)
            for each in range(heads):
                head = key_head * heads + each
                queries = _head(q, row, q_token, head, q_head, feature, inside)
                came = _head(grad, row, g_token, head, g_head, feature, inside)
                shares = _probabilities(queries, keys, token, length, scale)
                value_grads = tl.dot(
                    tl.trans(shares.to(came.dtype)), came, value_grads, input_precision="ieee"
                )
                moved = tl.dot(came, tl.trans(values), input_precision="ieee")
                moved = shares * (moved - tl.sum(shares * moved, 1)[:, None]) * scale
                moved = moved.to(keys.dtype)
                query_grads = tl.dot(moved, keys, input_precision="ieee")
                tl.store(
                    dq + row * dq_token + head * dq_head + feature[None, :],
                    query_grads,
                    mask=inside,
                )
                key_grads = tl.dot(tl.trans(moved), queries, key_grads, input_precision="ieee")
            tl.store(
                dk + row * dk_token + key_head * dk_head + feature[None, :], key_grads, mask=inside
            )
            tl.store(
                dv + row * dv_token + key_head * dv_head + feature[None, :],
                value_grads,
                mask=inside,
            )
