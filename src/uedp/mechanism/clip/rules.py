"""What each kind of layer contributes to gradients: inner products between sentences, and sums.

A layer's recorded inputs and output gradients determine its weight's gradient for every sentence.
A rule gives two things from them without ever forming those gradients one by one where they are
large: the inner products between the gradients of a user's sentences, and one weighted sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.kernels import scaled_rows
from uedp.mechanism.clip.layout import Grams, Layout

Gradients = Mapping[nn.Parameter, Tensor]
BySentence = Callable[[Tensor], Tensor]  # adds up values of rows that are parts of sentences


class Rule:
    """How one parameter, or several, get their gradients."""

    def add_products(self, grams: Grams) -> None:
        """Add the inner products of the sentences' gradients of these parameters."""
        raise NotImplementedError

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        """Add what this rule left out of the products to the users' squared norms: nothing."""

    def weighted(self, weights: Tensor) -> Gradients:
        """The gradients, summed over sentences with a weight each, in float32."""
        raise NotImplementedError


class Explicit(Rule):
    """Parameters so small that a gradient per sentence is cheaper than anything clever.

    There are many of them (biases, norms, adapters), so they are laid side by side in few wide
    blocks and each block is multiplied once.
    """

    _WIDE = 1 << 25  # entries of a block: large enough to keep an accelerator busy

    def __init__(self) -> None:
        self._blocks: list[tuple[list[nn.Parameter], Tensor]] = []
        self._pending: list[tuple[nn.Parameter, Tensor]] = []
        self._size = 0
        self._owners: list[Tensor] = []

    def add(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """A gradient for every sentence: (sentences, *shape), float32."""
        self._pending.append((parameter, gradients.flatten(1)))
        self._size += gradients.numel()
        if self._size >= self._WIDE:
            self._lay_side_by_side()

    def add_side_by_side(self, parameters: Sequence[nn.Parameter], block: Tensor) -> None:
        """Gradients of several parameters at once: (sentences, all their entries), float32."""
        self._blocks.append((list(parameters), block))

    def _lay_side_by_side(self) -> None:
        if self._pending:
            parameters = [parameter for parameter, _ in self._pending]
            block = torch.cat([gradients for _, gradients in self._pending], 1)
            self._blocks.append((parameters, block))
            self._pending, self._size = [], 0

    def add_products(self, grams: Grams) -> None:
        # Norms alone: inner products of few and very long rows leave an accelerator idle.
        self._lay_side_by_side()
        self._owners = grams.owners()
        for _, block in self._blocks:
            grams.squares.add_(_squares(block))

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        for bucket, owner in zip(layout.buckets, self._owners, strict=True):
            same = owner[:, :, None] == owner[:, None, :]
            first = ~same.tril(-1).any(2)  # of each user's sentences: its row adds all of them up
            adds = same * first[:, :, None] * bucket.split(factors)[:, None, :]
            for _, block in self._blocks:
                found = _squares(adds @ bucket.split(block))
                squares.index_add_(0, owner.flatten(), found.flatten())

    def weighted(self, weights: Tensor) -> Gradients:
        total: dict[nn.Parameter, Tensor] = {}
        for parameters, block in self._blocks:
            summed = (weights[None] @ block).squeeze(0)
            parts = summed.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                total[parameter] = part.view(parameter.shape)
        return total


class Weight(NamedTuple):
    """A weight matrix and the gradients of what its layer put out.

    Its gradient is `sum over tokens of grads_t (x) inputs_t`, transposed for `Conv1D`, which
    keeps inputs first.
    """

    parameter: nn.Parameter
    grads: Tensor
    inputs_first: bool


class MatrixProducts(Rule):
    """Weights of linear layers that read the same input.

    Inner products by token Grams: `<g_i, g_j> = sum_{t in i, t' in j} <x_t, x_t'> <o_t, o_t'>`.
    The inputs' Gram serves all of them, and the outputs' add up before the two are multiplied.
    """

    def __init__(self, inputs: Tensor, weights: Sequence[Weight]) -> None:
        self.inputs, self.weights = inputs, weights

    def add_products(self, grams: Grams) -> None:
        for bucket, total in grams.tokens(self.inputs.shape[1]):
            outputs = token_gram(bucket.tokens(self.weights[0].grads))
            for weight in self.weights[1:]:
                outputs = token_gram(bucket.tokens(weight.grads), add_to=outputs)
            total.addcmul_(token_gram(bucket.tokens(self.inputs)), outputs)

    def weighted(self, weights: Tensor) -> Gradients:
        inputs = scaled_rows(self.inputs, weights).flatten(0, 1)
        total = {}
        for weight in self.weights:
            grads = weight.grads.flatten(0, 1)
            left, right = (inputs, grads) if weight.inputs_first else (grads, inputs)
            total[weight.parameter] = exact_product(left.t(), right)
        return total

    def explicit(self, into: Explicit, by_sentence: BySentence) -> None:
        """Form a gradient per sentence instead, for all weights in one product."""
        grads = [weight.grads for weight in self.weights]
        together = grads[0] if len(grads) == 1 else torch.cat(grads, 2)
        formed = by_sentence(exact_product(together.transpose(1, 2), self.inputs))
        for weight, part in zip(
            self.weights, formed.split([g.shape[2] for g in grads], 1), strict=True
        ):
            into.add(weight.parameter, part.transpose(1, 2) if weight.inputs_first else part)


class StackedProducts(Rule):
    """The products of several layers alike, computed together: few operations, each of them large.

    What a deep, narrow model costs on an accelerator is mostly to start its operations.
    """

    def __init__(self, layers: Sequence[MatrixProducts]) -> None:
        self._weights = [layer.weights for layer in layers]
        self._inputs = torch.stack([layer.inputs for layer in layers])
        self._grads = [
            torch.stack([weights[place].grads for weights in self._weights])
            for place in range(len(self._weights[0]))
        ]

    def add_products(self, grams: Grams) -> None:
        for bucket, total in grams.tokens(self._inputs.shape[2]):

            def tokens(
                values: Tensor, rows: slice = bucket.rows, size: int = total.shape[1]
            ) -> Tensor:
                return values[:, rows].reshape(-1, size, values.shape[3])

            outputs = token_gram(tokens(self._grads[0]))
            for grads in self._grads[1:]:
                outputs = token_gram(tokens(grads), add_to=outputs)
            products = token_gram(tokens(self._inputs)).mul_(outputs)
            total.add_(products.view(-1, *total.shape).sum(0))

    def weighted(self, weights: Tensor) -> Gradients:
        layers = self._inputs.shape[0]
        inputs = scaled_rows(self._inputs.flatten(0, 1), weights.repeat(layers))
        inputs = inputs.view(layers, -1, inputs.shape[2])
        total = {}
        for place, stacked in enumerate(self._grads):
            grads = stacked.flatten(1, 2)
            first = self._weights[0][place].inputs_first
            left, right = (inputs, grads) if first else (grads, inputs)
            formed = exact_product(left.transpose(1, 2), right)
            for own, gradient in zip(self._weights, formed.unbind(0), strict=True):
                total[own[place].parameter] = gradient
        return total

    def explicit(self, into: Explicit, by_sentence: BySentence) -> None:
        """Form a gradient per sentence instead, for all layers in one product."""
        together = self._grads[0] if len(self._grads) == 1 else torch.cat(self._grads, 3)
        layers, rows = together.shape[:2]
        formed = exact_product(together.flatten(0, 1).transpose(1, 2), self._inputs.flatten(0, 1))
        block = by_sentence(formed.view(layers, rows, -1).transpose(0, 1)).flatten(1)
        into.add_side_by_side([w.parameter for own in self._weights for w in own], block)


class ProductsByUser(MatrixProducts):
    """The same for users of many tokens, whose Grams would cost more than their gradients.

    Sentences' norms come from their own small Grams. The users' come from forming each user's
    clipped sum, one at a time, once the sentences' factors are known.
    """

    def add_products(self, grams: Grams) -> None:
        outputs = token_gram(self.weights[0].grads)
        for weight in self.weights[1:]:
            outputs = token_gram(weight.grads, add_to=outputs)
        grams.squares.add_(token_gram(self.inputs).mul_(outputs).sum((1, 2)))

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        inputs = scaled_rows(self.inputs, factors)
        start = 0
        for user, count in enumerate(layout.counts):
            rows = slice(start, start + count)
            start += count
            for weight in self.weights:
                grads = weight.grads[rows].flatten(0, 1)
                formed = exact_product(grads.t(), inputs[rows].flatten(0, 1))
                squares[user] += formed.pow_(2).sum()


class Lookup(Rule):
    """An embedding's weight: the gradient of a token goes to its row."""

    def __init__(self, parameter: nn.Parameter, ids: Tensor, grads: Tensor) -> None:
        self.parameter, self.ids, self.grads = parameter, ids, grads

    def add_products(self, grams: Grams) -> None:
        for bucket, total in grams.tokens(self.ids.shape[1]):
            ids = bucket.tokens(self.ids)
            same = ids[:, :, None] == ids[:, None, :]
            total.add_(token_gram(bucket.tokens(self.grads)).mul_(same))

    def weighted(self, weights: Tensor) -> Gradients:
        total = torch.zeros(self.parameter.shape, device=weights.device, dtype=torch.float32)
        return {self.parameter: self.scatter_into(total, weights)}

    def scatter_into(self, total: Tensor, weights: Tensor) -> Tensor:
        scaled = self.grads * weights[:, None, None]
        return total.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1).to(total.dtype))


