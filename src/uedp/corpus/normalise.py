"""Normalising and sentence splitting: changes to a text that move its spans along."""

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError

_BLANKS = re.compile(r"\s+")


@lru_cache(maxsize=1)
def _no_punctuation() -> dict[int, None]:
    # punctuation and symbols of every script; marks stay, since many are vowels
    return {
        code: None
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code))[0] in "PS"
    }


def normalise(text: str, spans: Sequence[Span]) -> tuple[str, list[Span | None]]:
    """Lower-case, without punctuation and symbols, white space single; spans moved along.

    Guarantees:
      - the new text does not depend on the spans
      - a moved span covers exactly the remaining characters of the original, without blanks at its
        ends; it is None if none remain
    """
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters get longer in lower case; those stay
        lowered = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    cuts = sorted({0, len(lowered), *(edge for span in spans for edge in span[:2])})
    moved = {0: 0}
    done = ""
    for start, end in pairwise(cuts):
        piece = _BLANKS.sub(" ", lowered[start:end].translate(_no_punctuation()))
        done += piece[1:] if piece.startswith(" ") and (not done or done.endswith(" ")) else piece
        moved[end] = len(done)
    result = done.rstrip(" ")
    return result, [_trimmed(result, moved[s.start], moved[s.end], s.label) for s in spans]


def _trimmed(text: str, start: int, end: int, label: str) -> Span | None:
    covered = text[start:end]
    start += len(covered) - len(covered.lstrip())
    end = start + len(covered.strip())
    return Span(start, end, label) if start < end else None


MAX_WORDS = 100  # of a sentence; more would rarely fit in the 128 tokens that are the default
_WORD = re.compile(r"\S+")


class Splitter:
    """Splits records into sentences by the rules of a language (sentencex), and counts.

    Languages that sentencex does not know are split by general rules. A sentence of more than
    `max_words` words is cut further: at a line break, behind a comma or the like, or at a blank.

    Attributes:
        texts, sentences: the number of records and of pieces so far
        divided: records that became several pieces
        cuts: cuts at the limit of words

    Guarantees:
      - no mark is split: a boundary inside a mark is ignored
      - every mark and every character that is not white space is in exactly one sentence
      - a sentence has at most `max_words` words, unless a mark has more than half as many
      - user and label of a piece are those of its record
    """

    def __init__(self, language: str, max_words: int = MAX_WORDS) -> None:
        if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", language):
            raise UserError(f"`split={language!r}`: give a language code such as en, or none")
        self._language, self._max_words = language, max_words
        self.texts = self.sentences = self.divided = self.cuts = 0

    def __call__(self, record: Sentence) -> Iterator[Sentence]:
        self.texts += 1
        before = self.sentences
        start = 0
        for end in (*_boundaries(self._language, record.text), len(record.text)):
            if not _inside_mark(record, end):
                for cut in (*self._cuts(record, start, end), end):
                    for piece in _piece(record, start, cut):
                        self.sentences += 1
                        yield piece
                    start = cut
        self.divided += self.sentences > before + 1

    def counts(self) -> dict[str, Any]:
        """For the manifest of a corpus."""
        return {
            "language": self._language,
            "texts": self.texts,
            "divided": self.divided,
            "sentences": self.sentences,
            "max_words": self._max_words,
            "cuts": self.cuts,
        }

    def _cuts(self, record: Sentence, start: int, end: int) -> Iterator[int]:
        """Places to cut a sentence that is too long."""
        text = record.text
        words = [match.span() for match in _WORD.finditer(text, start, end)]
        first = 0
        while len(words) - first > self._max_words:
            best, cut = -1, 0
            for number in range(first + (self._max_words + 1) // 2, len(words)):
                if number > first + self._max_words and cut:
                    break
                before, place = words[number - 1][1], words[number][0]
                quality = 2 * ("\n" in text[before:place]) + (text[before - 1] in ",;:)")
                if quality >= best and not _inside_mark(record, place):
                    best, cut = quality, number
            if not cut:
                return
            self.cuts += 1
            yield words[cut][0]
            first = cut


def _inside_mark(record: Sentence, place: int) -> bool:
    return any(mark.start < place < mark.end for mark in record.marks)


@lru_cache(maxsize=1)
def _plain_blanks() -> dict[int, str]:
    return {code: " " for code in range(128, sys.maxunicode + 1) if chr(code).isspace()}


def _boundaries(language: str, text: str) -> list[int]:
    """The ends of the sentences; empty if sentencex fails on the text."""
    import sentencex

    # it counts every blank as one byte, and panics at a no-break space in `plan B .`
    plain = text if text.isascii() else text.translate(_plain_blanks())
    try:
        boundaries = sentencex.get_sentence_boundaries(language, plain)
        return [boundary["end_index"] for boundary in boundaries]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # it cannot be imported from PyO3
            raise
        return []


def _piece(record: Sentence, start: int, end: int) -> Iterator[Sentence]:
    raw = record.text[start:end]
    text = raw.strip()
    if text:
        shift = start + len(raw) - len(raw.lstrip())
        moved = [
            # a mark may extend into the blanks that were stripped
            Span(max(mark.start - shift, 0), min(mark.end - shift, len(text)), mark.label)
            for mark in record.marks
            if start <= mark.start and mark.end <= end
        ]
        marks = tuple(mark for mark in moved if mark.start < mark.end)
        yield replace(record, text=text, marks=marks)
