"""A model in training mode, with everything random about it held still.

Some layers mix sentences only in training mode. To see that, the same sentences must be computed
together and one by one, which dropout would make differ by chance.
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
def training_without_chance(model: nn.Module) -> Iterator["WithoutChance"]:
    """In training mode, dropping nothing; afterwards every module is in the mode it was in.

    Guarantees:
      - dropout, by layer, by function or within attention, passes everything
      - PyTorch's other random numbers are replaced by one that is not zero, so that what they are
        multiplied by still shows
      - masks that do not grow with the number of sentences can be told (`refuse_shared`): those
        that sentences share differ from chunk to chunk of a round, unless a `SharedMask` holds them
    """
    with modes_kept(model), WithoutChance() as chance:
        model.train()
        yield chance


def refuse_layer_drop(model: nn.Module) -> None:
    """Layers skipped by chance are skipped for all sentences of a chunk: a mask nobody holds."""
    for owner in (getattr(model, "config", None), *model.modules()):
        for name, value in vars(owner).items() if owner is not None else ():
            if "layerdrop" in name and isinstance(value, int | float) and value > 0:
                raise UserError(
                    f"{type(owner).__name__}.{name} is {value:g}: layers would be skipped for all "
                    "sentences of a chunk at once; set it to 0"
                )


def kept_by(model: nn.Module) -> dict[str, Any]:
    """Copies of all tensors and numbers that a model's modules hold, except held masks."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in _held(model).items()
    }


def refuse_kept(model: nn.Module, before: Mapping[str, Any]) -> None:
    """Raise if a model no longer holds what it held before its passes."""
    for name, value in _held(model).items():
        old = before.get(name)
        same = (
            isinstance(old, Tensor) and torch.equal(old, value)
            if isinstance(value, Tensor)
            else old == value
        )
        if not same:
            raise stateful(name)


def stateful(name: str) -> UserError:
    """The error for a parameter, buffer or attribute that a forward pass changes."""
    return UserError(
        f"{name} changes in the forward pass, which would carry text from one user to another; "
        "use a layer that keeps no statistics and leaves weights alone"
    )


def _held(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    for path, module in model.named_modules():
        if not isinstance(module, SharedMask):
            held = {**vars(module), **module._buffers}
            found |= {f"{path}.{name}".lstrip("."): value for name, value in held.items()}
    return {name: v for name, v in found.items() if isinstance(v, Tensor | int | float)}


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
_DRAWN = {torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.normal}
_DRAWN_IN_PLACE = {Tensor.uniform_, Tensor.normal_, Tensor.exponential_}
_COINS = {torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_}
_ANYTHING = 0.5


class WithoutChance(TorchFunctionMode):
    """Holds the random numbers of a pass still, and counts how many each call draws."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[int, list[int]] = {}
        self._now: list[int] = []

    def of(self, sentences: int) -> None:
        """The next pass has so many sentences."""
        self._now = self._drawn[sentences] = []

    def refuse_shared(self, few: int, many: int) -> None:
        """Raise if a pass over many sentences drew no more somewhere than one over few."""
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
            return self._own(args[0] if args else named["input"])
        if func is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            named.pop("dropout_p", None)
            return func(*args, **named)
        found = func(*args, **named)
        if func in _DRAWN or func in _DRAWN_IN_PLACE:
            return self._own(found).fill_(_ANYTHING)
        return self._own(found).fill_(1.0) if func in _COINS else found

    def _own(self, drawn: Tensor) -> Tensor:
        self._now.append(drawn.numel())
        return drawn
