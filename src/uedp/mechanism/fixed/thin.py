"""Gradients of thin matrices, one for each sentence, and what clipping needs of them.

The gradient of an adapter's matrix in a sentence is `sum over tokens of thin_t (x) wide_t`, with a
few thin features. One launch forms those of many matrices, by bounds of sentences: no sentence is
padded or moved. Each matrix has a row per sentence, which is then read twice: for the norms of
users' clipped sums, and for the sum. What is measured is what is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

_THIN = 16  # the least that tensor cores multiply
_WIDE = 128
_DEEP = 16  # tokens read at a time; of one warp, so that many sentences are under way
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

    @property
    def size(self) -> int:
        """Entries of the matrix."""
        return self.thin.shape[1] * self.wide.shape[1]

    def columns(self, rows: Tensor) -> list[int]:
        """All but the scale, and where the gradients go, as the kernels read it."""
        return [
            self.thin.data_ptr(),
            self.thin.stride(0),
            self.thin.shape[1],
            self.wide.data_ptr(),
            self.wide.stride(0),
            self.wide.shape[1],
            self.start,
            rows.data_ptr(),
            self.size,
        ]

    @property
    def is_aligned(self) -> bool:
        """Whether eight numbers in a row can be read at once, wherever it begins to count."""
        addresses = (self.thin.data_ptr(), self.wide.data_ptr())
        steps = (self.thin.stride(0), self.wide.stride(0), self.wide.shape[1], self.size)
        return not any(a % 16 for a in addresses) and not any(step % 8 for step in steps)


_COLUMNS = 9


class ThinTable:
    """All thin products of a pass, where the kernel finds them: addresses may be set later."""

    def __init__(self, shapes: Sequence[tuple[int, int]], device: torch.device) -> None:
        """`shapes`: the thin and the wide features of every product."""
        self._tiles = _cut([wide for _, wide in shapes], _WIDE, device)
        self._blocks = _cut([thin * wide for thin, wide in shapes], BLOCK, device)
        self._rows = torch.zeros(len(shapes), _COLUMNS, dtype=torch.int64, device=device)
        self._scales = torch.zeros(len(shapes), dtype=torch.float32, device=device)
        self._aligned = all(features % 8 == 0 for shape in shapes for features in shape)
        self._thin = max(_THIN, 1 << (max(thin for thin, _ in shapes) - 1).bit_length())
        self._noted: list[list[int]] = []
        self._noted_scales: list[float] = []

    def note(self, products: Sequence[ThinProduct], rows: Sequence[Tensor]) -> None:
        """Remember where the tensors of a pass are: they may be freed, but must not move."""
        for product in products:
            assert product.thin.stride(1) == product.wide.stride(1) == 1
            assert product.wide.shape[0] * product.wide.stride(0) < 1 << 31
        assert not self._aligned or all(product.is_aligned for product in products)
        self._noted = [product.columns(own) for product, own in zip(products, rows, strict=True)]
        self._noted_scales = [product.scale for product in products]

    def send(self) -> None:
        """Point the kernels to what was noted."""
        if not self._noted:
            return
        self._rows.copy_(torch.tensor(self._noted))
        self._scales.copy_(torch.tensor(self._noted_scales, dtype=torch.float32))

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
        # of each product by itself: small enough to take the place of what a pass has freed
        new = partial(torch.empty, dtype=torch.float32, device=bounds.device)
        rows = [new(sentences, product.size) for product in products]
        if triton is None or not bounds.is_cuda:
            _form_one_by_one(rows, products, bounds, count)
            squares = torch.stack([_squares(own, int(count)) for own in rows]).sum(0)
            return SentenceRows(rows, squares, count, self._rows, self._blocks)
        self.note(products, rows)
        if not torch.cuda.is_current_stream_capturing():
            self.send()
        sums = new(sentences, tiles * self._thin).zero_()
        _form[(min(_TURNS, sentences), tiles)](
            self._rows, self._scales, self._tiles, bounds, count, sums, tiles,
            kind=tl.bfloat16 if products[0].thin.dtype == torch.bfloat16 else tl.float32,
            aligned=self._aligned, thin=self._thin, across=_WIDE, deep=_DEEP, num_warps=1,
        )  # fmt: skip
        squares = sums.sum(1, dtype=torch.float64)
        return SentenceRows(rows, squares, count, self._rows, self._blocks)


def _cut(sizes: Sequence[int], each: int, device: torch.device) -> Tensor:
    """(pieces, 2), int32: whose piece, and where in it the piece begins."""
    pieces = [(place, start) for place, size in enumerate(sizes) for start in range(0, size, each)]
    return torch.tensor(pieces, dtype=torch.int32).to(device)


def _form_one_by_one(
    rows: Sequence[Tensor], products: Sequence[ThinProduct], bounds: Tensor, count: Tensor
) -> None:
    ends = bounds.tolist()
    for sentence in range(int(count)):
        tokens = slice(ends[sentence], ends[sentence + 1])
        for own, p in zip(rows, products, strict=True):
            formed = p.thin[tokens].float().t() @ p.wide[tokens].float()
            own[sentence] = formed.mul_(p.scale).flatten()


@dataclass(frozen=True, eq=False)
class SentenceRows:
    """For each matrix a row of gradients per sentence, and all squared norms in float64.

    Rows beyond `count` are undefined, and their squares zero. `table` and `blocks` are those of
    the `ThinTable`.
    """

    rows: Sequence[Tensor]
    squares: Tensor
    count: Tensor
    table: Tensor
    blocks: Tensor

    def user_squares(self, users: Tensor, count: Tensor, factors: Tensor) -> Tensor:
        """Squared norms of users' sums of their sentences' rows, each times its factor.

        Args:
            users: int32; user `j` has sentences `users[j]` to `users[j + 1]`.
            count: how many users there are, at most `len(users) - 1`.
        """
        most, blocks = len(users) - 1, len(self.blocks)
        if triton is None or not users.is_cuda:
            ends, squares = users.tolist(), torch.zeros(most, dtype=torch.float64)
            for user in range(int(count)):
                own = slice(ends[user], ends[user + 1])
                parts = [_weighted(rows[own], factors[own]) for rows in self.rows]
                squares[user] = torch.cat(parts).double().square().sum()
            return squares
        sums = torch.zeros(most, blocks, dtype=torch.float32, device=users.device)
        _user_squares[(blocks, min(_TURNS, most))](
            self.table, self.blocks, users, count, factors, sums, blocks, block=BLOCK
        )
        return sums.sum(1, dtype=torch.float64)

    def weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        """Set `total` to the sum of the rows with a weight each, matrix after matrix."""
        if triton is None or not total.is_cuda:
            count = int(self.count)
            sums = [_weighted(rows[:count], weights[:count]) for rows in self.rows]
            total.copy_(torch.cat(sums))
            return
        _weighted_sum[(len(self.blocks),)](
            self.table, self.blocks, self.count, weights, total, block=BLOCK
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
        table, scales, tiles, bounds, count, partial, number, kind: tl.constexpr,
        aligned: tl.constexpr, thin: tl.constexpr, across: tl.constexpr, deep: tl.constexpr,
    ) -> Any:  # fmt: skip
        """A tile of sentences' gradients, each added up from its own first token on."""
        # programs of one tile come together: what they read lies together
        tile = tl.program_id(1)
        entry = tl.load(tiles + 2 * tile)
        first_column = tl.multiple_of(tl.load(tiles + 2 * tile + 1), across)
        column = first_column + tl.arange(0, across)[None, :]
        at = table + entry * 9
        thin_address = tl.load(at)
        thin_stride = tl.load(at + 1).to(tl.int32)
        thin_width = tl.load(at + 2).to(tl.int32)
        wide_address = tl.load(at + 3)
        wide_stride = tl.load(at + 4).to(tl.int32)
        wide_width = tl.load(at + 5).to(tl.int32)
        rows_address = tl.load(at + 7)
        size = tl.load(at + 8)
        if aligned:  # what the compiler cannot see: several numbers can be read at once
            thin_address = tl.multiple_of(thin_address, 16)
            thin_stride = tl.multiple_of(thin_stride, 8)
            wide_address = tl.multiple_of(wide_address, 16)
            wide_stride = tl.multiple_of(wide_stride, 8)
            wide_width = tl.multiple_of(wide_width, 8)
            rows_address = tl.multiple_of(rows_address, 16)
            size = tl.multiple_of(size, 8)
        thin_at = thin_address.to(tl.pointer_type(kind))
        wide_at = wide_address.to(tl.pointer_type(kind))
        rows = rows_address.to(tl.pointer_type(tl.float32))
        scale = tl.load(scales + entry)
        feature = tl.arange(0, thin)
        known = feature < thin_width
        inside = column < wide_width
        place = (feature * wide_width)[:, None] + column
        last = tl.load(count).to(tl.int32)
        for sentence in range(tl.program_id(0), last, tl.num_programs(0)):
            end = tl.load(bounds + sentence + 1)
            total = tl.zeros((thin, across), dtype=tl.float32)
            for first in range(tl.load(bounds + sentence), end, deep):
                token = (first + tl.arange(0, deep))[:, None]
                left = tl.load(
                    thin_at + token * thin_stride + feature[None, :],
                    mask=(token < end) & known[None, :],
                    other=0.0,
                )
                right = tl.load(
                    wide_at + token * wide_stride + column, mask=(token < end) & inside, other=0.0
                )
                total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
            total *= scale
            tl.store(rows + sentence * size + place, total, mask=known[:, None] & inside)
            squares = tl.sum(total * total, 1)
            tl.store(partial + (sentence * number + tile) * thin + feature, squares, mask=known)

    @triton.jit  # type: ignore[untyped-decorator]
    def _block(table, blocks, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """The rows of a matrix, their size, a block of their places, and the start in the sum."""
        at = table + tl.load(blocks + 2 * tl.program_id(0)) * 9
        first = tl.multiple_of(tl.load(blocks + 2 * tl.program_id(0) + 1), block)
        rows = tl.multiple_of(tl.load(at + 7), 16).to(tl.pointer_type(tl.float32))
        return rows, tl.load(at + 8), first + tl.arange(0, block), tl.load(at + 6)

    @triton.jit  # type: ignore[untyped-decorator]
    def _user_squares(  # type: ignore[no-untyped-def]
        table, blocks, users, count, factors, partial, number, block: tl.constexpr
    ) -> Any:
        rows, size, place, _ = _block(table, blocks, block)
        inside = place < size
        for user in range(tl.program_id(1), tl.load(count), tl.num_programs(1)):
            total = tl.zeros((block,), dtype=tl.float32)
            for sentence in range(tl.load(users + user), tl.load(users + user + 1)):
                factor = tl.load(factors + sentence)
                own = tl.load(rows + sentence * size + place, mask=inside, other=0.0)
                # what is left out may not be finite
                total += tl.where(factor > 0, factor * own, 0.0)
            tl.store(partial + user * number + tl.program_id(0), tl.sum(total * total))

    @triton.jit  # type: ignore[untyped-decorator]
    def _weighted_sum(  # type: ignore[no-untyped-def]
        table, blocks, count, weights, result, block: tl.constexpr
    ) -> Any:
        rows, size, place, start = _block(table, blocks, block)
        inside = place < size
        total = tl.zeros((block,), dtype=tl.float32)
        for sentence in range(tl.load(count).to(tl.int32)):
            weight = tl.load(weights + sentence)
            own = tl.load(rows + sentence * size + place, mask=inside, other=0.0)
            total += tl.where(weight > 0, weight * own, 0.0)
        tl.store(result + start + place, total, mask=inside)
