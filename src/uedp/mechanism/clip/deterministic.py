"""A model in training mode with its randomness held fixed, and checks that it keeps no state.

Some layers mix sentences only in training mode. That shows when the same sentences are computed
together and one by one, unless dropout makes them differ by chance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from uedp.errors import UserError
from uedp.eval_mode import modes_kept
from uedp.mechanism.clip.shared import SharedMask


@contextmanager
def deterministic_training(model: nn.Module) -> Iterator["FixedRandomness"]:
    """In training mode, dropping nothing; afterwards every module is in the mode it was in.

    Guarantees:
      - dropout, by layer, by function or within attention, passes everything
      - PyTorch's other random numbers are replaced by one that is not zero, so that their effect
        still shows
      - draws that do not grow with the number of sentences are detected (`refuse_shared`): those
        that sentences share differ from chunk to chunk of a round, unless a `SharedMask` holds them
    """
    with modes_kept(model), FixedRandomness() as fixed:
        model.train()
        yield fixed


def refuse_layer_drop(model: nn.Module) -> None:
    """A randomly skipped layer is skipped for all sentences of a chunk: a shared mask not held."""
    for owner in (getattr(model, "config", None), *model.modules()):
        for name, value in vars(owner).items() if owner is not None else ():
            if "layerdrop" in name and isinstance(value, int | float) and value > 0:
                raise UserError(
                    f"{type(owner).__name__}.{name} is {value:g}: layers would be skipped for all "
                    "sentences of a chunk at once; set it to 0"
                )


def held_values(model: nn.Module) -> dict[str, Any]:
    """Copies of all tensors and numbers that a model's modules hold, except held masks."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in _held(model).items()
    }


def refuse_changed_values(model: nn.Module, before: Mapping[str, Any]) -> None:
    """Raise if a model no longer holds the values it held before its passes."""
    for name, value in _held(model).items():
        old = before.get(name)
        same = (
            isinstance(old, Tensor) and torch.equal(old, value)
            if isinstance(value, Tensor)
            else old == value
        )
        if not same:
            raise state_error(name)


def state_error(name: str) -> UserError:
    """The error for a parameter, buffer or attribute that a forward pass changes."""
    return UserError(
        f"{name} changes in the forward pass, which would carry text from one user to another; "
        "use a layer that keeps no statistics and leaves weights alone"
    )


def _held(model: nn.Module) -> dict[str, Any]:
    held: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    for path, module in model.named_modules():
        if not isinstance(module, SharedMask):
            own = {**vars(module), **module._buffers}
            held |= {f"{path}.{name}".lstrip("."): value for name, value in own.items()}
    return {name: value for name, value in held.items() if isinstance(value, Tensor | int | float)}


_DROPOUT = {
    nn.functional.dropout,
    nn.functional.dropout1d,
    nn.functional.dropout2d,
    nn.functional.dropout3d,
    nn.functional.alpha_dropout,
    nn.functional.feature_alpha_dropout,
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
}
_DRAWS = {torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.normal}
_DRAWS |= {Tensor.uniform_, Tensor.normal_, Tensor.exponential_}
_COINS = {torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_}
_FIXED_DRAW, _FIXED_COIN = 0.5, 1.0


class FixedRandomness(TorchFunctionMode):
    """Replaces the random numbers of a pass by constants, and counts those of each call."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[int, list[int]] = {}
        self._now: list[int] = []

    def start_pass(self, sentences: int) -> None:
        """The next pass has this many sentences."""
        self._now = self._drawn[sentences] = []

    def refuse_shared(self, few: int, many: int) -> None:
        """Raise if some call drew no more for many sentences than for few."""
        pairs = zip(self._drawn[few], self._drawn[many], strict=False)
        if any(more <= less for less, more in pairs):
            raise UserError(
                "the model draws random numbers that the sentences of a pass share, as skipping "
                "layers by chance does; turn that off, or draw them by a `SharedMask`"
            )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _DROPOUT:
            return self._counted(args[0] if args else named["input"])
        if func is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            named.pop("dropout_p", None)
            return func(*args, **named)
        result = func(*args, **named)
        if func in _DRAWS:
            return self._counted(result).fill_(_FIXED_DRAW)
        return self._counted(result).fill_(_FIXED_COIN) if func in _COINS else result

    def _counted(self, drawn: Tensor) -> Tensor:
        self._now.append(drawn.numel())
        return drawn
