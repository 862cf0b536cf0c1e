"""The rules of the layers that are known from the start."""

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.kernels import norm_gradients, normalised
from uedp.mechanism.clip.masked import MaskedProduct
from uedp.mechanism.clip.records import PackedRecord, Record
from uedp.mechanism.clip.registry import clip_rule
from uedp.mechanism.clip.rules import (
    Contribution,
    Lookup,
    MatrixWeight,
    PackedLookup,
    SentenceGradients,
)
from uedp.mechanism.clip.runs import sentence_sums
from uedp.mechanism.clip.shared import SharedMask


def _trains(parameter: Any) -> TypeGuard[nn.Parameter]:
    return isinstance(parameter, nn.Parameter) and parameter.requires_grad


def _bias(layer: nn.Module, record: Record) -> Iterator[Contribution]:
    bias = getattr(layer, "bias", None)
    if not _trains(bias):
        return
    if isinstance(record, PackedRecord) and record.stays_packed:
        yield SentenceGradients(bias, sentence_sums(record.grads, record.runs))
        return
    grads = record.unpacked(with_inputs=False).grads
    yield SentenceGradients(bias, grads.sum(1, dtype=torch.float32))


@clip_rule(nn.Linear, casts_input=True)
def linear(layer: nn.Module, record: Record, inputs_first: bool = False) -> Iterator[Contribution]:
    yield from _bias(layer, record)
    if _trains(layer.weight):
        yield MatrixWeight(layer.weight, record, inputs_first)


@clip_rule(nn.Embedding)
def embedding(layer: nn.Embedding, record: Record) -> Iterator[Contribution]:
    assert isinstance(layer.weight, nn.Parameter)
    if isinstance(record, PackedRecord) and record.stays_packed:
        yield PackedLookup(layer.weight, record)
        return
    unpacked = record.unpacked()
    yield Lookup(layer.weight, unpacked.inputs, unpacked.grads)


@clip_rule(nn.LayerNorm)
def layer_norm(layer: nn.Module, record: Record, centred: bool = True) -> Iterator[Contribution]:
    yield from _bias(layer, record)
    if not _trains(layer.weight):
        return
    if isinstance(record, PackedRecord) and record.stays_packed:
        products = normalised(record.inputs, _epsilon(layer), centred).mul_(record.grads)
        yield SentenceGradients(layer.weight, sentence_sums(products, record.runs))
    else:
        unpacked = record.unpacked()
        gradients = norm_gradients(unpacked.inputs, unpacked.grads, _epsilon(layer), centred)
        yield SentenceGradients(layer.weight, gradients)


def _epsilon(norm: nn.Module) -> float | None:
    """The constant added to the variance; Transformers' families name it differently."""
    epsilon: float | None = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return epsilon


# --- layers known by the name of their class, and tried ------------------------------------------


def _is_rms_norm(layer: nn.Module) -> bool:
    def expected(x: Tensor, grads: Tensor) -> Tensor:
        return (nn.functional.rms_norm(x, x.shape[-1:], eps=_epsilon(layer)) * grads).sum(0)

    return type(layer).__name__.endswith("RMSNorm") and _matches_expected_gradient(layer, expected)


@clip_rule(_is_rms_norm)
def rms_norm(layer: nn.Module, record: Record) -> Iterator[Contribution]:
    return layer_norm(layer, record, centred=False)


def _is_conv1d(layer: nn.Module) -> bool:
    """GPT-2's, from Transformers: a linear layer with its weight transposed."""
    named = type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
    return named and _matches_expected_gradient(layer, lambda x, grads: x.t() @ grads)


@clip_rule(_is_conv1d, casts_input=True)
def conv1d(layer: nn.Module, record: Record) -> Iterator[Contribution]:
    return linear(layer, record, inputs_first=True)


def _matches_expected_gradient(
    layer: nn.Module, expected: Callable[[Tensor, Tensor], Tensor]
) -> bool:
    """Whether the weight's gradient is as expected for a small random input, in float64."""
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    if weight.is_meta:
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, weight.shape[0], generator=generator).to(weight.device)
    variable = weight.detach().requires_grad_()  # it may be frozen, with a bias that trains
    with torch.enable_grad(), torch.autocast(weight.device.type, enabled=False):
        output = torch.func.functional_call(layer, {"weight": variable}, (x.to(weight.dtype),))
        grads = torch.randn(output.shape, generator=generator).to(output)
        (actual,) = torch.autograd.grad((output * grads).sum(), variable)
    tolerance = 1e-4 if weight.dtype in (torch.float32, torch.float64) else 0.05
    wanted = expected(x[0].double(), grads[0].double())
    return bool(torch.allclose(actual.double(), wanted, rtol=tolerance, atol=tolerance))


# --- a weight that is multiplied by a mask -------------------------------------------------------


def _has_masked_weight(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "clip_mask", None), SharedMask)


@clip_rule(_has_masked_weight)
def masked(layer: nn.Module, record: Record) -> Iterator[Contribution]:
    weight, mask = layer.weight, layer.clip_mask
    assert isinstance(weight, nn.Parameter)
    assert isinstance(mask, SharedMask)
    if mask.last is None:
        yield from linear(layer, record)
        return
    yield from _bias(layer, record)
    if weight.requires_grad:
        unpacked = record.unpacked()
        yield MaskedProduct(weight, unpacked.inputs, unpacked.grads, mask.last)