class TiedLookup(Rule):
    """An embedding whose weight is also the output head's: both parts, and how they overlap."""

    def __init__(self, lookup: Lookup, head: MatrixProducts) -> None:
        self._lookup, self._head = lookup, head

    def add_products(self, grams: Grams) -> None:
        self._lookup.add_products(grams)
        self._head.add_products(grams)
        (weight,) = self._head.weights
        for bucket, total in grams.sentences():
            ids = bucket.tokens(self._lookup.ids)
            out = bucket.tokens(weight.grads)  # gradients of the logits
            hidden = bucket.tokens(self._head.inputs).float()
            into = bucket.tokens(self._lookup.grads).float()
            # the head's token t' meets the embedding's token t in the row of t's word
            met = out.gather(2, ids[:, None, :].expand(-1, out.shape[1], -1))
            cross = torch.bmm(hidden, into.transpose(1, 2)).mul_(met)
            blocks = cross.view(
                bucket.bins, bucket.each, -1, bucket.each, self._lookup.ids.shape[1]
            )
            overlap = blocks.sum((2, 4))
            total.add_(overlap).add_(overlap.transpose(1, 2))

    def weighted(self, weights: Tensor) -> Gradients:
        ((parameter, total),) = self._head.weighted(weights).items()
        return {parameter: self._lookup.scatter_into(total, weights)}


