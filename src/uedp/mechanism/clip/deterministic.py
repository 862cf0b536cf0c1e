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
from uedp.modes import modes_kept


@contextmanager
def training_without_chance(model: nn.Module) -> Iterator[None]:
    """In training mode, dropping nothing; afterwards every module is in the mode it was in.

    Guarantees:
      - dropout, by layer, by function or within attention, passes everything
      - other random numbers are replaced by their means
      - a pass that draws a single number for all of its sentences is refused: it would differ
        from chunk to chunk of a round
    """
    with modes_kept(model), _WithoutChance():
        model.train()
        yield


def refuse_layer_drop(model: nn.Module) -> None:
    """Layers skipped by chance are skipped for all sentences of a chunk: a mask nobody holds."""
    for owner in (getattr(model, "config", None), *model.modules()):
        for name, value in vars(owner).items() if owner is not None else ():
            if "layerdrop" in name and isinstance(value, int | float) and value > 0:
                raise UserError(
                    f"{type(owner).__name__}.{name} is {value:g}: layers would be skipped for all "
                    "sentences of a chunk at once; set it to 0"
                )


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
_UNIFORM = {torch.rand, torch.rand_like}
_NORMAL = {torch.randn, torch.randn_like}
_BERNOULLI = {torch.bernoulli}
_IN_PLACE: dict[Callable[..., Any], float] = {
    Tensor.uniform_: 0.5,
    Tensor.normal_: 0.0,
    Tensor.bernoulli_: 1.0,
}


class _WithoutChance(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _DROPOUT:
            return args[0] if args else named["input"]
        if func is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            named.pop("dropout_p", None)
            return func(*args, **named)
        found = func(*args, **named)
        if func in _UNIFORM:
            return _shared_by_none(found).fill_(0.5)
        if func in _NORMAL:
            return _shared_by_none(found).zero_()
        if func in _BERNOULLI:
            return torch.ones_like(found)
        return _shared_by_none(found).fill_(_IN_PLACE[func]) if func in _IN_PLACE else found


def _shared_by_none(drawn: Tensor) -> Tensor:
    if drawn.numel() == 1:
        raise UserError(
            "the model draws one random number for all sentences of a pass, as skipping layers by "
            "chance does; turn that off"
        )
    return drawn
