"""UeDP-Alg's Local-Update: several steps on a user's sentences, clipped as one update.

`docs/privacy.md` section 2; Alg. 1 of the paper, lines 20-29. A user starts from the server's
weights, steps through its sentences in batches, and hands in the difference. An update points the
way the weights moved, so the server *adds* the sum (Alg. 1, line 15).

Where `torch.func.vmap` can transform the model, users take their steps side by side, each with its
own copy of the trainable weights; elsewhere one after the other.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from uedp.errors import UserError
from uedp.incidence import Ints, Rows
from uedp.mechanism.clip.registry import refuse_mixing
from uedp.mechanism.clip.rounding import SLICE, squared_norms, sum_error
from uedp.mechanism.sampling import Uniforms

_log = logging.getLogger(__name__)

Forward = Callable[..., Any]
# The loss of each sentence of a batch: calls `forward` as it would call the model. It is handed a
# stand-in for the model when users are batched, so it must not use the model itself.
SentenceLosses = Callable[[Forward, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Steps:
    """How a user trains: local rate `eta`, batches of `B` sentences, update clip `beta`.

    A batch's direction is the weighted sum of its sentences' gradients over `divisor`. Alg. 1 has
    the plain sum; `divisor=batch_size` makes it a mean over a full batch. It is the same for
    every batch, so that a sentence counts the same in a full batch and in a last, smaller one.

    Alg. 1 steps from the start in every batch, `theta <- theta0 - eta * direction`, so that only
    the last batch's step is handed in. `from_start=True` is that line as printed; by default a
    step continues from the previous one. There is no momentum and no weight decay: a user whose
    sentences are emptied must stay where it is.
    """

    rate: float
    batch_size: int
    update_clip: float
    divisor: float = 1.0
    from_start: bool = False

    def __post_init__(self) -> None:
        for name in ("rate", "update_clip", "divisor"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} {getattr(self, name)}: must be above 0 and finite")
        if self.batch_size < 1:
            raise UserError(f"batch_size {self.batch_size}: must be at least 1")

    def batches(self, order: Ints) -> list[Ints]:
        return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]


@dataclass(frozen=True)
class UpdateSum:
    """The weighted sum of clipped updates, to be added to the weights, and the norms before
    clipping, one per user (private)."""

    updates: Mapping[nn.Parameter, Tensor]
    norms: Tensor


def shuffled(sentences: Rows, rng: Uniforms) -> list[Ints]:
    """For each user, the places of its sentences in `sentences.values`, in random order."""
    bounds = zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True)
    return [start + np.argsort(rng.random(int(end - start))) for start, end in bounds]


class LocalUpdate:
    """Computes weighted sums of local updates for one model.

    Batching fails where a model decides by looking at its data, as Transformers does when
    `attention_mask` has two dimensions, and where `sentence_losses` enters `torch.autocast`.
    Causal models padded on the right need no mask, encoders take an additive one of four
    dimensions, and autocast may go around `weighted_sum`.

    Args:
        batched: False computes one user after the other.
        users_at_once: bounds the memory of batching (three copies of the trainable weights per
            user, and activations), in addition to the limit by the size of the weights.

    Guarantees:
      - both ways and every `users_at_once` give the same sum, up to rounding
      - a model that cannot be batched is computed one user after the other, and the log says why
      - a layer that mixes sentences is refused by name before anything is computed
    """

    def __init__(
        self,
        model: nn.Module,
        sentence_losses: SentenceLosses,
        steps: Steps,
        *,
        batched: bool = True,
        users_at_once: int | None = None,
    ) -> None:
        refuse_mixing(model)
        self._model, self._losses, self._steps = model, sentence_losses, steps
        self._trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._trainable:
            raise UserError("the model has no trainable parameters; unfreeze some")
        if users_at_once is not None and users_at_once < 1:
            raise UserError(f"users_at_once {users_at_once}: must be at least 1")
        most = _most_users([*self._trainable.values()])
        self._users_at_once = min(users_at_once or most, most)
        self.batched = batched

    def weighted_sum(
        self,
        tensors: Mapping[str, Tensor],
        orders: Sequence[Ints],
        weights: Tensor,
        user_weights: Tensor,
    ) -> UpdateSum:
        """`sum_u w_u clip_beta(theta_u - theta_0)` over the users of a round.

        Args:
            tensors: all sentences of the round, padded, one per row.
            orders: the rows of each user, in the order of its steps; it must not depend on text.
            weights: how much each sentence counts.
            user_weights: `w_u` of each user.

        Guarantees:
          - a user moves the sum by at most `w_u * update_clip`, up to rounding
          - a user moves the sum by the same whoever else is in the round, up to rounding
          - a user without sentences, or whose update is not finite, contributes exactly zero
          - the model is unchanged afterwards, gradients included, also after an error
        """
        if len(user_weights) != len(orders):
            raise ValueError(f"{len(user_weights)} weights for {len(orders)} users")
        plan = [self._steps.batches(order) for order in orders]
        total = _Total(self._trainable, user_weights, self._steps.update_clip)
        if self.batched and self._users_at_once > 1:
            try:
                self._side_by_side(total, tensors, plan, weights)
                return total.result()
            except RuntimeError as error:
                if not _cannot_transform(error):
                    raise
                self.batched = False
                reason = str(error).strip().splitlines()[0]
                _log.warning("local updates: one user after the other, because %s", reason)
                total = _Total(self._trainable, user_weights, self._steps.update_clip)
        for user, batches in enumerate(plan):
            if batches:
                moved = self._one_user(tensors, batches, weights)
                total.add({n: m[None] for n, m in zip(self._trainable, moved, strict=True)}, [user])
        return total.result()

    def _one_user(
        self, tensors: Mapping[str, Tensor], batches: Sequence[Ints], weights: Tensor
    ) -> list[Tensor]:
        """The update of one user, computed in the model itself."""
        parameters = list(self._trainable.values())
        with _restored([*parameters, *self._model.buffers()]) as copies:
            start = copies[: len(parameters)]
            moved = [torch.zeros_like(p, dtype=_wide(p)) for p in start]
            for i, rows in enumerate(batches):
                if i:
                    with torch.no_grad():
                        for parameter, origin, way in zip(parameters, start, moved, strict=True):
                            parameter.copy_(origin + way)
                    torch.clear_autocast_cache()  # it knows the weights by name, not by value
                with torch.enable_grad():
                    batch = _taken(tensors, rows, start[0].device)
                    loss = self._weighted_loss(self._model, batch, _row(weights, rows))
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                for way, gradient in zip(moved, gradients, strict=True):
                    self._step(way, 0.0 if gradient is None else gradient)
        return moved

    def _side_by_side(
        self,
        total: "_Total",
        tensors: Mapping[str, Tensor],
        plan: Sequence[Sequence[Ints]],
        weights: Tensor,
    ) -> None:
        start = {n: p.detach() for n, p in self._trainable.items()}
        device = next(iter(start.values())).device
        # those with most batches first: users who are done drop off the end
        ranked = sorted((u for u, b in enumerate(plan) if b), key=lambda u: -len(plan[u]))
        for first in range(0, len(ranked), self._users_at_once):
            users = ranked[first : first + self._users_at_once]
            moved = {
                n: torch.zeros(len(users), *p.shape, dtype=_wide(p), device=device)
                for n, p in start.items()
            }
            for i in range(len(plan[users[0]])):
                rows, real = _rectangle([plan[u][i] for u in users if i < len(plan[u])])
                now = {n: m[: len(rows)] for n, m in moved.items()}
                at = {n: (start[n] + m).to(start[n].dtype) for n, m in now.items()}
                share = _row(weights, rows).to(device).masked_fill(~real.to(device), 0.0)
                for n, g in self._gradients(at, _taken(tensors, rows, device), share).items():
                    self._step(now[n], g)
            total.add(moved, users)

    def _gradients(
        self, at: dict[str, Tensor], batches: dict[str, Tensor], weights: Tensor
    ) -> Mapping[str, Tensor]:
        def loss(values: dict[str, Tensor], batch: dict[str, Tensor], weights: Tensor) -> Tensor:
            def forward(*arguments: Any, **named: Any) -> Any:
                return functional_call(self._model, values, arguments, named)

            return self._weighted_loss(forward, batch, weights)

        # the fused attention kernels cannot be transformed, or only in a loop over users
        with sdpa_kernel(SDPBackend.MATH):
            transformed = vmap(grad(loss), randomness="different")
            gradients: Mapping[str, Tensor] = transformed(at, batches, weights)
        return gradients

    def _weighted_loss(
        self, forward: Forward, batch: Mapping[str, Tensor], weights: Tensor
    ) -> Tensor:
        losses = self._losses(forward, batch)
        if losses.shape != weights.shape:
            raise UserError(
                f"the loss has shape {tuple(losses.shape)} where one value per sentence, "
                f"{tuple(weights.shape)}, is needed; return it unreduced"
            )
        return (losses * weights.to(losses)).sum() / self._steps.divisor

    def _step(self, moved: Tensor, gradient: Tensor | float) -> None:
        """One step of `moved`, which is `theta - theta_0`, in place.

        It is kept apart from the weights: their difference in the end would be mostly rounding.
        """
        if self._steps.from_start:
            moved.zero_()
        moved.sub_(self._steps.rate * gradient)


class _Total:
    """A weighted sum of updates, each clipped."""

    def __init__(
        self, trainable: Mapping[str, nn.Parameter], user_weights: Tensor, clip: float
    ) -> None:
        self._parameters = trainable
        self._sums = {n: torch.zeros_like(p, dtype=_wide(p)) for n, p in trainable.items()}
        self._user_weights = user_weights.to(next(iter(self._sums.values())))
        self._norms = torch.zeros_like(self._user_weights)
        self._clip = clip

    def add(self, updates: Mapping[str, Tensor], users: Sequence[int]) -> None:
        """Updates of some users, one per row; they are overwritten."""
        with torch.autocast(self._norms.device.type, enabled=False):  # clipping is exact
            # an upper bound: rounding must not make a norm too small
            squares = torch.stack([squared_norms(u.flatten(1)) for u in updates.values()])
            rounding = 0.0 if self._norms.dtype == torch.float64 else sum_error(SLICE)
            norms = squares.sum(0).mul_(1 + rounding).sqrt_().to(self._norms)
            self._norms[users] = norms
            finite = torch.isfinite(norms)
            # projection onto a ball; anything else would not be Lipschitz
            factors = (self._clip / norms.clamp(min=1e-30)).clamp(max=1.0)
            factors = torch.where(finite, factors * self._user_weights[users], 0.0)
            for name, update in updates.items():
                update[~finite] = 0.0  # zero times infinity is not zero
                self._sums[name] += torch.tensordot(factors.to(update), update, dims=1)

    def result(self) -> UpdateSum:
        return UpdateSum({p: self._sums[n] for n, p in self._parameters.items()}, self._norms)


# Bytes for users' copies of the weights. Little on a CPU, which gains from batching only while
# calling an operation costs more than computing it.
_MAX_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_COPIES = 3  # the update so far, the current weights, and their gradient
_MOST_AT_ONCE = 64


def _most_users(trainable: Sequence[nn.Parameter]) -> int:
    """How many users' copies fit."""
    size = sum(p.numel() * _wide(p).itemsize for p in trainable)
    max_bytes = _MAX_BYTES.get(trainable[0].device.type, _MAX_BYTES["cpu"])
    return max(1, min(_MOST_AT_ONCE, max_bytes // (_COPIES * size)))


def _wide(parameter: Tensor) -> torch.dtype:
    """The type sums are kept in: at least float32."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _rectangle(batches: Sequence[Ints]) -> tuple[Ints, Tensor]:
    """Batches as rows of equal length, and which entries are real.

    A batch is filled up with its own first sentence, to be given weight zero: another user's could
    have a loss that is not finite, which weight zero does not undo.
    """
    counts = np.array([len(batch) for batch in batches])
    places = np.arange(counts.max())
    real = places < counts[:, None]
    rows = np.stack([np.resize(batch, len(places)) for batch in batches])
    return np.where(real, rows, rows[:, :1]), torch.from_numpy(real)


def _taken(tensors: Mapping[str, Tensor], rows: Ints, device: torch.device) -> dict[str, Tensor]:
    return {name: _row(tensor, rows).to(device) for name, tensor in tensors.items()}


def _row(tensor: Tensor, rows: Ints) -> Tensor:
    return tensor[torch.as_tensor(rows, device=tensor.device)]


@contextmanager
def _restored(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Copies of the tensors; on leaving, the tensors hold again what they held.

    Buffers are among them: state that a layer keeps of one user must not reach the next.
    """
    copies = [tensor.detach().clone() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    try:
        yield copies
    finally:
        with torch.no_grad():
            for tensor, copy, version in zip(tensors, copies, versions, strict=True):
                if tensor._version != version:  # some buffers cannot be written to, nor were
                    tensor.copy_(copy)
        torch.clear_autocast_cache()


# Messages of torch.func for something it cannot transform; it has no exception of its own. An
# error of the model's own that reads alike is raised again when users come one after the other.
_SIGNS = (
    "vmap",
    "functorch",
    "torch.func",
    "etc) transform",
    "doesn't have storage",
    "doesn't match the broadcast shape",
    "have the same dtype",
)


def _cannot_transform(error: RuntimeError) -> bool:
    return any(sign in str(error).lower() for sign in _SIGNS)
