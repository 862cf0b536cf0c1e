"""Gradients of thin matrices, one for each sentence, and what clipping needs of them.

The gradient of an adapter's matrix in a sentence is `sum over tokens of thin_t (x) wide_t`, with a
few thin features. One launch forms those of all matrices of a model, by bounds of sentences: no
sentence is padded or moved. They lie side by side in one wide row per sentence, which is then read
twice: for the norms of users' clipped sums, and for the sum. What is measured is what is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

_HIGH = 32  # rows that are multiplied at once, of several sentences
_WIDE = 128
_DEEP = 32  # tokens read at a time
_TURNS = 32  # programs that share the sentences of a tile
BLOCK = 2048  # entries whose squares are added up in float32
MOST = BLOCK // _WIDE  # thin features of a product


@dataclass(frozen=True)
class ThinProduct:
    """One matrix, or a part of at most `MOST` thin features.

    Its gradient, with a row for each thin feature, begins at `start` of a sentence's row.
    """

    thin: Tensor  # (tokens, features)
    wide: Tensor
    scale: float
    start: int

    def columns(self) -> list[int]:
        """All but the scale, as the kernel reads it."""
        return [
            self.thin.data_ptr(),
            self.thin.stride(0),
            self.thin.shape[1],
            self.wide.data_ptr(),
            self.wide.stride(0),
            self.wide.shape[1],
            self.start,
        ]

    @property
    def is_aligned(self) -> bool:
        """Whether eight numbers in a row can be read at once, wherever it begins to count."""
        addresses = (self.thin.data_ptr(), self.wide.data_ptr())
        steps = (self.thin.stride(0), self.wide.stride(0), self.wide.shape[1], self.start)
        return not any(a % 16 for a in addresses) and not any(step % 8 for step in steps)


_COLUMNS = 7


class ThinTable:
    """All thin products of a pass, where the kernel finds them: addresses may be set later."""

    def __init__(self, shapes: Sequence[tuple[int, int]], size: int, device: torch.device) -> None:
        """`shapes`: the thin and the wide features of every product; `size`: entries of a row."""
        tiles = [-(-wide // _WIDE) for _, wide in shapes]
        places = torch.arange(len(shapes)).repeat_interleave(torch.tensor(tiles))
        starts = torch.cat([torch.arange(count) * _WIDE for count in tiles])
        self._tiles = torch.stack([places, starts], 1).to(device, torch.int32).contiguous()
        self._rows = torch.zeros(len(shapes), _COLUMNS, dtype=torch.int64, device=device)
        self._scales = torch.zeros(len(shapes), device=device)
        self._size = size
        self._aligned = all(features % 8 == 0 for shape in shapes for features in shape)
        self._each = 1 << (max(thin for thin, _ in shapes) - 1).bit_length()
        self._noted: list[list[int]] = []
        self._noted_scales: list[float] = []

    def note(self, products: Sequence[ThinProduct]) -> None:
        """Remember where the tensors of a pass are: they may be freed, but must not move."""
        for product in products:
            assert product.thin.stride(1) == product.wide.stride(1) == 1
            assert product.wide.shape[0] * product.wide.stride(0) < 1 << 31
        assert not self._aligned or all(product.is_aligned for product in products)
        self._noted = [product.columns() for product in products]
        self._noted_scales = [product.scale for product in products]

    def send(self) -> None:
        """Point the kernel to what was noted."""
        self._rows.copy_(torch.tensor(self._noted))
        self._scales.copy_(torch.tensor(self._noted_scales))

    def formed(
        self, products: Sequence[ThinProduct], bounds: Tensor, count: Tensor
    ) -> "SentenceRows":
        """The gradients of all sentences.

        While a graph is recorded the kernel learns later where the tensors are (`send`).

        Args:
            bounds: int32; sentence `i` has tokens `bounds[i]` to `bounds[i + 1]`.
            count: how many sentences there are, at most `len(bounds) - 1`.
        """
        sentences, tiles = len(bounds) - 1, len(self._tiles)
        rows = torch.empty(sentences, self._size, device=bounds.device)
        if triton is None or not bounds.is_cuda:
            _form_one_by_one(rows, products, bounds, count)
            return SentenceRows(rows, _squares(rows, int(count)), count)
        self.note(products)
        if not torch.cuda.is_current_stream_capturing():
            self.send()
        partial = torch.zeros(sentences, tiles * self._each, device=bounds.device)
        _form[(min(_TURNS, sentences), tiles)](
            self._rows, self._scales, self._tiles, bounds, count, rows, partial, self._size, tiles,
            kind=tl.bfloat16 if products[0].thin.dtype == torch.bfloat16 else tl.float32,
            aligned=self._aligned, each=self._each, high=max(_HIGH, self._each), across=_WIDE,
            deep=_DEEP,
        )  # fmt: skip
        return SentenceRows(rows, partial.sum(1, dtype=torch.float64), count)


def _form_one_by_one(
    rows: Tensor, products: Sequence[ThinProduct], bounds: Tensor, count: Tensor
) -> None:
    ends = bounds.tolist()
    for sentence in range(int(count)):
        tokens = slice(ends[sentence], ends[sentence + 1])
        for p in products:
            own = p.thin[tokens].float().t() @ p.wide[tokens].float()
            rows[sentence, p.start : p.start + own.numel()] = own.mul_(p.scale).flatten()


@dataclass(frozen=True, eq=False)
class SentenceRows:
    """A row of gradients for each of `count` sentences, and their squared norms in float64.

    Rows beyond are undefined, and their squares zero.
    """

    rows: Tensor
    squares: Tensor
    count: Tensor

    def user_squares(self, users: Tensor, count: Tensor, factors: Tensor) -> Tensor:
        """Squared norms of users' sums of their sentences' rows, each times its factor.

        Args:
            users: int32; user `j` has sentences `users[j]` to `users[j + 1]`.
            count: how many users there are, at most `len(users) - 1`.
        """
        most, (_, size) = len(users) - 1, self.rows.shape
        if triton is None or not self.rows.is_cuda:
            ends = users.tolist()
            sums = torch.zeros(most, size)
            for user in range(int(count)):
                own = slice(ends[user], ends[user + 1])
                sums[user] = _weighted(self.rows[own], factors[own])
            return _squares(sums, int(count))
        blocks = triton.cdiv(size, BLOCK)
        partial = torch.zeros(most, blocks, device=users.device)
        _user_squares[(blocks, min(_TURNS, most))](
            self.rows, users, count, factors, partial, size, blocks, block=BLOCK
        )
        return partial.sum(1, dtype=torch.float64)

    def weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        """Set `total` to the sum of the rows with a weight each."""
        if triton is None or not self.rows.is_cuda:
            count = int(self.count)
            total.copy_(_weighted(self.rows[:count], weights[:count]))
            return
        size = self.rows.shape[1]
        _weighted_sum[(triton.cdiv(size, BLOCK // 2),)](
            self.rows, self.count, weights, total, size, block=BLOCK // 2
        )


def _squares(rows: Tensor, count: int) -> Tensor:
    squares = torch.zeros(len(rows), dtype=torch.float64)
    squares[:count] = rows[:count].double().square().sum(1)
    return squares


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    used = weights > 0  # what is left out may not be finite
    return weights[used] @ rows[used]


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _form(  # type: ignore[no-untyped-def]
        table, scales, tiles, bounds, count, rows, partial, size, number, kind: tl.constexpr,
        aligned: tl.constexpr, each: tl.constexpr, high: tl.constexpr, across: tl.constexpr,
        deep: tl.constexpr,
    ) -> Any:  # fmt: skip
        """A tile of several sentences' gradients, one below the other, `each` rows for each."""
        # programs of one tile come together: what they read lies together
        tile = tl.program_id(1)
        entry = tl.load(tiles + 2 * tile)
        first_column = tl.multiple_of(tl.load(tiles + 2 * tile + 1), across)
        column = first_column + tl.arange(0, across)[None, :]
        at = table + entry * 7
        thin_address = tl.load(at)
        thin_stride = tl.load(at + 1).to(tl.int32)
        thin_width = tl.load(at + 2).to(tl.int32)
        wide_address = tl.load(at + 3)
        wide_stride = tl.load(at + 4).to(tl.int32)
        wide_width = tl.load(at + 5).to(tl.int32)
        start = tl.load(at + 6)
        if aligned:  # what the compiler cannot see: several numbers can be read at once
            thin_address = tl.multiple_of(thin_address, 16)
            thin_stride = tl.multiple_of(thin_stride, 8)
            wide_address = tl.multiple_of(wide_address, 16)
            wide_stride = tl.multiple_of(wide_stride, 8)
            wide_width = tl.multiple_of(wide_width, 8)
            start = tl.multiple_of(start, 8)
        thin_at = thin_address.to(tl.pointer_type(kind))
        wide_at = wide_address.to(tl.pointer_type(kind))
        scale = tl.load(scales + entry)
        row = tl.arange(0, high)
        feature = row % each
        known = feature < thin_width
        inside = column < wide_width
        last = tl.load(count).to(tl.int32)
        many: tl.constexpr = high // each
        for group in range(tl.program_id(0) * many, last, tl.num_programs(0) * many):
            sentence = tl.minimum(group + row // each, last)
            begin = tl.load(bounds + sentence)[None, :]
            end = tl.load(bounds + tl.minimum(sentence + 1, last))[None, :]
            first_token = tl.load(bounds + group)
            last_token = tl.load(bounds + tl.minimum(group + many, last))
            total = tl.zeros((high, across), dtype=tl.float32)
            for first in range(first_token, last_token, deep):
                token = (first + tl.arange(0, deep))[:, None]
                own = (token >= begin) & (token < end) & known[None, :]
                left = tl.load(
                    thin_at + token * thin_stride + feature[None, :], mask=own, other=0.0
                )
                there = (token < last_token) & inside
                right = tl.load(wide_at + token * wide_stride + column, mask=there, other=0.0)
                total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
            total *= scale
            place = sentence.to(tl.int64) * size + start + feature * wide_width
            real = (sentence < last) & known
            tl.store(rows + place[:, None] + column, total, mask=real[:, None] & inside)
            squares = tl.sum(total * total, 1)
            tl.store(partial + (sentence * number + tile) * each + feature, squares, mask=real)

    @triton.jit  # type: ignore[untyped-decorator]
    def _user_squares(  # type: ignore[no-untyped-def]
        rows, users, count, factors, partial, size, number, block: tl.constexpr
    ) -> Any:
        place = tl.program_id(0) * block + tl.arange(0, block)
        inside = place < size
        for user in range(tl.program_id(1), tl.load(count), tl.num_programs(1)):
            total = tl.zeros((block,), dtype=tl.float32)
            for sentence in range(tl.load(users + user), tl.load(users + user + 1)):
                factor = tl.load(factors + sentence)
                row = rows + tl.cast(sentence, tl.int64) * size
                own = tl.load(row + place, mask=inside, other=0.0)
                # what is left out may not be finite
                total += tl.where(factor > 0, factor * own, 0.0)
            tl.store(partial + user * number + tl.program_id(0), tl.sum(total * total))

    @triton.jit  # type: ignore[untyped-decorator]
    def _weighted_sum(  # type: ignore[no-untyped-def]
        rows, count, weights, result, size, block: tl.constexpr
    ) -> Any:
        place = tl.program_id(0) * block + tl.arange(0, block)
        inside = place < size
        total = tl.zeros((block,), dtype=tl.float32)
        for sentence in range(tl.load(count).to(tl.int32)):
            weight = tl.load(weights + sentence)
            row = rows + tl.cast(sentence, tl.int64) * size
            own = tl.load(row + place, mask=inside, other=0.0)
            total += tl.where(weight > 0, weight * own, 0.0)
        tl.store(result + place, total, mask=inside)
