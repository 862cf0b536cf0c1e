"""Where texts mention entities, to measure a model on names and on everything else apart.

A token is a name token if it shares a character with a mention that was detected in its sentence.
White space at the ends of a mention does not count, so that it makes no difference whether a
tokenizer puts a space before a word or after one. Start and end tokens are never name tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uedp.incidence import Ints

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus

Row = tuple[int, int, int, str]
Codes = npt.NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Mentions:
    """Mentions in the order of their sentences: characters `start` to `end`, and a category each.

    `category` counts within `categories`.
    """

    categories: tuple[str, ...]
    sentence: Ints
    start: Ints
    end: Ints
    category: Ints

    @classmethod
    def in_corpus(cls, corpus: "Corpus") -> "Mentions":
        from uedp.corpus.store import CATEGORIES

        columns = ("sentence", "start", "end", "category")
        found = (corpus.mentions[name].to_numpy().astype(np.int64) for name in columns)
        return cls(CATEGORIES, *found)

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> "Mentions":
        """From rows of sentence, start, end and category."""
        ordered = sorted(rows)
        names = tuple(dict.fromkeys(row[3] for row in ordered))
        numbers = [(*row[:3], names.index(row[3])) for row in ordered]
        columns = np.array(numbers, dtype=np.int64).reshape(-1, 4).T
        return cls(names, *columns)

    def rows(self) -> list[Row]:
        names = (self.categories[number] for number in self.category.tolist())
        columns = (column.tolist() for column in (self.sentence, self.start, self.end))
        return list(zip(*columns, names, strict=True))

    def __len__(self) -> int:
        return len(self.sentence)

    def among(self, sentences: Ints) -> "Mentions":
        """Those of some sentences, given in order, which are numbered anew."""
        fits = np.isin(self.sentence, sentences)
        numbers = np.searchsorted(sentences, self.sentence[fits])
        columns = (self.start, self.end, self.category)
        return Mentions(self.categories, numbers, *(column[fits] for column in columns))

    def between(self, first: int, end: int | None) -> "Mentions":
        """Those of the sentences from `first` to `end`, which is not included."""
        low = int(np.searchsorted(self.sentence, first))
        high = len(self) if end is None else int(np.searchsorted(self.sentence, end))
        columns = (self.sentence, self.start, self.end, self.category)
        return Mentions(self.categories, *(column[low:high] for column in columns))

    def by_sentence(self, sentences: int) -> npt.NDArray[np.bool_]:
        """(sentences, categories): whether a sentence mentions an entity of a category."""
        found = np.zeros((sentences, len(self.categories)), dtype=np.bool_)
        found[self.sentence, self.category] = True
        return found


class NameTokens:
    """For every token of the texts, the set of categories whose mentions it belongs to.

    Sets are numbered as they occur; 0 is that of other tokens. Batches are added in the order of
    the texts.
    """

    def __init__(self, mentions: Mentions) -> None:
        self._mentions = mentions
        self._numbers: dict[int, int] = {0: 0}  # of sets, by their bits
        self._codes: list[Codes] = []
        self._sentences = 0

    def add(self, texts: Sequence[str], encoded: Any, lengths: Ints) -> None:
        """The tokens of some more texts: a start token, then what the tokenizer gave.

        Args:
            lengths: the tokens that are kept of each text, start and end tokens included.
        """
        own = self._mentions.between(self._sentences, self._sentences + len(texts))
        numbers, place = np.unique(own.sentence - self._sentences, return_inverse=True)
        offsets = [encoded.encodings[number].offsets for number in numbers]
        bits = _token_bits(own, place, [texts[number] for number in numbers], offsets)
        known, inverse = np.unique(bits, return_inverse=True)
        names = [self._numbers.setdefault(b, len(self._numbers)) for b in known.tolist()]
        found = np.fromiter(names, np.uint16, len(names))[inverse]
        codes: Codes = np.zeros(int(lengths.sum()), dtype=np.uint16)
        begin, first = np.cumsum(lengths) - lengths, 0
        for number, own_offsets in zip(numbers.tolist(), offsets, strict=True):
            kept = min(len(own_offsets), max(int(lengths[number]) - 1, 0))
            at = int(begin[number]) + 1
            codes[at : at + kept] = found[first : first + kept]
            first += len(own_offsets)
        self._codes.append(codes)
        self._sentences += len(texts)

    def codes(self) -> Codes:
        """The number of the set of every token, all texts end to end."""
        return np.concatenate(self._codes) if self._codes else np.zeros(0, dtype=np.uint16)

    @property
    def sets(self) -> npt.NDArray[np.bool_]:
        """(sets, categories): which categories each set holds."""
        bits = np.fromiter(self._numbers, np.int64, len(self._numbers))
        return (bits[:, None] >> np.arange(len(self._mentions.categories)) & 1).astype(np.bool_)

    @property
    def categories(self) -> tuple[str, ...]:
        return self._mentions.categories


def _token_bits(
    mentions: Mentions,
    place: Ints,
    texts: Sequence[str],
    offsets: Sequence[Sequence[tuple[int, int]]],
) -> Ints:
    """For all tokens of these texts, the categories of the mentions they overlap, as bits.

    Args:
        place: the text of each mention.
        offsets: the characters of each token of each text.
    """
    counts = np.array([len(own) for own in offsets], dtype=np.int64)
    flat = chain.from_iterable(chain.from_iterable(offsets))
    tokens = np.fromiter(flat, np.int64, 2 * int(counts.sum())).reshape(-1, 2)
    # all texts end to end, without what was cut off
    ends = np.array([max((end for _, end in own), default=0) for own in offsets], dtype=np.int64)
    begin = np.cumsum(ends) - ends
    # some tokenizers trim spaces, of a token of spaces all: it is the one before its place
    tokens[:, 0] -= (tokens[:, 0] == tokens[:, 1]) & (tokens[:, 0] > 0)
    tokens += np.repeat(begin, counts)[:, None]
    spans = np.array(
        [
            _trimmed(texts[text], start, end)
            for text, start, end in zip(
                place.tolist(), mentions.start.tolist(), mentions.end.tolist(), strict=True
            )
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    spans = np.minimum(spans, ends[place][:, None]) + begin[place][:, None]
    bits: Ints = np.zeros(len(tokens), dtype=np.int64)
    total = int(ends.sum())
    for category in np.unique(mentions.category).tolist():
        starts, stops = spans[mentions.category == category].T
        changes = np.bincount(starts, minlength=total + 1) - np.bincount(stops, minlength=total + 1)
        covered = np.concatenate([[0], np.cumsum(np.cumsum(changes)[:-1] > 0)])
        bits |= (covered[tokens[:, 1]] > covered[tokens[:, 0]]) * (1 << category)
    return bits


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    inside = text[start:end]
    last = start + len(inside.rstrip())
    return min(end - len(inside.lstrip()), last), last
