"""Which layers can be clipped, and by which rule."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import nn

from uedp.errors import UserError
from uedp.mechanism.clip.shared import SharedMask

PRODUCTS = ("linear", "conv1d")
TIED = ["embedding", "linear"]


def kind_of(module: nn.Module) -> str | None:
    """The kind of a layer that owns parameters, None if there is no rule for it."""
    # a subclass that computes something else is none of these, whatever it inherits
    for kind, base in (
        ("linear", nn.Linear),
        ("embedding", nn.Embedding),
        ("layer norm", nn.LayerNorm),
    ):
        if isinstance(module, base):
            return kind if type(module).forward is base.forward else None
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return "conv1d"
    if type(module).__name__.endswith("RMSNorm"):
        return "rms norm"
    if isinstance(getattr(module, "clip_mask", None), SharedMask):
        return "masked"
    return None


def epsilon_of(norm: nn.Module) -> float | None:
    """What a norm adds to the variance; Transformers' families name it differently."""
    found: float | None = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return found


def trainable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that own trainable parameters, each of a kind there is a rule for.

    Guarantees:
      - a trainable layer without a rule, and a layer that mixes sentences, are refused by name
      - a layer known only by its class's name is tried: one that computes something else is refused
    """
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(f"layer {name} ({type(module).__name__}) mixes sentences; replace it")
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        kind = kind_of(module)
        if kind is None or (kind in ("rms norm", "conv1d") and not _is_what_it_is_called(module)):
            raise UserError(
                f"layer {name} ({type(module).__name__}) is trainable but has no clip rule; "
                "freeze it (requires_grad_(False)) or add a rule"
            )
        layers[name] = module
    if not layers:
        raise UserError("the model has no trainable parameters; unfreeze some")
    _refuse_other_sharing(layers)
    return layers


def _refuse_other_sharing(layers: Mapping[str, nn.Module]) -> None:
    """Of shared parameters, only an embedding that is also an output head can be clipped."""
    users: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, module in layers.items():
        for parameter in module.parameters(recurse=False):
            users[parameter].append(name)
    for names in users.values():
        if len(names) > 1 and sorted(str(kind_of(layers[n])) for n in names) != TIED:
            raise UserError(
                f"layers {' and '.join(names)} share a parameter in a way no rule covers; "
                "untie or freeze it"
            )


def _is_what_it_is_called(module: nn.Module) -> bool:
    """Whether the gradient of a small random input is the one the rule would give."""
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    if weight.is_meta:
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, weight.shape[0], generator=generator).to(weight.device)
    with torch.enable_grad(), torch.autocast(weight.device.type, enabled=False):
        output = module(x.to(weight.dtype))
        seed = torch.randn(output.shape, generator=generator).to(output)
        (found,) = torch.autograd.grad((output * seed).sum(), weight)
    if kind_of(module) == "conv1d":
        expected = x[0].t().double() @ seed[0].double()
    else:
        normalised = nn.functional.rms_norm(x[0].double(), x.shape[-1:], eps=epsilon_of(module))
        expected = (normalised * seed[0]).sum(0)
    tolerance = 1e-4 if weight.dtype in (torch.float32, torch.float64) else 0.05
    return bool(torch.allclose(found.double(), expected, rtol=tolerance, atol=tolerance))
