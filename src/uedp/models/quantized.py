"""Linear layers that stay frozen, with weights of four bits, as in QLoRA (Dettmers et al. 2023)."""

from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError

_BLOCK = 64  # weights that share a scale


class QuantizedLinear(nn.Linear):
    """A frozen linear layer that stores its weight as 4-bit NormalFloats.

    Guarantees:
      - a row of its output depends on no other row, and rounds as a layer with the weight `weight`
    """

    def __init__(self, layer: nn.Linear) -> None:
        from bitsandbytes.functional import quantize_4bit

        nn.Module.__init__(self)  # there is no parameter `weight`
        self.in_features, self.out_features = layer.in_features, layer.out_features
        packed, state = quantize_4bit(
            layer.weight.detach().float(), blocksize=_BLOCK, quant_type="nf4"
        )
        self.register_buffer("packed", packed)
        self.register_buffer("scales", state.absmax)
        self.register_buffer("code", state.code)
        self.bias = layer.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight that four bits stand for, in float32; made anew every time."""
        from bitsandbytes.functional import QuantState, dequantize_4bit

        state = QuantState(
            self.scales.float(),
            torch.Size((self.out_features, self.in_features)),
            self.code.float(),
            _BLOCK,
            "nf4",
            torch.float32,
        )
        weight: Tensor = dequantize_4bit(self.packed, state)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        # bitsandbytes' own product takes other kernels for few rows, or without a gradient: a
        # sentence would round otherwise with the company it has
        product: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(product.dtype)


class _Product(torch.autograd.Function):
    """The product with a layer's weight, which is not kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad @ ctx.layer.weight.to(grad.dtype), None


def quantize_blocks(model: nn.Module, asked: str) -> None:
    """Replace the linear layers of a model's blocks by `QuantizedLinear`, in place.

    The embedding, the head and the norms stay as they are, in float32.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise UserError(
            f"{asked}: model.quantize needs bitsandbytes; install `uedp[quantize]`"
        ) from None
    found = [
        (module, name, child)
        for blocks in model.modules()
        if isinstance(blocks, nn.ModuleList)
        for module in blocks.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
    ]
    if not found:
        raise UserError(f"{asked}: {type(model).__name__} has no linear layers to quantize")
    for module, name, child in found:
        setattr(module, name, QuantizedLinear(child))
    model.float()
