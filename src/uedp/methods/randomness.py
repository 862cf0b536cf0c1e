"""The randomness of a round."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from uedp.mechanism.noise import Noise, SecureNoise, SeededNoise
from uedp.mechanism.sampling import Uniforms
from uedp.mechanism.secret import SecretUniforms, secret_masks


class Randomness:
    """Draws, coins, dropout masks and noise of each round: from the operating system, never stored.

    Dropout masks come from PyTorch's own generator, whose initial state is the same in every
    process. Which mask a sentence gets depends on the lengths of other texts, so the masks must be
    secret. The lending key may be public (the theorems condition on lending): 62 bits and a hash
    suffice.

    Guarantees:
      - without a seed, no two rounds share any randomness, across restarts too
      - without a seed, draws and coins, and the noise of a release, each have a 256-bit key of
        their own, and masks the whole state of their generators
      - with a seed, a round's randomness depends on the seed and its number alone
      - the caller's random number generators are left alone
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed

    @contextmanager
    def of_round(self, number: int, device: torch.device) -> Iterator[tuple[Uniforms, int, Noise]]:
        """Uniform numbers for draws and coins, a key for lending, and noise."""
        if self._seed is None:
            with secret_masks(device):
                yield SecretUniforms(), secrets.randbits(62), SecureNoise()
            return
        generator = np.random.default_rng([self._seed, number])
        key, masks, noise_seed = (int(n) for n in generator.integers(0, 2**62, 3))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(masks)
            yield generator, key, SeededNoise(noise_seed)
