"""Dropout masks that all sentences share, and a round that holds them.

Chunks depend on who else was drawn and on the lengths of their texts. So a round draws such masks
once, not for every chunk: no update may depend on another user (`docs/privacy.md`, section 5).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from uedp.errors import UserError


def draw_mask(shape: Sequence[int], rate: float, like: Tensor) -> Tensor:
    """Zero with probability `rate`, and elsewhere the value that keeps the mean at one."""
    return nn.functional.dropout(torch.ones(shape, dtype=like.dtype, device=like.device), rate)


class SharedMask(nn.Module):
    """A mask for all sentences: drawn for each pass, or once within `held_masks`.

    A layer whose weight is multiplied by one must name it `clip_mask`, for its clip rule.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.held = False
        self.kept: Tensor | None = None
        self.last: Tensor | None = None

    @property
    def drops(self) -> bool:
        return self.training and self.rate > 0

    def forward(self, shape: Sequence[int], like: Tensor) -> Tensor | None:
        """The mask of this pass, None if nothing is dropped."""
        if not self.drops:
            self.last = None
            return None
        if torch._C._are_functorch_transforms_active():
            # a mask per user, which does not exist outside of the transform
            return draw_mask(shape, self.rate, like)
        if self.kept is None:
            with torch._C.DisableTorchFunction():  # it is held: `deterministic` need not count it
                self.last = draw_mask(shape, self.rate, like)
        else:
            self.last = self.kept
        self.kept = self.last if self.held else None
        return self.last.to(like)


def shared_masks(model: nn.Module) -> list[SharedMask]:
    return [module for module in model.modules() if isinstance(module, SharedMask)]


@contextmanager
def held_masks(masks: Sequence[SharedMask]) -> Iterator[None]:
    """Hold the masks that sentences share, from their first draw on.

    Guarantees:
      - inside, all passes use the same shared masks; afterwards, fresh ones are drawn
      - masks of single sentences are always fresh
    """
    for mask in masks:
        mask.held, mask.kept = True, None
    try:
        yield
    finally:
        for mask in masks:
            mask.held, mask.kept = False, None


def refuse_unheld(masks: Sequence[SharedMask]) -> None:
    if any(mask.drops and not mask.held for mask in masks):
        raise UserError(
            "dropout masks that all sentences share would change from chunk to chunk; compute the "
            "chunks of a round within `engine.one_round()`"
        )
