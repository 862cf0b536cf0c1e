"""Gaussian noise for a release, from a cipher's key stream (`docs/privacy.md`, section 6).

Floating-point noise leaks through the low bits of a sum, which betray the value the noise was
added to (Mironov 2012; Holohan and Braghin 2021). Here the sum is rounded to one coarse grid, each
of whose points either value can reach.
"""

import functools
import logging
import math
import os
from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from uedp.mechanism import chacha
from uedp.mechanism.secret import KEY_BYTES, KeyStream

Source = Literal["cipher", "fixed seed"]

_GRID_BITS = 12  # grid points per standard deviation, as a power of two
_AT_ONCE = 1 << 23  # values made at a time on an accelerator

_log = logging.getLogger(__name__)


class Noise(Protocol):
    """Adds noise to a sum, never the same twice."""

    source: Source

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        """Add independent Gaussian noise of this standard deviation to every entry, in place."""


def add_once_(noise: Noise, sums: list[torch.Tensor], deviation: float) -> None:
    """Noise sums that are complete, those of all processes together.

    Only then, because the grid of `SecureNoise` protects the last thing added: the share of another
    process, added later, would bring its low bits back.

    Guarantees:
      - in a process group only the first rank may: any other is refused, rather than left with the
        noise of a second draw, or with sums that lack the shares of others
    """
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        raise ValueError("only the first process of a group adds noise")
    noise.add_(sums, deviation)


class SecureNoise:
    """Noise from a cipher under a 256-bit key that is drawn per release and not kept.

    AES in counter mode for tensors on the host; ChaCha20 for tensors on an accelerator, in one
    kernel where Triton is available. Devices without double precision get the host's.

    Guarantees:
      - two releases never share a key, and every bit of a key matters
      - an entry is released as the multiple of one grid, `deviation * 2^-12` rounded down to a
        power of two, that is nearest to value plus Gaussian. Rounding their sum, not each, is
        post-processing: it moves no value, so the sensitivity is the one that was accounted for
      - the noise added to a value's own grid point is a whole number of grid steps, and the
        addition is exact, however large the value
      - a tensor of fewer digits rounds the grid point again (float32: beyond 2^24 steps). That
        depends on the grid point alone, so it is post-processing too, and gives a multiple of the
        grid: a whole number rounded to fewer digits is a whole number
      - the grid point zero has no sign: it would reveal the value's
      - the Gaussian ends at 9.42 deviations, its pairs where 2^-64 of them lie beyond
    """

    source: Source = "cipher"

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        if deviation == 0:
            return
        grid = grid_of(deviation)
        streams: dict[torch.device, _OnHost | _OnDevice] = {}
        for total in sums:
            own = total.detach()
            where = own.device if own.device.type in _DOUBLE_PRECISION else torch.device("cpu")
            if where not in streams:
                streams[where] = _OnHost() if where.type == "cpu" else _OnDevice(where)
            flat = own.to(where).contiguous()  # itself, where it can be
            streams[where].add_(flat.view(-1), deviation / grid, grid)
            if flat is not own:
                own.copy_(flat)


_DOUBLE_PRECISION = ("cuda",)  # accelerators that have it


class SeededNoise:
    """PyTorch's Gaussian noise from a fixed seed, without a grid: for tests; a run is not private.

    Guarantees:
      - releases can be repeated: they depend on the seed and on how many there were before
    """

    source: Source = "fixed seed"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._releases = 0

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        generators: dict[torch.device, torch.Generator] = {}
        for total in sums:
            if total.device not in generators:
                generator = torch.Generator(total.device)
                generators[total.device] = generator.manual_seed(self._seed + self._releases)
            noise = torch.empty_like(total, dtype=torch.float32)
            noise.normal_(0.0, deviation, generator=generators[total.device])
            total.add_(noise)
        self._releases += 1


def grid_of(deviation: float) -> float:
    """The grid of a release: a power of two, so that multiples of it are exact."""
    if not 2.0**-900 < deviation < 2.0**900:
        raise ValueError(f"deviation {deviation}: must be positive, between 2^-900 and 2^900")
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _GRID_BITS)


