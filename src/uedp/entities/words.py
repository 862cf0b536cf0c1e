"""The words of a text, folded so that typographic variants are equal.

Both sides of every comparison of surfaces use it. What matters is not which segmentation is right
but that a surface and a text that contains it are segmented alike.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

# Scripts written without spaces between words (Thai to Burmese, Khmer, kana, Han, Hangul, whose
# syllables decompose into jamo): each character is a word, so that a name is found inside a run
# of text.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3040-\u30ff\u3400-\u9fff"
    "\ua000-\ua4cf\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_SILENT = frozenset("™℠®©")  # would become letters when folded
_SPECIAL = {
    "ı": "i",  # its capital is a plain I
    "ʼ": "'",  # an apostrophe that Unicode counts as a letter
    "’": "'",
}


def _combining() -> str:
    # Vowel signs of many scripts are not \w for `re`; without them names would be cut in pieces.
    # The basic plane has all that living scripts use. Variation selectors are not letters.
    return "".join(
        chr(code)
        for code in range(0x300, 0xFE00)
        if unicodedata.category(chr(code)) in ("Mn", "Mc")
        and not re.match(f"[{UNSPACED}]", chr(code))
    )


_LETTER = rf"(?:[^\W_{UNSPACED}]|[{_combining()}])"
# Dots join single letters only (U.S.), or a forgotten blank after a full stop would hide a name.
_INITIALS = rf"[^\W\d_{UNSPACED}](?:\.[^\W\d_{UNSPACED}])+(?!{_LETTER})"
# The possessive is dropped; other letters after an apostrophe are separate words (l'Alice).
_WORD = re.compile(
    rf"[{UNSPACED}]|(?<!')(?:{_INITIALS}|{_LETTER}+)|(?<=')(?!s(?!{_LETTER})){_LETTER}+"
)


@lru_cache(maxsize=1 << 14)
def _folded(character: str) -> str:
    if character in _SILENT or unicodedata.category(character) == "Cf":
        return ""
    if 0xFE00 <= ord(character) <= 0xFE0F:
        return ""
    if character in _SPECIAL:
        return _SPECIAL[character]
    # decomposed, so that an accent counts the same whether it is one character or two
    return unicodedata.normalize("NFKD", character).casefold()


def fold(text: str) -> tuple[str, Sequence[int]]:
    """The text folded for comparison, and the original position of each folded character."""
    if text.isascii():
        return text.lower(), range(len(text))
    pieces, origins = [], []
    for position, character in enumerate(text):
        folded = _folded(character)
        pieces.append(folded)
        origins += [position] * len(folded)
    return "".join(pieces), origins


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """The words of a text as (folded form, start, end).

    Guarantees:
      - a surface and a text that contains it give the same folded words, wherever the surface
        stands between characters that are neither letters, digits, dots nor apostrophes
      - forms do not depend on case, on compatibility or composition of characters, on invisible
        characters, or on the dots of initials
    """
    folded, origins = fold(text)
    for match in _WORD.finditer(folded):
        yield match[0].replace(".", ""), origins[match.start()], origins[match.end() - 1] + 1
