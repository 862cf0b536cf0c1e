"""The `patterns[:REGION]` detector: entities that are recognised by their form.

Checksums are verified, internet addresses parsed, and telephone numbers without a `+` read as
dialled in REGION (default: US). In doubt the detector reports a hit: a missed phone number is a
hole in the guarantee, a false hit costs a little utility.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

import phonenumbers

from uedp.corpus.sentence import Span
from uedp.entities.detectors import forms, package_version, register_detector
from uedp.entities.detectors.forms import amounts, dates, network, numbers, phones
from uedp.errors import UserError

_DIGIT = re.compile(r"[0-9]")
# Six digits near each other: without them there is no personal number.
_SIX_DIGITS = re.compile(r"[0-9](?:[-. ()/A-Z]{0,3}[0-9]){5}")


class Patterns:
    """Finds forms in texts, the more specific ones first.

    Guarantees:
      - spans are sorted, do not overlap, and index the text as given
      - a form that is found once is found wherever it is separate from letters, digits and other
        forms, by itself or inside a longer form ("March 12" in "March 12, 2024"); so nothing needs
        propagation. Adjacent numbers and dates without punctuation are covered, but may be read as
        one. A month that is also a word is a form together with what shows that it is a month
        ("in may"), and is not looked for without it
      - time is linear in the length of the text, whatever the text
    """

    propagates = False

    def __init__(self, region: str) -> None:
        self._phones_in_use = partial(phones.in_use, region=region)

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        return map(self.find, texts)

    def find(self, text: str) -> list[Span]:
        """The spans of one text."""
        page = _Page(forms.plain(text))
        page.take("URL", network.link)
        page.take("EMAIL", network.email)
        page.take("URL", network.domain)
        page.take("IP", network.ip6)
        lowered = page.text.lower()
        has_names = any(stem in lowered for stem in dates.STEMS)
        if _DIGIT.search(page.text):
            self._take_numbers(page, has_names)
        elif has_names:
            page.take("CALENDAR", dates.alone)
        page.spans.sort()
        return page.spans

    def _take_numbers(self, page: "_Page", has_names: bool) -> None:
        long = _SIX_DIGITS.search(page.text)
        page.take("IP", network.ip4)
        if long:
            page.take("IBAN", numbers.ibans)
        page.take("YEAR", dates.years)
        page.take("DATE", dates.numeric)
        if long:
            page.take("CARD", numbers.cards)
            page.take("SSN", numbers.national_id)
            page.take("SSN", numbers.lettered_id)
        page.take("MONEY", amounts.signed_money)
        page.take("MONEY", amounts.named_money)
        page.take("PERCENT", amounts.percent)
        page.take("TIME", dates.time)
        if has_names:
            page.take("DATE", dates.day_first)
            page.take("DATE", dates.named)
            page.take("CALENDAR", dates.alone)
        if long:
            page.take("ACCOUNT", numbers.marked_reference)
            page.take("PHONE", phones.written)
            page.take("PHONE", self._phones_in_use)
            page.take("ACCOUNT", numbers.reference)
        page.take("ACCOUNT", numbers.cued)
        page.take("YEAR", dates.year)


class _Page:
    """A text from which one kind of form after the other is taken.

    A form that is taken is blanked, so that later kinds do not match any part of it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans: list[Span] = []

    def take(self, label: str, find: forms.Finder) -> None:
        extents = list(find(self.text))
        if not extents:
            return
        pieces: list[str] = []
        last = 0
        for start, end in extents:
            pieces += self.text[last:start], forms.BLANK * (end - start)
            last = end
            self.spans.append(Span(start, end, label))
        self.text = "".join(pieces) + self.text[last:]


def _version(argument: str | None) -> str:
    import uedp

    return f"uedp {uedp.__version__}, {package_version('phonenumbers')}"


@register_detector("patterns", version=_version)
def load_patterns(argument: str | None = None) -> Patterns:
    region = (argument or "US").upper()
    if region not in phonenumbers.SUPPORTED_REGIONS:
        example = "GB" if region == "UK" else "US, GB or DE"
        raise UserError(
            f"detector 'patterns:{argument}': unknown region; write a country's two-letter ISO "
            f"code, such as {example}"
        )
    return Patterns(region)
