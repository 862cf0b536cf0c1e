"""Runs of words that texts have in common, by hashes of n-grams.

Words are compared without case and punctuation. A run that starts at a place matches up to some
length and no further, so hashes are compared for one length after the other, on both sides only
where all shorter lengths matched: a few passes over numbers, without a suffix array of the corpus.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uedp.entities.words import UNSPACED
from uedp.incidence import Ints

Hashes = npt.NDArray[np.uint64]

_ASCII = re.compile(r"[a-z0-9]+")
_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of an earlier word is lost


def text_words(text: str) -> list[str]:
    """The words of a text: letters and digits, without case."""
    if text.isascii():
        return _ASCII.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Hasher:
    """A number of 64 bits for every word."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, words: Iterable[str]) -> Hashes:
        return np.fromiter(map(self._one, words), dtype=np.uint64)

    def words(self, texts: Iterable[str]) -> "WordHashes":
        """The words of some texts, one text after the other."""
        every: list[int] = []
        ends = [0]
        for text in texts:
            every += map(self._one, text_words(text))
            ends.append(len(every))
        return WordHashes(np.array(every, dtype=np.uint64), np.array(ends, dtype=np.int64))

    def _one(self, word: str) -> int:
        found = self._known.get(word)
        if found is None:
            digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            found = self._known[word] = int.from_bytes(digest, "little")
        return found


@dataclass(frozen=True, eq=False)
class WordHashes:
    """The words of texts as numbers; text `i` is `values[bounds[i]:bounds[i + 1]]`."""

    values: Hashes
    bounds: Ints

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.bounds)

    @cached_property
    def text_of(self) -> Ints:
        """The text of every word."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def left(self) -> Ints:
        """From every word on, the words to the end of its text, itself included."""
        return self.bounds[self.text_of + 1] - np.arange(len(self.values))

    def ngrams(self, n: int) -> tuple[Hashes, Ints]:
        """The hash of every n-gram, and where it starts."""
        places = np.flatnonzero(self.left >= n)
        hashes = np.zeros(len(places), dtype=np.uint64)
        for step in range(n):
            hashes = hashes * _BASE + self.values[places + step]
        return hashes, places

    def per_text(self, values: Ints) -> Ints:
        """The largest value among each text's words, 0 for a text without any."""
        largest = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(largest, self.text_of, values)
        return largest

    def whole(self) -> Hashes:
        """A number for every text, equal for equal words."""
        raw, size = self.values.tobytes(), self.values.itemsize
        bounds = (self.bounds * size).tolist()
        keys = b"".join(blake2b(raw[a:b], digest_size=8).digest() for a, b in pairwise(bounds))
        return np.frombuffer(keys, dtype=np.uint64)


def ngram_hash(words: Hashes) -> int:
    """The hash of one n-gram, as `WordHashes.ngrams` gives it."""
    value, base = 0, int(_BASE)
    for word in words.tolist():
        value = (value * base + word) & 0xFFFFFFFFFFFFFFFF
    return value


def is_in(values: Hashes, known: Hashes) -> npt.NDArray[np.bool_]:
    """Which values are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.searchsorted(known, values)
    places[places == len(known)] = 0
    found: npt.NDArray[np.bool_] = known[places] == values
    return found


@dataclass(frozen=True, eq=False)
class Matches:
    """Of texts against a block of others: the longest run from each word, and n-grams met.

    For some lengths, `met` has the n-grams that both sides have and the texts of the block they
    stand in: one pair for every text that has the n-gram.
    """

    runs: Ints
    met: dict[int, tuple[Hashes, Ints]]


def match(query: WordHashes, block: WordHashes, lengths: Sequence[int]) -> Matches:
    """The runs of words that start at each word of `query` and occur in some text of `block`."""
    runs = np.zeros(len(query.values), dtype=np.int64)
    ours, theirs = _Side(query), _Side(block)
    met = {}
    length = 0
    while ours.grow(length) and theirs.grow(length):
        theirs.only(is_in(theirs.hashes, np.unique(ours.hashes)))
        ours.only(is_in(ours.hashes, np.unique(theirs.hashes)))
        length += 1
        runs[ours.places] = length
        if length in lengths:
            met[length] = theirs.hashes, block.text_of[theirs.places]
    return Matches(runs, met)


@dataclass(eq=False)
class _Side:
    """The places of one side that still match, and the hashes of the runs from there."""

    words: WordHashes
    places: Ints = field(init=False)
    hashes: Hashes = field(init=False)

    def __post_init__(self) -> None:
        self.places = np.arange(len(self.words.values))
        self.hashes = np.zeros(len(self.places), dtype=np.uint64)

    def grow(self, length: int) -> bool:
        """Make all runs one word longer than `length`; False if none is left."""
        self.only(self.words.left[self.places] > length)
        self.hashes = self.hashes * _BASE + self.words.values[self.places + length]
        return bool(len(self.places))

    def only(self, keep: npt.NDArray[np.bool_]) -> None:
        self.places, self.hashes = self.places[keep], self.hashes[keep]


@dataclass(eq=False)
class NgramOwners:
    """Which users have an n-gram, or a whole text, gathered block by block."""

    _hashes: list[Hashes] = field(default_factory=list)
    _users: list[Ints] = field(default_factory=list)

    def add(self, hashes: Hashes, users: Ints) -> None:
        """Users who have these n-grams, pair by pair."""
        pairs = np.unique(np.stack([hashes, users.astype(np.uint64)]), axis=1)
        self._hashes.append(pairs[0])
        self._users.append(pairs[1].astype(np.int64))

    def of(self, hashes: Hashes, texts: Ints) -> tuple[Ints, Ints]:
        """Where these n-grams of texts are one user's alone: the text and the user of each."""
        known, users = self.alone()
        own = is_in(hashes, known)
        return texts[own], users[np.searchsorted(known, hashes[own])]

    def alone(self) -> tuple[Hashes, Ints]:
        """The n-grams that one user alone has, sorted, and who that is."""
        if not self._hashes:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        pairs = np.stack([np.concatenate(self._hashes), np.concatenate(self._users).astype("u8")])
        pairs = np.unique(pairs, axis=1)
        hashes, first, count = np.unique(pairs[0], return_index=True, return_counts=True)
        single = count == 1
        return hashes[single], pairs[1][first[single]].astype(np.int64)


def surface_hashes(hasher: Hasher, surfaces: Sequence[str], longest: int) -> dict[int, Hashes]:
    """By number of words: the hash of every surface with so many, 0 for the others."""
    split = [text_words(surface) for surface in surfaces]
    found = {}
    for n in sorted({len(words) for words in split if 0 < len(words) <= longest}):
        hashes = np.zeros(len(split), dtype=np.uint64)
        for place, words in enumerate(split):
            if len(words) == n:
                hashes[place] = ngram_hash(hasher(words))
        found[n] = hashes
    return found
