"""Dates, years, months and weekdays alone, and times of day.

A weekday before a date is a form of its own, so that "March 12" is the same entity without it.
May, March and August are words too: in lower case, a digit or the word before must say that they
are months. That word is part of the form, which is then found wherever it stands.
"""

import re
from collections.abc import Iterator

from uedp.entities.detectors.forms import BEGIN, Extent, cased, finder

_DAY = r"(?:3[01]|[12][0-9]|0?[1-9])"
_MONTH = r"(?:1[0-2]|0?[1-9])"
_YEAR = r"(?:1[6-9]|20)[0-9]{2}"
_RECENT = r"(?:19|20)[0-9]{2}"
_CLOCK = r"T[0-2][0-9]:?[0-5][0-9](?::?[0-5][0-9](?:[.,][0-9]{1,9})?)?(?:Z|[-+][0-9]{2}:?[0-9]{2})?"


def _numeric(by: str) -> str:
    """Dates with one separator, which must not continue to another number; another separator may,
    as in 1/2/2024-3/4/2024."""
    by = re.escape(by)
    day_month = rf"(?:{_DAY}{by}{_MONTH}|{_MONTH}{by}{_DAY}){by}"
    forms = [rf"{_YEAR}{by}{_MONTH}{by}{_DAY}(?:{_CLOCK})?", rf"{day_month}{_YEAR}"]
    if by == r"\.":
        forms.append(r"(?:3[01]|[0-2][0-9])\.(?:1[0-2]|0[1-9])\.[0-9]{2}")  # 3.11.7 is a version
    else:
        forms += [rf"{day_month}[0-9]{{2}}", rf"{_RECENT}{by}[0-9]{{2}}"]
    if by == "/":
        forms.append(rf"{_MONTH}/{_RECENT}")
    return rf"(?<![0-9]{by})(?:{'|'.join(forms)})(?![0-9A-Za-z]|{by}[0-9])"


numeric = finder(rf"{BEGIN}(?:{'|'.join(map(_numeric, '-/.'))})", gate="[0-9][-/.][0-9]")
# taken before dates: 2003-2004 is two years
years = finder(
    rf"{BEGIN}(?<![0-9][-/]) {_RECENT}[-/]{_RECENT} (?![0-9A-Za-z]|[-/][0-9])",
    gate="[12][90][0-9]{2}[-/][12]",
)
year = finder(
    rf"{BEGIN}(?<![0-9]\.) {_RECENT}(?:(?<=0)s)? (?![0-9A-Za-z]|\.[0-9]|,[0-9]{{1,3}}(?![0-9]))",
    gate="[12][90][0-9]{2}",
)

_JUST_YEARS = re.compile(rf"(?:the\s)?{_YEAR}(?:(?<=0)'?s)?(?:\s?[-–/]\s?{_YEAR})?", re.IGNORECASE)


_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORT_MONTHS = tuple(name[:3] for name in _MONTHS)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_WEEKDAYS = ("mon", "tues?", "wed", "thu(?:rs?)?", "fri", "sat", "sun")
# Every weekday and month, long or short, contains one of these (in lower case).
STEMS = ("nday", "sday", "iday", "rday", *_SHORT_MONTHS)

_NAMES = cased((*_MONTHS, "sept", *_SHORT_MONTHS))
_ORDINAL = r"(?:st|nd|rd|th|ST|ND|RD|TH)"
_YEAR_AFTER = rf"(?:,\ ?|\ )(?:{_YEAR}|'[0-9]{{2}})"
_TEXT_END = r"(?![0-9A-Za-z]|[.:][0-9]|,[0-9]{3}(?![0-9]))"
_NAMED = re.compile(
    rf"""(?<![^\W_])(?=[ADFJMNOSTWadfjmnostw]) (?:
      (?P<weekday> {cased(_WEEKDAYS)} )[sS]?(?![^\W_])
    | (?P<month> {_NAMES} )(?![^\W_])
      (?: (?: \.?\ {_DAY}(?P<ordinal>{_ORDINAL})?(?P<year>{_YEAR_AFTER})?
            | (?P<bare_year>\.?{_YEAR_AFTER}) ) {_TEXT_END} )? )""",
    re.VERBOSE,
)
_VERBS = frozenset({"may", "march", "mar"})  # in lower case, unless a year or an ordinal follows
_CONTEXT = re.compile(
    r"(?<![^\W_])(?:last|next|early|late|mid|in|on|since|until|till|during|by)[ -]\Z", re.IGNORECASE
)
_THIS = re.compile(r"(?<![^\W_])this \Z", re.IGNORECASE)  # "this may work", but "this May"
_LONGEST_CONTEXT = len("during ")


