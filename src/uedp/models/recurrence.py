"""An LSTM over whole sentences, with its own backward pass.

With autograd every step would record a dozen operations. Here the steps run without a graph, and
the backward pass takes one matrix product and a few elementwise operations per step; on a GPU,
one product and one kernel, forward and backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def recurrence(gates: Tensor, weight: Tensor, tap: Callable[[Tensor], Tensor]) -> Tensor:
    """The states of an LSTM that starts from zero: (sentences, tokens, units).

    Args:
        gates: (sentences, tokens, 4 x units), the inputs' part of the input, forget, cell and
            output gates
        weight: (4 x units, units), applied to the previous state and added to `gates`
        tap: called once with all previous states; returns zeros shaped like `gates`, which receive
            the gradient of the gates as if they had been added. It gives hooks a call to record:
            the product itself is computed step by step.

    Guarantees:
      - values and gradients are those of `stepwise`
      - a state depends on no later token and on no other sentence
    """
    if torch._C._are_functorch_transforms_active():  # they cannot differentiate our backward pass
        return stepwise(gates, weight)
    weight = weight.to(gates.dtype)  # under autocast: the dtype of its products
    steps = _fused_steps if gates.is_cuda else _steps
    with torch.no_grad(), torch.autocast(gates.device.type, enabled=False):
        hidden, kept = steps(gates, weight)
    if not torch.is_grad_enabled():
        return hidden
    before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
    states: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
        gates, tap(before), weight, hidden, *kept
    )
    return states


State = tuple[Tensor, Tensor]
"""The state and the cell after some tokens, each (sentences, units)."""


def stepwise(gates: Tensor, weight: Tensor) -> Tensor:
    """The reference implementation, also used under the transforms of `torch.func`."""
    return resumed(gates, weight, None)[0]


def resumed(gates: Tensor, weight: Tensor, after: State | None) -> tuple[Tensor, State]:
    """The states of an LSTM that resumes `after` earlier tokens, and the state to resume from."""
    state = cell = gates.new_zeros(gates.shape[0], weight.shape[1])
    if after is not None:
        state, cell = after
    states = []
    for step in gates.unbind(1):
        enter, forget, value, leave = (step + state @ weight.t()).chunk(4, 1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(value)
        state = torch.sigmoid(leave) * torch.tanh(cell)
        states.append(state)
    return torch.stack(states, 1), (state, cell)


class _Recurrence(torch.autograd.Function):
    """Returns states that were computed before, and propagates their gradients."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, tapped: Tensor, weight: Tensor, hidden: Tensor, *kept: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weight, hidden, *kept)
        return hidden.view_as(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, hidden, *kept = ctx.saved_tensors
        steps_back = _fused_steps_back if grad.is_cuda else _steps_back
        with torch.autocast(grad.device.type, enabled=False):
            gates = steps_back(grad, weight, kept)
            into_weight = None
            if ctx.needs_input_grad[2]:  # the state before the first step is zero
                after, before = gates[:, 1:].flatten(0, 1), hidden[:, :-1].flatten(0, 1)
                into_weight = after.t() @ before
        # detached, since autograd would copy a tensor that is returned twice
        return gates, gates.detach(), into_weight, None, *(None for _ in kept)


def _steps(gates: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The states; for the backward pass, the activated gates and the cells of all steps."""
    units = weight.shape[1]
    opened = torch.empty_like(gates)
    states, cells = (gates.new_empty(*gates.shape[:2], units) for _ in range(2))
    state = cell = gates.new_zeros(gates.shape[0], units)
    for t, step in enumerate(gates.unbind(1)):
        now = torch.addmm(step, state, weight.t(), out=opened[:, t])
        now[:, : 2 * units].sigmoid_()
        now[:, 2 * units : 3 * units].tanh_()
        now[:, 3 * units :].sigmoid_()
        enter, forget, value, leave = now.chunk(4, 1)
        cell = torch.mul(forget, cell, out=cells[:, t]).addcmul_(enter, value)
        state = torch.tanh(cell, out=states[:, t]).mul_(leave)
    return states, [opened, cells]


def _steps_back(grad: Tensor, weight: Tensor, kept: list[Tensor]) -> Tensor:
    """The gradients of the gates from those of the states."""
    opened, cells = kept
    enter, forget, value, leave = opened.chunk(4, 2)
    out = torch.tanh(cells)
    # the derivative of each gate with respect to its cell or state, for all steps at once
    gates = torch.empty_like(opened)
    into_enter, into_forget, into_value, into_leave = gates.chunk(4, 2)
    torch.mul(_slope(enter), value, out=into_enter)
    into_forget[:, :1] = 0
    torch.mul(_slope(forget[:, 1:]), cells[:, :-1], out=into_forget[:, 1:])
    torch.mul(enter, 1 - value * value, out=into_value)
    torch.mul(_slope(leave), out, out=into_leave)
    into_cell = leave * (1 - out * out)
    state, cell = grad[:, -1], torch.zeros_like(cells[:, 0])
    for t in range(grad.shape[1] - 1, -1, -1):
        cell = torch.addcmul(cell, state, into_cell[:, t])
        now = gates[:, t]
        now.unflatten(1, (4, -1))[:, :3].mul_(cell[:, None])
        now.unflatten(1, (4, -1))[:, 3].mul_(state)
        if t:
            cell = cell.mul_(forget[:, t])
            state = torch.addmm(grad[:, t - 1], now, weight)
    return gates


def _slope(sigmoid: Tensor) -> Tensor:
    return sigmoid * (1 - sigmoid)


def _fused_steps(gates: Tensor, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """As `_steps`, with the elementwise part of a step in the one kernel of `nn.LSTMCell`."""
    state = cell = gates.new_zeros(gates.shape[0], weight.shape[1])
    states, cells, opened = [], [cell], []
    for step in gates.unbind(1):
        state, cell, now = torch.ops.aten._thnn_fused_lstm_cell(step, state @ weight.t(), cell)
        states.append(state)
        cells.append(cell)
        opened.append(now)
    return torch.stack(states, 1), [*opened, *cells]


def _fused_steps_back(grad: Tensor, weight: Tensor, kept: list[Tensor]) -> Tensor:
    tokens = grad.shape[1]
    opened, cells = kept[:tokens], kept[tokens:]
    state, cell = grad[:, -1], torch.zeros_like(cells[0])
    gates: list[Tensor] = []
    for t in range(tokens - 1, -1, -1):
        now, cell, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
            state, cell, cells[t], cells[t + 1], opened[t], False
        )
        gates.append(now)
        if t:
            state = torch.addmm(grad[:, t - 1], now, weight)
    return torch.stack(gates[::-1], 1)
