"""Normalising and sentence splitting: changes to a text that move its spans along."""

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

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


def splitter(language: str) -> Callable[[Sentence], Iterator[Sentence]]:
    """A function that splits a record into sentences by the rules of `language` (sentencex).

    Languages that sentencex does not know are split by general rules.

    Guarantees:
      - no mark is split: a boundary inside a mark is ignored
      - every mark and every character that is not white space is in exactly one sentence
    """
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", language):
        raise UserError(f"`split={language!r}`: give a language code such as en")

    def split(record: Sentence) -> Iterator[Sentence]:
        start = 0
        for end in _boundaries(language, record.text):
            if any(mark.start < end < mark.end for mark in record.marks):
                continue
            yield from _piece(record, start, end)
            start = end
        yield from _piece(record, start, len(record.text))

    return split


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
