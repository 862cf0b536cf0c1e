"""Personal numbers: bank accounts, cards, national ids, references."""

import re
from collections.abc import Iterator
from functools import cache

from stdnum import iban, luhn, numdb

from uedp.entities.detectors.forms import (
    BEGIN,
    DIGITS,
    END,
    NUMBER_BEGIN,
    NUMBER_END,
    Extent,
    cased,
    finder,
)


@cache
def _iban_tail(country: str) -> re.Pattern[str] | None:
    """The account part after country and check digits, of the country's registered length."""
    structure = numdb.get("iban").info(country)[0][1].get("bban")
    if structure is None:
        return None
    length = sum(map(int, DIGITS.findall(structure)))
    return re.compile(rf"(?:[ -]?[0-9A-Za-z]){{{length}}}{END}")


# Starts at the check digits and looks back: digits are rarer in text than letters.
_IBAN_CHECK = re.compile(r"[0-9](?<=[A-Za-z]{2}[0-9])(?<![0-9A-Za-z][A-Za-z]{2}[0-9])[0-9]")


def ibans(text: str) -> Iterator[Extent]:
    """IBANs in one piece or in groups; the country determines their length."""
    position = 0
    while check := _IBAN_CHECK.search(text, position):
        position = check.end()
        start = check.start() - 2
        tail = _iban_tail(text[start : start + 2].upper())
        match = tail.match(text, position) if tail else None
        if match:
            number = text[start : match.end()].replace(" ", "").replace("-", "")
            turned = "".join(str(int(sign, 36)) for sign in number[4:] + number[:4])
            # The checksum first: `stdnum` also checks the national structure, but is slow.
            if int(turned) % 97 == 1 and iban.is_valid(number):
                position = match.end()
                yield start, position


_GROUP = r"[0-9]++(?![0-9A-Za-z]|\.[0-9])"
_RUN = re.compile(rf"{BEGIN}(?<!\+)(?<![0-9]\.){_GROUP}(?:[ -]{_GROUP})*+")
_THIRTEEN = re.compile(r"[0-9](?:[ -]?[0-9]){12}")
_CARD_SHAPES = ((4, 4, 4, 4, 3), (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 1))


def _is_card(number: str) -> bool:
    digits = number.replace(" ", "").replace("-", "")
    return 13 <= len(digits) <= 19 and digits[0] != "0" and bool(luhn.is_valid(digits))


def cards(text: str) -> Iterator[Extent]:
    """Card numbers in runs of digits: printed groups first, then the run as a whole.

    Groups are also found inside a longer run, since another number may be adjacent.
    """
    if not _THIRTEEN.search(text):
        return
    for run in _RUN.finditer(text):
        if run.end() - run.start() < 13:
            continue
        groups = [match.span() for match in DIGITS.finditer(text, *run.span())]
        lengths = tuple(end - start for start, end in groups)
        any_card = False
        first = 0
        while first < len(groups):
            taken = 1
            for shape in (lengths[first : first + 1], *_CARD_SHAPES):
                last = first + len(shape)
                if lengths[first:last] != shape:
                    continue
                start, end = groups[first][0], groups[last - 1][1]
                if _is_card(text[start:end]):
                    yield start, end
                    any_card, taken = True, len(shape)
                    break
            first += taken
        one_separator = len(set(run[0]) & {" ", "-"}) < 2
        if not any_card and one_separator and min(lengths) > 1 and _is_card(run[0]):
            yield run.span()


# The US number; then ids of a distinctive form: birth numbers of Denmark, Sweden and Latvia,
# Brazil's CPF, Finland's; and with letters, Britain's NINO, Italy's fiscal code.
national_id = finder(
    rf"""{NUMBER_BEGIN} (?: [0-9]{{3}}-[0-9]{{2}}-[0-9]{{4}} | [0-9]{{3}}\ [0-9]{{2}}\ [0-9]{{4}}
    | (?:[0-9]{{2}})?[0-9]{{6}}-[0-9]{{4}} | [0-9]{{3}}\.[0-9]{{3}}\.[0-9]{{3}}-[0-9]{{2}}
    | [0-9]{{6}}[-+A][0-9]{{3}}[0-9A-Y] ) {NUMBER_END}""",
    gate="[0-9]{3}[-+A. ][0-9]{2}",
)
lettered_id = finder(
    rf"""{BEGIN} [A-Z] (?: [A-Z]\ ?[0-9]{{2}}\ ?[0-9]{{2}}\ ?[0-9]{{2}}\ ?[A-D]
    | [A-Z]{{5}}[0-9]{{2}}[A-Z][0-9]{{2}}[A-Z][0-9]{{3}}[A-Z] ) {END}""",
    gate=r"[A-Z]{2}\ ?[0-9]{2}",
)


