"""How the sentences of a chunk lie in memory, and sums over them by user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bucket:
    """Users with the same number of sentences, side by side from row `start` on."""

    start: int
    users: int
    each: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.users * self.each)

    def split(self, values: Tensor) -> Tensor:
        """Rows of a tensor as (users, sentences, ...)."""
        rows = values[self.rows]
        return rows.reshape(self.users, self.each, *rows.shape[1:])


@dataclass(frozen=True)
class Layout:
    """Sentences in the order in which a chunk is computed: by user, users of equal size together.

    `order[i]` is the caller's number of the i-th sentence, `users[j]` that of the j-th user.
    """

    order: tuple[int, ...]
    users: tuple[int, ...]
    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, owners: Sequence[int]) -> "Layout":
        """From the user of each sentence."""
        own: dict[int, list[int]] = {}
        for sentence, user in enumerate(owners):
            own.setdefault(user, []).append(sentence)
        ordered = sorted(own, key=lambda user: len(own[user]))
        buckets: list[Bucket] = []
        start = 0
        for user in ordered:
            each = len(own[user])
            if buckets and buckets[-1].each == each:
                buckets[-1] = Bucket(buckets[-1].start, buckets[-1].users + 1, each)
            else:
                buckets.append(Bucket(start, 1, each))
            start += each
        order = tuple(sentence for user in ordered for sentence in own[user])
        return cls(order, tuple(ordered), tuple(buckets))

    @property
    def sentences(self) -> int:
        return len(self.order)


class Grams:
    """For each user of a layout, the inner products between the gradients of its sentences.

    Its diagonal holds the squared norms of sentences; with clip factors `f` on both sides it is
    the squared norm of the user's sum. Every layer adds its own.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        self._sums = [
            torch.zeros(b.users, b.each, b.each, device=device, dtype=torch.float32)
            for b in layout.buckets
        ]

    def parts(self) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with the matrix to add to, in place."""
        yield from zip(self._layout.buckets, self._sums, strict=True)

    def sentence_norms(self) -> Tensor:
        diagonals = [torch.diagonal(gram, dim1=1, dim2=2).flatten() for gram in self._sums]
        return torch.cat(diagonals).clamp_(min=0).sqrt_()

    def user_norms(self, factors: Tensor) -> Tensor:
        """Norms of the users' sums of their sentences' gradients, each times its factor."""
        norms = []
        for bucket, gram in self.parts():
            f = bucket.split(factors).to(gram.dtype)
            norms.append(torch.einsum("ui,uij,uj->u", f, gram, f))
        return torch.cat(norms).clamp_(min=0).sqrt_()

    def per_sentence(self, per_user: Tensor) -> Tensor:
        """A value per user, repeated for each of its sentences."""
        counts = [b.each for b in self._layout.buckets for _ in range(b.users)]
        return torch.repeat_interleave(per_user, torch.tensor(counts, device=per_user.device))
