"""Gaussian noise for a release, from the operating system's randomness or from a cipher.

Two sources. `system`: PyTorch's generator on the tensor's device, seeded anew each round from the
operating system; fast, and what peers use. `secure`: a cipher's key stream turned to Gaussians on
the CPU. A fixed seed is for tests; it marks a run as not private.

The secure source also closes the hole that floating-point noise leaves (Mironov 2012; Holohan and
Braghin 2021): the low bits of a sum betray which of two values the noise was added to. Here value
and noise are both rounded to one coarse grid, so that every sum is a grid point that either value
can reach.
"""

import os
import secrets
from typing import Literal, Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Source = Literal["system", "secure", "fixed seed"]

_GRID_BITS = 24  # grid points per standard deviation, as a power of two
_BLOCK = 1 << 20  # values made at a time


class Noise(Protocol):
    """Adds noise to a sum, never the same twice."""

    source: Source

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        """Add independent Gaussian noise of this standard deviation to every entry, in place."""


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
      - every released entry is a whole multiple of one grid, `deviation * 2^-24` rounded down to a
        power of two, and so is every noise value: the sum tells nothing but its value
      - two releases never share a key
    """

    source: Source = "secure"

    def add_(self, sums: list[torch.Tensor], deviation: float) -> None:
        if deviation == 0:
            return
        stream = _KeyStream()
        grid = grid_of(deviation)
        for total in sums:
            flat = total.detach().to("cpu", torch.float64).flatten()
            flat.div_(grid).round_()
            for start in range(0, flat.numel(), _BLOCK):
                block = flat[start : start + _BLOCK]
                block += gaussians(stream, block.numel()).mul_(deviation / grid).round_()
            total.copy_(flat.mul_(grid).view_as(total))


def grid_of(deviation: float) -> float:
    """The grid of a release: a power of two, so that multiples of it are exact."""
    _, exponent = torch.frexp(torch.tensor(deviation, dtype=torch.float64))
    return float(2.0 ** (int(exponent) - 1 - _GRID_BITS))


class _KeyStream:
    """Endless pseudo-random bytes under a key nobody has."""

    def __init__(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16)))
        self._encryptor = cipher.encryptor()
        self._zeros = bytes(8 * _BLOCK)

    def words(self, count: int) -> torch.Tensor:
        """64-bit words, as signed integers."""
        buffer = bytearray(8 * count + 15)
        self._encryptor.update_into(memoryview(self._zeros)[: 8 * count], buffer)
        return torch.frombuffer(buffer, dtype=torch.int64, count=count)


def gaussians(stream: _KeyStream, count: int) -> torch.Tensor:
    """Standard Gaussians by inversion: 53 bits of a word each, mirrored to keep the far tail.

    A word's lowest bit is the sign and its upper bits a uniform number below one half, which
    has relative, not absolute, precision: tails are resolved to 2^-53.
    """
    words = stream.words(count)
    sign = (words & 1).to(torch.float64).mul_(2).sub_(1)
    uniform = ((words >> 11) & ((1 << 53) - 1)).to(torch.float64).add_(0.5).mul_(2.0**-54)
    return torch.special.ndtri(uniform).mul_(sign)  # type: ignore[no-any-return]
