"""Clip twice in one forward and one backward pass: book-keeping.

Hooks record every trainable layer's input and output gradient; ordinary weight gradients are never
formed. From the records come, layer by layer, the inner products between the gradients of each
user's sentences. These give all norms: the diagonal those of sentences, and with the sentences'
clip factors on both sides those of users. One weighted product per layer then gives the sum.

Factors divide by upper bounds of the norms: `rounding` says what may have been hidden.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.mechanism.clip.deterministic import (
    WithoutChance,
    kept_by,
    refuse_kept,
    refuse_layer_drop,
    stateful,
    training_without_chance,
)
from uedp.mechanism.clip.kernels import norm_gradients
from uedp.mechanism.clip.kinds import PRODUCTS, epsilon_of, kind_of, trainable_layers
from uedp.mechanism.clip.layout import Allowances, Grams, Layout
from uedp.mechanism.clip.masked import MaskedProduct
from uedp.mechanism.clip.recording import (
    OverwrittenError,
    Record,
    Recording,
    recording,
)
from uedp.mechanism.clip.rounding import exact_float32
from uedp.mechanism.clip.rules import (
    Explicit,
    Lookup,
    MatrixProducts,
    ProductsByUser,
    Rule,
    StackedProducts,
    TiedLookup,
    Weight,
)
from uedp.mechanism.clip.shared import held_masks, mask_of, refuse_unheld, shared_masks
from uedp.mechanism.packing import PackedLosses, loss_values


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a chunk's twice-clipped updates, and how far the clips reached (private).

    Norms are before the clip they are held against, as computed: one per sentence as the caller
    numbered them, one per user that has a sentence, by its number.
    """

    gradients: Mapping[nn.Parameter, Tensor]
    sentence_norms: Tensor
    user_norms: Tensor
    allowances: Allowances
    """Of users: what their norms may be beyond `user_norms`."""


Losses = Callable[[Sequence[int]], Tensor | PackedLosses]


