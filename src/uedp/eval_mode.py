"""Models in another mode for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def modes_kept(model: "nn.Module") -> Iterator[None]:
    """Afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def evaluating(model: "nn.Module") -> Iterator[None]:
    """Without dropout; afterwards every module is in the mode it was in."""
    with modes_kept(model):
        model.eval()
        yield
