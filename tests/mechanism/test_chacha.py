"""ChaCha20 against the RFC's vectors and against `cryptography`."""

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uedp.mechanism import chacha

COUNTED = tuple(range(32))

# RFC 8439: section 2.3.2, and the first two of appendix A.1
VECTORS = {
    "2.3.2": (
        bytes(COUNTED),
        1 + (0x09000000 << 32),
        (0x4A000000, 0),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 #1": (
        bytes(32),
        0,
        (0, 0),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 #2": (
        bytes(32),
        1,
        (0, 0),
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_the_rfc(name):
    key, counter, nonce, stream = VECTORS[name]
    block = chacha.blocks(chacha.key_of(key), counter, 1, nonce)
    assert block[:, 0].numpy().astype("<i4").tobytes().hex() == stream


def peer(key: bytes, counter: int) -> bytes:
    """A block of the key stream by `cryptography`."""
    nonce = counter.to_bytes(8, "little") + bytes(8)
    return Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(64))


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**62), st.integers(1, 6))
@example(bytes(COUNTED), 2**32 - 3, 6)  # over the end of a 32-bit counter
@example(bytes(COUNTED), 2**63 - 6, 6)
def test_the_key_stream_is_that_of_another_implementation(key, first, count):
    words = chacha.words(chacha.key_of(key), first, count)
    assert words.shape == (8 * count,)
    streams = words.view(8, count).T.contiguous().numpy().astype("<i8")
    for number, stream in enumerate(streams):
        assert stream.tobytes() == peer(key, first + number)


def test_a_counter_that_ends_is_refused_and_does_not_begin_again():
    key = chacha.key_of(bytes(32))
    chacha.blocks(key, 2**63 - 2, 2)
    for first in (2**63 - 1, 2**64, -1):
        with pytest.raises(ValueError, match="another key"):
            chacha.blocks(key, first, 2)


def test_none_and_many_blocks():
    key = chacha.key_of(bytes(COUNTED))
    assert chacha.words(key, 5, 0).shape == (0,)
    many = chacha.words(key, 0, 5000).view(8, -1)
    assert torch.equal(many[:, 4000:], chacha.words(key, 4000, 1000).view(8, -1))
    assert len(many.unique()) == many.numel()
