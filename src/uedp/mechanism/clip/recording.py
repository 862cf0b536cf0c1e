"""Hooks that record the inputs and output gradients of every trainable layer in one pass."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip.records import Record, joined, packed_record
from uedp.mechanism.clip.registry import ClippedLayer
from uedp.mechanism.clip.runs import Runs
from uedp.mechanism.packing import PackedLosses


@dataclass
class Recording:
    """The records of a pass. `packed` is set within the pass if sentences share rows."""

    records: dict[str, Record]
    packed: PackedLosses | None = None


class OverwrittenError(Exception):
    """Outputs that the model overwrote: their gradients must be caught by a hook."""

    def __init__(self, layers: set[str]) -> None:
        super().__init__(", ".join(sorted(layers)))
        self.layers = layers


@contextmanager
def recording(
    layers: Mapping[str, ClippedLayer],
    trainable: Sequence[nn.Parameter],
    sentences: int,
    hooked: set[str],
) -> Iterator[Recording]:
    """Hooks on, weight gradients off; on leaving, the records are filled and all is as before.

    Gradients are read off the outputs afterwards, which is cheapest, except for the layers
    `hooked`.
    """
    recorded = Recording({})
    # only the last few casts, so that nothing is kept alive that training would free
    casts: _Casts = deque(maxlen=4)
    watches = {name: _Watch(casts, sentences, name in hooked) for name in layers}
    handles = []
    for name, watch in watches.items():
        module, registered = layers[name]
        if registered.casts_input:
            handles.append(module.register_forward_pre_hook(watch.before))
        handles.append(module.register_forward_hook(watch.after))
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield recorded
        for name, watch in watches.items():
            if watch.inputs_changed():
                raise UserError(
                    f"the input of layer {name} is overwritten in place; its gradient is lost"
                )
        changed = {name for name, watch in watches.items() if watch.outputs_changed()}
        if changed:
            raise OverwrittenError(changed)
        packed = recorded.packed
        runs = None if packed is None else _runs(packed)
        for name, watch in watches.items():
            if calls := watch.finished():
                recorded.records[name] = (
                    joined(name, calls, sentences)
                    if packed is None or runs is None
                    else packed_record(name, calls, packed, runs)
                )
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()


def _runs(packed: PackedLosses) -> Runs:
    end, device = packed.sentences.end, packed.losses.device
    return Runs(packed.starts, packed.lengths, end, device)


_Casts = deque[tuple[Tensor, Tensor]]  # tensors, each with its cast

# An output this many times its input is not kept alive to read its gradient off it.
_LARGE = 8


class _Watch:
    """The calls of one layer."""

    def __init__(self, casts: _Casts, sentences: int, hooked: bool) -> None:
        self._casts, self._sentences, self._hooked = casts, sentences, hooked
        self._calls: list[_Call] = []

    def before(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Cast the layer's input as autocast would, once for all layers that read it."""
        x = arguments[0]
        if not torch.is_autocast_enabled(x.device.type):
            return None
        dtype = torch.get_autocast_dtype(x.device.type)
        return None if x.dtype == dtype else (self._cast(x, dtype), *arguments[1:])

    def _cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        for seen, cast in self._casts:
            if seen is x:
                return cast
        cast = x.to(dtype)
        self._casts.append((x, cast))
        return cast

    def after(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        x = arguments[0].detach() if arguments[0].requires_grad else arguments[0]
        if output.shape[0] == 1 and self._sentences > 1:
            # positions are looked up once for all; each sentence needs a gradient of its own
            x = x.expand(self._sentences, *x.shape[1:])
            output = output.expand(self._sentences, *output.shape[1:])
        if not output.requires_grad:  # nothing trainable lies before: gradients start here
            output = output.detach().requires_grad_(True).clone()  # a leaf cannot be overwritten
        call = _Call(x, x._version)
        self._calls.append(call)
        if self._hooked or output.numel() > _LARGE * arguments[0].numel():
            output.register_hook(call.receive)  # an output head's, kept alive, would cost memory
        else:
            output.retain_grad()
            call.output, call.version = output, output._version
        return output

    def inputs_changed(self) -> bool:
        return any(call.inputs._version != call.inputs_version for call in self._calls)

    def outputs_changed(self) -> bool:
        return any(
            call.output is not None and call.output._version != call.version for call in self._calls
        )

    def finished(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and gradients of the calls that a gradient came back to."""
        pairs = [(call.inputs, call.grads()) for call in self._calls]
        self._calls = []
        return [(inputs, grads) for inputs, grads in pairs if grads is not None]


@dataclass(slots=True)
class _Call:
    """One call of a layer."""

    inputs: Tensor
    inputs_version: int
    output: Tensor | None = None
    version: int = 0
    received: Tensor | None = None

    def receive(self, grads: Tensor) -> None:
        self.received = grads

    def grads(self) -> Tensor | None:
        return self.received if self.output is None else self.output.grad
