"""Context managers for the training and evaluation modes of a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def modes_kept(model: "nn.Module") -> Iterator[None]:
    """Restore the mode of every module after the block."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def evaluating(model: "nn.Module") -> Iterator[None]:
    """Put a model in evaluation mode for the block."""
    with modes_kept(model):
        model.eval()
        yield
