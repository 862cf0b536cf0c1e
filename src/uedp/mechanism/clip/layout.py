"""The order of a chunk's sentences in memory, and the inner products of users' gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from uedp.mechanism.clip.clipping import Errors
from uedp.mechanism.clip.rounding import block_sums


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

    def stacked_tokens(self, values: Tensor) -> Tensor:
        """The same for each of several layers: (layers * bins, all tokens of the bin, ...)."""
        return values[:, self.rows].reshape(len(values) * self.bins, -1, *values.shape[3:])


@dataclass(frozen=True)
class Layout:
    """Sentences in the order in which a chunk is computed: each user's together, users in bins.

    Bins of equal size are computed in one operation. With a bin per user there would be too many
    sizes, so small users share bins; products between two users are ignored.

    `order[i]` is the caller's number of the i-th sentence, `users[j]` that of the j-th user and
    `counts[j]` its number of sentences.
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
        bins = _binned({user: len(sentences) for user, sentences in own.items()})
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


def _binned(sizes: Mapping[int, int]) -> list[list[int]]:
    """Users in bins, the largest first, each where it fits most tightly."""
    bins: list[list[int]] = []
    with_space: dict[int, list[int]] = {}  # space left -> places of bins
    for user in sorted(sizes, key=lambda user: -sizes[user]):
        size = sizes[user]
        space = min((n for n, places in with_space.items() if n >= size and places), default=None)
        if space is None:
            space = -(-size // _BIN) * _BIN
            bins.append([])
            place = len(bins) - 1
        else:
            place = with_space[space].pop()
        bins[place].append(user)
        if space > size:
            with_space.setdefault(space - size, []).append(place)
    return bins


class Grams(Errors):
    """For each bin of a layout, the inner products between the gradients of its sentences.

    The diagonal holds the squared norms of sentences; with clip factors `f` on both sides a
    user's part of it adds up to the squared norm of the user's sum. Rules add token by token
    (`tokens`) or sentence by sentence (`sentences`); both are summed up once, when norms are asked
    for. A rule that computes its part of the users' norms in another way adds only to the diagonal,
    `squares`. Each states how far its numbers may be from the truth (`allow`).
    """

    def __init__(self, layout: Layout, owner: Tensor, layers: int) -> None:
        super().__init__(owner, len(layout.users))
        self.layout = layout
        self.layers = layers  # that may add up in one place
        self._by_sentence: list[Tensor] | None = None
        self._by_token: dict[int, list[Tensor]] = {}
        self.squares = self._numbers(layout.sentences)

    def sentences(self) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (bins, sentences, sentences) to add to, in place."""
        if self._by_sentence is None:
            self._by_sentence = [self._numbers(b.bins, b.each, b.each) for b in self.layout.buckets]
        yield from zip(self.layout.buckets, self._by_sentence, strict=True)

    def tokens(self, each: int) -> Iterator[tuple[Bucket, Tensor]]:
        """Each bucket with its (bins, tokens, tokens) to add to, for `each` tokens a sentence.

        Only sums over blocks count.
        """
        if each not in self._by_token:
            self._by_token[each] = [
                torch.zeros(b.bins, b.each * each, b.each * each, device=self._owner.device)
                for b in self.layout.buckets
            ]
        yield from zip(self.layout.buckets, self._by_token[each], strict=True)

    def _settle(self) -> None:
        for each in list(self._by_token):
            by_token = self._by_token.pop(each)
            for (bucket, total), products in zip(self.sentences(), by_token, strict=True):
                blocks = products.view(bucket.bins, bucket.each, each, bucket.each, each)
                total.add_(block_sums(blocks))

    def sentence_squares(self) -> Tensor:
        self._settle()
        diagonals = [torch.diagonal(gram, dim1=1, dim2=2).flatten() for _, gram in self.sentences()]
        return torch.cat(diagonals).add_(self.squares).clamp_(min=0)

    def user_squares(self, factors: Tensor) -> Tensor:
        """Squared norms of the users' sums of their sentences' gradients, each times its factor.

        Without the parts of rules that added to the diagonal only.
        """
        self._settle()
        result = self._numbers(len(self.layout.users))
        for (bucket, gram), owner in zip(self.sentences(), self.owners(), strict=True):
            f = bucket.split(factors)
            own = (owner[:, :, None] == owner[:, None, :]) * gram
            rows = f * (own @ f[:, :, None]).squeeze(2)
            result.index_add_(0, owner.flatten(), rows.flatten())
        return result

    def owners(self) -> list[Tensor]:
        """For each bucket, (bins, sentences): the place of each sentence's user."""
        return [bucket.split(self._owner) for bucket in self.layout.buckets]
