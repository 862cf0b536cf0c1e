"""Cross entropy of every token, without float32 copies of the logits."""

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


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token, float32; logits are (tokens, words).

    On an accelerator the gradient takes the place of the logits, in their precision: they cannot
    be used again. It is that of `cross_entropy` on a float32 copy, rounded once.
    """
    if triton is None or not logits.is_cuda:
        return nn.functional.cross_entropy(
            logits.float(), labels, ignore_index=IGNORED, reduction="none"
        )
    result: Tensor = _TokenLosses.apply(logits, labels)  # type: ignore[no-untyped-call]
    return result


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.contiguous()
        tokens, words = logits.shape
        losses = torch.empty(tokens, device=logits.device, dtype=torch.float32)
        totals = torch.empty_like(losses)
        _losses[(tokens,)](logits, labels, losses, totals, words, block=_BLOCK)
        ctx.save_for_backward(logits, labels, totals)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, labels, totals = ctx.saved_tensors
        # whoever else needs the logits as they were must notice
        torch.autograd.graph.increment_version(logits)
        grad = grads[0].contiguous()
        tokens, words = logits.shape
        _gradients[(tokens,)](logits, labels, totals, grad, words, block=_BLOCK)
        return logits, None


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _losses(  # type: ignore[no-untyped-def]
        logits, labels, losses, totals, words, block: tl.constexpr
    ) -> Any:
        token = tl.program_id(0).to(tl.int64)
        row = logits + token * words
        label = tl.load(labels + token)
        column = tl.arange(0, block)
        largest = float("-inf")
        total = 0.0
        if label >= 0:
            for start in range(0, words, block):
                inside = start + column < words
                values = tl.load(row + start + column, mask=inside, other=float("-inf"))
                values = values.to(tl.float32)
                new = tl.maximum(largest, tl.max(values))
                total = total * tl.exp(largest - new) + tl.sum(tl.exp(values - new))
                largest = new
            normaliser = largest + tl.log(total)
            tl.store(totals + token, normaliser)
            tl.store(losses + token, normaliser - tl.load(row + label).to(tl.float32))
        else:
            tl.store(totals + token, 0.0)
            tl.store(losses + token, 0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gradients(  # type: ignore[no-untyped-def]
        logits, labels, totals, grads, words, block: tl.constexpr
    ) -> Any:
        token = tl.program_id(0).to(tl.int64)
        row = logits + token * words
        label = tl.load(labels + token)
        normaliser = tl.load(totals + token)
        grad = tl.where(label >= 0, tl.load(grads + token), 0.0)
        column = tl.arange(0, block)
        for start in range(0, words, block):
            inside = start + column < words
            values = tl.load(row + start + column, mask=inside, other=float("-inf"))
            shares = tl.exp(values.to(tl.float32) - normaliser)
            shares = tl.where(start + column == label, shares - 1.0, shares)
            # nothing of a token that predicts nothing, whatever its logits are
            tl.store(row + start + column, tl.where(label >= 0, grad * shares, 0.0), mask=inside)
