"""How the sentences of a chunk lie in memory, and the inner products of each user's gradients."""

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

    def tokens(self, values: Tensor) -> Tensor:
        """Rows of a (sentences, tokens, ...) tensor as (users, all tokens of the user, ...)."""
        return self.split(values).flatten(1, 2)


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

    @property
    def owner(self) -> list[int]:
        """For each sentence in order, the place of its user."""
        counts = [b.each for b in self.buckets for _ in range(b.users)]
        return [user for user, count in enumerate(counts) for _ in range(count)]


class Grams:
    """For each user of a layout, the inner products between the gradients of its sentences.

    The diagonal holds the squared norms of sentences; with clip factors `f` on both sides the
    whole is the squared norm of the user's sum. Layers add token by token (`tokens`) or sentence
    by sentence (`sentences`); both are summed up once, when the norms are asked for. A layer that
    gives its part of the users' norms otherwise adds to the diagonal only (`squares`).
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._by_sentence: list[Tensor] | None = None
        self._by_token: dict[int, list[Tensor]] = {}
        self.squares = torch.zeros(layout.sentences, device=device, dtype=torch.float32)

    def sentences(self) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (users, sentences, sentences) to add to, in place."""
        if self._by_sentence is None:
            self._by_sentence = [self._zeros(b, b.each) for b in self._layout.buckets]
        yield from zip(self._layout.buckets, self._by_sentence, strict=True)

    def tokens(self, each: int) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (users, tokens, tokens) to add to, for `each` tokens a sentence.

        Only sums over blocks count, and only their symmetric part.
        """
        if each not in self._by_token:
            self._by_token[each] = [self._zeros(b, b.each * each) for b in self._layout.buckets]
        yield from zip(self._layout.buckets, self._by_token[each], strict=True)

    def _zeros(self, bucket: Bucket, size: int) -> Tensor:
        return torch.zeros(bucket.users, size, size, device=self._device, dtype=torch.float32)

    def _settle(self) -> None:
        for each in list(self._by_token):
            for (bucket, total), products in zip(
                self.sentences(), self._by_token.pop(each), strict=True
            ):
                blocks = products.view(bucket.users, bucket.each, each, bucket.each, each)
                total.add_(blocks.sum((2, 4)))

    def sentence_norms(self) -> Tensor:
        self._settle()
        diagonals = [torch.diagonal(gram, dim1=1, dim2=2).flatten() for _, gram in self.sentences()]
        return torch.cat(diagonals).add_(self.squares).clamp_(min=0).sqrt_()

    def user_squares(self, factors: Tensor) -> Tensor:
        """Squared norms of the users' sums of their sentences' gradients, each times its factor.

        Without the parts of layers that added to the diagonal only.
        """
        self._settle()
        norms = []
        for bucket, gram in self.sentences():
            f = bucket.split(factors)
            norms.append((f[:, :, None] * gram * f[:, None, :]).sum((1, 2)))
        return torch.cat(norms)