def add_on_grid_(values: torch.Tensor, steps: torch.Tensor, grid: float) -> None:
    """Round `values / grid + steps` to whole numbers of grid steps, in place; consumes `steps`."""
    points = values.to(torch.float64, copy=True).mul_(1 / grid)  # exact: a power of two
    whole = points.round().add_(0.0)  # adding zero makes every zero a positive one
    # the fraction first: next to a large whole number the noise would lose its low bits
    steps.add_(points.sub_(whole)).round_().add_(whole)
    values.copy_(steps.mul_(grid))


def gaussians(words: torch.Tensor, deviation: float) -> torch.Tensor:
    """Gaussians by Box and Muller's transform: as many as there are (an even number of) words.

    The first half of the words give radii, the second half angles; a radius and its angle give
    the cosine's value in the first half and the sine's in the second. A radius comes from a
    uniform number with relative, not absolute, precision, down to 2^-64: the far tail is resolved.
    """
    radius, angle = words.view(2, -1)
    # w and -w - 1 give the same odd half, so that no word gives zero
    uniform = radius.to(torch.float64).add_(0.5).abs_().mul_(2.0**-63)
    length = uniform.log_().mul_(-2 * deviation**2).sqrt_()
    angle = angle.to(torch.float64).mul_(math.pi * 2.0**-63)
    return torch.stack((angle.cos(), angle.sin())).mul_(length).view(-1)


class _OnHost:
    """AES, a block at a time."""

    def __init__(self) -> None:
        self._stream = KeyStream()

    def add_(self, flat: torch.Tensor, deviation: float, grid: float) -> None:
        for start in range(0, flat.numel(), KeyStream.BLOCK):
            block = flat[start : start + KeyStream.BLOCK]
            words = self._stream.words(block.numel() + block.numel() % 2)
            add_on_grid_(block, gaussians(words, deviation)[: block.numel()], grid)


class _OnDevice:
    """ChaCha20 where the tensors are.

    Guarantees:
      - no block of the cipher is used for two entries' pairs, over all tensors of the release
      - the kernel and the operations of PyTorch give the same release, up to the rounding of
        logarithm and angle
    """

    def __init__(self, device: torch.device) -> None:
        self._key = chacha.key_of(os.urandom(KEY_BYTES), device)
        self._next = 0
        self._kernel = _kernel(device)

    def add_(self, flat: torch.Tensor, deviation: float, grid: float) -> None:
        for start in range(0, flat.numel(), _AT_ONCE):
            part = flat[start : start + _AT_ONCE]
            add = self._kernel if self._kernel and part.dtype in _BY_KERNEL else add_by_operations_
            add(part, self._key, self._next, deviation, grid)
            self._next += _blocks(part.numel())


def add_by_operations_(
    flat: torch.Tensor, key: torch.Tensor, first: int, deviation: float, grid: float
) -> None:
    """Noise from ChaCha20's blocks from `first` on, in grid steps; the kernel must do the same."""
    words = chacha.words(key, first, _blocks(flat.numel()))
    add_on_grid_(flat, gaussians(words, deviation)[: flat.numel()], grid)


def _blocks(entries: int) -> int:
    return -(-entries // chacha.WORDS)


_Adds = Callable[[torch.Tensor, torch.Tensor, int, float, float], None]
_BY_KERNEL = (torch.float32, torch.float64)
_TRIED, _TRIED_DEVIATION, _TRIED_GRID = 10_001, 5000.0, 2.0**-12


@functools.cache
def _kernel(device: torch.device) -> _Adds | None:
    """The fused kernel, if the device has one and it agrees with the operations."""
    if device.type != "cuda":
        return None
    try:
        from uedp.mechanism import noise_kernel

        key = chacha.key_of(bytes(range(KEY_BYTES)), device)
        one, other = (torch.linspace(-300, 300, _TRIED, device=device) for _ in range(2))
        add_by_operations_(one, key, 2**32 - 100, _TRIED_DEVIATION, _TRIED_GRID)
        noise_kernel.add_(other, key, 2**32 - 100, _TRIED_DEVIATION, _TRIED_GRID)
        # a logarithm rounded otherwise moves one entry in 10^11, and by one step
        same = bool(((one - other).abs() <= _TRIED_GRID).all()) and int((one != other).sum()) <= 2
    except Exception as error:  # no Triton, no compiler, another architecture: many ways to fail
        _log.info("noise by PyTorch's operations, without the fused kernel: %s", error)
        return None
    if not same:
        _log.warning("the noise kernel gives wrong results on %s; it is not used", device)
        return None
    return noise_kernel.add_
