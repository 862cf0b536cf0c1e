"""How sentences are laid out in rows: one row each, or several sentences end to end in one row.

Padding every sentence to the longest wastes most of the work where lengths differ. A causal model
that treats every position 0 as a new beginning computes several sentences in one row.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.incidence import Ints


@dataclass(frozen=True)
class Packing:
    """Whether sentences share rows; decided once per model, by `packing_for`."""

    shares_rows: bool

    def tokens(self, lengths: Ints) -> int:
        """The tokens computed for sentences of these lengths, padding included."""
        return int(lengths.sum() if self.shares_rows else len(lengths) * lengths.max())


ONE_PER_ROW = Packing(False)
SHARED_ROWS = Packing(True)


@dataclass(frozen=True)
class TokenRows:
    """Where the tokens of some rows lie in other rows, laid end to end: `places`, (rows, tokens).

    Where `real` is false a row has no token, and the place is one of the same sentence's.
    `sentence` is the sentence of each row, `end` the total number of places.
    """

    places: Tensor
    real: Tensor
    sentence: Tensor
    end: int

    @cached_property
    def places_or_end(self) -> Tensor:
        """`places`, with `end` where a row has no token."""
        return self.places.where(self.real, self.end)

    @cached_property
    def spans(self) -> list[slice] | None:
        """Where each row's tokens lie, if they lie side by side."""
        first, counts = self.places[:, 0], self.real.sum(1)
        along = first[:, None] + torch.arange(self.places.shape[1], device=first.device)
        if not bool(((self.places == along) | ~self.real).all()):
            return None
        starts = first.tolist()
        return [slice(a, a + n) for a, n in zip(starts, counts.tolist(), strict=True)]

    def to(self, device: torch.device) -> "TokenRows":
        places, real, sentence = (
            tensor.to(device, non_blocking=True)
            for tensor in (self.places, self.real, self.sentence)
        )
        return TokenRows(places, real, sentence, self.end)


@dataclass(frozen=True)
class PackedLosses:
    """Losses of sentences that share rows, and where each sentence's tokens lie.

    `sentences` has a row per sentence. `pieces` has narrower rows: the first piece of every
    sentence, in order, then the remaining pieces of longer ones. No sentence may see another's
    tokens (`keeps_apart`). `recompute` gives the same losses, one row each. `starts` and `lengths`
    say on the host where each sentence lies.
    """

    losses: Tensor
    sentences: TokenRows
    pieces: TokenRows
    recompute: Callable[[], Tensor]
    starts: Ints
    lengths: Ints


def loss_values(losses: Tensor | PackedLosses) -> Tensor:
    """One loss per sentence, packed or not."""
    return losses.losses if isinstance(losses, PackedLosses) else losses


