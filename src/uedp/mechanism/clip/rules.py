"""Clip rules: inner products between the gradients of a user's sentences, and one weighted sum.

A rule gives both without forming gradients one by one where they are large. With the products it
states how far rounding may have taken them from the gradients in the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.kernels import scaled_rows
from uedp.mechanism.clip.layout import Grams, Layout
from uedp.mechanism.clip.records import PackedRecord, Record
from uedp.mechanism.clip.rounding import (
    SCALING_ERROR,
    SLICE,
    block_sums,
    masses,
    squared_norms,
    sum_error,
)
from uedp.mechanism.clip.runs import Bilinear, Runs, add_overlap, add_pairs

Gradients = Mapping[nn.Parameter, Tensor]


class ClipRule:
    """The gradients of one parameter, or of several, in one pass."""

    def add_products(self, grams: Grams) -> None:
        """Add the inner products of the sentences' gradients, and allow for their rounding."""
        raise NotImplementedError

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        """Add to the users' squared norms whatever `add_products` left out; by default nothing."""

    def weighted(self, weights: Tensor) -> Gradients:
        """The gradients, summed over sentences with a weight each, in float32."""
        raise NotImplementedError


class SentenceGradients(NamedTuple):
    """A small parameter with its gradient for every sentence: (sentences, *shape), float32."""

    parameter: nn.Parameter
    gradients: Tensor


class MatrixWeight(NamedTuple):
    """A linear map's matrix, stored as (inputs, outputs) if `inputs_first`; its layer's record."""

    parameter: nn.Parameter
    record: Record
    inputs_first: bool = False

    @property
    def widths(self) -> tuple[int, int]:
        return self.record.inputs.shape[-1], self.record.grads.shape[-1]


class PackedLookup(NamedTuple):
    """An embedding's weight, and its layer's record: sentences share rows."""

    parameter: nn.Parameter
    record: PackedRecord


Contribution = ClipRule | SentenceGradients | MatrixWeight | PackedLookup


