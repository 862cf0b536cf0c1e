"""Gaussian noise for a release, from the operating system's randomness or from a cipher.

Two sources. `system`: PyTorch's generator on the tensor's device, seeded anew each round from the
operating system; fast, and what peers use. `secure`: a cipher's key stream turned to Gaussians on
the CPU. A fixed seed is for tests; it marks a run as not private.

The secure source also closes the hole that floating-point noise leaves (Mironov 2012; Holohan and
Braghin 2021): the low bits of a sum betray which of two values the noise was added to. Here the
sum is rounded to one coarse grid, each of whose points either value can reach.

Over several processes a release is noised once: see `add_once_`.
"""

import math
import os
import secrets
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Source = Literal["system", "secure", "fixed seed"]

_GRID_BITS = 12  # grid points per standard deviation, as a power of two
_BLOCK = 1 << 16  # values made at a time: few calls, and what they touch stays in the cache


class Noise(Protocol):
    """Adds noise to a sum, never the same twice."""

    source: Source

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        """Add independent Gaussian noise of this standard deviation to every entry, in place."""


def add_once_(
    noise: Noise,
    sums: list[torch.Tensor],
    deviation: float,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Noise the sums of a process group once, *after* they are summed over its ranks.

    After, because the grid of `SecureNoise` protects the last thing added: another rank's share
    added later would bring its low bits back. Called too early, it loses the shares of the other
    ranks, which costs training but no privacy. Without processes it is `noise.add_`.

    Guarantees:
      - only the group's first rank draws noise, and only its sums and deviation are read: reducing
        to that rank is enough, an all-reduce is not needed
      - every rank ends with the same bits
      - a process outside the group is refused, rather than left with sums without noise
    """
    if not (dist.is_available() and dist.is_initialized()):
        noise.add_(sums, deviation)
        return
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group whose sums are noised")
    if rank == 0:
        noise.add_(sums, deviation)
    if dist.get_world_size(group) > 1:
        for total in sums:
            own = total.detach()
            whole = own.contiguous()
            dist.broadcast(whole, group=group, group_src=0)
            if whole is not own:
                own.copy_(whole)


class SystemNoise:
    """PyTorch's Gaussian noise, seeded from the operating system for every release.

    Guarantees:
      - two releases never share a seed; no seed is kept
      - with `seed` given, releases can be repeated: for tests only
    """

    def __init__(self, seed: int | None = None) -> None:
        self.source: Source = "system" if seed is None else "fixed seed"
        self._seed = seed
        self._releases = 0

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        generators: dict[torch.device, torch.Generator] = {}
        fresh = secrets.randbits(63) if self._seed is None else self._seed + self._releases
        self._releases += 1
        for total in sums:
            if total.device not in generators:
                generators[total.device] = torch.Generator(total.device).manual_seed(fresh)
            noise = torch.empty_like(total, dtype=torch.float32)
            noise.normal_(0.0, deviation, generator=generators[total.device])
            total.add_(noise)


class SecureNoise:
    """Noise from AES in counter mode under a key that is drawn per release and forgotten.

    Guarantees:
      - an entry is released as the multiple of one grid, `deviation * 2^-12` rounded down to a
        power of two, that is nearest to value plus Gaussian. Rounding their sum, not each, is
        post-processing: it moves no value, so the sensitivity is the one that was accounted for
      - what is added to a value's own grid point is a whole number of grid steps, and the addition
        is exact, however large the value
      - a tensor of fewer digits rounds the grid point again (float32: beyond 2^24 steps). That
        depends on the grid point alone, so it is post-processing too, and gives a multiple of the
        grid: a whole number rounded to fewer digits is a whole number
      - the grid point zero has no sign: it would tell the value's
      - the Gaussian ends at 9.42 deviations, its pairs where 2^-64 of them lie beyond: this cut is
        a total variation below 2^-64 per value, 2^-34 in a release of 10^9
      - two releases never share a key

    Not covered: 64-bit words and float64 arithmetic displace a Gaussian by about 2^-39 grid steps
    before it is rounded, which changes about one entry in 2^38. The accounting takes it as exact.
    """

    source: Source = "secure"

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        if deviation == 0:
            return
        grid = grid_of(deviation)
        stream = _KeyStream()
        for total in sums:
            own = total.detach()
            host = own.to("cpu").contiguous()  # itself, where it can be
            flat = host.view(-1)
            for start in range(0, flat.numel(), _BLOCK):
                block = flat[start : start + _BLOCK]
                words = stream.words(block.numel() + block.numel() % 2)
                add_on_grid_(block, gaussians(words, deviation / grid)[: block.numel()], grid)
            if host is not own:
                own.copy_(host)


def grid_of(deviation: float) -> float:
    """The grid of a release: a power of two, so that multiples of it are exact."""
    if not 2.0**-900 < deviation < 2.0**900:
        raise ValueError(f"a deviation must be positive and of a sane size, not {deviation}")
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _GRID_BITS)


def add_on_grid_(values: torch.Tensor, steps: torch.Tensor, grid: float) -> None:
    """Round `values / grid + steps` to whole numbers of grid steps, in place; consumes `steps`."""
    points = values.to(torch.float64, copy=True).mul_(1 / grid)  # exact: a power of two
    whole = points.round().add_(0.0)  # adding zero makes every zero a positive one
    # the fraction first: next to a large whole number the noise would lose its low bits
    steps.add_(points.sub_(whole)).round_().add_(whole)
    values.copy_(steps.mul_(grid))


class _KeyStream:
    """Endless pseudo-random words under a key nobody has."""

    def __init__(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._encryptor = cipher.encryptor()
        self._zeros = memoryview(bytes(8 * _BLOCK))
        self._buffer = bytearray(8 * _BLOCK + 16)  # the cipher asks for a block's room at the end
        self._words = torch.frombuffer(self._buffer, dtype=torch.int64)

    def words(self, count: int) -> torch.Tensor:
        """The next `count` (at most a block) as signed integers, there until the next call."""
        self._encryptor.update_into(self._zeros[: 8 * count], self._buffer)
        return self._words[:count]


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
