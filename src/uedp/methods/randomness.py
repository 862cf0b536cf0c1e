"""The randomness of a round."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from uedp.mechanism.noise import Noise, SecureNoise, SeededNoise
from uedp.mechanism.sampling import Uniforms
from uedp.mechanism.secret import KEY_BYTES, SecretUniforms, bytes_under, secret_masks


class Randomness:
    """Sampling, coins, dropout masks and noise of each round, from the operating system.

    Dropout masks come from PyTorch's generator, whose initial state is the same in every process.
    The mask of a sentence depends on the lengths of other texts, so masks must be secret. The
    lending key may be public (the theorems condition on lending): 62 bits and a hash suffice.

    A `key` decides all of it but the noise, so that a round that was abandoned before its noise can
    be repeated with the same participants.

    Guarantees:
      - without a seed or a key, no two rounds share any randomness, across restarts too
      - without a seed, sampling and the noise of a release each have their own 256-bit key, and
        masks the whole state of their generators
      - with a key, sampling, coins, lending and masks depend on the key only; the noise is fresh
        every time and independent of the key
      - masks of several processes are independent of each other and of all else
      - with a seed, a round's randomness depends on the seed and its number only
      - the caller's random number generators are left unchanged
    """

    def __init__(self, seed: int | None, key: bytes | None = None) -> None:
        self._seed, self._key = seed, key

    def mask_key(self, number: int, process: int) -> bytes:
        """The key of the masks that another process draws in a round: as secret as the round's.

        Masks of two processes must not be alike: which sentences met the same one would depend on
        how long other texts are.
        """
        if self._seed is None and self._key is None:
            return os.urandom(KEY_BYTES)
        secret = f"seed {self._seed}".encode() if self._key is None else self._key
        return hashlib.sha256(b"masks|%d|%d|" % (number, process) + secret).digest()

    @contextmanager
    def of_round(self, number: int, device: torch.device) -> Iterator[tuple[Uniforms, int, Noise]]:
        """Uniform numbers for sampling and coins, a lending key, and the noise."""
        if self._seed is None:
            take = os.urandom if self._key is None else bytes_under(self._key)
            uniforms = SecretUniforms(take(KEY_BYTES))
            lending = int.from_bytes(take(8), "little") >> 2
            with secret_masks(device, take):
                yield uniforms, lending, SecureNoise()
            return
        generator = np.random.default_rng([self._seed, number])
        key, masks, noise_seed = (int(n) for n in generator.integers(0, 2**62, 3))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(masks)
            yield generator, key, SeededNoise(noise_seed)