def _squares(rows: Tensor) -> Tensor:
    """Squared norms over the last dimension."""
    if rows.is_cuda:  # adds in many lanes, and has few operations to start
        whole: Tensor = torch.linalg.vector_norm(rows, dim=-1)
        return whole.square_()
    # a CPU adds in few: sums of millions come out too small, those of slices do not
    norms = [torch.linalg.vector_norm(part, dim=-1) for part in rows.split(_SLICE, -1)]
    return torch.stack(norms).square_().sum(0)


_SLICE = 1 << 14


def token_gram(tokens: Tensor, add_to: Tensor | None = None) -> Tensor:
    """Inner products between all tokens of a user: (users, tokens, tokens), in float32."""
    if _multiplies_exactly(tokens):
        other = tokens.transpose(1, 2)
        if add_to is None:
            return torch.bmm(tokens, other, out_dtype=torch.float32)
        return torch.baddbmm(add_to, tokens, other, out_dtype=torch.float32)
    tokens = tokens.float()
    if add_to is None:
        return tokens @ tokens.transpose(1, 2)
    return add_to.baddbmm_(tokens, tokens.transpose(1, 2))


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product, batched or not, summed and returned in float32."""
    if _multiplies_exactly(left):
        multiply = torch.mm if left.dim() == 2 else torch.bmm
        return multiply(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _multiplies_exactly(values: Tensor) -> bool:
    # tensor cores multiply halves exactly and add in float32; the sum must not be rounded back
    return values.is_cuda and values.dtype in (torch.bfloat16, torch.float16)