def named(text: str) -> Iterator[Extent]:
    """Months before a day or a year; not the words may and march."""
    for match in _NAMED.finditer(text):
        month, end = match["month"], match.end()
        if month is None or end == match.end("month"):
            continue
        surely = match["year"] or match["bare_year"] or match["ordinal"]
        is_word = month in _VERBS and not surely
        begin = _context(text, match.start(), month) if is_word else match.start()
        if begin is not None:
            yield begin, end


def alone(text: str) -> Iterator[Extent]:
    """Weekdays and months without a day or a year; not the words may, march, august."""
    for match in _NAMED.finditer(text):
        month, end = match["month"], match.end()
        if month is None:
            yield match.span()
        elif end == match.end("month") and month.lower() in _MONTHS:
            is_word = month.lower() == "may" or month in {"march", "august"}
            begin = _context(text, match.start(), month) if is_word else match.start()
            if begin is not None:
                yield begin, end


_RELATIVE = ("today", "tonight", "tomorrow", "yesterday")
_CALENDAR_WORDS = "|".join((*_MONTHS, "sept", *_SHORT_MONTHS, *_SHORT_WEEKDAYS, *_RELATIVE))
_JUST_CALENDAR = re.compile(
    rf"""(?: (?:the|this|last|next|past|coming|every|each|early|late|mid|in|on|since|until|till
          |during|by|of)[\s-] ){{0,2}}
    (?: (?:{"|".join(_WEEKDAYS)})s? | (?:{_CALENDAR_WORDS})\.? ) (?:['’]s)?""",
    re.IGNORECASE | re.VERBOSE,
)


def refined(category: str, surface: str) -> str:
    """A narrower category, where a date, time or number is only a year, or a month or weekday.

    These say little about anybody by themselves, and can be chosen apart from dates.
    """
    if category in ("date", "cardinal") and _JUST_YEARS.fullmatch(surface.strip()):
        return "year"
    if category in ("date", "time") and _JUST_CALENDAR.fullmatch(surface.strip()):
        return "calendar"
    return category


def _context(text: str, start: int, month: str) -> int | None:
    """Where the words begin that make a month of the word at `start`, if there are any."""
    for pattern in (_CONTEXT, _THIS) if month == "May" else (_CONTEXT,):
        if match := pattern.search(text, max(0, start - _LONGEST_CONTEXT), start):
            return match.start()
    return None


day_first = finder(
    rf"""{BEGIN}(?<![0-9][.,/:]) {_DAY}{_ORDINAL}? (?: \ |(?P<surely>\ of\ |[-/.]) )?
    (?P<month> {_NAMES} )(?![A-Za-z])
    (?P<year> (?: \.?{_YEAR_AFTER} | [-/.]?(?:{_YEAR}|[0-9]{{2}}) ) {_TEXT_END} )?""",
    lambda match: (
        match.span() if match["year"] or match["surely"] or match["month"] not in _VERBS else None
    ),
    gate=r"[0-9](?:st|nd|rd|th|ST|ND|RD|TH)?(?:\ |[-/.])?[A-Za-z]",
)

_HALF = r"(?:[AaPp][Mm]|[AaPp]\.[Mm]\.?)"
time = finder(
    rf"""{BEGIN}(?<![0-9][:.]) (?:
      (?:2[0-4]|[01]?[0-9]):[0-5][0-9](?: :[0-5][0-9](?:[.,][0-9]{{1,9}})? )? (?: Z | \ ?{_HALF} )?
    | (?:1[0-2]|0?[1-9])(?:[.:][0-5][0-9])?\ ?(?:{_HALF}|[oO]'[cC]lock)
    ) (?![0-9A-Za-z]|[:.][0-9])""",
    gate=r"[0-9](?: :[0-5][0-9] | \ ?(?:[AaPp]\.?[Mm]|[oO]') )",
)
