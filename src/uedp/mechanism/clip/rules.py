"""What each kind of layer contributes to gradients: inner products between sentences, and sums.

A layer's recorded inputs and output gradients determine its weight's gradient for every sentence.
A rule gives two things from them without ever forming those gradients one by one where they are
large: the inner products between the gradients of a user's sentences, and one weighted sum.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.layout import Bucket, Grams


class Record:
    """What a layer saw in one pass, all its calls put end to end along the tokens.

    `inputs` and `grads` are (sentences, tokens, features); an embedding's inputs are ids.
    """

    def __init__(self, inputs: Tensor, grads: Tensor) -> None:
        self.inputs = inputs
        self.grads = grads

    def drop(self, sentences: Tensor) -> None:
        """Make the gradients of some sentences zero, whatever they were."""
        self.grads = self.grads.masked_fill(sentences[:, None, None], 0)
        if self.inputs.is_floating_point():
            self.inputs = self.inputs.masked_fill(sentences[:, None, None], 0)


class Rule(Protocol):
    """How one parameter, or several of one layer, get their gradients."""

    def add_products(self, grams: Grams) -> None:
        """Add the inner products of the sentences' gradients of these parameters."""

    def weighted(self, weights: Tensor) -> Mapping[nn.Parameter, Tensor]:
        """The gradients, summed over sentences with a weight each, in float32."""


class Explicit:
    """Parameters so small that a gradient per sentence is cheaper than anything clever."""

    def __init__(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        self._gradients = gradients

    def add_products(self, grams: Grams) -> None:
        for gradient in self._gradients.values():
            flat = gradient.flatten(1).float()
            for bucket, gram in grams.parts():
                own = bucket.split(flat)
                gram.add_(own @ own.transpose(1, 2))

    def weighted(self, weights: Tensor) -> Mapping[nn.Parameter, Tensor]:
        return {
            parameter: torch.tensordot(weights.float(), gradient.float(), dims=1)
            for parameter, gradient in self._gradients.items()
        }


class MatrixProduct:
    """A weight whose gradient is `sum over tokens of left_t (x) right_t`: linear layers.

    Inner products by token Grams: `<g_i, g_j> = sum_{t in i, t' in j} <l_t, l_t'> <r_t, r_t'>`.
    """

    def __init__(self, parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
        self._parameter, self._left, self._right = parameter, left, right

    def add_products(self, grams: Grams) -> None:
        for bucket, gram in grams.parts():
            gram.add_(
                _block_sums(
                    _token_gram(bucket, self._left) * _token_gram(bucket, self._right), bucket
                )
            )

    def weighted(self, weights: Tensor) -> Mapping[nn.Parameter, Tensor]:
        return {self._parameter: _product(self._left, self._right, weights)}


class Lookup:
    """An embedding's weight: the gradient of a token goes to its row."""

    def __init__(self, parameter: nn.Parameter, ids: Tensor, grads: Tensor) -> None:
        self._parameter, self._ids, self._grads = parameter, ids, grads

    def add_products(self, grams: Grams) -> None:
        for bucket, gram in grams.parts():
            ids = bucket.split(self._ids).flatten(1)
            same = ids[:, :, None] == ids[:, None, :]
            gram.add_(_block_sums(_token_gram(bucket, self._grads) * same, bucket))

    def weighted(self, weights: Tensor) -> Mapping[nn.Parameter, Tensor]:
        return {self._parameter: _scattered(self._parameter, self._ids, self._grads, weights)}


class TiedLookup:
    """An embedding whose weight is also the output head's: both parts, and how they overlap."""

    def __init__(self, lookup: Lookup, head: MatrixProduct) -> None:
        self._lookup, self._head = lookup, head

    def add_products(self, grams: Grams) -> None:
        self._lookup.add_products(grams)
        self._head.add_products(grams)
        for bucket, gram in grams.parts():
            ids = bucket.split(self._lookup._ids).flatten(1)
            out = bucket.split(self._head._left).flatten(1, 2)  # gradients of the logits
            hidden = bucket.split(self._head._right).flatten(1, 2).float()
            into = bucket.split(self._lookup._grads).flatten(1, 2).float()
            # the head's token t' meets the embedding's token t in the row of t's word
            met = out.gather(2, ids[:, None, :].expand(-1, out.shape[1], -1)).float()
            cross = _block_sums(met * (hidden @ into.transpose(1, 2)), bucket)
            gram.add_(cross + cross.transpose(1, 2))

    def weighted(self, weights: Tensor) -> Mapping[nn.Parameter, Tensor]:
        ((parameter, total),) = self._head.weighted(weights).items()
        (scattered,) = self._lookup.weighted(weights).values()
        return {parameter: total + scattered}


def _token_gram(bucket: Bucket, values: Tensor) -> Tensor:
    """Inner products between all tokens of a user: (users, tokens, tokens), in float32."""
    tokens = bucket.split(values).flatten(1, 2)
    if tokens.is_cuda and tokens.dtype in (torch.bfloat16, torch.float16):
        # tensor cores multiply halves and add in float32; the result must not be rounded back
        return torch.bmm(tokens, tokens.transpose(1, 2), out_dtype=torch.float32)
    tokens = tokens.float() if tokens.dtype != torch.float64 else tokens
    return tokens @ tokens.transpose(1, 2)


def _block_sums(products: Tensor, bucket: Bucket) -> Tensor:
    """(users, tokens, tokens) summed to (users, sentences, sentences)."""
    tokens = products.shape[1] // bucket.each
    shape = (bucket.users, bucket.each, tokens, bucket.each, tokens)
    return products.view(shape).sum((2, 4))


def _product(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """`sum over sentences and tokens of weight * left (x) right`: one matrix product."""
    scaled = (left * weights.to(left.dtype)[:, None, None]).flatten(0, 1)
    flat = right.flatten(0, 1)
    if scaled.is_cuda and scaled.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(scaled.t(), flat.to(scaled.dtype), out_dtype=torch.float32)
    return (scaled.t() @ flat.to(scaled.dtype)).float()


def _scattered(parameter: nn.Parameter, ids: Tensor, grads: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros(parameter.shape, device=grads.device, dtype=torch.float32)
    scaled = grads.float() * weights.float()[:, None, None]
    return total.index_add_(0, ids.flatten(), scaled.flatten(0, 1))
