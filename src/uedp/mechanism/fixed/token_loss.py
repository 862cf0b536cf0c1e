"""Cross entropy of every token times a weight, summed: without float32 copies of the logits."""

from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

IGNORED = -100  # the label of a token that predicts nothing
_BLOCK = 4096


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """`sum over tokens of weight * cross entropy`; the logits, (tokens, words), are overwritten.

    On an accelerator the gradient takes the place of the logits, in their precision. It is as
    exact as that of `cross_entropy` on a float32 copy, rounded once.
    """
    if triton is None or not logits.is_cuda:
        losses = nn.functional.cross_entropy(
            logits.float(), labels, ignore_index=IGNORED, reduction="none"
        )
        return (losses * weights).sum()
    result: Tensor = _InPlace.apply(logits, labels, weights)
    return result


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        tokens, words = logits.shape
        losses = torch.empty(tokens, device=logits.device, dtype=torch.float32)
        ctx.gradients = logits.detach()
        # whoever else needs the logits as they were must notice
        torch.autograd.graph.increment_version(logits)
        _cross_entropy[(tokens,)](
            ctx.gradients, labels, weights, losses, words, logits.stride(0), block=_BLOCK
        )
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        gradients, ctx.gradients = ctx.gradients, None
        return gradients, None, None  # of a loss that is not scaled: `backward()` of it alone


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _cross_entropy(  # type: ignore[no-untyped-def]
        logits, labels, weights, losses, words, stride, block: tl.constexpr
    ) -> Any:
        token = tl.program_id(0).to(tl.int64)
        row = logits + token * stride
        label = tl.load(labels + token)
        weight = tl.load(weights + token)
        column = tl.arange(0, block)
        if label < 0:
            for start in range(0, words, block):
                inside = start + column < words
                tl.store(row + start + column, tl.zeros((block,), tl.float32), mask=inside)
            tl.store(losses + token, 0.0)
        else:
            largest = float("-inf")
            total = 0.0
            for start in range(0, words, block):
                inside = start + column < words
                values = tl.load(row + start + column, mask=inside, other=float("-inf"))
                values = values.to(tl.float32)
                new = tl.maximum(largest, tl.max(values))
                total = total * tl.exp(largest - new) + tl.sum(tl.exp(values - new))
                largest = new
            normaliser = largest + tl.log(total)
            chosen = tl.load(row + label).to(tl.float32)
            tl.debug_barrier()  # everybody has read it before anybody overwrites it
            tl.store(losses + token, weight * (normaliser - chosen))
            for start in range(0, words, block):
                inside = start + column < words
                values = tl.load(row + start + column, mask=inside, other=float("-inf"))
                shares = tl.exp(values.to(tl.float32) - normaliser)
                shares = tl.where(start + column == label, shares - 1.0, shares)
                tl.store(row + start + column, weight * shares, mask=inside)
