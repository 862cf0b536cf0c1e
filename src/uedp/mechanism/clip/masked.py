"""The rule for weights that are multiplied by a mask before use: DropConnect.

A layer has it if it multiplies its weight by a `SharedMask` named `clip_mask`; otherwise it must
compute as a linear layer.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from uedp.mechanism.clip.layout import Grams, Layout
from uedp.mechanism.clip.rounding import SCALING_ERROR, masses, sum_error
from uedp.mechanism.clip.rules import ClipRule, Gradients, exact_product, token_squares

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

_SLICE = 4096  # entries of gradients whose products are added up in float32
_TF32X3 = 4  # the error of three TF32 products relative to that of float32
_MAX_BYTES = 2 << 20  # of gradients that are formed and dropped again: they stay in the cache


class MaskedProduct(ClipRule):
    """A weight whose gradient is `mask * sum over tokens of grads_t (x) inputs_t`.

    Inner products under a mask do not factor into those of inputs and of gradients. So the
    sentences' gradients are formed, for some bins and some rows of the weight at a time. On an
    accelerator with Triton they are formed and squared tile by tile and never written to memory:
    first for sentences, then for users' clipped sums.

    Guarantees:
      - norms and sums are those of the gradients formed one by one, whatever `_MAX_BYTES`
      - at most `_MAX_BYTES` of gradients are held, or one row for each sentence of one bin
    """

    def __init__(
        self, parameter: nn.Parameter, inputs: Tensor, grads: Tensor, mask: Tensor
    ) -> None:
        self._parameter, self._inputs, self._grads = parameter, inputs, grads
        self._mask = mask.to(inputs.device, torch.float32)
        self._fused = triton is not None and inputs.is_cuda

    def add_products(self, grams: Grams) -> None:
        if self._fused:
            sentences, tokens, _ = self._inputs.shape
            bounds = torch.arange(sentences + 1, device=self._inputs.device) * tokens
            squares = masked_squares(self._grads, self._inputs, self._mask, bounds).double()
            grams.squares.add_(squares)
            # a tile's squares are added up, then those of all tiles
            tiles = -(-self._mask.numel() // (_HIGH * _WIDE))
            rounding = sum_error(_HIGH * _WIDE + tiles)
            grams.allow(slice(None), squares.sqrt(), squares=rounding)
            self._allow(grams)
            return
        self._allow(grams)
        for bucket, gram in grams.sentences():
            inputs, grads = bucket.split(self._inputs), bucket.split(self._grads)
            for bins, rows in self._blocks(*gram.shape[:2]):
                left = grads[bins][..., rows].flatten(0, 1).transpose(1, 2)
                formed = exact_product(left, inputs[bins].flatten(0, 1)).mul_(self._mask[rows])
                own = formed.view(-1, gram.shape[1], formed[0].numel())
                for part in own.split(_SLICE, 2):
                    gram[bins].add_(torch.bmm(part, part.transpose(1, 2)))
            own_squares = torch.diagonal(gram, dim1=1, dim2=2).flatten()
            grams.allow(bucket.rows, own_squares.sqrt(), squares=sum_error(_SLICE))

    def _allow(self, grams: Grams) -> None:
        """For gradients that are formed, of sentences and of users, and for scaling them."""
        inputs, grads = token_squares(self._inputs), token_squares(self._grads)
        features = self._inputs.shape[-1] + self._grads.shape[-1]
        mass = masses(inputs, grads, features).sum(1) * self._mask.max()
        # where nothing came back nothing is added, and nothing rounds
        formed = _TF32X3 * sum_error(grams.user_totals((grads > 0).sum(1)))
        grams.allow(slice(None), mass, norms=formed + SCALING_ERROR)

    def add_user_squares(self, squares: Tensor, layout: Layout, factors: Tensor) -> None:
        if self._fused:
            ends = list(accumulate(layout.counts, initial=0))
            bounds = torch.tensor(ends, device=factors.device) * self._inputs.shape[1]
            inputs = self._inputs.float() * factors[:, None, None]
            squares.add_(masked_squares(self._grads.float(), inputs, self._mask, bounds))

    def _blocks(self, bins: int, each: int) -> Iterator[tuple[slice, slice]]:
        """Bins with all rows while that fits, else one bin with some rows."""
        height, width = self._parameter.shape
        row = 4 * each * width  # bytes
        some_bins = max(1, _MAX_BYTES // (height * row))
        some_rows = max(1, min(height, _MAX_BYTES // row))
        for first in range(0, bins, some_bins):
            for start in range(0, height, some_rows):
                yield slice(first, first + some_bins), slice(start, start + some_rows)

    def weighted(self, weights: Tensor) -> Gradients:
        inputs = (self._inputs.float() * weights[:, None, None]).flatten(0, 1)
        total = exact_product(self._grads.flatten(0, 1).t(), inputs)
        return {self._parameter: total.mul_(self._mask)}


def masked_squares(left: Tensor, right: Tensor, mask: Tensor, bounds: Tensor) -> Tensor:
    """Squared norms of `mask * sum over tokens of left_t (x) right_t` for runs of tokens.

    Run `i` is from `bounds[i]` to `bounds[i + 1]` of all tokens, sentence after sentence.
    """
    height, width = mask.shape
    runs = len(bounds) - 1
    across = triton.cdiv(width, _WIDE)
    tiles = triton.cdiv(height, _HIGH) * across
    partial = torch.empty(runs, tiles, device=left.device, dtype=torch.float32)
    _masked_squares[(triton.cdiv(runs, _RUNS), tiles)](
        left.contiguous(),
        right.to(left.dtype).contiguous(),
        mask.contiguous(),
        bounds,
        partial,
        runs,
        height,
        width,
        across,
        tiles,
        some=_RUNS,
        high=_HIGH,
        wide=_WIDE,
        deep=_DEEP,
    )
    return partial.sum(1)


_HIGH, _WIDE, _DEEP = 64, 128, 16  # a tile of the weight, and tokens read at a time
_RUNS = 8  # that one program goes through: its tile of the mask is read once for all

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _masked_squares(  # type: ignore[no-untyped-def]
        left,
        right,
        mask,
        bounds,
        partial,
        runs,
        height,
        width,
        across,
        tiles,
        some: tl.constexpr,
        high: tl.constexpr,
        wide: tl.constexpr,
        deep: tl.constexpr,
    ) -> Any:
        tile = tl.program_id(1)
        row = (tile // across) * high + tl.arange(0, high)
        column = (tile % across) * wide + tl.arange(0, wide)
        inside = (row[:, None] < height) & (column[None, :] < width)
        kept = tl.load(mask + row[:, None] * width + column[None, :], mask=inside, other=0.0)
        first = tl.program_id(0) * some
        for run in range(first, min(first + some, runs)):
            begin = tl.load(bounds + run)
            end = tl.load(bounds + run + 1)
            total = tl.zeros((high, wide), dtype=tl.float32)
            for start in range(begin, end, deep):
                token = start + tl.arange(0, deep)
                grads = tl.load(
                    left + token[None, :] * height + row[:, None],
                    mask=(token[None, :] < end) & (row[:, None] < height),
                    other=0.0,
                )
                inputs = tl.load(
                    right + token[:, None] * width + column[None, :],
                    mask=(token[:, None] < end) & (column[None, :] < width),
                    other=0.0,
                )
                # float32 as three products in the tensor cores' own format
                total = tl.dot(grads, inputs, total, input_precision="tf32x3")
            total *= kept
            tl.store(partial + run * tiles + tile, tl.sum(total * total))
