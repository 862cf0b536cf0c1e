"""How the sentences of a chunk lie in memory, and the inner products of each user's gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bucket:
    """Bins with the same number of sentences, side by side from row `start` on."""

    start: int
    bins: int
    each: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.bins * self.each)

    def split(self, values: Tensor) -> Tensor:
        """Rows of a tensor as (bins, sentences, ...)."""
        rows = values[self.rows]
        return rows.reshape(self.bins, self.each, *rows.shape[1:])

    def tokens(self, values: Tensor) -> Tensor:
        """Rows of a (sentences, tokens, ...) tensor as (bins, all tokens of the bin, ...)."""
        return self.split(values).flatten(1, 2)


@dataclass(frozen=True)
class Layout:
    """Sentences in the order in which a chunk is computed: each user's together, users in bins.

    Bins of equal size are computed in one go. With a bin per user there would be as many sizes
    as users have numbers of sentences, so small users share bins; what a bin computes between
    two users is ignored.

    `order[i]` is the caller's number of the i-th sentence, `users[j]` that of the j-th user and
    `counts[j]` how many sentences it has.
    """

    order: tuple[int, ...]
    users: tuple[int, ...]
    counts: tuple[int, ...]
    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, owners: Sequence[int]) -> "Layout":
        """From the user of each sentence.

        Guarantees:
          - every sentence lies in one bin, with all others of its user
        """
        own: dict[int, list[int]] = {}
        for sentence, user in enumerate(owners):
            own.setdefault(user, []).append(sentence)
        bins = _packed({user: len(sentences) for user, sentences in own.items()})
        sizes = [sum(len(own[user]) for user in users) for users in bins]
        buckets: list[Bucket] = []
        ordered: list[int] = []
        start = 0
        for size, users in sorted(zip(sizes, bins, strict=True)):
            if buckets and buckets[-1].each == size:
                buckets[-1] = replace(buckets[-1], bins=buckets[-1].bins + 1)
            else:
                buckets.append(Bucket(start, 1, size))
            start += size
            ordered += users
        order = tuple(sentence for user in ordered for sentence in own[user])
        counts = tuple(len(own[user]) for user in ordered)
        return cls(order, tuple(ordered), counts, tuple(buckets))

    @property
    def sentences(self) -> int:
        return len(self.order)

    @property
    def owner(self) -> list[int]:
        """For each sentence in order, the place of its user."""
        return [user for user, count in enumerate(self.counts) for _ in range(count)]


_BIN = 8  # sentences; larger users get a bin of the next multiple


def _packed(sizes: Mapping[int, int]) -> list[list[int]]:
    """Users put into bins, the largest first, each where it fits most tightly."""
    bins: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room left -> places of bins
    for user in sorted(sizes, key=lambda user: -sizes[user]):
        size = sizes[user]
        room = min((r for r, places in with_room.items() if r >= size and places), default=None)
        if room is None:
            room = -(-size // _BIN) * _BIN
            bins.append([])
            place = len(bins) - 1
        else:
            place = with_room[room].pop()
        bins[place].append(user)
        if room > size:
            with_room.setdefault(room - size, []).append(place)
    return bins


class Grams:
    """For each bin of a layout, the inner products between the gradients of its sentences.

    The diagonal holds the squared norms of sentences; with clip factors `f` on both sides a
    user's part of it adds up to the squared norm of the user's sum. Layers add token by token
    (`tokens`) or sentence by sentence (`sentences`); both are summed up once, when norms are asked
    for. A layer that gives its part of the users' norms otherwise adds to `squares` only, the
    diagonal.
    """

    def __init__(self, layout: Layout, owner: Tensor) -> None:
        self._layout = layout
        self._owner = owner
        self._by_sentence: list[Tensor] | None = None
        self._by_token: dict[int, list[Tensor]] = {}
        self.squares = torch.zeros(layout.sentences, device=owner.device, dtype=torch.float32)

    def sentences(self) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (bins, sentences, sentences) to add to, in place."""
        if self._by_sentence is None:
            self._by_sentence = [self._zeros(b, b.each) for b in self._layout.buckets]
        yield from zip(self._layout.buckets, self._by_sentence, strict=True)

    def tokens(self, each: int) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (bins, tokens, tokens) to add to, for `each` tokens a sentence.

        Only sums over blocks count.
        """
        if each not in self._by_token:
            self._by_token[each] = [self._zeros(b, b.each * each) for b in self._layout.buckets]
        yield from zip(self._layout.buckets, self._by_token[each], strict=True)

    def _zeros(self, bucket: Bucket, size: int) -> Tensor:
        return torch.zeros(bucket.bins, size, size, device=self._owner.device)

    def _settle(self) -> None:
        for each in list(self._by_token):
            for (bucket, total), products in zip(
                self.sentences(), self._by_token.pop(each), strict=True
            ):
                blocks = products.view(bucket.bins, bucket.each, each, bucket.each, each)
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
        result = torch.zeros(len(self._layout.users), device=factors.device)
        for (bucket, gram), owner in zip(self.sentences(), self.owners(), strict=True):
            f = bucket.split(factors)
            own = (owner[:, :, None] == owner[:, None, :]) * gram
            rows = f * (own @ f[:, :, None]).squeeze(2)
            result.index_add_(0, owner.flatten(), rows.flatten())
        return result

    def owners(self) -> list[Tensor]:
        """For each bucket, (bins, sentences): the place of each sentence's user."""
        return [bucket.split(self._owner) for bucket in self._layout.buckets]