def _if_long(match: re.Match[str]) -> Extent | None:
    runs = DIGITS.findall(match[0])
    longest, total = max(map(len, runs)), sum(map(len, runs))
    if " " in match[0]:
        enough = total >= 12 and set(runs[1:]) != {"000"}
    elif match[0][0].isalpha():
        # A leading letter suggests a reference, but A320-200 is not one.
        enough = longest >= 6 or total >= 8
    else:
        # 900/1800/1900 are alternatives, 55170-0543 is one number.
        enough = longest >= 8 or (total >= 8 and "/" not in match[0])
    return match.span() if enough else None


# Digits after a mark that letters begin are no telephone number, unless the letters say so.
_DIALS = frozenset(
    ("call", "cell", "dial", "fax", "mob", "ph", "phone", "ring", "sms", "tel", "text", "to", "at")
)
marked_reference = finder(
    rf"""{BEGIN} (?P<letters>[A-Za-z]{{1,5}}+)[-\#/] (?P<digits>[0-9]{{6,}}+)
    (?: [-/](?=[A-Za-z]{{0,10}}[0-9])[0-9A-Za-z]++ ){{0,6}}+
    (?![0-9A-Za-z]|\.[0-9]|,[0-9]{{1,2}}(?![0-9]))""",
    lambda match: None if match["letters"].lower() in _DIALS else match.span(),
    gate=r"[A-Za-z][-\#/][0-9]{6}",
)

# AC-20394857, A56319335, 1HGCM82633A004352, 20394857; or a long number in groups.
reference = finder(
    rf"""{BEGIN}(?<![0-9]\.) (?: [0-9]{{2,8}}(?:\ [0-9]{{2,8}}){{2,}}
    | (?:[A-Za-z]{{1,10}}+[-\#/]?)? [0-9][0-9A-Za-z]*+
      (?: [-/](?=[A-Za-z]{{0,10}}[0-9])[0-9A-Za-z]++ ){{0,6}}+
    ) (?![0-9A-Za-z]|\.[0-9]|,[0-9]{{1,2}}(?![0-9]))""",
    _if_long,
    gate="[0-9]",
)

# fmt: off
CUES = (
    "account", "acct", "acc", "a/c", "policy", "customer", "client", "member", "membership",
    "subscriber", "patient", "employee", "student", "inmate", "case", "claim", "order",
    "invoice", "ticket", "booking", "reservation", "reference", "ref", "passport", "license",
    "licence", "permit", "tracking", "serial", "loan", "card", "contract", "docket", "file",
    "record", "routing", "mrn", "tax", "id",
)
# fmt: on


def _if_cued(match: re.Match[str]) -> Extent | None:
    marker = match["marker"]
    # Without "no." a count, a year or a score may follow.
    needed = 5 if not marker else 4 if marker.strip() == ":" else 3
    return match.span() if sum(map(str.isdecimal, match["number"])) >= needed else None


# The cue is part of the form: the number by itself would not be found elsewhere.
cued = finder(
    rf"""(?<![^\W_]) (?:{cased(CUES)}) (?![A-Za-z]) \.?
    (?P<marker> \ ?(?: (?i:number|num|no|nr|id|code|ref)(?![A-Za-z])\.? | \# | : ) [:\#]? )?
    (?:\ is)? \ ?
    (?P<number> (?:[A-Za-z]{{1,5}}+[-/]?)? [0-9][0-9A-Za-z]*+ (?:[-/][0-9][0-9A-Za-z]*+){{0,6}}+ )
    (?![0-9A-Za-z]|\.[0-9]|,[0-9]{{1,2}}(?![0-9]))""",
    _if_cued,
    gate="[0-9](?:[-/A-Z]?[0-9]){2}",
)
