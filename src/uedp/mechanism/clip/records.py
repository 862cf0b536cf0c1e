"""The inputs and output gradients of a layer in one pass, by sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.mechanism.clip.runs import Runs, has_kernels
from uedp.mechanism.packing import PackedLosses, TokenRows


@dataclass(frozen=True)
class Record:
    """The inputs and output gradients of a layer, all its calls end to end along the tokens.

    Both are (sentences, tokens, features), unless sentences share rows; an embedding's inputs are
    ids. Layers that read the same tensor have the same `source`.
    """

    inputs: Tensor
    grads: Tensor

    @property
    def source(self) -> tuple[Any, ...]:
        return self.inputs.data_ptr(), *self.inputs.shape, *self.inputs.stride()

    @property
    def stays_packed(self) -> bool:
        return False

    def shape(self, in_pieces: bool = False) -> tuple[int, int]:
        """Rows of `unpacked`, and tokens of each."""
        return self.grads.shape[0], self.grads.shape[1]

    def unpacked(self, with_inputs: bool = True, in_pieces: bool = False) -> "Record":
        """With a row for each sentence, or with its pieces where that saves padding.

        Without inputs if those of another layer with the same source serve.
        """
        return self

    def by_sentence(self, values: Tensor) -> Tensor:
        """Values of pieces, added up to one for each sentence; may be in place."""
        return values

    @property
    def spans(self) -> list[slice] | None:
        """Rows of each sentence, where products of them one by one cost least."""
        return None

    def without(self, sentences: Tensor) -> "Record":
        """With the gradients of some sentences set to zero, finite or not."""
        dropped, inputs = sentences[:, None, None], self.inputs
        if inputs.is_floating_point():
            inputs = inputs.masked_fill(dropped, 0)
        return Record(inputs, self.grads.masked_fill(dropped, 0))


@dataclass(frozen=True)
class PackedRecord(Record):
    """The same where sentences share rows: `inputs` and `grads` are (tokens, features), or
    (tokens, times, features) where a layer reads several rows of a token, such as its heads.

    With a row per sentence they take several times the memory, so each layer is unpacked only when
    its rule needs it.
    """

    packed: PackedLosses
    runs: Runs

    @property
    def stays_packed(self) -> bool:
        """Whether its rules need not unpack it: there are kernels, and a row for each token."""
        return has_kernels(self.grads) and self.grads.dim() == 2 and self.runs.in_order

    def shape(self, in_pieces: bool = False) -> tuple[int, int]:
        count, tokens = self._rows(in_pieces).places.shape
        return count, tokens * (self.grads.shape[1] if self.grads.dim() == 3 else 1)

    def unpacked(self, with_inputs: bool = True, in_pieces: bool = False) -> Record:
        rows = self._rows(in_pieces)
        # a row of zeros at the end, for missing tokens: gathering costs less than multiplying
        grads = torch.cat([self.grads, self.grads.new_zeros(1, *self.grads.shape[1:])])
        grads = grads[rows.places_or_end].flatten(1, -2)
        inputs = grads[:, :, :0]
        if with_inputs:
            inputs = self.inputs[rows.places]
            inputs = inputs.flatten(1, -2) if self.grads.dim() == 3 else inputs
        return Record(inputs, grads)

    def by_sentence(self, values: Tensor) -> Tensor:
        sentences = len(self.packed.losses)
        more = self.packed.pieces.sentence[sentences:]
        return values[:sentences].index_add_(0, more, values[sentences:])

    @property
    def spans(self) -> list[slice] | None:
        # on a CPU, small products cost less than laying the tokens out for large ones
        usual = self.grads.dim() == 2 and self.grads.dtype == torch.float32
        return self.packed.sentences.spans if usual and not self.grads.is_cuda else None

    def _rows(self, in_pieces: bool) -> TokenRows:
        return self.packed.pieces if in_pieces else self.packed.sentences


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
    name: str, calls: Sequence[tuple[Tensor, Tensor]], packed: PackedLosses, runs: Runs
) -> PackedRecord:
    """The one call of a layer whose sentences share rows."""
    (x, grad), tokens = calls[0], packed.sentences.end
    features = x.shape[-1] if x.dim() == grad.dim() else 1  # an id has one
    rows = x.numel() // max(1, features)
    if len(calls) > 1 or rows % tokens:
        raise UserError(
            f"layer {name} does not read every token once; its sentences cannot share rows"
        )
    times = (tokens, rows // tokens) if rows > tokens else (-1,)
    inputs = x.reshape(*times, *x.shape[grad.dim() - 1 :])
    return PackedRecord(inputs, grad.reshape(*times, grad.shape[-1]), packed, runs)
