"""The forms of the `patterns` detector: one module per kind.

A finder returns the extents of one form in a text, in order and disjoint. No text makes a pattern
slow: repetition is possessive or bounded, and a match can start at only a few places of a run of
characters.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable

Extent = tuple[int, int]
Finder = Callable[[str], Iterable[Extent]]

# Word boundaries. Latin letters and digits only: Chinese or Thai puts no space around numbers.
BEGIN = r"(?<![0-9A-Za-z])"
END = r"(?![0-9A-Za-z])"
# The same, where a dash or a point before a digit continues the number.
NUMBER_BEGIN = rf"{BEGIN}(?<![0-9][-.])"
NUMBER_END = r"(?![0-9A-Za-z]|[-.][0-9])"

# Replaces the characters of a form that was found: no pattern matches it, and it ends a word.
BLANK = "\0"

DIGITS = re.compile(r"[0-9]+")


def finder(
    pattern: str, judge: Callable[[re.Match[str]], Extent | None] = re.Match.span, *, gate: str
) -> Finder:
    """A finder of the matches of a verbose pattern; `judge` narrows or rejects each.

    `gate` matches in every text with a match. `re` is fast at finding a gate that begins with a
    plain character set; the patterns themselves begin with a look-behind.
    """
    compiled, search = re.compile(pattern, re.VERBOSE), re.compile(gate, re.VERBOSE).search

    def find(text: str) -> list[Extent]:
        if not search(text):
            return []
        extents = [judge(match) for match in compiled.finditer(text)]
        return [extent for extent in extents if extent is not None]

    return find


def cased(words: Iterable[str]) -> str:
    """Words as alternatives: in lower case, capitalised, in capitals.

    Spelled out because `re` chooses among literals by their first letter, but not when it ignores
    case.
    """
    return "|".join(form for word in words for form in (word, word.capitalize(), word.upper()))


class _Plain(dict[int, int]):
    """A table for `str.translate`, filled on demand."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        digit = unicodedata.decimal(character, None)
        if digit is not None:
            plain = ord("0") + digit
        elif 0xFF01 <= code <= 0xFF5E:  # full-width ASCII
            plain = code - 0xFEE0
        elif unicodedata.category(character) == "Zs":
            plain = ord(" ")
        else:
            plain = code
        self[code] = plain
        return plain


_PLAIN = _Plain(str.maketrans("‐‑‒–−’", "-----'"))


def plain(text: str) -> str:
    """The text with digits, dashes, spaces and full-width letters as ASCII, one for one."""
    return text if text.isascii() else text.translate(_PLAIN)
