"""Steps 4 and 5 of a round: clip twice, add up, add noise (`docs/privacy.md`, section 5)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.mechanism.clip import Allowances, ClippedSum, Engine
from uedp.mechanism.noise import Noise, add_once_
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses, Packing
from uedp.mechanism.sampling import Floats, Mask, Participants


@dataclass(frozen=True)
class Clips:
    """How far one user, and one entity within it, can move the sum.

    `update` bounds a user's update. `share` is how much of it one entity may move: a sentence's
    gradient is clipped to `share * update`, divided by how many of the user's selected sentences
    mention the same entity (its crowding), so that together they stay within the share.

    `margin` is for rounding that no bound covers, in units of `update`: how far one text can move
    what others add by changing the batch they are computed in. The noise is larger by it, and the
    share smaller by as much as the larger noise does not cover (`docs/privacy.md`, section 8).
    """

    update: float
    share: float
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.update < math.inf):
            raise UserError(f"update clip {self.update}: must be positive")
        if not 0 < self.share <= 2:
            raise UserError(f"entity share {self.share}: must lie in 0..2, without 0")
        if self._kept_share <= 0:
            raise UserError(
                f"entity share {self.share}: smaller than the margin of {self.margin:g} for "
                "rounding; raise it, or compute in float32"
            )

    @property
    def _kept_share(self) -> float:
        return min(self.share, self.share - self.margin * (1 - self.share))

    @property
    def unit_of_noise(self) -> float:
        """What a noise multiplier multiplies."""
        return self.update * (1 + self.margin)

    def of_sentences(self, crowding: Ints) -> Tensor:
        return torch.from_numpy(self._kept_share * self.update / crowding).float()


@dataclass(frozen=True)
class Reach:
    """How far the clips reached in a round. Computed from the data: for its curator only."""

    users: int
    sentences: int
    sentences_clipped: float
    users_clipped: float
    mean_update: float
    """In units of the update clip; what was drawn but empty counts as nothing."""


@dataclass(frozen=True)
class Release:
    """What a round gives out: a noisy sum per parameter, in the order of `Engine.parameters`."""

    sums: list[Tensor]
    reach: Reach


def release(
    engine: Engine,
    participants: Participants,
    losses: Callable[[Ints], Tensor | PackedLosses],
    lengths: Ints,
    clips: Clips,
    weights: Floats,
    noise: Noise,
    multiplier: float,
    room: int | None = None,
    packing: Packing = ONE_PER_ROW,
) -> Release:
    """The sum of the drawn users' clipped updates plus noise of `multiplier * clips.unit_of_noise`.

    `losses(ids)` gives the loss of each of these sentences. `lengths` are the tokens of the
    participants' sentences, `weights` (at most 1) those of the participants' users. About `room`
    tokens are computed at a time, fewer where the device's memory does not allow it; padding is not
    among them with a `packing` of shared rows.

    Guarantees:
      - every parameter's sum gets noise, in every round: with no user drawn, with no sentence
        selected, and where no gradient reached the parameter
      - the sum does not depend on `room`, up to rounding
      - no user moves the sum by more than the update clip times its weight
    """
    if len(weights) and not (weights.min() >= 0 and weights.max() <= 1):
        raise UserError("user weights must lie in 0..1")
    sums, reach = clipped_sums(engine, participants, losses, lengths, clips, weights, room, packing)
    add_once_(noise, sums, multiplier * clips.unit_of_noise)
    return Release(sums, reach)


def clipped_sums(
    engine: Engine,
    participants: Participants,
    losses: Callable[[Ints], Tensor | PackedLosses],
    lengths: Ints,
    clips: Clips,
    weights: Floats,
    room: int | None = None,
    packing: Packing = ONE_PER_ROW,
) -> tuple[list[Tensor], Reach]:
    """What `release` adds noise to."""
    device = engine.parameters[0].device
    room = room or ROOM.get(device.type, ROOM["cpu"])
    sums = [torch.zeros(p.shape, device=device) for p in engine.parameters]
    ids, bounds = participants.sentences.values, clips.of_sentences(participants.crowding)
    owners = participants.sentences.row_of_value()
    sentence_norms = np.zeros(len(ids))
    update_norms = np.zeros(len(participants.users))

    def clipped(rows: Ints, users: Ints, update_clip: float, scale: Tensor) -> ClippedSum:
        found = engine.clipped_sum(
            lambda order: losses(ids[rows][list(order)]),
            np.searchsorted(users, owners[rows]).tolist(),
            bounds[rows],
            update_clip,
            scale,
        )
        sentence_norms[rows] = found.sentence_norms.cpu().numpy()
        return found

    def add_whole(rows: Ints, users: Ints) -> None:
        found = clipped(rows, users, clips.update, torch.from_numpy(weights[users]).float())
        update_norms[users] = found.user_norms.cpu().numpy()
        _add(sums, engine, found)

    def add_in_pieces(rows: Ints, user: Ints, room: int) -> None:
        """One user too large for memory: its sentences clipped and added up, then clipped."""
        total = [torch.zeros_like(sum_) for sum_ in sums]
        each = max(1, room // int(lengths[rows].max()))
        allowed = Allowances(torch.zeros(1), torch.zeros(1))
        for start in range(0, len(rows), each):
            found = clipped(rows[start : start + each], user, math.inf, torch.ones(1))
            _add(total, engine, found)
            allowed += found.allowances
        square = torch.stack([part.double().square().sum() for part in total]).sum().cpu()
        update_norms[user] = float(square.sqrt())
        bound = float(allowed.bound(square))
        factor = float(weights[user[0]]) * min(1.0, clips.update / max(bound, 1e-300))
        for sum_, part in zip(sums, total, strict=True):
            sum_.add_(part, alpha=factor)

    def add(rows: Ints, room: int) -> None:
        users = np.unique(owners[rows])
        try:
            if len(users) == 1 and len(rows) > 1 and packing.tokens(lengths[rows]) > room:
                add_in_pieces(rows, users, room)
            else:
                add_whole(rows, users)
            return
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        torch.cuda.empty_cache()
        if len(users) == 1:
            add(rows, min(room, packing.tokens(lengths[rows])) // 2)
        else:
            first = np.isin(owners[rows], users[: len(users) // 2])
            add(rows[first], room)
            add(rows[~first], room)

    with engine.one_round():  # or who else was drawn would decide which masks a user meets
        for rows in _chunks(participants, lengths, room, packing):
            add(rows, room)
    return sums, _reach(participants, bounds, sentence_norms, update_norms / clips.update)


def _add(sums: Sequence[Tensor], engine: Engine, found: ClippedSum) -> None:
    for total, parameter in zip(sums, engine.parameters, strict=True):
        if parameter in found.gradients:
            total.add_(found.gradients[parameter])


ROOM = {"cuda": 1 << 15, "cpu": 1 << 12}  # tokens computed at a time


def _chunks(
    participants: Participants, lengths: Ints, room: int, packing: Packing
) -> Iterator[Ints]:
    """Places of sentences, users whole; users whose longest sentences are alike together."""
    offsets = participants.sentences.offsets
    rows = [np.arange(a, b) for a, b in pairwise(offsets) if b > a]
    rows.sort(key=lambda own: int(lengths[own].max()))
    chunk: list[Ints] = []
    for own in rows:
        if chunk and packing.tokens(lengths[np.concatenate([*chunk, own])]) > room:
            yield np.concatenate(chunk)
            chunk = []
        chunk.append(own)
    if chunk:
        yield np.concatenate(chunk)


def _reach(participants: Participants, bounds: Tensor, norms: Floats, updates: Floats) -> Reach:
    def share(flags: Mask) -> float:
        return float(np.mean(flags)) if len(flags) else 0.0

    return Reach(
        users=len(participants.users),
        sentences=len(norms),
        sentences_clipped=share(norms > bounds.numpy()),
        users_clipped=share(updates > 1),
        mean_update=float(np.minimum(updates, 1).mean()) if len(updates) else 0.0,
    )
