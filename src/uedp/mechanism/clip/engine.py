"""Clip twice in one forward and one backward pass: book-keeping.

Hooks record every trainable layer's input and output gradient; ordinary weight gradients are never
formed. From the records come, layer by layer, the inner products between the gradients of each
user's sentences. These give all norms: the diagonal those of sentences, and with the sentences'
clip factors on both sides those of users. One weighted product per layer then gives the sum.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip.layout import Grams, Layout
from uedp.mechanism.clip.rules import Explicit, Lookup, MatrixProduct, Record, Rule, TiedLookup


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a chunk's twice-clipped updates, and how far the clips reached (private)."""

    gradients: Mapping[nn.Parameter, Tensor]
    sentence_norms: Tensor
    user_norms: Tensor


class Engine:
    """Computes clipped sums for one model.

    Guarantees:
      - a trainable parameter for which there is no rule, and a layer that mixes sentences, are
        refused by name before anything is computed
      - the sum is that of `reference.clipped_sum`, up to rounding
      - a sentence whose gradient is not finite contributes nothing
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers = _layers(model)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self._model.parameters() if p.requires_grad]

    def clipped_sum(
        self,
        losses: Callable[[Sequence[int]], Tensor],
        owners: Sequence[int],
        sentence_clips: Tensor,
        update_clip: float,
        user_weights: Tensor,
    ) -> ClippedSum:
        """One chunk: `losses(order)` gives the loss of each sentence, in the order asked for.

        `owners[i]` is the user of sentence `i`, `user_weights[u]` (at most 1) that of user `u`.
        """
        layout = Layout.of(owners)
        with _recording(self._model, self._layers, layout.sentences) as records:
            per_sentence = losses(layout.order)
            if per_sentence.shape != (layout.sentences,):
                raise UserError(
                    f"the loss has shape {tuple(per_sentence.shape)} where one value per sentence, "
                    f"({layout.sentences},), is needed; return it unreduced"
                )
            per_sentence.sum().backward()
        rules, grams = _products(self._layers, records, layout)
        norms = grams.sentence_norms()
        broken = ~torch.isfinite(norms)
        if broken.any():  # rare: take these sentences out and begin again
            for record in records.values():
                record.drop(broken)
            rules, grams = _products(self._layers, records, layout)
            norms = grams.sentence_norms()
        order = torch.tensor(layout.order, device=norms.device)
        factors = _factors(norms, sentence_clips.to(norms.device)[order])
        user_norms = grams.user_norms(factors)
        scale = _factors(user_norms, update_clip)
        weights = user_weights.to(norms.device)[torch.tensor(layout.users, device=norms.device)]
        weight = factors * grams.per_sentence(scale * weights)
        total: dict[nn.Parameter, Tensor] = {}
        for rule in rules:
            total.update(rule.weighted(weight))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return ClippedSum(total, norms[back], user_norms)


def _factors(norms: Tensor, bounds: Tensor | float) -> Tensor:
    """Projection onto a ball: `min(1, bound / norm)`."""
    return (bounds / norms.clamp(min=1e-30)).clamp(max=1.0)


def _products(
    layers: Mapping[str, nn.Module], records: Mapping[str, Record], layout: Layout
) -> tuple[list[Rule], Grams]:
    rules = [*_rules(layers, records, layout)]
    grams = Grams(layout, next(iter(records.values())).grads.device)
    for rule in rules:
        rule.add_products(grams)
    return rules, grams


# --- which layer gets which rule -----------------------------------------------------------------


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that own trainable parameters, each of a kind there is a rule for."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(f"layer {name} ({type(module).__name__}) mixes sentences; replace it")
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        if _kind(module) is None:
            raise UserError(
                f"layer {name} ({type(module).__name__}) is trainable but has no clip rule; "
                "freeze it (requires_grad_(False)) or add a rule"
            )
        layers[name] = module
    if not layers:
        raise UserError("the model has no trainable parameters; unfreeze some")
    return layers


_PRODUCTS = ("linear", "conv1d")


def _kind(module: nn.Module) -> str | None:
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
    return None


def _rules(
    layers: Mapping[str, nn.Module], records: Mapping[str, Record], layout: Layout
) -> Iterator[Rule]:
    uses = Counter(p for module in layers.values() for p in module.parameters(recurse=False))
    by_parameter: dict[nn.Parameter, list[Rule]] = defaultdict(list)
    for name, module in layers.items():
        if name in records:
            for parameter, rule in _rules_of(module, records[name], layout, uses):
                by_parameter[parameter].append(rule)
    for parameter, rules in by_parameter.items():
        if len(rules) == 1:
            yield rules[0]
            continue
        lookups = [r for r in rules if isinstance(r, Lookup)]
        heads = [r for r in rules if isinstance(r, MatrixProduct)]
        if len(rules) != 2 or len(lookups) != 1 or len(heads) != 1:
            raise UserError(
                f"a parameter of shape {tuple(parameter.shape)} is shared in a way no rule covers"
            )
        yield TiedLookup(lookups[0], heads[0])


def _rules_of(
    module: nn.Module, record: Record, layout: Layout, uses: Mapping[nn.Parameter, int]
) -> Iterator[tuple[nn.Parameter, Rule]]:
    kind, x, grad = _kind(module), record.inputs, record.grads
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter) and bias.requires_grad:
        yield bias, Explicit({bias: grad.sum(1, dtype=torch.float32)})
    if not (isinstance(weight, nn.Parameter) and weight.requires_grad):
        return
    if kind == "embedding":
        yield weight, Lookup(weight, x, grad)
    elif kind in _PRODUCTS:
        left, right = (grad, x) if kind == "linear" else (x, grad)
        # a tied weight meets its other part token by token
        as_grams = uses[weight] > 1 or _grams_are_cheaper(weight, left, layout)
        yield (
            weight,
            (
                MatrixProduct(weight, left, right)
                if as_grams
                else Explicit({weight: left.float().transpose(1, 2) @ right.float()})
            ),
        )
    elif kind == "layer norm":
        shape = module.normalized_shape
        hat = nn.functional.layer_norm(x.float(), shape, eps=module.eps)  # type: ignore[arg-type]
        yield weight, Explicit({weight: (grad.float() * hat).sum(1)})
    else:
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6))
        hat = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
        yield weight, Explicit({weight: (grad.float() * hat).sum(1)})


# Multiplications that take as long as moving one number to memory and back.
_TRAFFIC = {"cuda": 500, "cpu": 20}


def _grams_are_cheaper(parameter: nn.Parameter, left: Tensor, layout: Layout) -> bool:
    """Than gradients per sentence, for the average user."""
    sentences = layout.sentences / len(layout.users)
    tokens = sentences * left.shape[1]
    rows, columns = parameter.shape
    grams = tokens**2 * (rows + columns)
    explicit = rows * columns * (tokens + sentences * _TRAFFIC.get(left.device.type, 100))
    return grams <= explicit


# --- recording -----------------------------------------------------------------------------------


@contextmanager
def _recording(
    model: nn.Module, layers: Mapping[str, nn.Module], sentences: int
) -> Iterator[dict[str, Record]]:
    """Hooks on, weight gradients off; on leaving, the records are filled and all is as before."""
    calls: dict[str, list[list[Tensor | None]]] = {name: [] for name in layers}
    records: dict[str, Record] = {}
    trainable = [p for p in model.parameters() if p.requires_grad]
    handles = [
        module.register_forward_hook(_recorder(calls[name], sentences))
        for name, module in layers.items()
    ]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield records
        for name, seen in calls.items():
            complete = [(x, grad) for x, grad in seen if x is not None and grad is not None]
            if complete:
                records[name] = _joined(complete, sentences)
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()


def _recorder(calls: list[list[Tensor | None]], sentences: int) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        x = arguments[0].detach()
        if x.is_floating_point() and output.is_floating_point() and _kind(module) in _PRODUCTS:
            x = x.to(output.dtype)  # what autocast multiplied, not what it was handed
        if output.shape[0] == 1 and sentences > 1:
            # positions are looked up once for all; each sentence needs a gradient of its own
            x = x.expand(sentences, *x.shape[1:])
            output = output.expand(sentences, *output.shape[1:])
        call: list[Tensor | None] = [x, None]
        calls.append(call)
        if not output.requires_grad:  # nothing trainable lies before: gradients begin here
            output = output.detach().requires_grad_(True)
        output.register_hook(lambda grad: call.__setitem__(1, grad.detach()))
        return output

    return hook


def _joined(calls: Sequence[tuple[Tensor, Tensor]], sentences: int) -> Record:
    """Inputs and gradients as (sentences, tokens, features), several calls end to end.

    Rows that a model flattened are sentence after sentence; a vector per sentence is one token.
    """
    inputs = [x.reshape(sentences, -1, *x.shape[grad.dim() - 1 :]) for x, grad in calls]
    grads = [grad.reshape(sentences, -1, grad.shape[-1]) for _, grad in calls]
    if len(calls) == 1:  # the usual case, and no copy
        return Record(inputs[0], grads[0])
    return Record(torch.cat(inputs, 1), torch.cat(grads, 1))
