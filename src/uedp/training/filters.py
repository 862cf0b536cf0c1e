"""Filters of noisy gradients over the rounds: post-processing, which costs no privacy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from uedp.training.config import OptimiserSettings


class Filter(Protocol):
    """Replaces the noisy gradient of a round by an estimate from all rounds so far."""

    def ahead(self) -> AbstractContextManager[None]:
        """Within the context, the parameters are where the next gradient is to be computed."""

    def filtered(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The estimate that the optimiser steps along."""

    def stepped(self) -> None:
        """Called when the optimiser has stepped."""

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class LowPass:
    """A linear filter of first order (Zhang et al. 2024, DOPPLER), corrected for its start.

    `m_t = (1 - gain) m_{t-1} + gain (g_t + g_{t-1}) / 2`: a slow signal passes unchanged, and what
    alternates from round to round is removed.
    """

    def __init__(self, parameters: Sequence[Tensor], gain: float) -> None:
        self._gain = gain
        self._mean = [torch.zeros_like(p) for p in parameters]
        self._last = [torch.zeros_like(p) for p in parameters]
        self._weight, self._begun = torch.zeros(()), torch.zeros(())

    def ahead(self) -> AbstractContextManager[None]:
        return nullcontext()

    @torch.no_grad()
    def filtered(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        given, half = list(gradients), self._gain / 2
        torch._foreach_mul_(self._mean, 1 - self._gain)
        torch._foreach_add_(self._mean, given, alpha=half)
        torch._foreach_add_(self._mean, self._last, alpha=half)
        torch._foreach_copy_(self._last, given)
        self._weight.mul_(1 - self._gain).add_(half * (1 + self._begun))
        self._begun.fill_(1)
        return list(torch._foreach_div(self._mean, float(self._weight)))

    def stepped(self) -> None:
        pass

    def state(self) -> dict[str, Tensor]:
        return {
            "filter.weight": self._weight,
            "filter.begun": self._begun,
            **_numbered("filter.mean", self._mean),
            **_numbered("filter.last", self._last),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._weight.copy_(state["filter.weight"])
        self._begun.copy_(state["filter.begun"])
        _fill(self._mean, "filter.mean", state)
        _fill(self._last, "filter.last", state)


class Kalman:
    """The simplified Kalman filter of Zhang et al. 2024 (DiSK).

    `m_t = (1 - gain) m_{t-1} + gain g_t`. The old estimate belongs to the old weights; that the
    gradient has changed since is predicted from `g_t` itself, which is computed ahead of the
    weights: at `x_t + (1 - gain) / gain (x_t - x_{t-1})`.
    """

    def __init__(self, parameters: Sequence[Tensor], gain: float) -> None:
        self._parameters, self._gain = list(parameters), gain
        self._mean = [torch.zeros_like(p) for p in parameters]
        self._before = [p.detach().clone() for p in parameters]
        self._moved = [torch.zeros_like(p) for p in parameters]
        self._begun = torch.zeros(())

    @contextmanager
    def ahead(self) -> Iterator[None]:
        there = [p.detach().clone() for p in self._parameters]
        with torch.no_grad():
            torch._foreach_add_(self._parameters, self._moved, alpha=1 / self._gain - 1)
        try:
            yield
        finally:  # whatever happens: checkpoints hold the weights themselves
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, there)

    @torch.no_grad()
    def filtered(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        gain = self._gain if self._begun else 1.0
        torch._foreach_lerp_(self._mean, list(gradients), gain)
        self._begun.fill_(1)
        return [mean.clone() for mean in self._mean]

    @torch.no_grad()
    def stepped(self) -> None:
        now = [p.detach() for p in self._parameters]
        torch._foreach_copy_(self._moved, list(torch._foreach_sub(now, self._before)))
        torch._foreach_copy_(self._before, now)

    def state(self) -> dict[str, Tensor]:
        return {
            "filter.begun": self._begun,
            **_numbered("filter.mean", self._mean),
            **_numbered("filter.before", self._before),
            **_numbered("filter.moved", self._moved),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._begun.copy_(state["filter.begun"])
        _fill(self._mean, "filter.mean", state)
        _fill(self._before, "filter.before", state)
        _fill(self._moved, "filter.moved", state)


def build_filter(settings: OptimiserSettings, parameters: Sequence[Tensor]) -> Filter | None:
    """The filter of a run, if it has one."""
    if settings.filter == "none":
        return None
    return (LowPass if settings.filter == "low-pass" else Kalman)(parameters, settings.filter_gain)


def _numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}


def _fill(tensors: Sequence[Tensor], name: str, state: Mapping[str, Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        tensor.copy_(state[f"{name}.{number}"])
