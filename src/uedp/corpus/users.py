"""Users for text that names none."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from uedp.corpus.sentence import Sentence
from uedp.errors import UserError


def random_groups(count: int, mean: float = 15.0, std: float = 2.0, seed: int = 0) -> np.ndarray:
    """A user number for each of `count` records, as the paper forms AG's users.

    Guarantees:
      - group sizes are N(mean, std^2) rounded, at least 1 (the last group takes what is left)
      - which records form a group is uniformly random, and the same for the same seed
      - users are numbered 0, 1, ... without gaps
    """
    if mean < 1 or std < 0:
        raise UserError(
            f"--assign-users {mean:g},{std:g}: the mean must be at least 1, the spread at least 0"
        )
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    left = count
    while left > 0:
        size = min(left, max(1, round(rng.normal(mean, std))))
        sizes.append(size)
        left -= size
    users = np.empty(count, dtype=np.int64)
    users[rng.permutation(count)] = np.repeat(np.arange(len(sizes)), sizes)
    return users


def assign(records: Iterable[Sentence], users: np.ndarray) -> Iterator[Sentence]:
    """The records, each owned by its entry in `users`."""
    for record, user in zip(records, users.tolist(), strict=True):
        yield replace(record, user=f"group-{user:06d}")