class Explicit(ClipRule):
    """Parameters so small that a gradient per sentence is cheaper than anything clever.

    There are many of them (biases, norms, adapters), so they are laid side by side in few wide
    blocks and each block is multiplied once. The gradients are added as they were formed, so that
    only sums over a user's sentences round.
    """

    _WIDE = 1 << 25  # entries of a block: large enough to keep an accelerator busy

    def __init__(self) -> None:
        self._blocks: list[tuple[Sequence[nn.Parameter], Tensor]] = []
        self._pending: list[SentenceGradients] = []
        self._size = 0
        self._owners: list[Tensor] = []

    def add(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """A gradient for every sentence: (sentences, *shape), float32."""
        self._pending.append(SentenceGradients(parameter, gradients.flatten(1)))
        self._size += gradients.numel()
        if self._size >= self._WIDE:
            self._lay_side_by_side()

    def form(self, weights: Sequence[MatrixWeight], spans: Sequence[slice]) -> None:
        """Gradients of several weights straight into a block, from the rows of each sentence."""
        sizes = [weight.parameter.numel() for weight in weights]
        block = weights[0].record.grads.new_empty(len(spans), sum(sizes))
        for weight, part in zip(weights, block.split(sizes, 1), strict=True):
            left, right = weight.record.grads, weight.record.inputs
            left, right = (right, left) if weight.inputs_first else (left, right)
            gradients = part.unflatten(1, weight.parameter.shape).unbind(0)
            for rows, gradient in zip(spans, gradients, strict=True):
                torch.mm(left[rows].t(), right[rows], out=gradient)
        self.add_block([weight.parameter for weight in weights], block)

    def add_block(self, parameters: Sequence[nn.Parameter], block: Tensor) -> None:
        """Gradients of several parameters at once: (sentences, all their entries), float32."""
        self._blocks.append((parameters, block))

    def _lay_side_by_side(self) -> None:
        if self._pending:
            parameters, gradients = zip(*self._pending, strict=True)
            self.add_block(parameters, torch.cat(gradients, 1))
            self._pending, self._size = [], 0

    def add_products(self, grams: Grams) -> None:
        # only norms: inner products of few and very long rows leave an accelerator idle
        self._lay_side_by_side()
        self._owners = grams.owners()
        sentences = grams.user_totals(torch.ones_like(grams.squares))
        for _, block in self._blocks:
            squares = squared_norms(block)
            grams.squares.add_(squares)
            grams.allow(
                slice(None), squares.sqrt(), squares=sum_error(SLICE), norms=sum_error(sentences)
            )

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        if not squares.is_cuda:
            for _, block in self._blocks:
                parts = zip(factors.split(layout.counts), block.split(layout.counts), strict=True)
                sums = [squared_norms(own[None] @ rows) for own, rows in parts]
                squares.add_(torch.cat(sums))
            return
        for bucket, owner in zip(layout.buckets, self._owners, strict=True):
            same = owner[:, :, None] == owner[:, None, :]
            first = ~same.tril(-1).any(2)  # of each user's sentences: its row adds all of them up
            adds = (same * first[:, :, None] * bucket.split(factors)[:, None, :]).float()
            for _, block in self._blocks:
                by_user = squared_norms(adds @ bucket.split(block))
                squares.index_add_(0, owner.flatten(), by_user.flatten())

    def weighted(self, weights: Tensor) -> Gradients:
        total: dict[nn.Parameter, Tensor] = {}
        for parameters, block in self._blocks:
            summed = (weights[None] @ block).squeeze(0)
            parts = summed.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                total[parameter] = part.view(parameter.shape)
        return total


class OutputGradients(NamedTuple):
    """One weight matrix of each layer of a stack, and the gradients of the layers' outputs.

    `grads` is (layers, sentences, tokens, features). A weight's gradient is
    `sum over tokens of grads_t (x) inputs_t`, transposed if `inputs_first`.
    """

    parameters: Sequence[nn.Parameter]
    grads: Tensor
    inputs_first: bool


class MatrixProducts(ClipRule):
    """Weights of linear layers that read the same input, for a stack of similar layers at once.

    Inner products by token Grams: `<g_i, g_j> = sum_{t in i, t' in j} <x_t, x_t'> <o_t, o_t'>`.
    The inputs' Gram serves all weights of a layer, whose outputs' Grams add up before the two are
    multiplied. A stack saves launches, which cost an accelerator most with deep, narrow models.
    """

    def __init__(self, inputs: Tensor, weights: Sequence[OutputGradients]) -> None:
        self.inputs, self.weights = inputs, weights  # inputs: (layers, sentences, tokens, features)
        self.overlaps = False  # with another rule's gradient of the same weight

    def add_products(self, grams: Grams) -> None:
        layers, _, tokens, _ = self.inputs.shape
        for bucket, total in grams.tokens(tokens):
            inputs = token_gram(bucket.stacked_tokens(self.inputs))
            outputs = self._output_grams(bucket.stacked_tokens)
            if layers == 1:
                total.addcmul_(inputs, outputs)
            else:
                total.add_(inputs.mul_(outputs).view(layers, *total.shape).sum(0))
        self._allow(grams)

    def _output_grams(self, tokens_of: Callable[[Tensor], Tensor]) -> Tensor:
        outputs = token_gram(tokens_of(self.weights[0].grads))
        for weight in self.weights[1:]:
            outputs = token_gram(tokens_of(weight.grads), add_to=outputs)
        return outputs

    def _allow(self, grams: Grams) -> None:
        squares, features = token_squares(self.inputs), self.inputs.shape[-1]
        for weight in self.weights:
            widths = features + weight.grads.shape[-1]
            _allow_products(grams, squares, token_squares(weight.grads), widths, self.overlaps)

    def weighted(self, weights: Tensor) -> Gradients:
        layers = len(self.inputs)
        parts = scaled_rows(self.inputs.flatten(0, 1), weights.repeat(layers))
        inputs = [part.view(layers, -1, part.shape[2]) for part in parts]
        total: dict[nn.Parameter, Tensor] = {}
        for weight in self.weights:
            formed = summed_product(weight.grads.flatten(1, 2).transpose(1, 2), inputs)
            formed = formed.transpose(1, 2) if weight.inputs_first else formed
            total.update(zip(weight.parameters, formed.unbind(0), strict=True))
        return total

    def explicit(self, into: Explicit, by_sentence: Callable[[Tensor], Tensor]) -> None:
        """Form a gradient per sentence instead, for all weights in one product.

        `by_sentence` adds up the rows of each sentence.
        """
        grads = [weight.grads for weight in self.weights]
        together = grads[0] if len(grads) == 1 else torch.cat(grads, 3)
        layers, rows = together.shape[:2]
        formed = exact_product(together.flatten(0, 1).transpose(1, 2), self.inputs.flatten(0, 1))
        formed = by_sentence(formed.unflatten(0, (layers, rows)).transpose(0, 1))
        if layers > 1:
            parameters = [w.parameters[layer] for layer in range(layers) for w in self.weights]
            into.add_block(parameters, formed.flatten(1))
            return
        parts = formed[:, 0].split([g.shape[3] for g in grads], 1)
        for weight, part in zip(self.weights, parts, strict=True):
            part = part.transpose(1, 2) if weight.inputs_first else part
            into.add(weight.parameters[0], part)


class ProductsByUser(MatrixProducts):
    """The same for users of many tokens, whose Grams would cost more than their gradients.

    Sentences' norms come from their own small Grams. The users' come from forming each user's
    clipped sum, one at a time, once the sentences' factors are known. One layer at a time.
    """

    def add_products(self, grams: Grams) -> None:
        products = token_gram(self.inputs[0]).mul_(self._output_grams(lambda grads: grads[0]))
        self._allow(grams)
        tokens = products.shape[1]
        grams.squares.add_(block_sums(products.view(-1, 1, tokens, 1, tokens)).flatten())

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        inputs = scaled_rows(self.inputs[0], factors)
        start = 0
        for user, count in enumerate(layout.counts):
            rows = slice(start, start + count)
            start += count
            for weight in self.weights:
                formed = _formed(weight.grads[0, rows], inputs, rows)
                squares[user] += squared_norms(formed.flatten())


class PackedProducts(ClipRule):
    """All large weights of a model whose sentences share rows: linear layers and embeddings.

    Inner products as in `MatrixProducts`, but of the tokens where they lie: sentences' norms from
    pairs of tokens of a sentence, then users' from pairs of tokens of a user with the factors of
    their sentences.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._linear: list[tuple[MatrixWeight, Bilinear]] = []
        self._lookups: list[tuple[PackedLookup, Bilinear]] = []
        self._parts: list[tuple[Bilinear, int]] = []  # and how often their error counts
        self._overlaps: list[tuple[Bilinear, Bilinear]] = []

    def add(self, weight: MatrixWeight, tied: bool = False) -> Bilinear:
        part = Bilinear(_dense(weight.record.inputs), _dense(weight.record.grads))
        self._linear.append((weight, part))
        self._parts.append((part, 1 + tied))
        return part

    def add_lookup(self, lookup: PackedLookup, head: MatrixWeight | None) -> None:
        part = Bilinear(lookup.record.inputs.flatten(), _dense(lookup.record.grads))
        self._lookups.append((lookup, part))
        self._parts.append((part, 1 if head is None else 2))
        if head is not None:
            self._overlaps.append((part, self.add(head, tied=True)))

    def add_products(self, grams: Grams) -> None:
        pairs = self._runs.sentences
        total = pairs.zeros()
        size = len(self._parts), len(total)
        masses = torch.zeros(size, dtype=torch.float32, device=total.device)
        for (part, _), own in zip(self._parts, masses, strict=True):
            add_pairs(total, part, pairs, masses=own)
        for overlap in self._overlaps:
            add_overlap(total, *overlap, pairs)
        grams.squares.add_(pairs.by_run(total))
        features = masses.new_tensor([[part.features] for part, _ in self._parts])
        times = masses.new_tensor([[times] for _, times in self._parts]).double()
        added_up = grams.user_totals(self._runs.lengths) + 2 * _AT_ONCE
        grams.allow(
            slice(None),
            pairs.by_run(masses),
            # more than is added up: as much as where a sentence has a row of its own
            squares=times * sum_error(features.double() + 2 * SLICE + grams.layers),
            norms=times * (SCALING_ERROR + sum_error(added_up)),
        )

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        pairs, by_token = self._runs.users(layout.counts), self._runs.spread(factors)
        total = pairs.zeros()
        for part, _ in self._parts:
            add_pairs(total, part, pairs, by_token)
        for overlap in self._overlaps:
            add_overlap(total, *overlap, pairs, by_token)
        squares.add_(pairs.by_run(total))

    def weighted(self, weights: Tensor) -> Gradients:
        by_token = self._runs.spread(weights)
        total: dict[nn.Parameter, Tensor] = {}
        for weight, part in self._linear:
            inputs = [scaled.squeeze(1) for scaled in scaled_rows(part.left[:, None], by_token)]
            formed = summed_product(part.right.t(), inputs)
            total[weight.parameter] = formed.t() if weight.inputs_first else formed
        for lookup, part in self._lookups:
            sum_ = total.get(lookup.parameter)
            if sum_ is None:
                sum_ = torch.zeros(
                    lookup.parameter.shape, dtype=torch.float32, device=weights.device
                )
            scaled = part.right.float() * by_token[:, None]
            total[lookup.parameter] = sum_.index_add_(0, part.left, scaled)
        return total


def _dense(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


class Lookup(ClipRule):
    """An embedding's weight: the gradient of a token goes to its row."""

    def __init__(self, parameter: nn.Parameter, ids: Tensor, grads: Tensor) -> None:
        self.parameter, self.ids, self.grads = parameter, ids, grads
        self.overlaps = False

    def add_products(self, grams: Grams) -> None:
        for bucket, total in grams.tokens(self.ids.shape[1]):
            ids = bucket.tokens(self.ids)
            same = ids[:, :, None] == ids[:, None, :]
            total.add_(token_gram(bucket.tokens(self.grads)).mul_(same))
        squares = token_squares(self.grads)  # a linear layer that reads unit vectors
        ones, features = torch.ones_like(squares), self.grads.shape[-1]
        _allow_products(grams, ones, squares, features, self.overlaps)

    def weighted(self, weights: Tensor) -> Gradients:
        total = torch.zeros(self.parameter.shape, device=weights.device, dtype=torch.float32)
        return {self.parameter: self.scatter_into(total, weights)}

    def scatter_into(self, total: Tensor, weights: Tensor) -> Tensor:
        scaled = self.grads.float() * weights[:, None, None]
        return total.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1).to(total.dtype))