class Engine:
    """Computes clipped sums for one model.

    Guarantees:
      - a model that cannot be clipped is refused before anything is computed
      - the sum is that of `reference.clipped_sum`, up to rounding
      - no sentence is added longer than its clip, and no user than the update clip,
        whatever cancels between tokens, in float32 and in half precision
      - a sentence whose gradient is not finite contributes nothing
      - chunks whose sentences share a dropout mask are refused outside of `one_round`
      - a pass that changes a parameter or a buffer of the model is refused
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers = trainable_layers(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._uses = Counter(
            p for layer in self._layers.values() for p in layer.parameters(recurse=False)
        )
        self._hooked: set[str] = set()
        self._shared = shared_masks(model)

    def one_round(self) -> AbstractContextManager[None]:
        """Within, chunks belong to one round: masks that sentences share are drawn once."""
        return held_masks(self._model)

    def clipped_sum(
        self,
        losses: Losses,
        owners: Sequence[int],
        sentence_clips: Tensor,
        update_clip: float,
    ) -> ClippedSum:
        """One chunk: `losses(order)` gives the loss of each sentence, in the order asked for.

        If it gives them `PackedLosses`, sentences share rows; otherwise each has a row of its own.

        `owners[i]` is the user of sentence `i`.
        """
        refuse_unheld(self._shared)
        layout = Layout.of(owners)
        # every index is made before the pass, so that nothing has to wait for the device after it
        device = self.parameters[0].device
        order = torch.tensor(layout.order, device=device)
        owner = torch.tensor(layout.owner, device=device)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=device)
        bounds = sentence_clips.to(device, torch.float64)[order]
        users = torch.tensor(layout.users, device=device)
        by_number = torch.argsort(users)
        made = self._pass(losses, layout)

        def summed(found: Mapping[str, Record]) -> ClippedSum:
            rules = self._rules(found, layout)
            grams = Grams(layout, owner, len(self._layers))
            for rule in rules:
                rule.add_products(grams)
            sentence_squares = grams.sentence_squares()
            factors = _factors(grams.sentence_bounds(sentence_squares), bounds)
            squares = grams.user_squares(factors)
            for rule in rules:
                rule.add_user_squares(squares, layout, factors.float())
            squares.clamp_(min=0)
            allowances = grams.user_allowances(factors)
            shares = _factors(allowances.bound(squares), update_clip)
            weight = (factors * shares[owner]).mul_(_DOWN).float()
            total: dict[nn.Parameter, Tensor] = {}
            for rule in rules:
                total.update(rule.weighted(weight))
            norms, user_norms = sentence_squares.sqrt().float(), squares.sqrt().float()
            return ClippedSum(total, norms[place], user_norms[by_number], allowances[by_number])

        with torch.no_grad(), exact_float32():
            result = summed(made.records)
        broken = ~torch.isfinite(result.sentence_norms)[order]
        recompute = made.packed.recompute if made.packed is not None else None
        if recompute is not None and broken.any():
            # attention multiplies by zero what it does not let through, and zero times what is not
            # finite is not zero: the row's other sentences must not suffer for it
            made = self._pass(lambda _: recompute(), layout)
            with torch.no_grad(), exact_float32():
                result = summed(made.records)
            broken = ~torch.isfinite(result.sentence_norms)[order]
        if broken.any():  # rare: take these sentences out and begin again
            with torch.no_grad(), exact_float32():
                result = summed({n: record.without(broken) for n, record in made.records.items()})
        return result

    def check(self, losses: Losses, sentences: int, half: bool = False) -> None:
        """Try a few sentences, with nothing left to chance, before they are trusted to the rules.

        In evaluation mode, and in training mode, in which some layers do something else; one by
        one, together, and many times over. `half` says that passes are in half precision.

        Guarantees:
          - a loss of one sentence that depends on others is refused
          - a model in which a sentence's gradient is taken for another's is refused
          - a model in which a weight is also used outside its layer is refused, by its name
          - a model that skips layers by chance, draws random numbers that sentences share, or
            keeps something of what it has read is refused
        """
        refuse_layer_drop(self._model)
        with evaluating(self._model):
            self._try(losses, sentences, None, half)
        with training_without_chance(self._model) as chance, self.one_round():
            self._try(losses, sentences, chance, half)

    def _try(
        self, losses: Losses, sentences: int, chance: WithoutChance | None, half: bool
    ) -> None:
        half = half or any(p.dtype in _HALVES for p in self._model.parameters())
        close = 0.02 if half else 2e-3

        def computed(order: Sequence[int]) -> Tensor:
            if chance is not None:
                chance.of(len(order))
            return loss_values(losses(order))

        computed(range(sentences))  # what a model keeps of its first pass is not a text's
        before, kept = self._state(), kept_by(self._model)
        together = computed(range(sentences))
        each = [computed([i]) for i in range(sentences)]
        with torch.no_grad():
            again, many = computed(range(sentences)), computed([*range(sentences)] * _CROWD)
        self._refuse_changes(before)
        refuse_kept(self._model, kept)
        true_norms = torch.stack([self._norm(loss) for loss in each])
        alone = torch.cat(each).detach()
        if not torch.allclose(again, together, rtol=1e-3, atol=1e-3):
            raise UserError(
                "the loss of a sentence changes from one pass to the next: the model draws random "
                "numbers of its own, or keeps something of what it has read"
            )
        for losses_, true in ((together, alone), (many, alone.repeat(_CROWD))):
            if not torch.allclose(losses_, true, rtol=close, atol=close):
                raise UserError(
                    "the loss of a sentence changes with the sentences beside it; it must depend "
                    "on that sentence and the weights alone"
                )
        if chance is not None:
            chance.refuse_shared(sentences, sentences * _CROWD)
            chance.of(sentences)
        expected = torch.autograd.grad(together.sum(), self.parameters, allow_unused=True)
        unclipped = torch.full((sentences,), torch.inf)
        clipped = self.clipped_sum(losses, [0] * sentences, unclipped, torch.inf)
        found, norms = clipped.gradients, clipped.sentence_norms.to(true_norms)
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        scale = torch.stack([g.norm() for g in expected if g is not None]).norm()
        for parameter, gradient in zip(self.parameters, expected, strict=True):
            ours = found.get(parameter, torch.zeros_like(parameter))
            true = torch.zeros_like(parameter) if gradient is None else gradient
            if (ours - true).norm() > 0.05 * true.norm() + 0.002 * scale:
                raise UserError(
                    f"the gradient of {names[parameter]} is not what its layer's rule gives; it is "
                    "used in a way no rule covers: freeze it (requires_grad_(False))"
                )
        if ((norms - true_norms).abs() > 0.05 * true_norms + 0.02 * true_norms.max()).any():
            raise UserError(
                "the gradients of sentences are not what the layers' rules give one by one: some "
                "layer does not compute sentence by sentence; freeze it (requires_grad_(False))"
            )

    def _state(self) -> dict[str, tuple[int, int]]:
        """Which tensor every parameter and buffer is, and how often it was written to."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return {name: (id(tensor), tensor._version) for name, tensor in named}

    def _refuse_changes(self, before: Mapping[str, tuple[int, int]]) -> None:
        """A pass that leaves something behind carries one user's text to others, unclipped."""
        for name, state in self._state().items():
            if state != before.get(name):
                raise stateful(name)

    def _norm(self, loss: Tensor) -> Tensor:
        """Of a loss's gradient, by ordinary means."""
        found = torch.autograd.grad(loss.sum(), self.parameters, allow_unused=True)
        parts = [g.detach().float().norm() for g in found if g is not None]
        return torch.stack(parts).norm() if parts else torch.zeros((), device=loss.device)

    def _recording(self, sentences: int) -> AbstractContextManager[Recording]:
        return recording(self._layers, self.parameters, sentences, self._hooked)

    def _pass(self, losses: Losses, layout: Layout) -> Recording:
        """Forward and backward, once; twice where a model is found to overwrite outputs."""
        before = self._state()
        try:
            with self._recording(layout.sentences) as made:
                with exact_float32():  # coarser products differ more from batch to batch
                    found = losses(layout.order)
                per_sentence = loss_values(found)
                if isinstance(found, PackedLosses):
                    made.packed = found
                if per_sentence.shape != (layout.sentences,):
                    raise UserError(
                        f"the loss has shape {tuple(per_sentence.shape)} where one value per "
                        f"sentence, ({layout.sentences},), is needed; return it unreduced"
                    )
                with exact_float32():
                    per_sentence.sum().backward()
        except OverwrittenError as changed:
            self._hooked |= changed.layers
            return self._pass(losses, layout)
        self._refuse_changes(before)
        return made

    def _rules(self, records: Mapping[str, Record], layout: Layout) -> list[Rule]:
        """A rule for every trainable parameter that was used."""
        rules: list[Rule] = []
        explicit = Explicit()
        tied: dict[nn.Parameter, list[Lookup | MatrixProducts]] = defaultdict(list)
        readers: dict[tuple[Any, ...], list[_Layer]] = defaultdict(list)
        for name, module in self._layers.items():
            if name not in records:
                continue
            kind, record = kind_of(module), records[name]
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            if _trains(bias):
                grads = record.unpacked(with_inputs=False).grads
                explicit.add(bias, grads.sum(1, dtype=torch.float32))
            if not _trains(weight):
                continue
            mask = mask_of(module)
            multiplies = mask is None and kind in (*PRODUCTS, "masked")
            if multiplies and self._uses[weight] == 1:
                formed = weight.numel() <= _FORMED
                readers[*record.source, formed].append(_Layer(weight, record, kind == "conv1d"))
                continue
            found = record.unpacked()
            if mask is not None:
                rules.append(MaskedProduct(weight, found.inputs, found.grads, mask))
            elif multiplies:
                part = Weight(weight, found.grads, inputs_first=kind == "conv1d")
                tied[weight].append(MatrixProducts(found.inputs, [part]))
            elif kind == "embedding":
                lookup = Lookup(weight, found.inputs, found.grads)
                if self._uses[weight] > 1:
                    tied[weight].append(lookup)
                else:
                    rules.append(lookup)
            else:
                centred = kind == "layer norm"
                gradients = norm_gradients(found.inputs, found.grads, epsilon_of(module), centred)
                explicit.add(weight, gradients)
        rules.extend(_tied(parts) for parts in tied.values())
        alike: dict[tuple[Any, ...], list[list[_Layer]]] = defaultdict(list)
        for group in readers.values():
            alike[_signature(group)].append(group)
        for layers in alike.values():
            way = _cheapest(layers[0], layout)
            for some in _stacks(layers, way):
                # only now are sentences that share rows laid out, for these layers alone
                products = [_products(group, way == "explicit") for group in some]
                one = products[0] if len(products) == 1 else StackedProducts(products)
                if way == "explicit":
                    one.explicit(explicit, some[0][0].record.by_sentence)
                elif way == "by user":
                    rules.append(ProductsByUser(products[0].inputs, products[0].weights))
                else:
                    rules.append(one)
        return [*rules, explicit]


