"""ChaCha20's key stream in PyTorch's integer operations, on any device.

`noise_kernel` does the same in one kernel, and is tested against this. The state is that of RFC
8439, but for the counter: it has 64 bits, as in Bernstein's original, so that the first of the
RFC's three nonce words is its upper half. A key is used for one release: the nonce may be zero.
"""

import torch
from torch import Tensor

WORDS = 8  # of 64 bits, in a block

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_LAST = 2**63  # blocks that a signed 64-bit integer can count


def key_of(secret: bytes, device: torch.device | str = "cpu") -> Tensor:
    """A key of 32 bytes as the words that `blocks` takes."""
    return torch.frombuffer(bytearray(secret), dtype=torch.int32).to(device)


def words(key: Tensor, first: int, count: int) -> Tensor:
    """The 64-bit words of `count` blocks: first the first word of every block, then the second.

    Guarantees:
      - the words of a block, one after the other in little-endian order, are its key stream
    """
    state = blocks(key, first, count).to(torch.int64)
    low, high = state[0::2], state[1::2]
    return low.bitwise_and(0xFFFFFFFF).bitwise_or_(high.bitwise_left_shift_(32)).view(-1)


def blocks(key: Tensor, first: int, count: int, nonce: tuple[int, int] = (0, 0)) -> Tensor:
    """ChaCha20's block function at the counters from `first` on: sixteen 32-bit words in a column.

    Guarantees:
      - the key stream is that of RFC 8439, beyond 2^32 blocks that of a 64-bit counter
      - counters that do not fit are refused, never used again
    """
    if not 0 <= first <= _LAST - count:
        raise ValueError(f"block {first}: beyond ChaCha20's counter; take another key")
    start = torch.empty(16, count, dtype=torch.int32, device=key.device)
    counters = torch.arange(count, dtype=torch.int64, device=key.device).add_(first)
    start[:4] = torch.tensor(_CONSTANTS, dtype=torch.int32, device=key.device)[:, None]
    start[4:12] = key[:, None]
    start[12] = counters  # the lower half: the upper bits are cut off
    start[13] = counters.bitwise_right_shift_(32)
    start[14:] = torch.tensor(nonce, dtype=torch.int64, device=key.device)[:, None]
    a, b, c, d = (rows.clone() for rows in start.view(4, 4, count))
    for _ in range(10):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # columns become diagonals
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return start.add_(torch.cat((a, b, c, d)))


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """Four at once, in place."""
    _rotate(d.bitwise_xor_(a.add_(b)), 16)
    _rotate(b.bitwise_xor_(c.add_(d)), 12)
    _rotate(d.bitwise_xor_(a.add_(b)), 8)
    _rotate(b.bitwise_xor_(c.add_(d)), 7)


def _rotate(x: Tensor, by: int) -> None:
    """To the left, in place. A shift to the right repeats the sign, hence the mask."""
    carried = x.bitwise_right_shift(32 - by).bitwise_and_((1 << by) - 1)
    x.bitwise_left_shift_(by).bitwise_or_(carried)
