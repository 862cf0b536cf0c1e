"""Server optimisers, learning rates and averaging: post-processing of noisy gradients."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from uedp.training.config import OptimiserSettings


class Optimiser(Protocol):
    """Moves parameters along a gradient; its state is tensors, for the checkpoint."""

    def step(self, gradients: Sequence[Tensor], rate: float, deviation: float) -> None:
        """Take one step; `deviation` is the standard deviation of the noise in every entry."""

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Momentum:
    """Gradient descent with (or, at 0, without) momentum."""

    def __init__(self, parameters: Sequence[Tensor], momentum: float) -> None:
        self._parameters, self._momentum = list(parameters), momentum
        self._velocity = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float, deviation: float) -> None:
        torch._foreach_mul_(self._velocity, self._momentum)
        torch._foreach_add_(self._velocity, list(gradients))
        torch._foreach_add_(self._parameters, self._velocity, alpha=-rate)

    def state(self) -> dict[str, Tensor]:
        return _numbered("velocity", self._velocity)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        _fill(self._velocity, "velocity", state)


class Adam:
    """Adam (Kingma and Ba 2015) with bias correction.

    Noise adds its variance to the second moment, which shortens the steps. `subtract_noise`
    subtracts the known variance (Tang et al. 2023), down to a floor.
    """

    _FLOOR = 0.01  # lower bound of the remaining variance, as a share of the noise's

    def __init__(
        self, parameters: Sequence[Tensor], first: float, second: float, subtract_noise: bool
    ) -> None:
        self._parameters, self._first, self._second = list(parameters), first, second
        self._subtract_noise = subtract_noise
        self._mean = [torch.zeros_like(p) for p in parameters]
        self._square = [torch.zeros_like(p) for p in parameters]
        self._steps = torch.zeros(())

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float, deviation: float) -> None:
        gradients = list(gradients)
        self._steps += 1
        steps = float(self._steps)
        torch._foreach_lerp_(self._mean, gradients, 1 - self._first)
        torch._foreach_mul_(self._square, self._second)
        torch._foreach_addcmul_(self._square, gradients, gradients, value=1 - self._second)
        variance = list(torch._foreach_div(self._square, 1 - self._second**steps))
        if self._subtract_noise and deviation > 0:
            torch._foreach_sub_(variance, deviation**2)
            torch._foreach_clamp_min_(variance, self._FLOOR * deviation**2)
        torch._foreach_sqrt_(variance)
        torch._foreach_add_(variance, 1e-12)
        size = rate / (1 - self._first**steps)
        torch._foreach_addcdiv_(self._parameters, self._mean, variance, value=-size)

    def state(self) -> dict[str, Tensor]:
        return {
            "steps": self._steps,
            **_numbered("mean", self._mean),
            **_numbered("square", self._square),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._steps.copy_(state["steps"])
        _fill(self._mean, "mean", state)
        _fill(self._square, "square", state)


class Average:
    """An exponential moving average of the parameters, which has less noise than the last step.

    `decay` is reached gradually, so that the initial parameters are soon forgotten. With `after`,
    it is instead the plain mean over the steps after so many.
    """

    def __init__(
        self, parameters: Sequence[Tensor], decay: float, after: int | None = None
    ) -> None:
        self._parameters, self._decay, self._after = list(parameters), decay, after
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Include the parameters after `steps` steps."""
        if self._after is None:
            decay = min(self._decay, steps / (steps + 9))
        else:
            decay = 1 - 1 / max(steps - self._after, 1)
        torch._foreach_lerp_(self.values, [p.detach() for p in self._parameters], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the context, the parameters are replaced by the average."""
        last = [p.detach().clone() for p in self._parameters]
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self.values)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, last)

    def state(self) -> dict[str, Tensor]:
        return _numbered("average", self.values)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        _fill(self.values, "average", state)


def build_optimiser(settings: OptimiserSettings, parameters: Sequence[Tensor]) -> Optimiser:
    if settings.name == "adam":
        return Adam(parameters, settings.momentum, settings.second_moment, settings.subtract_noise)
    return Momentum(parameters, settings.momentum if settings.name == "momentum" else 0.0)


def build_average(
    settings: OptimiserSettings, parameters: Sequence[Tensor], rounds: int
) -> Average | None:
    """The average that is evaluated and saved, if the last weights are not."""
    if settings.average_tail:
        return Average(parameters, 0.0, rounds - math.ceil(settings.average_tail * rounds))
    return Average(parameters, settings.average) if settings.average else None


def learning_rate(settings: OptimiserSettings, done: int, rounds: int) -> float:
    """The learning rate after `done` rounds: warm-up, then decay to a hundredth at the end."""
    warm = settings.warm_up * rounds
    if done < warm:
        return settings.rate * (done + 1) / (warm + 1)
    if settings.decay == "none":
        return settings.rate
    left = 1 - (done - warm) / max(rounds - warm, 1)
    shape = left if settings.decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))
    return settings.rate * max(shape, 0.01)


def _numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}


def _fill(tensors: Sequence[Tensor], name: str, state: Mapping[str, Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        tensor.copy_(state[f"{name}.{number}"])
