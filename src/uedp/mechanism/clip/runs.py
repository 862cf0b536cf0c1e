"""Sums over the tokens of sentences and users, where sentences share rows: nothing is moved.

Laid out with a row for each sentence, tokens take several times the memory and the arithmetic,
most of it for padding. Here kernels find the tokens of a sentence by where it begins and ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uedp.incidence import Ints
from uedp.mechanism.clip.rounding import TINY, rounded_up

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

_OF_SENTENCES, _OF_USERS = 32, 64  # tokens of a block
_DEEP = 64  # features read at a time


def has_kernels(values: Tensor) -> bool:
    return triton is not None and values.is_cuda


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of tokens of some runs, in blocks: each pair of a run's blocks once."""

    blocks: Tensor  # (blocks, 3), int32: where two blocks begin, and where their run ends
    run: Tensor  # of each block
    runs: int
    size: int

    @classmethod
    def of(cls, starts: Ints, ends: Ints, size: int, device: torch.device) -> "Pairs":
        rows: list[tuple[int, int, int]] = []
        run: list[int] = []
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            firsts = range(start, end, size)
            for first in firsts:
                rows += [(first, second, end) for second in firsts if second >= first]
            run += [number] * (len(rows) - len(run))
        blocks = torch.tensor(rows, dtype=torch.int32).view(-1, 3)
        return cls(blocks.to(device), torch.tensor(run).to(device), len(starts), size)

    def zeros(self) -> Tensor:
        return torch.zeros(len(self.run), dtype=torch.float64, device=self.run.device)

    def by_run(self, values: Tensor) -> Tensor:
        """(..., blocks) added up for each run."""
        totals = values.new_zeros(*values.shape[:-1], self.runs)
        return totals.index_add_(-1, self.run, values)


class Runs:
    """Where the sentences of a chunk lie among all places."""

    def __init__(self, starts: Ints, lengths: Ints, end: int, device: torch.device) -> None:
        self._starts, self._lengths, self._end, self._device = starts, lengths, end, device
        self._users: tuple[tuple[int, ...], Pairs] | None = None
        self._spread: tuple[Tensor, Tensor] | None = None

    @cached_property
    def in_order(self) -> bool:
        """Whether sentences come one after the other: then a user's lie side by side."""
        ends = self._starts + self._lengths
        return bool((self._starts[1:] >= ends[:-1]).all())

    @cached_property
    def bounds(self) -> Tensor:
        """(sentences, 2): the first place, and the place after the last one."""
        both = np.stack([self._starts, self._starts + self._lengths], 1)
        return torch.from_numpy(both).to(self._device, torch.int32)

    @cached_property
    def lengths(self) -> Tensor:
        return torch.from_numpy(self._lengths).to(self._device)

    @cached_property
    def sentences(self) -> Pairs:
        ends = self._starts + self._lengths
        return Pairs.of(self._starts, ends, _OF_SENTENCES, self._device)

    def users(self, counts: tuple[int, ...]) -> Pairs:
        """The same for users of so many sentences each; sentences must be `in_order`.

        Places between sentences count nothing: factors are zero there (`spread`).
        """
        assert self.in_order
        if self._users is None or self._users[0] != counts:
            last = np.cumsum(counts) - 1
            ends = (self._starts + self._lengths)[last]
            starts = self._starts[last + 1 - np.array(counts)]
            self._users = counts, Pairs.of(starts, ends, _OF_USERS, self._device)
        return self._users[1]

    @cached_property
    def _sentence(self) -> Tensor:
        """The sentence of every place; one past the last where there is none."""
        sentence = np.full(self._end, len(self._starts))
        within = np.arange(self._lengths.sum())
        firsts = np.cumsum(self._lengths) - self._lengths
        places = within + np.repeat(self._starts - firsts, self._lengths)
        sentence[places] = np.repeat(np.arange(len(self._starts)), self._lengths)
        return torch.from_numpy(sentence).to(self._device)

    def spread(self, values: Tensor) -> Tensor:
        """A number for each sentence at all its places, in float32, and zero elsewhere."""
        if self._spread is None or self._spread[0] is not values:
            padded = torch.cat([values.float(), values.new_zeros(1).float()])
            self._spread = values, padded[self._sentence]
        return self._spread[1]