class TiedLookup(ClipRule):
    """An embedding whose weight is also the output head's: both parts, and how they overlap."""

    def __init__(self, lookup: Lookup, head: MatrixProducts) -> None:
        self._lookup, self._head = lookup, head
        lookup.overlaps = head.overlaps = True

    def add_products(self, grams: Grams) -> None:
        self._lookup.add_products(grams)
        self._head.add_products(grams)
        (weight,) = self._head.weights
        for bucket, total in grams.sentences():
            ids = bucket.tokens(self._lookup.ids)
            out = bucket.tokens(weight.grads[0])  # gradients of the logits
            hidden = bucket.tokens(self._head.inputs[0]).float()
            into = bucket.tokens(self._lookup.grads).float()
            # the head's token t' meets the embedding's token t in the row of t's word
            met = out.gather(2, ids[:, None, :].expand(-1, out.shape[1], -1))
            cross = torch.bmm(hidden, into.transpose(1, 2)).mul_(met)
            shape = (bucket.bins, bucket.each, -1, bucket.each, self._lookup.ids.shape[1])
            overlap = block_sums(cross.view(shape))
            total.add_(overlap).add_(overlap.transpose(1, 2))

    def weighted(self, weights: Tensor) -> Gradients:
        ((parameter, total),) = self._head.weighted(weights).items()
        return {parameter: self._lookup.scatter_into(total, weights)}


