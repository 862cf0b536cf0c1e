"""A corpus as the Entities page shows it: sentences that fit a filter, with their spans.

Text stays in the mapped files; memory holds numbers only, a few for every mention.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from uedp.corpus.store import CATEGORIES, Corpus
from uedp.entities.review import Entity, EntityTable

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PER_PAGE = 20
LONGEST = 4000  # characters of a text that are shown in a list
LISTED = "list"  # instead of a detector: no detector found it here
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    127: 0x2421,
    # what reverses the text around it, so that it reads as something else
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


@dataclass(frozen=True)
class SentenceFilter:
    """Which sentences are shown; fields that are empty leave all of them.

    The fields on mentions must hold for one and the same mention of the sentence.
    """

    find: str = ""
    category: str = ""
    detector: str = ""
    entity: str = ""
    doubtful: bool = False
    show: str = ""  # `with` or `without` entities
    sentence: int | None = None

    def query(self, **changes: Any) -> dict[str, Any]:
        """The fields of an address that shows the same, with changes."""
        values = vars(replace(self, **{k: v for k, v in changes.items() if k in vars(self)}))
        given = {name: value for name, value in values.items() if value not in ("", False, None)}
        return {**given, **{k: v for k, v in changes.items() if k not in vars(self)}}


@dataclass(frozen=True)
class Mention:
    """A mention in a text: where, what, and which detectors hit it there."""

    index: int
    start: int
    end: int
    label: str
    category: str
    entity: int
    detectors: tuple[str, ...]
    surface: str


class Piece(NamedTuple):
    """A stretch of text: plain, or covered by mentions that touch each other."""

    text: str
    mentions: tuple[Mention, ...]


@dataclass(frozen=True)
class ShownSentence:
    """A sentence cut into pieces, in order."""

    number: int
    user: str
    pieces: tuple[Piece, ...]
    hidden: int  # characters that are not shown


class View:
    """A corpus to browse.

    Guarantees:
      - the pieces of a sentence, put together, are its text (up to control characters, which are
        replaced by their pictures, and up to `LONGEST`)
      - the mentions of a sentence are exactly those of the corpus
    """

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        mentions = corpus.mentions
        self.sentence: Ints = mentions["sentence"].to_numpy()
        self.start, self.end = mentions["start"].to_numpy(), mentions["end"].to_numpy()
        self.category = mentions["category"].to_numpy()
        self.entity = mentions["entity"].to_numpy()
        self._labels = mentions["label"]
        self._from = np.searchsorted(self.sentence, np.arange(len(corpus) + 1))
        self.select = lru_cache(maxsize=16)(self._select)

    @cached_property
    def table(self) -> EntityTable:
        return EntityTable(self.corpus)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every entity, by its canonical name."""
        names = self.corpus.entities["name"].to_pylist()
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def doubtful(self) -> Mask:
        """For each entity, whether it is doubtful."""
        mask = np.zeros(self.corpus.incidence.entities, dtype=np.bool_)
        mask[self.table.select(doubtful=True)] = True
        return mask

    @cached_property
    def detectors(self) -> Ints:
        """For each mention, the detectors that hit it there, as bits; none if it was spread."""
        bits = np.zeros(len(self.sentence), dtype=np.int64)
        if type(self.corpus.info.get("hits")) is not int:
            return bits
        hits = self.corpus.hits
        columns = [hits[name].to_numpy() for name in ("sentence", "start", "end")]
        own = np.stack([self.sentence, self.start, self.end], axis=1).astype(np.int64)
        both = np.concatenate([own, np.stack(columns, axis=1).astype(np.int64)])
        order = np.lexsort(both.T[::-1])
        new = np.ones(len(both), dtype=np.bool_)
        new[1:] = (np.diff(both[order], axis=0) != 0).any(axis=1)
        place = np.empty(len(both), dtype=np.int64)
        place[order] = np.cumsum(new) - 1
        found = np.zeros(int(new.sum()), dtype=np.int64)
        shifted = np.left_shift(1, hits["detector"].to_numpy().astype(np.int64))
        np.bitwise_or.at(found, place[len(own) :], shifted)
        result: Ints = found[place[: len(own)]]
        return result

    def load(self) -> None:
        """Open and compute all that a page may ask for; the files may then be removed."""
        corpus = self.corpus
        _ = corpus.sentences, corpus.user_names, corpus.entities, corpus.incidence
        _ = self.table, self.numbers, self.doubtful, self.detectors

    def __len__(self) -> int:
        return len(self.corpus)

    def entity_rows(self, numbers: Any) -> list[Entity]:
        return self.table.rows(numbers)

    def name_of(self, entity: int) -> str:
        return str(self.corpus.entities["name"][entity].as_py())

    def _select(self, chosen: SentenceFilter) -> Ints:
        """The numbers of the sentences that fit, in the order of the corpus."""
        fits = np.ones(len(self), dtype=np.bool_)
        if chosen.sentence is not None:
            fits[:] = np.arange(len(self)) == chosen.sentence
        of_mentions = self.mentions_that_fit(chosen)
        if of_mentions is not None or chosen.show:
            mentioned = np.zeros(len(self), dtype=np.bool_)
            mentioned[self.sentence if of_mentions is None else self.sentence[of_mentions]] = True
            fits &= ~mentioned if chosen.show == "without" else mentioned
        if chosen.find:
            fits &= self.contain(chosen.find)
        return np.flatnonzero(fits)

    def mentions_that_fit(self, chosen: SentenceFilter) -> Mask | None:
        """One flag for each mention; None if the filter does not speak of mentions."""
        fits = np.ones(len(self.sentence), dtype=np.bool_)
        if chosen.category:
            number = CATEGORIES.index(chosen.category) if chosen.category in CATEGORIES else -1
            fits &= self.category == number
        if chosen.entity:
            fits &= self.entity == self.numbers.get(chosen.entity, -1)
        if chosen.detector == LISTED:
            fits &= self.detectors == 0
        elif chosen.detector:
            names = self.corpus.detectors
            bit = names.index(chosen.detector) if chosen.detector in names else 63
            fits &= self.detectors >> bit & 1 == 1
        if chosen.doubtful:
            fits &= self.doubtful[self.entity]
        speaks = chosen.category or chosen.entity or chosen.detector or chosen.doubtful
        return fits if speaks else None

    def contain(self, text: str) -> Mask:
        """For each sentence, whether its text contains this one, in any case."""
        found = pc.match_substring(self.corpus.sentences["text"], text, ignore_case=True)
        return np.asarray(found.to_numpy(), dtype=np.bool_)

    def mentions(self, sentence: int, text: str) -> list[Mention]:
        """The mentions of a sentence, in the order of the corpus."""
        begin, end = int(self._from[sentence]), int(self._from[sentence + 1])
        labels = self._labels.slice(begin, end - begin).to_pylist()
        return [
            Mention(
                row - begin,
                int(self.start[row]),
                int(self.end[row]),
                label,
                CATEGORIES[self.category[row]],
                int(self.entity[row]),
                self._names(int(self.detectors[row])),
                text[self.start[row] : self.end[row]],
            )
            for row, label in zip(range(begin, end), labels, strict=True)
        ]

    def sentences(self, numbers: Any, whole: bool = False) -> list[ShownSentence]:
        """These sentences as they are shown."""
        numbers = np.asarray(numbers, dtype=np.int64)
        users = np.asarray(self.corpus.incidence.sentence_user)[numbers]
        names = self.corpus.user_names.take(pa.array(users)).to_pylist()
        texts = self.corpus.texts(numbers)
        return [
            self._shown(int(number), visible(user), text, whole)
            for number, user, text in zip(numbers, names, texts, strict=True)
        ]

    def _shown(self, number: int, user: str, text: str, whole: bool) -> ShownSentence:
        pieces, shown = [], 0
        for piece in cut(text, self.mentions(number, text)):
            left = len(text) if whole else LONGEST - shown
            if left <= 0:
                break
            part = piece if piece.mentions else Piece(piece.text[:left], ())
            pieces.append(part)
            shown += len(part.text)
        return ShownSentence(number, user, tuple(pieces), len(text) - shown)

    def _names(self, bits: int) -> tuple[str, ...]:
        return tuple(n for bit, n in enumerate(self.corpus.detectors) if bits >> bit & 1)


def cut(text: str, mentions: list[Mention]) -> list[Piece]:
    """A text in pieces: every run of mentions that overlap is one, and so is the text between.

    Guarantees:
      - put together, the pieces are the text; every mention lies in exactly one of them
    """
    pieces: list[Piece] = []
    done = 0
    held: list[Mention] = []
    begin = end = 0

    def close() -> None:
        nonlocal done
        if held:
            pieces.append(Piece(visible(text[begin:end]), tuple(held)))
            held.clear()
            done = end

    for mention in sorted(mentions, key=lambda each: (each.start, -each.end)):
        if held and mention.start < end:
            end = max(end, mention.end)
        else:
            close()
            if mention.start > done:
                pieces.append(Piece(visible(text[done : mention.start]), ()))
                done = mention.start
            begin, end = mention.start, mention.end
        held.append(mention)
    close()
    if done < len(text):
        pieces.append(Piece(visible(text[done:]), ()))
    return pieces


def visible(text: str) -> str:
    """The text with control characters as pictures; as many characters as before."""
    return text.translate(_PICTURES)