@dataclass(frozen=True, eq=False)
class Bilinear:
    """A weight's gradient `sum over tokens of left_t (x) right_t`, as products of its tokens.

    `left` is (tokens, features), or (tokens,) ids of rows; `right` is (tokens, features).
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        # kernels read a token's features one after the other
        assert self.right.stride(-1) == 1
        assert self.left.dim() == 1 or self.left.stride(-1) == 1

    @property
    def features(self) -> int:
        return self.right.shape[1] + (self.left.shape[1] if self.left.dim() == 2 else 0)


def add_pairs(
    total: Tensor,
    part: Bilinear,
    pairs: Pairs,
    factors: Tensor | None = None,
    masses: Tensor | None = None,
) -> None:
    """Add for each block of pairs the sum of `<left_t, left_s> <right_t, right_s>`.

    Args:
        total: float64, one for each block.
        factors: of tokens; a pair counts with both of its tokens'.
        masses: filled with the sums of `|left_t| |right_t|`, rounded up, for blocks of tokens with
            themselves.
    """
    blocks = len(pairs.run)
    if not has_kernels(total):
        _add_one_by_one(total, part, pairs, factors, masses)
        return
    ids = part.left.dim() == 1
    _pairs[(blocks,)](
        part.left, part.left.stride(0), 0 if ids else part.left.shape[1],
        part.right, part.right.stride(0), part.right.shape[1],
        pairs.blocks, total, total if factors is None else factors,
        total if masses is None else masses, part.features * TINY, rounded_up(part.features),
        ids=ids, weighs=factors is not None, notes=masses is not None,
        size=pairs.size, deep=_DEEP, num_warps=4,
    )  # fmt: skip


def add_overlap(
    total: Tensor,
    lookup: Bilinear,
    head: Bilinear,
    pairs: Pairs,
    factors: Tensor | None = None,
) -> None:
    """Add twice the products between two gradients of one weight: of a lookup, and of a head.

    The head's is `sum over tokens of right_t (x) left_t` with a row for each word: its token `s`
    meets the lookup's token `t` in the row of `t`'s word.
    """
    if not has_kernels(total):
        _overlap_one_by_one(total, lookup, head, pairs, factors)
        return
    _overlap[(len(pairs.run),)](
        head.left, head.left.stride(0), lookup.right, lookup.right.stride(0),
        lookup.right.shape[1], head.right, head.right.stride(0), lookup.left, pairs.blocks, total,
        total if factors is None else factors,
        weighs=factors is not None, size=pairs.size, deep=_DEEP, num_warps=4,
    )  # fmt: skip


def sentence_sums(values: Tensor, runs: Runs) -> Tensor:
    """(tokens, features) added up for each sentence, in float32."""
    sentences, width = len(runs.bounds), values.shape[1]
    if not has_kernels(values):
        rows = [values[a:b].float().sum(0) for a, b in runs.bounds.tolist()]
        return torch.stack(rows)
    result = torch.empty(sentences, width, dtype=torch.float32, device=values.device)
    values = values.contiguous()
    _sums[(sentences, triton.cdiv(width, _BLOCK))](values, result, runs.bounds, width, block=_BLOCK)
    return result


_BLOCK = 256


def _slices(pairs: Pairs) -> Sequence[tuple[slice, slice, int]]:
    return [
        (slice(a, min(a + pairs.size, end)), slice(b, min(b + pairs.size, end)), 1 + (a != b))
        for a, b, end in pairs.blocks.tolist()
    ]


def _weighed(products: Tensor, a: slice, b: slice, factors: Tensor | None) -> Tensor:
    products = products.double()
    if factors is None:
        return products
    both = factors[a, None] * factors[None, b]
    return torch.where(both != 0, products * both, 0.0)  # whatever lies between sentences


def _add_one_by_one(
    total: Tensor, part: Bilinear, pairs: Pairs, factors: Tensor | None, masses: Tensor | None
) -> None:
    left, right = part.left, part.right.float()
    for place, (a, b, times) in enumerate(_slices(pairs)):
        if left.dim() == 1:
            inner = (left[a, None] == left[None, b]).float()
        else:
            inner = left[a].float() @ left[b].float().t()
        outer = right[a] @ right[b].t()
        total[place] += times * _weighed(inner * outer, a, b, factors).sum()
        if masses is not None and a == b:
            tiny = part.features * TINY
            squares = (inner.diagonal() + tiny).sqrt() * (outer.diagonal() + tiny).sqrt()
            masses[place] = squares.sum() * rounded_up(part.features)


def _overlap_one_by_one(
    total: Tensor, lookup: Bilinear, head: Bilinear, pairs: Pairs, factors: Tensor | None
) -> None:
    for place, (a, b, times) in enumerate(_slices(pairs)):
        for s, t in ((a, b), (b, a))[:times]:
            met = head.right[s][:, lookup.left[t]].float()
            products = head.left[s].float() @ lookup.right[t].float().t() * met
            total[place] += 2 * _weighed(products, s, t, factors).sum()


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _gram(  # type: ignore[no-untyped-def]
        a, a_stride, b, b_stride, width, a_token, b_token, end, size: tl.constexpr,
        deep: tl.constexpr,
    ):  # fmt: skip
        """Inner products of two blocks of tokens."""
        total = tl.zeros((size, size), dtype=tl.float32)
        for start in range(0, width, deep):
            feature = (start + tl.arange(0, deep))[None, :]
            known = feature < width
            left = tl.load(
                a + a_token.to(tl.int64)[:, None] * a_stride + feature,
                mask=(a_token < end)[:, None] & known,
                other=0.0,
            )
            right = tl.load(
                b + b_token.to(tl.int64)[:, None] * b_stride + feature,
                mask=(b_token < end)[:, None] & known,
                other=0.0,
            )
            if left.dtype != right.dtype:
                left, right = left.to(tl.float32), right.to(tl.float32)
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
        return total

    @triton.jit
    def _block_at(blocks, block):  # type: ignore[no-untyped-def]
        """Where two blocks of tokens begin, and where their run ends."""
        at = blocks + 3 * block
        return tl.load(at), tl.load(at + 1), tl.load(at + 2)

    @triton.jit
    def _weighted(products, factors, a_token, b_token, end):  # type: ignore[no-untyped-def]
        a_factor = tl.load(factors + a_token, mask=a_token < end, other=0.0)
        b_factor = tl.load(factors + b_token, mask=b_token < end, other=0.0)
        both = a_factor[:, None] * b_factor[None, :]
        return tl.where(both != 0, products * both, 0.0)  # whatever lies between sentences

    @triton.jit  # type: ignore[untyped-decorator]
    def _pairs(  # type: ignore[no-untyped-def]
        left, left_stride, left_width, right, right_stride, right_width, blocks, total, factors,
        masses, tiny, up, ids: tl.constexpr, weighs: tl.constexpr, notes: tl.constexpr,
        size: tl.constexpr, deep: tl.constexpr,
    ) -> Any:  # fmt: skip
        block = tl.program_id(0)
        a_first, b_first, end = _block_at(blocks, block)
        a_token = a_first + tl.arange(0, size)
        b_token = b_first + tl.arange(0, size)
        outer = _gram(
            right, right_stride, right, right_stride, right_width, a_token, b_token, end, size, deep
        )
        if ids:
            a_id = tl.load(left + a_token.to(tl.int64) * left_stride, mask=a_token < end, other=-1)
            b_id = tl.load(left + b_token.to(tl.int64) * left_stride, mask=b_token < end, other=-2)
            inner = tl.where(a_id[:, None] == b_id[None, :], 1.0, 0.0)
        else:
            inner = _gram(
                left, left_stride, left, left_stride, left_width, a_token, b_token, end, size, deep
            )
        if notes:  # noqa: SIM102 - known when the kernel is compiled
            if a_first == b_first:
                own = (a_token[:, None] == b_token[None, :]) & (a_token < end)[:, None]
                lefts = tl.sum(tl.where(own, inner, 0.0), 1)
                rights = tl.sum(tl.where(own, outer, 0.0), 1)
                mass = tl.sqrt(tl.maximum(lefts, 0.0) + tiny)
                mass *= tl.sqrt(tl.maximum(rights, 0.0) + tiny)
                tl.store(masses + block, up * tl.sum(tl.where(a_token < end, mass, 0.0)))
        products = inner * outer
        if weighs:
            products = _weighted(products, factors, a_token, b_token, end)
        # few terms in float32, the rest in float64
        added = tl.sum(tl.sum(products, 1).to(tl.float64))
        added = tl.where(a_first == b_first, added, 2 * added)
        tl.store(total + block, tl.load(total + block) + added)

    @triton.jit  # type: ignore[untyped-decorator]
    def _met(  # type: ignore[no-untyped-def]
        hidden, hidden_stride, into, into_stride, width, out, out_stride, ids, factors, s_token,
        t_token, end, weighs: tl.constexpr, size: tl.constexpr, deep: tl.constexpr,
    ):  # fmt: skip
        products = _gram(
            hidden, hidden_stride, into, into_stride, width, s_token, t_token, end, size, deep
        )
        word = tl.load(ids + t_token, mask=t_token < end, other=0)
        met = tl.load(
            out + s_token.to(tl.int64)[:, None] * out_stride + word[None, :],
            mask=(s_token < end)[:, None] & (t_token < end)[None, :],
            other=0.0,
        )
        products *= met.to(tl.float32)
        if weighs:
            products = _weighted(products, factors, s_token, t_token, end)
        return tl.sum(tl.sum(products, 1).to(tl.float64))

    @triton.jit  # type: ignore[untyped-decorator]
    def _overlap(  # type: ignore[no-untyped-def]
        hidden, hidden_stride, into, into_stride, width, out, out_stride, ids, blocks, total,
        factors, weighs: tl.constexpr, size: tl.constexpr, deep: tl.constexpr,
    ) -> Any:  # fmt: skip
        block = tl.program_id(0)
        a_first, b_first, end = _block_at(blocks, block)
        a_token = a_first + tl.arange(0, size)
        b_token = b_first + tl.arange(0, size)
        added = _met(
            hidden, hidden_stride, into, into_stride, width, out, out_stride, ids, factors,
            a_token, b_token, end, weighs, size, deep,
        )  # fmt: skip
        if a_first != b_first:
            added += _met(
                hidden, hidden_stride, into, into_stride, width, out, out_stride, ids, factors,
                b_token, a_token, end, weighs, size, deep,
            )  # fmt: skip
        tl.store(total + block, tl.load(total + block) + 2 * added)

    @triton.jit  # type: ignore[untyped-decorator]
    def _sums(  # type: ignore[no-untyped-def]
        values, result, bounds, width, block: tl.constexpr
    ) -> Any:
        sentence = tl.program_id(0)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        total = tl.zeros((block,), dtype=tl.float32)
        for token in range(tl.load(bounds + 2 * sentence), tl.load(bounds + 2 * sentence + 1)):
            row = values + tl.cast(token, tl.int64) * width
            total += tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + tl.cast(sentence, tl.int64) * width + column, total, mask=inside)
