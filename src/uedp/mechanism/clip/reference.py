"""The oracle: what the engine must equal, one sentence at a time in float64."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def clipped_sum(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    owners: Sequence[int],
    sentence_clips: Sequence[float],
    update_clip: float,
) -> tuple[list[Tensor], Tensor]:
    """The sum over users of their twice-clipped updates, and the norms of sentences.

    `loss_of(i)` is the loss of sentence `i` alone; the model should be in float64.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    totals = [torch.zeros_like(p) for p in parameters]
    norms = torch.zeros(len(owners), dtype=torch.float64)
    for user in sorted(set(owners)):
        update = [torch.zeros_like(p) for p in parameters]
        for sentence in (i for i, owner in enumerate(owners) if owner == user):
            # materialized: zero where a parameter is not used
            gradient = torch.autograd.grad(loss_of(sentence), parameters, materialize_grads=True)
            norms[sentence] = _norm(gradient)
            factor = min(1.0, sentence_clips[sentence] / max(float(norms[sentence]), 1e-300))
            update = [u + factor * g for u, g in zip(update, gradient, strict=True)]
        factor = min(1.0, update_clip / max(_norm(update), 1e-300))
        totals = [t + factor * u for t, u in zip(totals, update, strict=True)]
    return totals, norms


def _norm(parts: Sequence[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in parts]).norm())
