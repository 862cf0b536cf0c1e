"""Cross entropy of tokens that needs no memory beside the logits, on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 64  # at a time, so that they stay in the processor's cache


def cross_entropy(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """The loss of each of (tokens, vocabulary), zero where the label is `ignored`.

    Guarantees:
      - values and gradients are those of `torch.nn.functional.cross_entropy`, up to rounding
      - on a CPU the gradient is written over the logits, if nothing else needs them; PyTorch then
        refuses a second backward pass
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and _is_product(logits):
        losses: Tensor = _InPlace.apply(logits, labels, ignored)  # type: ignore[no-untyped-call]
        return losses
    return nn.functional.cross_entropy(
        logits.float(), labels, ignore_index=ignored, reduction="none"
    )


# Operations whose gradient does not depend on their result, and views of them.
_PRODUCTS = ("MmBackward0", "AddmmBackward0")
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


def _is_product(logits: Tensor) -> bool:
    node = logits.grad_fn
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node is not None and node.name() in _PRODUCTS


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
        counted = labels != ignored
        picked = labels.where(counted, 0)
        totals = torch.cat([rows.logsumexp(1) for rows in logits.split(_ROWS)])
        ctx.save_for_backward(logits, picked, counted, totals)
        return (totals - logits.gather(1, picked[:, None])[:, 0]).where(counted, 0.0)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None]:
        logits, picked, counted, totals = ctx.saved_tensors
        written = logits.detach()
        weights = grads.where(counted, 0.0)
        for rows, total, weight in zip(
            written.split(_ROWS), totals.split(_ROWS), weights.split(_ROWS), strict=True
        ):
            rows.sub_(total[:, None]).exp_().mul_(weight[:, None])
        written.scatter_add_(1, picked[:, None], -weights[:, None])
        return written, None, None
