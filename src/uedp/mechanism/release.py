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
from uedp.mechanism.fixed.fixed_pass import FixedPass, FlatSum, Sentences
from uedp.mechanism.lending import Mask
from uedp.mechanism.noise import Noise, add_once_
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses, Packing
from uedp.mechanism.processes import PartialSum
from uedp.mechanism.sampling import Floats, Participants


@dataclass(frozen=True)
class Clips:
    """How far one user, and one entity within it, can move the sum.

    `update` bounds a user's update. `share` is how much of it one entity may move: a sentence's
    gradient is clipped to `share * update` times its weight; the weights of all sentences that
    mention an entity add up to at most 1, so that together they stay within the share.

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

    def of_sentences(self, weights: Floats) -> Tensor:
        """The clips of sentences with these weights, rounded down."""
        exact = self._kept_share * self.update * weights
        nearest = exact.astype(np.float32)
        above = nearest > exact
        return torch.from_numpy(np.where(above, np.nextafter(nearest, np.float32(0)), nearest))


@dataclass(frozen=True)
class ClipStats:
    """How often clipping took effect in a round. Computed from the data: for its curator only."""

    users: int
    sentences: int
    sentences_clipped: float
    users_clipped: float
    mean_update: float
    """In units of the update clip; a drawn user without sentences counts as zero."""

    @classmethod
    def of(cls, clipped: Mask, updates: Floats) -> "ClipStats":
        """From which sentences were clipped, and the norms of updates in units of their clip."""
        means = (_mean(clipped), _mean(updates > 1), _mean(np.minimum(updates, 1)))
        return cls(len(updates), len(clipped), *means)


def _mean(values: Floats | Mask) -> float:
    return float(values.mean()) if len(values) else 0.0


@dataclass(frozen=True, eq=False)
class FixedPasses:
    """Passes of one shape, and the tokens of sentences: their ids end to end, and lengths.

    `for_all`: nothing is computed outside of them, so that rounding never depends on who else was
    drawn. A user with more text than a pass holds is then computed in several.
    """

    one: FixedPass
    tokens: Callable[[Ints], tuple[Ints, Ints]]
    for_all: bool = False


_NONE = np.zeros(0, dtype=np.int64)
_ROUNDED_UP = 1 + 2.0**-20  # what float64 loses of a norm, and float32 of a product, and more


def release(
    engine: Engine,
    participants: Participants,
    losses: Callable[[Ints], Tensor | PackedLosses],
    lengths: Ints,
    clips: Clips,
    noise: Noise,
    multiplier: float,
    max_tokens: int | None = None,
    packing: Packing = ONE_PER_ROW,
    fixed: FixedPasses | None = None,
    before_noise: Callable[[], None] = lambda: None,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
    add_up: Callable[[PartialSum], PartialSum] = lambda own: own,
) -> tuple[list[Tensor], ClipStats]:
    """The sum of the drawn users' clipped updates plus noise of `multiplier * clips.unit_of_noise`.

    Args:
        losses, lengths, max_tokens, packing, fixed, batch_done: see `clipped_sum`.
        before_noise: called once, when the sum is complete; if it raises, nothing is released.
        add_up: completes the sum with what other processes computed.

    Returns:
        The noisy sum of each parameter, in the order of `Engine.parameters`.

    Guarantees:
      - every parameter's sum gets noise, in every round: with no user drawn, with no sentence
        selected, and where no gradient reached the parameter
      - the sum does not depend on `max_tokens`, up to rounding
      - no user moves the sum by more than the update clip
      - no noise is drawn, and nothing returned, unless `before_noise` returned; it is called after
        `add_up`
    """
    own = clipped_sum(
        engine, participants, losses, lengths, clips, max_tokens, packing, fixed, batch_done
    )
    whole = add_up(own)
    before_noise()
    add_once_(noise, [whole.total], multiplier * clips.unit_of_noise)
    parts = whole.total.split([p.numel() for p in engine.parameters])
    sums = [part.view(p.shape) for part, p in zip(parts, engine.parameters, strict=True)]
    return sums, ClipStats.of(whole.clipped, whole.updates)


def clipped_sum(
    engine: Engine,
    participants: Participants,
    losses: Callable[[Ints], Tensor | PackedLosses],
    lengths: Ints,
    clips: Clips,
    max_tokens: int | None = None,
    packing: Packing = ONE_PER_ROW,
    fixed: FixedPasses | None = None,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
) -> PartialSum:
    """The sum of users' clipped updates, parameters end to end. It is private: without noise.

    Args:
        losses: gives the loss of each sentence, by their ids.
        lengths: tokens of the participants' sentences.
        max_tokens: about how many tokens are computed at once, padding included unless `packing`
            shares rows; fewer where the device runs out of memory.
        fixed: used for users whose sentences fit in one pass, or for all.
        batch_done: called with the batches done and their number, first with none done.
    """
    device = engine.parameters[0].device
    max_tokens = max_tokens or max_tokens_on(device)
    size = sum(p.numel() for p in engine.parameters)
    flat = torch.zeros(size, dtype=torch.float32, device=device)
    parts = flat.split([p.numel() for p in engine.parameters])
    sums = [part.view(p.shape) for part, p in zip(parts, engine.parameters, strict=True)]
    ids, bounds = participants.sentences.values, clips.of_sentences(participants.weights)
    owners = participants.sentences.row_of_value()
    sentence_norms = np.zeros(len(ids))
    update_norms = np.zeros(len(participants.users))

    def clipped(rows: Ints, users: Ints, update_clip: float) -> ClippedSum:
        chunk = engine.clipped_sum(
            lambda order: losses(ids[rows][list(order)]),
            np.searchsorted(users, owners[rows]).tolist(),
            bounds[rows],
            update_clip,
        )
        sentence_norms[rows] = chunk.sentence_norms.cpu().numpy()
        return chunk

    def add_whole(rows: Ints, users: Ints) -> None:
        chunk = clipped(rows, users, clips.update)
        update_norms[users] = chunk.user_norms.cpu().numpy()
        _add(sums, engine, chunk)

    def add_in_pieces(rows: Ints, user: Ints, max_tokens: int) -> None:
        """One user too large for memory: its sentences clipped and added up, then clipped."""
        total = [torch.zeros_like(sum_) for sum_ in sums]
        each = max(1, max_tokens // int(lengths[rows].max()))
        allowances = Allowances(torch.zeros(1), torch.zeros(1))
        for start in range(0, len(rows), each):
            piece = clipped(rows[start : start + each], user, math.inf)
            _add(total, engine, piece)
            allowances += piece.allowances
        square = torch.stack([part.double().square().sum() for part in total]).sum().cpu()
        update_norms[user] = float(square.sqrt())
        factor = min(1.0, clips.update / max(float(allowances.bound(square)), 1e-300))
        for sum_, part in zip(sums, total, strict=True):
            sum_.add_(part, alpha=factor)

    def add(rows: Ints, max_tokens: int) -> None:
        users, tokens = np.unique(owners[rows]), packing.tokens(lengths[rows])
        in_pieces = len(users) == 1 and len(rows) > 1 and tokens > max_tokens
        try:
            if in_pieces:
                add_in_pieces(rows, users, max_tokens)
            else:
                add_whole(rows, users)
            return
        except torch.OutOfMemoryError:
            # of one sentence each: there are no smaller ones
            if len(rows) == 1 or (in_pieces and max_tokens < 2 * int(lengths[rows].max())):
                raise
        torch.cuda.empty_cache()
        if len(users) == 1:
            add(rows, min(max_tokens, tokens) // 2)
        else:
            first = np.isin(owners[rows], users[: len(users) // 2])
            add(rows[first], max_tokens)
            add(rows[~first], max_tokens)

    def computed(
        fixed: FixedPasses, rows: Ints, update_clip: float, without: Ints = _NONE
    ) -> FlatSum:
        owner = np.unique(owners[rows], return_inverse=True)[1]
        tokens, own = fixed.tokens(ids[rows])
        empty = np.isin(rows, without)
        tokens = tokens[np.repeat(~empty, own)]
        batch = Sentences(tokens, np.where(empty, 0, own), owner, bounds[rows])
        return fixed.one.clipped_sum(batch, update_clip)

    def computed_again(
        fixed: FixedPasses, rows: Ints, update_clip: float, result: FlatSum
    ) -> FlatSum:
        """Without sentences that are not finite; the others exactly as without them."""
        # none may be left out because of another one: each is seen alone
        suspect = rows[~torch.isfinite(result.sentence_norms).cpu().numpy()]
        broken = [r for r in suspect if not bool(computed(fixed, np.array([r]), 1.0).finite)]
        return computed(fixed, rows, update_clip, np.array(broken, dtype=np.int64))

    def add_in_passes(fixed: FixedPasses, rows: Ints) -> None:
        """One user in as many passes as it needs: sentences clipped and added up, then clipped.

        The sum is what is added, so its own norm is all there is to bound.
        """
        total = torch.zeros_like(flat)
        for piece in _pieces(rows, lengths, fixed.one):
            result = computed(fixed, piece, math.inf)
            if not bool(result.finite):
                result = computed_again(fixed, piece, math.inf, result)
            sentence_norms[piece] = result.sentence_norms.cpu().numpy()
            if bool(result.finite):  # a user whose sum overflows is nobody else's matter
                total.add_(result.total)
        norm = float(total.double().norm())
        update_norms[owners[rows[0]]] = norm
        factor = min(1.0, clips.update / max(norm * _ROUNDED_UP, 1e-300))
        flat.add_(fixed.one.in_order(total), alpha=factor)

    def add_fixed(
        fixed: FixedPasses, chunks: Sequence[Ints], done: Callable[[int], None]
    ) -> list[Ints]:
        """Adds the chunks; returns those with a gradient that is not finite, which it leaves."""
        results: list[tuple[Ints, FlatSum]] = []
        total = torch.zeros_like(flat)
        if any(a is not b for a, b in zip(fixed.one.parameters, engine.parameters, strict=True)):
            raise ValueError("passes of one shape for other parameters than the engine's")
        fixed.one.refresh()
        for number, rows in enumerate(chunks, 1):
            result = computed(fixed, rows, clips.update)
            total.add_(result.total)
            results.append((rows, result))
            done(number)
        left = []
        for rows, result in results:  # only now is the device waited for
            if not bool(result.finite):
                result = computed_again(fixed, rows, clips.update, result)
                if not bool(result.finite):
                    left.append(rows)
                    continue
                total.add_(result.total)
            sentence_norms[rows] = result.sentence_norms.cpu().numpy()
            update_norms[np.unique(owners[rows])] = result.user_norms.cpu().numpy()
        flat.add_(fixed.one.in_order(total))
        return left

    with engine.one_round():  # or who else was drawn would decide which masks a user meets
        whole = [] if fixed is None else _whole_users(participants, lengths, fixed.one)
        chunks = list(chunks_of(participants, lengths, max_tokens, packing, whole))
        count = len(chunks) + len(whole)
        batch_done(0, count)
        if fixed is not None:
            chunks += add_fixed(fixed, whole, lambda done: batch_done(done, count))
        for done, rows in enumerate(chunks, 1 + len(whole)):
            if fixed is not None and fixed.for_all:
                for user in np.unique(owners[rows]):
                    add_in_passes(fixed, rows[owners[rows] == user])
            else:
                add(rows, max_tokens)
            batch_done(min(done, count), count)
    return PartialSum(flat, sentence_norms > bounds.numpy(), update_norms / clips.update)


def _add(sums: Sequence[Tensor], engine: Engine, chunk: ClippedSum) -> None:
    for total, parameter in zip(sums, engine.parameters, strict=True):
        if parameter in chunk.gradients:
            total.add_(chunk.gradients[parameter])


def max_tokens_on(device: torch.device) -> int:
    """Tokens computed at once by default."""
    return 1 << 15 if device.type == "cuda" else 1 << 12


def chunks_of(
    participants: Participants,
    lengths: Ints,
    max_tokens: int,
    packing: Packing,
    taken: Sequence[Ints] = (),
) -> Iterator[Ints]:
    """Places of sentences, in chunks of whole users with longest sentences of similar length.

    Args:
        taken: places that are left out, all of a user's or none.
    """
    left_out = np.zeros(len(lengths), dtype=np.bool_)
    for places in taken:
        left_out[places] = True
    ends = pairwise(participants.sentences.offsets)
    rows = [np.arange(a, b) for a, b in ends if b > a and not left_out[a]]
    rows.sort(key=lambda own: int(lengths[own].max()))
    chunk: list[Ints] = []
    for own in rows:
        if chunk and packing.tokens(lengths[np.concatenate([*chunk, own])]) > max_tokens:
            yield np.concatenate(chunk)
            chunk = []
        chunk.append(own)
    if chunk:
        yield np.concatenate(chunk)


def _pieces(rows: Ints, lengths: Ints, one: FixedPass) -> Iterator[Ints]:
    """The sentences of a user, as many at a time as fit in a pass."""
    piece: list[int] = []
    tokens = 0
    for row in rows.tolist():
        if piece and (tokens + int(lengths[row]) > one.tokens or len(piece) == one.sentences):
            yield np.array(piece)
            piece, tokens = [], 0
        piece.append(row)
        tokens += int(lengths[row])
    yield np.array(piece)


def _whole_users(participants: Participants, lengths: Ints, one: FixedPass) -> list[Ints]:
    """Places of sentences for each pass: the largest users first, each where it fits.

    Without users that do not fit in one pass.
    """
    offsets = participants.sentences.offsets
    users = np.flatnonzero(np.diff(offsets))
    if not len(users):
        return []
    starts, counts = offsets[users], np.diff(offsets)[users]
    sizes = np.add.reduceat(lengths, starts)
    longest = np.maximum.reduceat(lengths, starts)
    fits = (sizes <= one.tokens) & (counts <= one.sentences) & (longest <= one.longest)
    passes: list[tuple[int, int, list[Ints]]] = []  # tokens, sentences, and whose
    for user in np.argsort(-sizes, kind="stable"):
        if not fits[user]:
            continue
        size, count = int(sizes[user]), int(counts[user])
        own = np.arange(starts[user], starts[user] + count)
        for place, (tokens, sentences, chunk) in enumerate(passes):
            if tokens + size <= one.tokens and sentences + count <= one.sentences:
                chunk.append(own)
                passes[place] = (tokens + size, sentences + count, chunk)
                break
        else:
            passes.append((size, count, [own]))
    return [np.sort(np.concatenate(chunk)) for _, _, chunk in passes]