_HALVES = (torch.bfloat16, torch.float16)
_CROWD = 16  # times over that the sentences of a try are computed together


class _Layer(NamedTuple):
    """A weight matrix of its own, and what its layer saw."""

    weight: nn.Parameter
    record: Record
    inputs_first: bool

    @property
    def widths(self) -> tuple[int, int]:
        return self.record.inputs.shape[-1], self.record.grads.shape[-1]


def _signature(group: Sequence[_Layer]) -> tuple[Any, ...]:
    """The same for layers, each with those that read the same, that can be computed together."""
    of_layers = ((*layer.widths, layer.record.grads.dtype, layer.inputs_first) for layer in group)
    return (group[0].record.shape, group[0].record.inputs.dtype, *of_layers)


def _products(group: Sequence[_Layer], in_pieces: bool) -> MatrixProducts:
    records = [
        layer.record.in_pieces(layer is group[0])
        if in_pieces
        else layer.record.unpacked(layer is group[0])
        for layer in group
    ]
    return MatrixProducts(
        records[0].inputs,
        [
            Weight(layer.weight, record.grads, layer.inputs_first)
            for layer, record in zip(group, records, strict=True)
        ],
    )


_DOWN = 1 - 2.0**-22  # casting weights to float32 must not round them up


def _factors(norms: Tensor, clips: Tensor | float) -> Tensor:
    """Projection onto a ball: `min(1, clip / norm)`; nothing of what has no finite norm."""
    factors = (clips / norms.clamp(min=1e-300)).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), factors, 0.0)


