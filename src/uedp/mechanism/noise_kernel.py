"""Noise on the grid in one kernel, for tensors on an accelerator; needs Triton.

Does the work of `chacha.words`, `noise.gaussians` and `noise.add_on_grid_` in the same order,
without ever writing noise to memory.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# (Triton reads annotations, and takes none but its own)

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_AT_ONCE = 256  # cipher blocks of a program


def add_(flat: Tensor, key: Tensor, first: int, deviation: float, grid: float) -> None:
    """Add noise to a contiguous vector of fewer than 2^31 entries: blocks from `first` on.

    `deviation` is in grid steps.
    """
    blocks = triton.cdiv(flat.numel(), 8)
    # numbers as a tensor: a kernel's own arguments are rounded to single precision
    numbers = torch.tensor(
        [-2 * deviation**2, math.pi * 2.0**-63, 1 / grid, grid],
        dtype=torch.float64,
        device=flat.device,
    )
    with torch.cuda.device(flat.device):
        _add_on_grid[(triton.cdiv(blocks, _AT_ONCE),)](
            flat, key, numbers, flat.numel(), blocks, first, at_once=_AT_ONCE
        )


@triton.jit
def _rotate(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d = _rotate(d ^ a, 16)
    c += d
    b = _rotate(b ^ c, 12)
    a += b
    d = _rotate(d ^ a, 8)
    c += d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(key, place: tl.constexpr):
    return tl.load(key + place).to(tl.uint32, bitcast=True)


@triton.jit
def _signed(low, high):
    """A 64-bit word as a floating-point number."""
    word = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    return word.to(tl.int64, bitcast=True).to(tl.float64)


@triton.jit
def _nearest(x):
    return libdevice.rint(x)


@triton.jit
def _add(flat, place, inside, steps, per_step, grid):
    """`noise.add_on_grid_`, entry by entry."""
    points = tl.load(flat + place, mask=inside, other=0.0).to(tl.float64) * per_step
    whole = _nearest(points) + 0.0
    released = (_nearest(steps + (points - whole)) + whole) * grid
    tl.store(flat + place, released.to(flat.dtype.element_ty), mask=inside)


@triton.jit
def _add_pair(flat, numbers, entries, blocks, block, place: tl.constexpr, r0, r1, a0, a1):
    """The two values of a radius and an angle: words `place` and `place + 4` of each block."""
    uniform = tl.abs(_signed(r0, r1) + 0.5) * 1.0842021724855044e-19  # 2^-63
    length = tl.sqrt(tl.log(uniform) * tl.load(numbers))
    angle = _signed(a0, a1) * tl.load(numbers + 1)
    per_step = tl.load(numbers + 2)
    grid = tl.load(numbers + 3)
    first = place * blocks + block
    second = (place + 4) * blocks + block
    inside = block < blocks
    _add(flat, first, inside & (first < entries), tl.cos(angle) * length, per_step, grid)
    _add(flat, second, inside & (second < entries), tl.sin(angle) * length, per_step, grid)


@triton.jit(do_not_specialize=["entries", "blocks", "first"])
def _add_on_grid(flat, key, numbers, entries, blocks, first, at_once: tl.constexpr):
    block = tl.program_id(0) * at_once + tl.arange(0, at_once)
    counter = block.to(tl.int64) + first
    zero = tl.zeros((at_once,), dtype=tl.uint32)
    s0 = tl.full((at_once,), 0x61707865, tl.uint32)
    s1 = tl.full((at_once,), 0x3320646E, tl.uint32)
    s2 = tl.full((at_once,), 0x79622D32, tl.uint32)
    s3 = tl.full((at_once,), 0x6B206574, tl.uint32)
    s4 = zero + _word(key, 0)
    s5 = zero + _word(key, 1)
    s6 = zero + _word(key, 2)
    s7 = zero + _word(key, 3)
    s8 = zero + _word(key, 4)
    s9 = zero + _word(key, 5)
    s10 = zero + _word(key, 6)
    s11 = zero + _word(key, 7)
    s12 = counter.to(tl.uint32)
    s13 = (counter >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    # words 0..3 of 64 bits give radii, words 4..7 angles
    _add_pair(flat, numbers, entries, blocks, block, 0, x0 + s0, x1 + s1, x8 + s8, x9 + s9)
    _add_pair(flat, numbers, entries, blocks, block, 1, x2 + s2, x3 + s3, x10 + s10, x11 + s11)
    _add_pair(flat, numbers, entries, blocks, block, 2, x4 + s4, x5 + s5, x12 + s12, x13 + s13)
    _add_pair(flat, numbers, entries, blocks, block, 3, x6 + s6, x7 + s7, x14, x15)