def token_squares(tokens: Tensor) -> Tensor:
    """Squared norms of (..., tokens, features), in float32."""
    wide = None if tokens.dtype == torch.float64 else torch.float32
    norms: Tensor = torch.linalg.vector_norm(tokens, dim=-1, dtype=wide)
    return norms.square_().float()


def allow_products(grams: Grams, inputs: Tensor, grads: Tensor, terms: int = 1) -> None:
    """Allow for rounding where the products of token Grams are added up.

    Args:
        inputs: (sentences, tokens, features), as are the output gradients `grads`.
        terms: how many such products are added up in one place by this rule.
    """
    features = inputs.shape[-1] + grads.shape[-1] + terms
    _allow_products(grams, token_squares(inputs), token_squares(grads), features)


def _allow_products(
    grams: Grams, inputs: Tensor, outputs: Tensor, features: int, overlaps: bool = False
) -> None:
    """Allow for the rounding of a weight's products, in whichever way they are computed.

    `inputs` and `outputs` are the squared norms of tokens, (sentences, tokens) or the same of
    layers alike. Where two gradients of one weight overlap, twice as much: what is between them
    errs by no more than both do, since `2 a b <= a^2 + b^2`.
    """
    times = 2 if overlaps else 1
    # where nothing comes back nothing is added, and nothing rounds
    # of each layer by itself: which layers are stacked depends on the size of the batch
    added_up = grams.user_totals((outputs > 0).sum(-1)) + 2 * _AT_ONCE
    grams.allow(
        slice(None),
        masses(inputs, outputs, features).sum(-1),
        # features; tokens, in slices; layers in one place; squares of what is formed, in slices
        squares=times * sum_error(features + 2 * SLICE + grams.layers),
        norms=times * (SCALING_ERROR + sum_error(added_up)),
    )


