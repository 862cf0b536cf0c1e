"""Runs of several processes or owners: each clips the updates of a part of the drawn users."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from uedp.errors import UserError

if TYPE_CHECKING:
    from torch import nn


FEDERATION = "federation.npz"
"""The clients of a federation, in its folder."""


def is_federation(folder: Path) -> bool:
    return (folder / FEDERATION).is_file()


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


def require_flower() -> None:
    """Refuse if Flower is not installed; keep it from calling its makers.

    Called before Flower is imported, which reads the environment then.
    """
    if find_spec("flwr") is None:
        raise UserError("Flower is not installed; run `pip install 'uedp[federated]'`")
    for name, value in FLOWER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise it warns
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
