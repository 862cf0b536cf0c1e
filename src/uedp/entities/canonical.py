"""When two surfaces name the same entity.

Identity is the canonical form alone, whatever category a detector gave: merging two things that
look alike protects more, splitting one thing by a detector's mood protects less.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

import phonenumbers

from uedp.errors import UserError


def _combining_marks() -> str:
    # Vowel signs of many scripts are not \w for `re`; without them names would fall apart.
    # The basic plane holds all that living scripts use.
    return "".join(
        chr(c) for c in range(0x300, 0xFFFF) if unicodedata.category(chr(c)) in ("Mn", "Mc")
    )


# Scripts written without spaces between words: each character counts as a word, so that a name
# is found inside a run of text.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_LETTER = rf"(?:[^\W_{_UNSPACED}]|[{_combining_marks()}])"
# Dots join single letters only (U.S.), or a forgotten blank after a full stop would hide a name.
_INITIALS = rf"{_LETTER}(?:\.{_LETTER})+(?!{_LETTER})(?:\.?['’][sS]\b)?"
_WORD = re.compile(rf"[{_UNSPACED}]|{_INITIALS}|{_LETTER}+(?:['’]{_LETTER}+)*")
_POSSESSIVE = re.compile(r"['’]s$")
_JOINTS = re.compile(r"[.'’]")
_DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
_LOOSE_BLANK = re.compile(r"(?<!\d) | (?!\d)")
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+\.[^\s@]+")
_NUMBER = re.compile(r"\+?[\d\s().\-/–]{7,}")


@lru_cache(maxsize=1 << 16)
def _folded(word: str) -> str:
    folded = unicodedata.normalize("NFKC", word).casefold()
    folded = _POSSESSIVE.sub("", folded)
    return _JOINTS.sub("", _DECIMAL.sub(" ", folded))


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """The words of a text as (folded form, start, end).

    Guarantees:
      - a surface and a text that holds it give the same folded words, wherever the surface
        stands between word boundaries
    """
    for match in _WORD.finditer(text):
        yield _folded(match[0]), match.start(), match.end()


@lru_cache(maxsize=1 << 16)
def canonical(surface: str, region: str = "US") -> str:
    """The form under which a surface counts as one entity.

    Guarantees:
      - equal for surfaces that differ only in Unicode compatibility form, case, a possessive
        ending, or white space and punctuation (which count only between two digits)
      - phone numbers are equal if they dial alike in `region`, e-mail addresses if they differ
        only in case
      - never empty for a surface that is not blank
    """
    plain = unicodedata.normalize("NFKC", surface).strip()
    if _EMAIL.fullmatch(plain):
        return plain.casefold()
    if _NUMBER.fullmatch(plain) and sum(map(str.isdigit, plain)) >= 7:
        return _dialled(plain, region)
    joined = " ".join(word for word, _, _ in words(plain))
    return _LOOSE_BLANK.sub("", joined) or plain.casefold()


def _dialled(number: str, region: str) -> str:
    try:
        parsed = phonenumbers.parse(number, region)
        if phonenumbers.is_possible_number(parsed):
            e164: str = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
            return e164
    except phonenumbers.NumberParseException:
        pass
    return "".join(filter(str.isdigit, number))


class Canon:
    """Canonical forms with a person's own aliases applied: `Big Blue` is `IBM`.

    Guarantees:
      - an alias and the name it stands for, and all aliases of that name, give one form
    """

    def __init__(self, aliases: Mapping[str, str] | None = None, region: str = "US") -> None:
        self._region = region
        self._alias = {
            canonical(alias, region): canonical(name, region)
            for alias, name in (aliases or {}).items()
        }
        for form in self._alias:
            self._resolved(form)

    def __call__(self, surface: str) -> str:
        return self._resolved(canonical(surface, self._region))

    def _resolved(self, form: str) -> str:
        start, seen = form, {form}
        while form in self._alias:
            form = self._alias[form]
            if form in seen:
                raise UserError(f"aliases: {start!r} leads back to itself; break the ring")
            seen.add(form)
        return form