# Tokens that are added up at a time where a user's sum is formed, and how often that may be.
_AT_ONCE = 256


def _formed(grads: Tensor, inputs: Sequence[Tensor], rows: slice) -> Tensor:
    """A user's gradient of a weight, from the parts of what its layer read."""
    left = grads.flatten(0, 1).split(_AT_ONCE)
    right = zip(*(part[rows].flatten(0, 1).split(_AT_ONCE) for part in inputs), strict=True)
    products = (summed_product(some.t(), own) for some, own in zip(left, right, strict=True))
    total = next(products)
    for product in products:
        total += product
    return total


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


def summed_product(left: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The product with what the parts add up to."""
    total = exact_product(left, parts[0])
    for part in parts[1:]:
        total += exact_product(left, part)
    return total


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product, batched or not, summed and returned in float32."""
    if left.dim() == 3 and len(left) == 1:
        return exact_product(left[0], right[0])[None]
    if _multiplies_exactly(left) and left.dtype == right.dtype:
        multiply = torch.mm if left.dim() == 2 else torch.bmm
        return multiply(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _multiplies_exactly(values: Tensor) -> bool:
    # tensor cores multiply halves exactly and add in float32; the sum must not be rounded back
    return values.is_cuda and values.dtype in (torch.bfloat16, torch.float16)