_WIDTH = 256  # tokens of a shared row; more if a sentence is longer


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Sentences laid end to end in `rows` rows of `width` tokens.

    Guarantees:
      - no sentence is cut in two, and no two overlap
      - several sentences take at least two rows: a model may read a single row as one sentence
      - in order, up to an eighth of many rows are empty, at the end, so that few shapes occur
      - tight, hardly a place is empty: a CPU computes any shape, but no padding for free
    """

    lengths: Ints
    starts: Ints
    width: int
    rows: int

    @classmethod
    def of(cls, lengths: Ints, device: torch.device | None = None) -> "SharedRows":
        """The layout for a device: tight on a CPU, else in order."""
        tight = device is not None and device.type == "cpu"
        return cls.tight(lengths) if tight else cls.in_order(lengths)

    @classmethod
    def in_order(cls, lengths: Ints) -> "SharedRows":
        width = max(int(lengths.max()), min(_WIDTH, int(lengths.sum()) // 2 + 1))
        starts = np.zeros(len(lengths), dtype=np.int64)
        row = used = 0
        for place, length in enumerate(lengths.tolist()):
            if used + length > width:
                row, used = row + 1, 0
            starts[place] = row * width + used
            used += length
        step = 1 << max(0, (row + 1).bit_length() - 4)
        return cls(lengths, starts, width, -(-(row + 1) // step) * step)

    @classmethod
    def tight(cls, lengths: Ints) -> "SharedRows":
        """Rows of the width that costs least, the longest sentences first, each where it fits."""
        longest, total = int(lengths.max()), int(lengths.sum())
        least = 2 if len(lengths) > 1 else 1
        best: tuple[float, int, list[tuple[int, int]]] | None = None
        for rows in range(max(least, total // max(_WIDTH, longest)), total // longest + 2):
            for width in {max(longest, -(-total // rows)), max(longest, -(-total // rows) + 2)}:
                if best and rows * _row_cost(width) >= best[0]:
                    continue
                filled = _best_fit(lengths, width)
                taken = max(least, 1 + max(row for row, _ in filled))
                cost = taken * _row_cost(width)
                if best is None or cost < best[0]:
                    best = cost, width, filled
        assert best is not None
        _, width, filled = best
        starts = np.array([row * width + used for row, used in filled], dtype=np.int64)
        return cls(lengths, starts, width, max(least, 1 + int(starts.max()) // width))

    def fill(self, sentences: Sequence[Sequence[int] | Ints], padding: int) -> Tensor:
        """(rows, width), with the numbers of each sentence at its place."""
        flat = np.full(self.rows * self.width, padding, dtype=np.int64)
        for start, numbers in zip(self.starts.tolist(), sentences, strict=True):
            flat[start : start + len(numbers)] = numbers
        return torch.from_numpy(flat).view(self.rows, self.width)

    def positions(self) -> Tensor:
        """(rows, width): every sentence counts its tokens from 0."""
        return self.fill([np.arange(length) for length in self.lengths.tolist()], 0)

    def by_sentence(self, device: torch.device) -> TokenRows:
        return self._cut(int(self.lengths.max())).to(device)

    def by_piece(self, device: torch.device) -> TokenRows:
        return self._cut(piece_width(self.lengths)).to(device)

    def _cut(self, width: int) -> TokenRows:
        return cut_up(self.starts, self.lengths, width, self.rows * self.width)


_QUADRATIC = 4096  # tokens of a row at which attention takes as long as everything else


def _row_cost(width: int) -> float:
    return width * (1 + width / _QUADRATIC)


def _best_fit(lengths: Ints, width: int) -> list[tuple[int, int]]:
    """For each sentence, its row and the tokens before it in that row."""
    places = [(0, 0)] * len(lengths)
    spaces: list[tuple[int, int]] = []  # left in each row, in order
    rows = 0
    for sentence in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sentence])
        fits = bisect_left(spaces, (length, 0))
        if fits == len(spaces):
            left, row, rows = width, rows, rows + 1
        else:
            left, row = spaces.pop(fits)
        places[sentence] = (row, width - left)
        insort(spaces, (left - length, row))
    return places


_PIECES = (8, 16, 32, 64, 128, 256)
_PIECE_COST = 16  # tokens that take as long as one more piece


def piece_width(lengths: Ints) -> int:
    """Tokens per piece that leave little padding when sentences are cut into pieces."""
    widths = [width for width in _PIECES if width < lengths.max()] + [int(lengths.max())]
    return min(widths, key=lambda width: int((-(-lengths // width)).sum()) * (width + _PIECE_COST))


def cut_up(starts: Ints, lengths: Ints, width: int, end: int) -> TokenRows:
    """Sentences by start and length, cut into rows of `width`; `end` is the number of places.

    Guarantees:
      - the first row of every sentence comes first, in order
      - every token is in one row, once; missing tokens are marked, and placed at the first token
        of their sentence
    """
    count = -(-lengths // width)
    all_, none = np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64)
    sentence = np.concatenate([all_, np.repeat(all_, count - 1)])
    number = np.concatenate([none, *(np.arange(1, c) for c in count.tolist() if c > 1)])
    token = number[:, None] * width + np.arange(width)
    real = token < lengths[sentence][:, None]
    places = starts[sentence][:, None] + np.where(real, token, 0)
    from_numpy = torch.from_numpy
    return TokenRows(from_numpy(places), from_numpy(real), from_numpy(sentence), end)


def packed_logits(model: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    # with a cache, positions would not separate sentences
    logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return logits


# Models that were tried, with the longest sentences that were; a trial takes seconds on a CPU. A
# model that was changed since in other ways is not tried again here, but every run compares its own
# sentences (`refuse_mixing`).
_tried: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], dict[int, Packing]]] = (
    WeakKeyDictionary()
)


def packing_for(model: nn.Module, longest: int) -> Packing:
    """Shared rows for a causal model that keeps sentences of up to `longest` tokens apart."""
    weight = next(model.parameters())
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    key = (attention, weight.device, weight.dtype)
    tried = _tried.setdefault(model, {}).setdefault(key, {})
    if any(length >= longest > 0 and found == SHARED_ROWS for length, found in tried.items()):
        return SHARED_ROWS
    if longest not in tried:
        tried[longest] = SHARED_ROWS if longest and keeps_apart(model, longest) else ONE_PER_ROW
    return tried[longest]


_LENGTHS = (0.15, 0.6, 0.05, 1.0, 0.27, 0.03, 0.47, 0.8, 0.19, 0.39, 0.9, 0.08)  # of the longest
_PROBED = 5  # every fifth sentence is compared


@torch.no_grad()
def keeps_apart(model: nn.Module, longest: int = 32) -> bool:
    """Whether a causal model computes a sentence from position 0 on as if it were by itself.

    Decided by trial, with rows as wide and as many as in training: some sentences are computed
    among others, among different others, and by themselves.

    Guarantees:
      - weights that are all zero, which could hide mixing, are replaced during the trial and zero
        again afterwards; the caller's random state is unchanged
    """
    device = next(model.parameters()).device
    size = int(getattr(getattr(model, "config", None), "vocab_size", 0))
    if size < 8:
        return False
    once = [max(2, round(share * longest)) for share in _LENGTHS]
    layout = SharedRows.of(np.array(once * (1 + 3 * _WIDTH // (2 * sum(once)))), device)
    shape, positions = (layout.rows, layout.width), layout.positions().to(device)
    rng = np.random.default_rng(0)
    ids, others = torch.from_numpy(rng.integers(0, size, (2, shape[0] * shape[1]))).to(device)
    ends = layout.starts + layout.lengths
    probed = [slice(*ends_) for ends_ in zip(layout.starts, ends, strict=True)][::_PROBED]
    for tokens in probed:
        others[tokens] = ids[tokens]
    try:
        with evaluating(model), torch.autocast(device.type, enabled=False), _nonzero(model):
            among = [
                packed_logits(model, all_.view(shape), positions).flatten(0, 1)
                for all_ in (ids, others)
            ]
            for tokens in probed:
                own_positions = positions.flatten()[tokens][None]
                single = packed_logits(model, ids[tokens][None], own_positions)[0]
                near = 1e-4 * float(single.abs().max())
                for logits in among:
                    if not near or not torch.allclose(logits[tokens], single, 1e-4, near):
                        return False
    except (TypeError, ValueError, IndexError, RuntimeError, UserError):
        return False  # it takes no positions, or no rows of this width
    return True


@contextmanager
def _nonzero(model: nn.Module) -> Iterator[None]:
    """Fill weights that are all zero with small random values inside the block."""
    zero = [p for p in model.parameters() if p.is_floating_point() and not bool(p.any())]
    generator = torch.Generator().manual_seed(0)
    for parameter in zero:
        parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in zero:
                parameter.zero_()
