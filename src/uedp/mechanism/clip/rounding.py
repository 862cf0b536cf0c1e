"""Bounds on the rounding of computed norms (`docs/privacy.md`, section 8).

Each rule states, for every sentence, a *mass*: `sum over tokens of |x_t| |o_t|`, which no rounding
can shrink by cancellation, and what fraction of it the error may be, of the squared norm (products
that cancel) and of the norm itself (values rounded again). This depends on a sentence and its user
alone, never on the batch: otherwise who else was drawn would move everybody's clip factor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_UNIT = 2.0**-23  # twice that of rounding to nearest: tensor cores may cut digits off
_SPARE = 8  # operations beside the long sums: casts, products, factors
SLICE = 256  # terms added up in float32 where a sum may be long
TINY = 2.0**-100  # squared, per feature: below it products underflow

# Relative error of a record times its sentence's weight: in float32, or in two bfloat16 of eight
# digits each, rounded or cut off.
SCALING_ERROR = 2.0**-15


def sum_error(terms: float | Tensor) -> Any:
    """The error of a sum of this many products, relative to the sum of their absolute values."""
    return (terms + _SPARE) * _UNIT


def block_sums(products: Tensor) -> Tensor:
    """(bins, i, s, j, t) summed over `s` and `t`, in float64; errs like a sum of `SLICE`."""
    parts = [part.sum(4).double().sum(2) for part in products.split(SLICE, 4)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def masses(inputs: Tensor, outputs: Tensor, features: int) -> Tensor:
    """From squared norms of tokens, (..., tokens), to their masses `|x_t| |o_t|`, rounded up.

    Squared norms that underflowed are raised by the most that may have been lost.
    """
    tiny = features * TINY
    return (inputs + tiny).sqrt_().mul_((outputs + tiny).sqrt_()).mul_(rounded_up(features))


def rounded_up(features: int) -> float:
    """A factor by which a mass is no smaller than it should be."""
    return max(1.01, 1 + 2 * features * _UNIT)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms over the last dimension, in float64; they err like a sum of `SLICE`."""
    whole = rows.shape[-1] // SLICE * SLICE
    parts = []
    if whole:
        slices = rows[..., :whole].unflatten(-1, (-1, SLICE))
        parts.append(torch.linalg.vector_norm(slices, dim=-1))
    if whole < rows.shape[-1]:
        parts.append(torch.linalg.vector_norm(rows[..., whole:], dim=-1)[..., None])
    if not parts:
        return rows.new_zeros(rows.shape[:-1], dtype=torch.float64)
    return torch.cat(parts, -1).double().square_().sum(-1)


@contextmanager
def exact_float32() -> Iterator[None]:
    """Float32 products in float32, whatever the process allows: no TF32, no halves."""
    backends: tuple[Any, ...] = (
        torch.backends.cuda.matmul,
        torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
    )
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
