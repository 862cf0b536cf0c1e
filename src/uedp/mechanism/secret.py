"""Secret randomness of a private round, for noise, draws, coins and dropout masks.

All of it starts at `os.urandom`. The key of the noise is never kept; a key of all the rest may be
given, so that a round can be repeated. Assumptions: `docs/privacy.md`, section 6.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES = 32

Bytes = Callable[[int], bytes]
"""Gives so many random bytes, as `os.urandom` does."""


def bytes_under(key: bytes) -> Bytes:
    """A stream of bytes that a secret key determines: AES-256 in counter mode.

    Guarantees:
      - the same key gives the same bytes, each of its 256 bits matters, and no byte is given twice
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda size: encryptor.update(bytes(size))


class KeyStream:
    """Pseudo-random words: AES-256 in counter mode under a secret key that is not kept.

    Guarantees:
      - a stream has a key of 256 bits, each of which matters: by default the operating system's
    """

    BLOCK = 1 << 16  # words at a time: few calls, and the block stays in the cache

    def __init__(self, key: bytes | None = None) -> None:
        cipher = Cipher(algorithms.AES(key or os.urandom(KEY_BYTES)), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()
        self._zeros = memoryview(bytes(8 * self.BLOCK))
        # the cipher needs a spare block at the end
        self._buffer = bytearray(8 * self.BLOCK + 16)
        self._words = torch.frombuffer(self._buffer, dtype=torch.int64)

    def words(self, count: int) -> torch.Tensor:
        """The next `count` (at most a block) as signed integers, valid until the next call."""
        self._encryptor.update_into(self._zeros[: 8 * count], self._buffer)
        return self._words[:count]


class SecretUniforms:
    """Uniform numbers for draws and coins (see `Uniforms`), from a key stream of their own.

    Guarantees:
      - numbers are multiples of 2^-53 in [0, 1), each with the same probability
      - no two objects share a key that was not given, and an object never repeats a number's word
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._stream = KeyStream(key)

    def random(self, size: int) -> npt.NDArray[np.float64]:
        words = np.empty(size, dtype=np.uint64)
        for start in range(0, size, KeyStream.BLOCK):
            part = words[start : start + KeyStream.BLOCK]
            part[:] = self._stream.words(len(part)).numpy().view(np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


# --- dropout masks -------------------------------------------------------------------------------


@contextmanager
def secret_masks(device: torch.device, take: Bytes | None = None) -> Iterator[None]:
    """PyTorch's own generators, which dropout uses, in a secret state.

    A seed is not enough: the CPU's generator keeps 32 bits of it. So the whole state is filled.

    Guarantees:
      - inside, every bit of the CPU generator's 19,937, and of the seed and offset of the
        device's, comes from `take`, by default the operating system
      - a mask's entries are drawn from that state one by one, on every processor
      - afterwards the caller's generators are as they were
    """
    on_cuda, take = device.type == "cuda", take or os.urandom
    with torch.random.fork_rng([device] if on_cuda else []), _masks_by_the_generator():
        torch.set_rng_state(_mersenne_state(take))
        if on_cuda:
            torch.cuda.set_rng_state(_philox_state(take), device)
        yield


_MERSENNE_WORDS, _MERSENNE_BYTES = 624, 5056


def _mersenne_state(take: Bytes) -> torch.Tensor:
    """A state for the CPU's generator: 624 random words.

    The layout is that of `torch.get_rng_state()`: seed (8 bytes), words left until the next
    twist (4), whether it was seeded (4), the next word's place (8), the words, each in 8 bytes;
    then the unused half of a pair of Gaussians: none.
    """
    state = torch.zeros_like(torch.get_rng_state())
    if len(state) != _MERSENNE_BYTES:
        raise RuntimeError(f"PyTorch {torch.__version__} stores its generator in an unknown layout")
    fields = state.numpy()
    fields[8:12].view(np.int32)[:] = 1
    fields[12:16].view(np.int32)[:] = 1
    words = fields[24 : 24 + 8 * _MERSENNE_WORDS].view(np.uint64)
    words[:] = np.frombuffer(take(4 * _MERSENNE_WORDS), dtype=np.uint32)
    return state


def _philox_state(take: Bytes) -> torch.Tensor:
    """A state for an accelerator's generator: a seed of 64 bits and an offset in its stream."""
    seed = take(8)
    # a multiple of 4, as the generator requires, and far from overflow
    offset = int.from_bytes(take(8), "little") >> 4 << 2
    return torch.frombuffer(bytearray(seed + offset.to_bytes(8, "little")), dtype=torch.uint8)


@contextmanager
def _masks_by_the_generator() -> Iterator[None]:
    """Keep a mask on a CPU from being drawn by another generator, seeded with 32 bits.

    On Intel's processors PyTorch hands `bernoulli_` to MKL: all of a mask is then decided by one
    32-bit word of the generator. Inside the block, each entry takes its own 53 bits.
    """
    if not _seeds_masks_with_a_word():
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a kernel is replaced, as intended
            library.impl("bernoulli_.float", _bernoulli, "CPU")
        yield
    finally:
        library._destroy()


def _seeds_masks_with_a_word() -> bool:
    """Whether a mask of many entries moves the CPU's generator by a word or two."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        torch.empty(256).bernoulli_(0.5)
        fields = torch.get_rng_state().numpy()
    return int(fields[16:24].view(np.uint64)[0]) < 256


def _bernoulli(mask: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    uniform = torch.empty(mask.shape, dtype=torch.float64).uniform_(generator=generator)
    return mask.copy_(uniform < p)
