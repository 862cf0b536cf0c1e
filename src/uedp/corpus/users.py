"""Users for text without users."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import zip_longest

import numpy as np

from uedp.corpus.records import user_name
from uedp.corpus.sentence import Sentence
from uedp.errors import UserError


def random_groups(count: int, mean: float = 15.0, std: float = 2.0, seed: int = 0) -> np.ndarray:
    """A user number for each of `count` records, as the paper forms AG's users.

    Guarantees:
      - group sizes are N(mean, std^2) rounded, at least 1 (the last group takes the rest)
      - which records form a group is uniformly random, and the same for the same seed
      - users are numbered 0, 1, ... without gaps
    """
    check_groups(mean, std, seed)
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    left = count
    while left > 0:
        size = round(np.clip(rng.normal(mean, std), 1, left))
        sizes.append(size)
        left -= size
    users = np.empty(count, dtype=np.int64)
    users[rng.permutation(count)] = np.repeat(np.arange(len(sizes)), sizes)
    return users


def check_groups(mean: float, std: float, seed: int) -> None:
    """Refuse arguments of `random_groups`, before any file is read."""
    if not (1 <= mean < math.inf and 0 <= std < math.inf):
        raise UserError(
            f"`assign_users={mean:g},{std:g}`: the mean must be at least 1 and the standard "
            "deviation at least 0, both finite"
        )
    if seed < 0:
        raise UserError(f"`seed={seed}`: must be at least 0")


def assign_users(records: Iterable[Sentence], users: np.ndarray) -> Iterator[Sentence]:
    """The records, each with its entry in `users` as its user."""
    for record, user in zip_longest(records, users.tolist()):
        if record is None or user is None:
            raise UserError("the source changed while users were formed; run it again")
        yield replace(record, user=f"group-{user:06d}")


def held_out(user: str, share: float, seed: int = 0) -> bool:
    """Whether a user is held out, with probability `share` over the seeds.

    Guarantees:
      - depends on nothing but the name (in its canonical form), the share and the seed: neither on
        other users nor on the order of texts
      - who is held out at a share is held out at every larger one
    """
    digest = sha256(f"{seed}\0{user_name(user)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def check_share(share: float) -> None:
    """Refuse a share of `held_out`, before any file is read."""
    if not 0 < share < 1:
        raise UserError(f"`hold_out_share={share:g}`: must be between 0 and 1, such as 0.1")
