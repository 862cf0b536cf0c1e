"""Low-rank adapters of linear layers, computed with few operations and recorded on the way.

PEFT adds an adapter to a linear layer in seven operations, and casts frozen weights in every pass.
Here frozen weights are cast once, and layers that read the same tensor (queries, keys and values;
gate and up) are one layer with one adapter. What clip rules need (`Adapted`) is kept as it occurs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError

_ALIGNED = 8  # halves that tensor cores read at once


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapted linear layer of PEFT: `base(x) + scale * up(down(x))`."""

    module: nn.Module
    base: nn.Module
    down: nn.Parameter  # (rank, inputs)
    up: nn.Parameter  # (outputs, rank)
    scale: float

    @property
    def weight(self) -> Tensor:
        """The base layer's, (outputs, inputs); a Conv1D has it the other way round."""
        weight = self.base.weight
        assert isinstance(weight, Tensor)
        return weight if isinstance(self.base, nn.Linear) else weight.t()

    def state(self) -> tuple[Any, ...]:
        """Equal to what it was, unless somebody made something else of the adapter."""
        own: Any = self.module.__dict__
        scaling = tuple(own["scaling"].values())
        return own["_active_adapter"], own["_disable_adapters"], *own["merged_adapters"], *scaling


def find_adapters(model: nn.Module) -> list[Adapter] | None:
    """All adapters of a model of which nothing else trains; None if there is anything else."""
    adapters = [_adapter(module) for module in model.modules() if hasattr(module, "lora_A")]
    if not adapters or None in adapters:
        return None
    known = [adapter for adapter in adapters if adapter is not None]
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    both = {id(p) for adapter in known for p in (adapter.down, adapter.up)}
    shared = len(both) < 2 * len(known)
    return known if trained and trained <= both and not shared else None


def _adapter(module: Any) -> Adapter | None:
    """An adapter of the plain kind: no dropout, no magnitudes, no second adapter, not merged."""
    from peft.tuners.lora.layer import Linear
    from transformers.pytorch_utils import Conv1D

    if type(module) is not Linear or module.merged or module.disable_adapters:
        return None
    name, *others = module.active_adapters
    if others or list(module.lora_A) != [name] or name in module.lora_variant:
        return None
    base: Any = module.get_base_layer()
    down: Any = module.lora_A[name]
    up: Any = module.lora_B[name]
    plain = isinstance(module.lora_dropout[name], nn.Identity) and (
        type(base).forward in (nn.Linear.forward, Conv1D.forward)
    )
    biased = down.bias is not None or up.bias is not None
    if not plain or biased or any(p.requires_grad for p in base.parameters()):
        return None
    return Adapter(module, base, down.weight, up.weight, float(module.scaling[name]))


@dataclass
class Adapted:
    """A group's tensors of one pass: (tokens, features) each.

    The gradient of all `down` is `thin_grads^T inputs`; that of a member's `up` is its scale times
    `grads^T thin`, with its own columns of both.
    """

    inputs: Tensor
    thin: Tensor
    grads: Tensor | None = None
    thin_grads: Tensor | None = None


