"""Cross entropy of every token that needs no memory beside the logits."""

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
_ROWS = 64  # that a CPU reads at a time, so that they stay in its cache


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each of (tokens, words), in float32; zero where the label is `IGNORED`.

    Guarantees:
      - values and gradients are those of `torch.nn.functional.cross_entropy` on a float32 copy, up
        to rounding
      - the gradient is written over the logits, if nothing else needs them; PyTorch then refuses a
        second backward pass
    """
    if not logits.requires_grad or _is_product(logits):
        losses: Tensor
        if triton is not None and logits.is_cuda:
            losses = _TokenLosses.apply(logits, labels)  # type: ignore[no-untyped-call]
            return losses
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            losses = _ByRows.apply(logits, labels)  # type: ignore[no-untyped-call]
            return losses
    return nn.functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORED, reduction="none"
    )


# Operations whose gradient does not depend on their result, and views of them.
_PRODUCTS = ("MmBackward0", "AddmmBackward0", "ToCopyBackward0")
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


def _is_product(logits: Tensor) -> bool:
    node = logits.grad_fn
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() in _PRODUCTS


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        counted = labels != IGNORED
        picked = labels.where(counted, 0)
        totals = torch.cat([rows.logsumexp(1) for rows in logits.split(_ROWS)])
        ctx.save_for_backward(logits, picked, counted, totals)
        return (totals - logits.gather(1, picked[:, None])[:, 0]).where(counted, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits, picked, counted, totals = ctx.saved_tensors
        written: Tensor = logits.detach()
        weights = grads[0].where(counted, 0.0)
        for rows, total, weight in zip(
            written.split(_ROWS), totals.split(_ROWS), weights.split(_ROWS), strict=True
        ):
            rows.sub_(total[:, None]).exp_().mul_(weight[:, None])
        written.scatter_add_(1, picked[:, None], -weights[:, None])
        written[~counted] = 0.0  # whatever their logits are
        return written, None


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