def _trains(parameter: Any) -> TypeGuard[nn.Parameter]:
    return isinstance(parameter, nn.Parameter) and parameter.requires_grad


def _tied(parts: Sequence[Lookup | MatrixProducts]) -> Rule:
    if len(parts) == 1:  # the other use was not part of this pass
        return parts[0]
    (lookup,) = (part for part in parts if isinstance(part, Lookup))
    (head,) = (part for part in parts if isinstance(part, MatrixProducts))
    return TiedLookup(lookup, head)


# Multiplications that take as long as moving one number to memory and back, and as starting one
# small operation after another.
_TRAFFIC = {"cuda": 500, "cpu": 20}
_START = {"cuda": 5e9, "cpu": 5e5}

# Entries of a weight up to which a gradient per sentence is formed. Decided by the weight alone:
# what is allowed for rounding differs, and must not change with the batch.
_FORMED = 1 << 15

# Inputs of a layer larger than this, in bytes, keep a device busy by themselves; more in a stack
# than that would cost too much memory.
_SMALL = {"cuda": 1 << 25, "cpu": 1 << 16}
_STACK = {"cuda": 1 << 29, "cpu": 1 << 22}

Way = Literal["grams", "by user", "explicit"]


def _cheapest(group: Sequence[_Layer], layout: Layout) -> Way:
    """How to get norms of the gradients of weights that read one input, for the average user."""
    (_, each), width = group[0].record.shape, group[0].widths[0]
    outputs = sum(layer.widths[1] for layer in group)
    if group[0].weight.numel() <= _FORMED:  # as those it is grouped with
        return "explicit"
    tokens = layout.sentences / len(layout.users) * each
    device = group[0].record.grads.device.type
    traffic = _TRAFFIC.get(device, 100)
    starts = len(group) * _START.get(device, 5e5)  # users come one by one
    by_grams = tokens**2 * (width + outputs + traffic)
    by_user = tokens * each * (width + outputs) + width * outputs * (tokens + traffic) + starts
    return "grams" if by_grams <= by_user else "by user"


def _stacks(layers: Sequence[Sequence[_Layer]], way: Way) -> Iterator[Sequence[Sequence[_Layer]]]:
    """Layers alike in groups to be computed together; one by one where that gains nothing."""
    first = layers[0][0]
    record = first.record
    rows, tokens = record.shape_in_pieces if way == "explicit" else record.shape
    size = rows * tokens * first.widths[0] * first.record.inputs.element_size()
    device = first.record.grads.device.type
    device = device if device in _SMALL else "cpu"
    turned = way == "explicit" and any(layer.inputs_first for layer in layers[0])
    each = 1
    if size <= _SMALL[device] and way != "by user" and not turned:
        each = max(1, _STACK[device] // max(size, 1))
    for start in range(0, len(layers), each):
        yield layers[start : start + each]
