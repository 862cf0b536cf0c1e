"""The operating system's randomness, replaced by bytes that a test chose."""

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


class Entropy:
    """A fixed stream of bytes, of which one bit may be turned round; counts what is asked for."""

    def __init__(self, turned: int | None = None) -> None:
        self.bytes = 0
        self._turned = turned

    def __call__(self, size: int) -> bytes:
        given = bytearray(hashlib.shake_256(str(self.bytes).encode()).digest(size))
        if self._turned is not None:
            place, bit = divmod(self._turned, 8)
            if self.bytes <= place < self.bytes + size:
                given[place - self.bytes] ^= 1 << bit
        self.bytes += size
        return bytes(given)


@contextmanager
def operating_system(gives: Callable[[int], bytes]) -> Iterator[None]:
    """Let `os.urandom`, and with it `secrets`, give these bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", gives)
        patch.setattr(random, "_urandom", gives)
        yield


def bits_that_matter(release: Callable[[], object]) -> int:
    """How many bits of what the operating system gives for a release change it."""

    def released(turned: int | None) -> tuple[object, int]:
        entropy = Entropy(turned)
        with operating_system(entropy):
            return release(), 8 * entropy.bytes

    usual, bits = released(None)
    assert released(None)[0] == usual  # nothing else decides
    return sum(released(bit)[0] != usual for bit in range(bits))