@dataclass(eq=False)
class Group:
    """Adapters that read the same tensor, as one linear layer with one adapter."""

    members: Sequence[Adapter]
    weight: Tensor
    bias: Tensor | None
    down: Tensor
    up: Tensor
    record: Adapted | None = field(default=None)
    after: Callable[[], None] = field(default=lambda: None)
    """Called in the backward pass, when the record is complete."""

    @classmethod
    def of(cls, members: Sequence[Adapter], dtype: torch.dtype) -> "Group":
        weight = torch.cat([member.weight.detach().to(dtype) for member in members])
        biases = [getattr(member.base, "bias", None) for member in members]
        bias = None
        if any(b is not None for b in biases):
            each = zip(biases, members, strict=True)
            bias = torch.cat([m.up.new_zeros(len(m.up)) if b is None else b for b, m in each])
            bias = bias.detach().to(dtype)
        ranks = sum(len(member.down) for member in members)
        thin = -(-ranks // _ALIGNED) * _ALIGNED
        down = torch.zeros(thin, weight.shape[1], dtype=dtype, device=weight.device)
        up = torch.zeros(len(weight), thin, dtype=dtype, device=weight.device)
        return cls(members, weight, bias, down, up)

    @property
    def outputs(self) -> list[slice]:
        """The members' places among the outputs."""
        return _consecutive([len(member.up) for member in self.members])

    @property
    def ranks(self) -> list[slice]:
        """The members' places among the thin columns."""
        return _consecutive([len(member.down) for member in self.members])

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the adapters as they are now."""
        for member, rows, columns in zip(self.members, self.outputs, self.ranks, strict=True):
            self.down[columns].copy_(member.down)
            self.up[rows, columns].copy_(member.up.mul(member.scale))


def _consecutive(sizes: Sequence[int]) -> list[slice]:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def group_adapters(
    model: nn.Module, adapters: Sequence[Adapter], dtype: torch.dtype, run: Callable[[], Any]
) -> list[Group]:
    """Groups in the order in which a pass (`run`) meets them; those with the same input together.

    Raises:
        UserError: a layer is not used once in a pass.
    """
    seen: list[tuple[Tensor, list[Adapter]]] = []  # the tensors stay, so that ids stay unique

    def watch(adapter: Adapter) -> Callable[..., None]:
        def before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if not seen or seen[-1][0] is not arguments[0]:
                seen.append((arguments[0], []))
            seen[-1][1].append(adapter)

        return before

    hooks = [a.module.register_forward_pre_hook(watch(a)) for a in adapters]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    met = [id(adapter) for _, members in seen for adapter in members]
    if sorted(met) != sorted(id(adapter) for adapter in adapters):
        raise UserError(f"{type(model).__name__}: an adapted layer is not used once in a pass")
    return [Group.of(members, dtype) for _, members in seen]


@contextmanager
def fused(groups: Sequence[Group], anchor: Tensor) -> Iterator[None]:
    """Inside, adapted layers compute as their groups do, and leave records there.

    `anchor` is any tensor that requires a gradient: it makes the outputs require one.
    """
    with ExitStack() as stack:
        for group in groups:
            shared = _Shared(group, anchor)
            for place, member in enumerate(group.members):
                stack.enter_context(forward_set(member.module, shared.output_of(place)))
        yield


@contextmanager
def forward_set(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Inside, a module computes something else."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.forward = before


class _Shared:
    """The outputs of a group: computed when its first member is called, given to each."""

    def __init__(self, group: Group, anchor: Tensor) -> None:
        self._group, self._anchor = group, anchor
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def output_of(self, place: int) -> Callable[..., Tensor]:
        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if place == 0:
                flat = x.reshape(-1, x.shape[-1])
                self._input = x
                self._outputs = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
                    flat, self._anchor, self._group
                )
            if x is not self._input:
                raise UserError("an adapted layer reads another tensor than in the pass before")
            output = self._outputs[place].view(*x.shape[:-1], -1)
            if place == len(self._group.members) - 1:
                self._input, self._outputs = None, ()
            return output

        return forward


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, group: Group) -> tuple[Tensor, ...]:
        x = x.detach().contiguous()
        thin = x @ group.down.t()
        if group.bias is None:
            output = x @ group.weight.t()
        else:
            output = torch.addmm(group.bias, x, group.weight.t())
        output.addmm_(thin, group.up.t())
        group.record = Adapted(x, thin)
        ctx.group = group
        return tuple(output[:, columns] for columns in group.outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        group: Group = ctx.group
        record = group.record
        assert record is not None
        together = _side_by_side(grads)
        thin = together @ group.up
        record.grads, record.thin_grads = together, thin
        back = None
        if ctx.needs_input_grad[0]:
            back = (together @ group.weight).addmm_(thin, group.down)
        group.after()
        return back, None, None


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Columns of several tensors as one; without a copy if they lie so already."""
    if len(parts) == 1:
        return parts[0].contiguous()
    first, width = parts[0], sum(part.shape[1] for part in parts)
    place = first.data_ptr()
    for part in parts:
        if part.stride() != (width, 1) or part.data_ptr() != place:
            return torch.cat(list(parts), 1)
        place += part.shape[1] * part.element_size()
    return first.as_strided((len(first), width), (width, 1))
