"""Canonical forms: two surfaces name the same entity if their canonical forms are equal.

The category of a detector plays no part: merging two entities that look alike protects more,
splitting one entity in two protects less.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

import phonenumbers

from uedp.corpus.records import quoted
from uedp.entities.detectors.forms.numbers import CUES
from uedp.entities.words import fold, words
from uedp.errors import UserError

_LOOSE_BLANK = re.compile(r"(?<!\d) | (?!\d)")
_EMAIL = re.compile(r"[^\s@<>]+@[^\s@<>]+\.[^\s@<>]+")
_WRITTEN_AT = re.compile(r"\s*[(\[{]\s*at\s*[)\]}]\s*")
_NUMBER = re.compile(r"\+?[\d\s().\-/]{7,}(?:\s*(?:x|ext\.?|extension)\s*\d{1,6})?")
_CUE = re.compile(
    rf"(?:{'|'.join(map(re.escape, CUES))})\b\.?"
    r"(?:\s*(?:number|num|no|nr|id|code|ref|is)\b\.?|\s*[:#])*\s*(?=\S*\d\S*$)"
)
_ARTICLE = re.compile(r"the\s+(?=\S)")
_POSSESSIVE = re.compile(r"['’ʼ]s?$")
_DASHES = dict.fromkeys((*range(0x2010, 0x2016), 0x2212, 0xFE58, 0xFE63, 0xFF0D), "-")
_PUNCTUATION_ONLY = "."  # the form of a surface that is all outer punctuation
_LONG_ID = 6  # from this many digits on, separators inside a number are ignored


@lru_cache(maxsize=1 << 16)
def canonical(surface: str, region: str = "US") -> str:
    """The canonical form of a surface.

    Guarantees:
      - equal for surfaces that differ only in case, Unicode form, invisible characters, outer
        punctuation, a possessive ending, a leading `the`, or inner white space and punctuation
        (which count only between digits, and there only if the surface has fewer than six)
      - phone numbers are equal if they dial alike in `region`, extensions aside; e-mail addresses
        if they differ only in case; account numbers whatever cue word precedes them
      - never empty for a surface that is not blank; one form for every surface
        that is nothing but outer punctuation
    """
    plain = _bare(fold(surface)[0].translate(_DASHES))
    plain = _ARTICLE.sub("", plain, count=1) if _ARTICLE.match(plain) else plain
    address = _WRITTEN_AT.sub("@", plain)
    if _EMAIL.fullmatch(address):
        return address
    cue = _CUE.match(plain)
    plain = plain[cue.end() :] if cue else plain
    digits = sum(map(str.isdigit, plain))
    if digits >= 7 and _NUMBER.fullmatch(plain):
        return _dialled(plain, region)
    parts = [word for word, _, _ in words(plain)]
    joined = "".join(parts) if digits >= _LONG_ID else _LOOSE_BLANK.sub("", " ".join(parts))
    return joined or plain or (_PUNCTUATION_ONLY if surface.strip() else "")


def strict_form(surface: str) -> str:
    """The form of a surface declared public: as written, except case, white space and possessive.

    A looser form would make more surfaces public, and so protect less.
    """
    form = " ".join(unicodedata.normalize("NFKC", surface).casefold().split())
    return _POSSESSIVE.sub("", form)


def _bare(folded: str) -> str:
    """Without surrounding white space, quotes, brackets and stops, and without a possessive."""
    while True:
        shorter = _POSSESSIVE.sub("", folded.strip().strip(".,;:!?\"'“”‘’«»<>*_"))
        for opening, closing in ("()", "[]", "{}"):
            if shorter.startswith(opening) and shorter.endswith(closing):
                shorter = shorter[1:-1]
                break
        if shorter == folded:
            return shorter
        folded = shorter


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
    """Canonical forms with aliases applied: `Big Blue` is `IBM`.

    Guarantees:
      - an alias, the name it stands for, and all other aliases of that name have one form
    """

    def __init__(self, aliases: Mapping[str, str] | None = None, region: str = "US") -> None:
        self._region = region
        self._alias: dict[str, str] = {}
        for alias, name in (aliases or {}).items():
            form, target = canonical(alias, region), canonical(name, region)
            if form == target:
                continue
            if self._alias.setdefault(form, target) != target:
                raise UserError(
                    f"aliases: {quoted(alias, 24)} stands for two different entities; keep one"
                )
        self._names: dict[str, set[str]] = {}
        for alias, name in (aliases or {}).items():
            self._names.setdefault(self(name), set()).update((alias, name))

    def __call__(self, surface: str) -> str:
        start = form = canonical(surface, self._region)
        seen = {form}
        while form in self._alias:
            form = self._alias[form]
            if form in seen:
                raise UserError(
                    f"aliases: {quoted(start, 24)} leads back to itself; remove one of them"
                )
            seen.add(form)
        return form

    def other_names(self, form: str) -> frozenset[str]:
        """All names that the aliases give to an entity."""
        return frozenset(self._names.get(form, ()))
