"""From the contributions of single layers to few rules, each computed in large operations."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.layout import Layout
from uedp.mechanism.clip.records import PackedRecord
from uedp.mechanism.clip.rules import (
    ClipRule,
    Contribution,
    Explicit,
    Lookup,
    MatrixProducts,
    MatrixWeight,
    OutputGradients,
    PackedLookup,
    PackedProducts,
    ProductsByUser,
    SentenceGradients,
    TiedLookup,
)

# Multiplications that take as long as moving one number to memory and back, and as launching one
# small operation after another.
_TRAFFIC = {"cuda": 500, "cpu": 20}
_LAUNCH = {"cuda": 5e9, "cpu": 5e5}

# Entries of a weight up to which a gradient per sentence is formed. Decided by the weight alone:
# the allowance for rounding differs, and must not change with the batch.
FORMED = 1 << 15

# Inputs of a layer larger than this, in bytes, keep a device busy by themselves; a stack larger
# than that would cost too much memory.
_SMALL = {"cuda": 1 << 25, "cpu": 1 << 16}
_STACK = {"cuda": 1 << 29, "cpu": 1 << 22}

Way = Literal["grams", "by user", "explicit"]
Readers = Sequence[MatrixWeight]  # weights of layers that read the same input


def combined(contributions: Iterable[Contribution], layout: Layout) -> list[ClipRule]:
    """A rule for every parameter that was used: small ones together, similar layers together."""
    rules: list[ClipRule] = []
    explicit = Explicit()
    weights: dict[nn.Parameter, MatrixWeight] = {}
    lookups: dict[nn.Parameter, Lookup] = {}
    packed_lookups: list[PackedLookup] = []
    for part in contributions:
        if isinstance(part, SentenceGradients):
            explicit.add(part.parameter, part.gradients)
        elif isinstance(part, MatrixWeight):
            weights[part.parameter] = part
        elif isinstance(part, Lookup):
            lookups[part.parameter] = part
        elif isinstance(part, PackedLookup):
            packed_lookups.append(part)
        else:
            rules.append(part)
    rules += _packed(weights, packed_lookups)
    for parameter, lookup in lookups.items():
        head = weights.pop(parameter, None)
        rules.append(lookup if head is None else TiedLookup(lookup, _products([[head]])))
    readers: dict[tuple[Any, ...], list[MatrixWeight]] = defaultdict(list)
    for weight in weights.values():
        readers[*weight.record.source, weight.parameter.numel() <= FORMED].append(weight)
    alike: dict[tuple[Any, ...], list[Readers]] = defaultdict(list)
    for group in readers.values():
        alike[_signature(group)].append(group)
    for groups in alike.values():
        way = _cheapest(groups[0], layout)
        for stack in _stacks(groups, way):
            # only now are sentences that share rows laid out, for these layers alone
            if way == "explicit":
                if (spans := stack[0][0].record.spans) is not None:
                    explicit.form([weight for group in stack for weight in group], spans)
                    continue
                products = _products(stack, in_pieces=True)
                products.explicit(explicit, stack[0][0].record.by_sentence)
            else:
                rule = ProductsByUser if way == "by user" else MatrixProducts
                rules.append(_products(stack, rule))
    return [*rules, explicit]


def _packed(
    weights: dict[nn.Parameter, MatrixWeight], lookups: Sequence[PackedLookup]
) -> list[ClipRule]:
    """A rule for large weights whose records stay packed; these are taken out of `weights`."""
    large = [
        weight
        for weight in weights.values()
        if weight.record.stays_packed and weight.parameter.numel() > FORMED
    ]
    records = [weight.record for weight in large] + [lookup.record for lookup in lookups]
    rules = {}
    for record in records:
        assert isinstance(record, PackedRecord)
        rules[record.runs] = PackedProducts(record.runs)
    if not rules:
        return []
    (rule,) = rules.values()
    for lookup in lookups:
        rule.add_lookup(lookup, weights.pop(lookup.parameter, None))
    for weight in large:
        if weights.pop(weight.parameter, None) is not None:
            rule.add(weight)
    return [rule]


def _signature(group: Readers) -> tuple[Any, ...]:
    """The same for groups that can be computed together."""
    of_layers = ((*w.widths, w.record.grads.dtype, w.inputs_first) for w in group)
    return (group[0].record.shape(), group[0].record.inputs.dtype, *of_layers)


def _products(
    stack: Sequence[Readers], rule: type[MatrixProducts] = MatrixProducts, in_pieces: bool = False
) -> MatrixProducts:
    first = [group[0].record.unpacked(True, in_pieces) for group in stack]
    weights = []
    for place, weight in enumerate(stack[0]):
        records = [g[place].record.unpacked(False, in_pieces) for g in stack] if place else first
        parameters = [group[place].parameter for group in stack]
        grads = _stacked([record.grads for record in records])
        weights.append(OutputGradients(parameters, grads, weight.inputs_first))
    return rule(_stacked([record.inputs for record in first]), weights)


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _cheapest(group: Readers, layout: Layout) -> Way:
    """How to get norms of the gradients of weights that read one input, for the average user."""
    (_, each), width = group[0].record.shape(), group[0].widths[0]
    outputs = sum(weight.widths[1] for weight in group)
    if group[0].parameter.numel() <= FORMED:  # like all in its group
        return "explicit"
    tokens = layout.sentences / len(layout.users) * each
    device = group[0].record.grads.device.type
    traffic = _TRAFFIC.get(device, 100)
    launches = len(group) * _LAUNCH.get(device, 5e5)  # users come one by one
    by_grams = tokens**2 * (width + outputs + traffic)
    by_user = tokens * each * (width + outputs) + width * outputs * (tokens + traffic) + launches
    return "grams" if by_grams <= by_user else "by user"


def _stacks(groups: Sequence[Readers], way: Way) -> Iterator[Sequence[Readers]]:
    """Similar groups to be computed together; one by one where that gains nothing."""
    first = groups[0][0]
    record = first.record
    rows, tokens = record.shape(in_pieces=way == "explicit")
    size = rows * tokens * first.widths[0] * record.inputs.element_size()
    device = "cuda" if record.grads.is_cuda else "cpu"
    transposed = way == "explicit" and any(weight.inputs_first for weight in groups[0])
    each = 1
    if size <= _SMALL[device] and way != "by user" and not transposed:
        each = max(1, _STACK[device] // max(size, 1))
    for start in range(0, len(groups), each):
        yield groups[start : start + each]
