"""Clip rules by layer type. Anyone can register one: see `docs/adding-a-layer.md`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import nn

from uedp.errors import UserError
from uedp.mechanism.clip.records import Record
from uedp.mechanism.clip.rules import Contribution

# A class whose instances are `ClipRule`s, or a generator of contributions.
LayerRule = Callable[[Any, Record], Contribution | Iterable[Contribution]]
_LayerRule = TypeVar("_LayerRule", bound=LayerRule)


class RegisteredRule(NamedTuple):
    """`casts_input`: under autocast the layer casts its input, which layers may share."""

    rule: LayerRule
    casts_input: bool


class ClippedLayer(NamedTuple):
    """A layer with trainable parameters, and its rule."""

    module: nn.Module
    registered: RegisteredRule

    def contributions(self, record: Record) -> Iterable[Contribution]:
        result = self.registered.rule(self.module, record)
        return (result,) if isinstance(result, Contribution) else result


_BY_TYPE: dict[type[nn.Module], RegisteredRule] = {}
_BY_PREDICATE: list[tuple[Callable[[nn.Module], bool], RegisteredRule]] = []


def clip_rule(
    layer: type[nn.Module] | Callable[[nn.Module], bool], *, casts_input: bool = False
) -> Callable[[_LayerRule], _LayerRule]:
    """Register how the parameters of a type of layer are clipped.

    The decorated class or function takes a layer and the `Record` of a pass, and gives the
    contributions of the layer's trainable parameters: a `ClipRule`, or several.

    Args:
        layer: a class; its subclasses share the rule unless they override `forward`. Or a
            predicate, for layers without a common class.
        casts_input: whether autocast computes the layer in half precision, as it does for matrix
            products.

    Guarantees:
      - a rule does not replace another one's, except for itself when its file is run again
    """

    def register(rule: _LayerRule) -> _LayerRule:
        registered = RegisteredRule(rule, casts_input)
        if not isinstance(layer, type):
            _BY_PREDICATE.append((layer, registered))
            return rule
        present = _BY_TYPE.get(layer)
        if present is not None and _name(present.rule) != _name(rule):
            raise ValueError(f"{layer.__name__} has a clip rule already: {_name(present.rule)}")
        _BY_TYPE[layer] = registered
        return rule

    return register


def _name(rule: LayerRule) -> str:
    return f"{rule.__module__}.{rule.__qualname__}"


def find_rule(layer: nn.Module) -> RegisteredRule | None:
    """The rule for a layer, None if there is none."""
    for base in type(layer).__mro__:
        if base in _BY_TYPE:
            # a subclass that computes something else does not inherit the rule
            return _BY_TYPE[base] if type(layer).forward is base.forward else None
    return next((rule for applies, rule in _BY_PREDICATE if applies(layer)), None)


def trainable_layers(model: nn.Module) -> dict[str, ClippedLayer]:
    """Modules that own trainable parameters, each with its rule.

    Guarantees:
      - a trainable layer without a rule, and a layer that mixes sentences, are refused by name
    """
    refuse_mixing(model)
    layers: dict[str, ClippedLayer] = {}
    for name, module in model.named_modules():
        if not any(p.requires_grad for p in module.parameters(recurse=False)):
            continue
        registered = find_rule(module)
        if registered is None:
            raise UserError(
                f"layer {name} ({type(module).__name__}) is trainable but has no clip rule; "
                "freeze it (requires_grad_(False)) or register one with `@clip_rule`"
            )
        layers[name] = ClippedLayer(module, registered)
    if not layers:
        raise UserError("the model has no trainable parameters; unfreeze some")
    _refuse_other_sharing(layers)
    return layers


def refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            # its running averages would also carry one user's text to the next, unclipped
            raise UserError(f"layer {name} ({type(module).__name__}) mixes sentences; replace it")


def _refuse_other_sharing(layers: Mapping[str, ClippedLayer]) -> None:
    """Of shared parameters, only an embedding that is also an output head can be clipped."""
    users: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, layer in layers.items():
        for parameter in layer.module.parameters(recurse=False):
            users[parameter].append(name)
    for names in users.values():
        modules = [layers[name].module for name in names]
        tied = [sum(isinstance(m, kind) for m in modules) for kind in (nn.Embedding, nn.Linear)]
        if len(names) > 1 and (len(names) != 2 or tied != [1, 1]):
            raise UserError(
                f"layers {' and '.join(names)} share a parameter in a way no rule covers; "
                "untie or freeze it"
            )
