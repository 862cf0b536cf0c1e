"""Telephone numbers: recognised by how they are written, or by being in use."""

import re
from collections.abc import Iterator
from functools import lru_cache

import phonenumbers

from uedp.entities.detectors.forms import BEGIN, DIGITS, END, NUMBER_BEGIN, NUMBER_END, Extent

_WRITTEN = re.compile(
    rf"""(?=[+(0-9]) (?:
      (?<![0-9]) (?P<plus> \+\ ?[0-9](?:[-. ()/]{{0,2}}[0-9]){{6,16}} )
    | (?P<american>
        (?: {NUMBER_BEGIN}(?: (?:1|001)(?:[-. ]{{1,2}}|(?=\()) | (?=[0-9]) ) | (?<![0-9])(?=\() )
        (?: \([0-9]{{3}}\)[-. ]? | [0-9]{{3}}[-. /] ) [0-9]{{3}}[-. ][0-9]{{4}} )
    | (?P<grouped>
        (?<![0-9]) \([0-9]{{2,5}}\)[-. ]? [0-9]{{2,8}}(?:[-. ][0-9]{{2,8}}){{0,3}}
        | {NUMBER_BEGIN} 0[0-9]{{1,4}}(?:[-. /][0-9]{{2,8}}){{1,5}}
        | {NUMBER_BEGIN} [0-9]{{2,4}}(?P<by>[-. ])[0-9]{{2,8}}(?:(?P=by)[0-9]{{2,8}}){{0,4}} )
    ) (?: ,?\ ?(?:[xX]|[eE]xt(?:ension|\.)?)\ ?[0-9]{{1,6}}{END} | {NUMBER_END} )""",
    re.VERBOSE,
)
_GROUP = rf"[0-9]++{END}"
_LOOSE = re.compile(rf"{BEGIN}(?<![0-9][-.]){_GROUP}(?:[-. /]{{1,2}}{_GROUP})*+")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")


def written(text: str) -> Iterator[Extent]:
    """Numbers written like telephone numbers, in use or not: numbering plans change, and no
    library knows the extensions of a company."""
    for match in _WRITTEN.finditer(text):
        start, end = match.span()
        if match["plus"]:
            kept = _international_end(match["plus"])
            if kept < len(match["plus"]):
                end = start + kept
            if kept:
                yield start, end
        elif match["american"] or _looks_dialled(match["grouped"]):
            yield start, end


def in_use(text: str, region: str) -> Iterator[Extent]:
    """Digits, spaced in any way or none, that are a number in use when dialled in the region."""
    for match in _LOOSE.finditer(text):
        number = match[0]
        digits = sum(map(str.isdecimal, number))
        decimal = number.count(".") == 1 and digits + 1 == len(number)
        if 7 <= digits <= 15 and not decimal and _rating(number, region) == 2:
            yield match.span()


def _looks_dialled(number: str) -> bool:
    """Whether digits are grouped as in telephone numbers."""
    groups = DIGITS.findall(number)
    shape = [len(group) for group in groups]
    if shape == [2, 2, 2]:
        return "." not in number
    if not 7 <= sum(shape) <= (15 if number.startswith("00") else 13):
        return False
    years = [bool(_YEAR.fullmatch(group)) for group in groups]
    if all(years) or (years[0] and number[0] == "("):
        return False
    if "." in number and (len(shape) < 3 or set(shape[1:]) == {3}):
        return False  # 12.3456789, 12.345.678
    if " " in number and (set(groups[1:]) == {"000"} or (shape == [3, 4] and years[1])):
        return False  # 10 000 000; "the 300 2004 models"
    return not (len(shape) > 2 and set(shape) == {4})  # rather a card or an account


def _international_end(number: str) -> int:
    """The end of a number with `+`, since other numbers may follow it after a space."""
    # No country's numbers are shorter than seven digits with its code.
    ends = [match.end() for match in DIGITS.finditer(number, 7)][::-1]
    for wanted in (2, 1):
        for end in ends:
            if _rating(number[:end], phonenumbers.UNKNOWN_REGION) >= wanted:
                return end
    # Not a number of any country, but written as one: invented or mistyped.
    return ends[0] if ends and sum(map(str.isdecimal, number)) > 7 else 0


@lru_cache(maxsize=1 << 16)
def _rating(number: str, region: str) -> int:
    """2 for a number in use, 1 for one of a possible length, 0 for neither."""
    try:
        parsed = phonenumbers.parse(number, region)
    except phonenumbers.NumberParseException:
        return 0
    if phonenumbers.is_valid_number(parsed):
        return 2
    return int(phonenumbers.is_possible_number(parsed))
