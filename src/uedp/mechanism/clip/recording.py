"""What every trainable layer read and what gradient came back to it, in one pass of a model."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip.kinds import PRODUCTS, kind_of
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


@dataclass
class Recording:
    """What a pass leaves behind. `packed` is set within the pass, where sentences share rows."""

    records: dict[str, Record]
    packed: PackedLosses | None = None


class OverwrittenError(Exception):
    """Outputs that the model overwrote: their gradients must be caught by a hook."""

    def __init__(self, layers: set[str]) -> None:
        super().__init__(", ".join(sorted(layers)))
        self.layers = layers


@contextmanager
def recording(
    layers: Mapping[str, nn.Module],
    trainable: Sequence[nn.Parameter],
    sentences: int,
    hooked: set[str],
) -> Iterator[Recording]:
    """Hooks on, weight gradients off; on leaving, the records are filled and all is as before.

    Gradients are read off the outputs afterwards, which costs least, but for the layers `hooked`.
    """
    made = Recording({})
    casts = _Casts()
    watches = {name: _Watch(module, casts, sentences) for name, module in layers.items()}
    handles = []
    for name, watch in watches.items():
        module = layers[name]
        if watch.multiplies:
            handles.append(module.register_forward_pre_hook(watch.before))
        after = watch.after_hooked if name in hooked else watch.after
        handles.append(module.register_forward_hook(after))
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield made
        for name, watch in watches.items():
            if watch.inputs_changed():
                raise UserError(
                    f"the input of layer {name} is overwritten in place; its gradient is lost"
                )
        changed = {name for name, watch in watches.items() if watch.changed_in_place()}
        if changed:
            raise OverwrittenError(changed)
        for name, watch in watches.items():
            seen = watch.finished()
            if seen and made.packed is None:
                made.records[name] = _joined(name, seen, sentences)
            elif seen and made.packed is not None:
                made.records[name] = _packed(name, seen, made.packed)
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()


class _Watch:
    """The calls of one layer."""

    def __init__(self, module: nn.Module, casts: "_Casts", sentences: int) -> None:
        self.multiplies = kind_of(module) in PRODUCTS
        self._casts = casts
        self._sentences = sentences
        self._calls: list[_Call] = []

    def before(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Hand the layer what autocast would make of its input, once for all that read it."""
        x = arguments[0]
        if not torch.is_autocast_enabled(x.device.type):
            return None
        dtype = torch.get_autocast_dtype(x.device.type)
        return None if x.dtype == dtype else (self._casts.of(x, dtype), *arguments[1:])

    def after(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        call, output = self._recorded(arguments[0], output)
        if output.numel() > _LARGE * arguments[0].numel():
            output.register_hook(call.receive)  # an output head's: kept alive, it would cost memory
        else:
            output.retain_grad()
            call.output, call.version = output, output._version
        return output

    def after_hooked(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        call, output = self._recorded(arguments[0], output)
        output.register_hook(call.receive)
        return output

    def _recorded(self, x: Tensor, output: Tensor) -> tuple["_Call", Tensor]:
        x = x.detach() if x.requires_grad else x
        if output.shape[0] == 1 and self._sentences > 1:
            # positions are looked up once for all; each sentence needs a gradient of its own
            x = x.expand(self._sentences, *x.shape[1:])
            output = output.expand(self._sentences, *output.shape[1:])
        if not output.requires_grad:  # nothing trainable lies before: gradients begin here
            output = output.detach().requires_grad_(True).clone()  # a leaf cannot be overwritten
        call = _Call(x)
        self._calls.append(call)
        return call, output

    def inputs_changed(self) -> bool:
        return any(call.inputs._version != call.inputs_version for call in self._calls)

    def changed_in_place(self) -> bool:
        return any(
            call.output is not None and call.output._version != call.version for call in self._calls
        )

    def finished(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and gradients of the calls that a gradient came back to."""
        pairs = [(call.inputs, call.grads()) for call in self._calls]
        self._calls = []
        return [(inputs, grads) for inputs, grads in pairs if grads is not None]


# An output this many times its input is not kept alive to read its gradient off it.
_LARGE = 8


class _Call:
    """One call of a layer."""

    __slots__ = ("_received", "inputs", "inputs_version", "output", "version")

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs
        self.inputs_version = inputs._version
        self.output: Tensor | None = None
        self.version = 0
        self._received: Tensor | None = None

    def receive(self, grads: Tensor) -> None:
        self._received = grads

    def grads(self) -> Tensor | None:
        return self._received if self.output is None else self.output.grad


class _Casts:
    """Casts of the last few tensors, so that layers that read one tensor share one cast of it.

    Only the last few, so that nothing is kept alive that training would free.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=4)

    def of(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        for seen, cast in self._recent:
            if seen is x:
                return cast
        cast = x.to(dtype)
        self._recent.append((x, cast))
        return cast


def _joined(name: str, calls: Sequence[tuple[Tensor, Tensor]], sentences: int) -> Record:
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


def _packed(
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
