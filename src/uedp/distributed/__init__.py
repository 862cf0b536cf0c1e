"""Runs of several processes or owners: each clips the updates of a part of the drawn users."""

import os
from typing import TYPE_CHECKING

from uedp.errors import UserError

if TYPE_CHECKING:
    from torch import nn


def started_together() -> bool:
    """Whether `torchrun` started this process with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def refuse_shared_masks(model: "nn.Module") -> None:
    """Refuse a model in training mode with dropout masks that all sentences of a round share."""
    from uedp.mechanism.clip.shared import shared_masks

    model.train()
    if any(mask.drops for mask in shared_masks(model)):
        raise UserError(
            "model.dropout: this model drops weights for all sentences of a round at once, which "
            "several processes or clients cannot agree on; set it to 0"
        )
