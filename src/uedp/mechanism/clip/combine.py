"""From the contributions of single layers to few rules, each computed in large operations."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from torch import nn

from uedp.mechanism.clip.layout import Layout
from uedp.mechanism.clip.rules import (
    ClipRule,
    Contribution,
    Explicit,
    Lookup,
    MatrixProducts,
    MatrixWeight,
    OutputGradients,
    ProductsByUser,
    SentenceGradients,
    StackedProducts,
    TiedLookup,
)

# Multiplications that take as long as moving one number to memory and back, and as launching one
# small operation after another.
_TRAFFIC = {"cuda": 500, "cpu": 20}
_LAUNCH = {"cuda": 5e9, "cpu": 5e5}

# Entries of a weight up to which a gradient per sentence is formed. Decided by the weight alone:
# the allowance for rounding differs, and must not change with the batch.
_FORMED = 1 << 15

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
    for part in contributions:
        if isinstance(part, SentenceGradients):
            explicit.add(part.parameter, part.gradients)
        elif isinstance(part, MatrixWeight):
            weights[part.parameter] = part
        elif isinstance(part, Lookup):
            lookups[part.parameter] = part
        else:
            rules.append(part)
    for parameter, lookup in lookups.items():
        head = weights.pop(parameter, None)
        rules.append(lookup if head is None else TiedLookup(lookup, _products([head])))
    readers: dict[tuple[Any, ...], list[MatrixWeight]] = defaultdict(list)
    for weight in weights.values():
        readers[*weight.record.source, weight.parameter.numel() <= _FORMED].append(weight)
    alike: dict[tuple[Any, ...], list[Readers]] = defaultdict(list)
    for group in readers.values():
        alike[_signature(group)].append(group)
    for groups in alike.values():
        way = _cheapest(groups[0], layout)
        for stack in _stacks(groups, way):
            # only now are sentences that share rows laid out, for these layers alone
            products = [_products(group, in_pieces=way == "explicit") for group in stack]
            one = products[0] if len(products) == 1 else StackedProducts(products)
            if way == "explicit":
                one.explicit(explicit, stack[0][0].record.by_sentence)
            elif way == "by user":
                rules.append(ProductsByUser(products[0].inputs, products[0].weights))
            else:
                rules.append(one)
    return [*rules, explicit]


def _signature(group: Readers) -> tuple[Any, ...]:
    """The same for groups that can be computed together."""
    of_layers = ((*w.widths, w.record.grads.dtype, w.inputs_first) for w in group)
    return (group[0].record.shape, group[0].record.inputs.dtype, *of_layers)


def _products(group: Readers, in_pieces: bool = False) -> MatrixProducts:
    inputs, weights = None, []
    for weight in group:
        laid_out = weight.record.in_pieces if in_pieces else weight.record.unpacked
        record = laid_out(with_inputs=inputs is None)
        inputs = record.inputs if inputs is None else inputs
        weights.append(OutputGradients(weight.parameter, record.grads, weight.inputs_first))
    assert inputs is not None
    return MatrixProducts(inputs, weights)


def _cheapest(group: Readers, layout: Layout) -> Way:
    """How to get norms of the gradients of weights that read one input, for the average user."""
    (_, each), width = group[0].record.shape, group[0].widths[0]
    outputs = sum(weight.widths[1] for weight in group)
    if group[0].parameter.numel() <= _FORMED:  # like all in its group
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
    rows, tokens = record.shape_in_pieces if way == "explicit" else record.shape
    size = rows * tokens * first.widths[0] * record.inputs.element_size()
    device = "cuda" if record.grads.is_cuda else "cpu"
    transposed = way == "explicit" and any(weight.inputs_first for weight in groups[0])
    each = 1
    if size <= _SMALL[device] and way != "by user" and not transposed:
        each = max(1, _STACK[device] // max(size, 1))
    for start in range(0, len(groups), each):
        yield groups[start : start + each]
