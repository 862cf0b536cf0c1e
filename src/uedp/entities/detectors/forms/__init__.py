"""Forms that give themselves away, for the `patterns` detector: one module per kind.

A finder takes a text and gives the extents of one form in it, in order and apart from each other.
Every pattern here is written so that no text makes it slow: repetition is possessive or bounded,
and no run of characters can be entered at more than a few places.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable

Extent = tuple[int, int]
Finder = Callable[[str], Iterable[Extent]]

# Word boundaries. Latin letters and digits only: Chinese or Thai puts no space around numbers.
BEGIN = r"(?<![0-9A-Za-z])"
END = r"(?![0-9A-Za-z])"
# The same where a dash or a point would make it part of a longer number.
NUMBER_BEGIN = rf"{BEGIN}(?<![0-9][-.])"
NUMBER_END = r"(?![0-9A-Za-z]|[-.][0-9])"

# What a found form leaves behind: no pattern matches it, and it bounds words.
BLANK = "\0"

DIGITS = re.compile(r"[0-9]+")


def finder(
    pattern: str,
    judge: Callable[[re.Match[str]], Extent | None] = re.Match.span,
    *,
    gate: str,
) -> Finder:
    """Matches of a verbose pattern; `judge` narrows or refuses each.

    `gate` is found in every text with a match. `re` skips fast to the first character of a gate
    when that is a plain set, which the patterns cannot begin with: they look behind first.
    """
    compiled, search = re.compile(pattern, re.VERBOSE), re.compile(gate, re.VERBOSE).search

    def find(text: str) -> list[Extent]:
        if not search(text):
            return []
        extents = [judge(match) for match in compiled.finditer(text)]
        return [extent for extent in extents if extent is not None]

    return find


def cased(words: Iterable[str]) -> str:
    """Words as alternatives in the three casings people use.

    Spelled out because `re` tells literals apart by their first letter, and not when told to
    ignore case.
    """
    return "|".join(form for word in words for form in (word, word.capitalize(), word.upper()))


class _Plain(dict[int, int]):
    """A table for `str.translate`, filled as characters are met."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        digit = unicodedata.decimal(character, None)
        if digit is not None:
            plain = ord("0") + digit
        elif 0xFF01 <= code <= 0xFF5E:  # full-width ASCII
            plain = code - 0xFEE0
        elif character in "‐‑‒–−":
            plain = ord("-")
        elif character == "’":
            plain = ord("'")
        elif unicodedata.category(character) == "Zs":
            plain = ord(" ")
        else:
            plain = code
        self[code] = plain
        return plain


_PLAIN = _Plain()


def plain(text: str) -> str:
    """The text with digits, dashes, spaces and full-width letters as ASCII, one for one."""
    return text if text.isascii() else text.translate(_PLAIN)
