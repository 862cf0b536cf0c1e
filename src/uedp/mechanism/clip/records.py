"""The inputs and output gradients of a layer in one pass, by sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.mechanism.packing import PackedLosses, TokenRows


@dataclass(frozen=True)
class Record:
    """What a layer saw in one pass, all its calls put end to end along the tokens.

    `inputs` and `grads` are (sentences, tokens, features); an embedding's inputs are ids. Layers
    that read the same tensor have the same `source`.
    """

    inputs: Tensor
    grads: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Sentences, and tokens of each."""
        return self.grads.shape[0], self.grads.shape[1]

    @property
    def source(self) -> tuple[Any, ...]:
        return self.inputs.data_ptr(), *self.inputs.shape, *self.inputs.stride()

    def unpacked(self, with_inputs: bool = True) -> "Record":
        """With a row for each sentence; without inputs, where those of another layer serve."""
        return self

    @property
    def shape_in_pieces(self) -> tuple[int, int]:
        """Pieces, and tokens of each."""
        return self.shape

    def in_pieces(self, with_inputs: bool = True) -> "Record":
        """The same with rows that are parts of sentences, where that saves padding."""
        return self

    def by_sentence(self, values: Tensor) -> Tensor:
        """Values of the rows of `in_pieces`, added up to one for each sentence; may be in place."""
        return values

    def without(self, sentences: Tensor) -> "Record":
        """With the gradients of some sentences made zero, whatever they were."""
        gone = sentences[:, None, None]
        inputs = self.inputs
        if inputs.is_floating_point():
            inputs = inputs.masked_fill(gone, 0)
        return Record(inputs, self.grads.masked_fill(gone, 0))


@dataclass(frozen=True)
class PackedRecord(Record):
    """The same where sentences share rows: `inputs` and `grads` are (tokens, features), or
    (tokens, times, features) where a layer reads several rows of a token, such as its heads.

    Laid out a sentence a row they take several times the memory, so that is done layer by layer,
    when a rule comes to them.
    """

    packed: PackedLosses

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape_of(self.packed.sentences)

    @property
    def shape_in_pieces(self) -> tuple[int, int]:
        return self._shape_of(self.packed.pieces)

    def _shape_of(self, rows: TokenRows) -> tuple[int, int]:
        count, tokens = rows.places.shape
        return count, tokens * (self.grads.shape[1] if self.grads.dim() == 3 else 1)

    def unpacked(self, with_inputs: bool = True) -> Record:
        return self._rows(self.packed.sentences, with_inputs)

    def in_pieces(self, with_inputs: bool = True) -> Record:
        return self._rows(self.packed.pieces, with_inputs)

    def by_sentence(self, values: Tensor) -> Tensor:
        sentences = len(self.packed.losses)
        more = self.packed.pieces.sentence[sentences:]
        return values[:sentences].index_add_(0, more, values[sentences:])

    def _rows(self, rows: TokenRows, with_inputs: bool) -> Record:
        # a row of zeros at the end, for what rows lack; to gather costs less than to multiply
        grads = torch.cat([self.grads, self.grads.new_zeros(1, *self.grads.shape[1:])])
        grads = grads[rows.places_or_end].flatten(1, -2)
        inputs = grads[:, :, :0]
        if with_inputs:
            inputs = self.inputs[rows.places]
            inputs = inputs.flatten(1, -2) if self.grads.dim() == 3 else inputs
        return Record(inputs, grads)


def joined(name: str, calls: Sequence[tuple[Tensor, Tensor]], sentences: int) -> Record:
    """Inputs and gradients as (sentences, tokens, features), several calls end to end.

    Rows that a model flattened are sentence after sentence; a vector per sentence is one token.
    """
    if any(grad.numel() // grad.shape[-1] % sentences for _, grad in calls):
        raise UserError(
            f"layer {name} does not compute sentence by sentence; freeze it (requires_grad_(False))"
        )
    inputs = [x.reshape(sentences, -1, *x.shape[grad.dim() - 1 :]) for x, grad in calls]
    grads = [grad.reshape(sentences, -1, grad.shape[-1]) for _, grad in calls]
    if len(calls) == 1:  # the usual case, and no copy
        return Record(inputs[0], grads[0])
    return Record(torch.cat(inputs, 1), torch.cat(grads, 1))


def packed_record(
    name: str, calls: Sequence[tuple[Tensor, Tensor]], packed: PackedLosses
) -> PackedRecord:
    """The one call of a layer whose sentences share rows."""
    tokens = packed.sentences.end
    rows = [x.numel() // max(1, _features(x, grad)) for x, grad in calls]
    if len(calls) > 1 or rows[0] % tokens:
        raise UserError(
            f"layer {name} does not read every token once; its sentences cannot share rows"
        )
    ((x, grad),) = calls
    times = (tokens, rows[0] // tokens) if rows[0] > tokens else (-1,)
    inputs = x.reshape(*times, *x.shape[grad.dim() - 1 :])
    return PackedRecord(inputs, grad.reshape(*times, grad.shape[-1]), packed)


def _features(x: Tensor, grad: Tensor) -> int:
    """Numbers of a token in what a layer read: one for an embedding's ids."""
    return x.shape[-1] if x.dim() == grad.dim() else 1
