"""Forms are found where they stand, with their own extent, and quickly."""

import time
from datetime import date
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stdnum import iban, luhn

from uedp.corpus.sentence import Span
from uedp.entities.categories import LABELS
from uedp.entities.detectors import load_detector
from uedp.entities.detectors.patterns import Patterns
from uedp.errors import UserError

US = Patterns("US")


def found(text: str, detector: Patterns = US) -> list[tuple[str, str]]:
    return [(text[start:end], label) for start, end, label in detector.find(text)]


# --- tables -------------------------------------------------------------------------------------

FIND = [
    ("to jo.o'neil+x@mail.example.co.uk, please", "jo.o'neil+x@mail.example.co.uk", "EMAIL"),
    ("'bob@example.com'", "bob@example.com", "EMAIL"),
    ("mailto:bob@example.com?subject=x", "bob@example.com", "EMAIL"),
    ("a@example.com,b@example.com", "b@example.com", "EMAIL"),
    ("Bob(at)example.com wrote", "Bob(at)example.com", "EMAIL"),
    ("Grüße an josé@müller.de.", "josé@müller.de", "EMAIL"),
    ("_bob@example.com_", "_bob@example.com", "EMAIL"),
    ("see https://example.com/a_(b)?c=d#e.", "https://example.com/a_(b)?c=d#e", "URL"),
    ("at a0-www.com now", "a0-www.com", "URL"),
    ("(see http://localhost:8080/x)", "http://localhost:8080/x", "URL"),
    ("ftp://user@host.example.org/f", "ftp://user@host.example.org/f", "URL"),
    ("WWW.EXAMPLE.COM", "WWW.EXAMPLE.COM", "URL"),
    ("from Amazon.com's site", "Amazon.com", "URL"),
    ("at x.co.uk/?id=4111111111111111 now", "x.co.uk/?id=4111111111111111", "URL"),
    ("ends in example.com.", "example.com", "URL"),
    ("an example.com-based firm", "example.com", "URL"),
    ("ping 10.0.0.1:8080", "10.0.0.1", "IP"),
    ("ping 2001:db8::8a2e:370:7334.", "2001:db8::8a2e:370:7334", "IP"),
    ("address:fe80::1", "fe80::1", "IP"),
    ("::ffff:192.0.2.1 is mapped", "::ffff:192.0.2.1", "IP"),
    ("GB82 WEST 1234 5698 7654 32 is it", "GB82 WEST 1234 5698 7654 32", "IBAN"),
    ("BE71 0961 2345 6769 will be it", "BE71 0961 2345 6769", "IBAN"),
    ("de89370400440532013000", "de89370400440532013000", "IBAN"),
    ("AB12 GB82WEST12345698765432", "GB82WEST12345698765432", "IBAN"),
    ("card 4111 1111 1111 1111 12 times", "4111 1111 1111 1111", "CARD"),
    ("room 2004 4111-1111-1111-1111", "4111-1111-1111-1111", "CARD"),
    ("4111111111111111", "4111111111111111", "CARD"),
    ("3782 822463 10005", "3782 822463 10005", "CARD"),
    ("ssn 078-05-1120", "078-05-1120", "SSN"),
    ("ssn 078 05 1120", "078 05 1120", "SSN"),
    ("NI number QQ 12 34 56 C", "QQ 12 34 56 C", "SSN"),
    ("CPF 123.456.789-09", "123.456.789-09", "SSN"),
    ("CF RSSMRA85T10A562S", "RSSMRA85T10A562S", "SSN"),
    ("hetu 131052-308T", "131052-308T", "SSN"),
    ("call +1 (415) 555-0133", "+1 (415) 555-0133", "PHONE"),
    ("call +1 415 555 0133 12 times", "+1 415 555 0133", "PHONE"),
    ("call +44 (0)20 7946 0958.", "+44 (0)20 7946 0958", "PHONE"),
    ("call(415) 555-0133", "(415) 555-0133", "PHONE"),
    ("call 555-0133", "555-0133", "PHONE"),
    ("call 415.555.0133", "415.555.0133", "PHONE"),
    ("call 001-920-866-4851x948", "001-920-866-4851x948", "PHONE"),
    ("call 415-555-0133 ext. 12", "415-555-0133 ext. 12", "PHONE"),
    ("call 4155552671", "4155552671", "PHONE"),
    ("call 0431 35 06 90", "0431 35 06 90", "PHONE"),
    ("call 28-81-33-70", "28-81-33-70", "PHONE"),
    ("call (81) 3570-7492", "(81) 3570-7492", "PHONE"),
    ("call 92 34 70", "92 34 70", "PHONE"),
    ("call 030/1234567", "030/1234567", "PHONE"),
    ("USD 415-555-0133", "415-555-0133", "PHONE"),
    ("USD 30 415 555 0133", "415 555 0133", "PHONE"),
    ("May 20 555-0133", "555-0133", "PHONE"),
    ("555-0132,555-0133", "555-0133", "PHONE"),
    ("555-0132/555-0133", "555-0132", "PHONE"),
    ("电话4155552671号", "4155552671", "PHONE"),
    ("４１５-５５５-０１３３", "４１５-５５５-０１３３", "PHONE"),
    ("415‑555‑0133", "415‑555‑0133", "PHONE"),
    ("٤١٥-٥٥٥-٠١٣٣ اتصل", "٤١٥-٥٥٥-٠١٣٣", "PHONE"),
    ("file AC-20394857 is", "AC-20394857", "ACCOUNT"),
    ("file AC-13101234 is", "AC-13101234", "ACCOUNT"),
    ("ref ab/4155552671-9", "ab/4155552671-9", "ACCOUNT"),
    ("tel-4155552671", "4155552671", "PHONE"),
    ("licence A56319335", "A56319335", "ACCOUNT"),
    ("1HGCM82633A004352", "1HGCM82633A004352", "ACCOUNT"),
    ("number 20394857, or", "20394857", "ACCOUNT"),
    ("my account 20394", "account 20394", "ACCOUNT"),
    ("a/c no. 2039", "a/c no. 2039", "ACCOUNT"),
    ("Customer number is 77-31", "Customer number is 77-31", "ACCOUNT"),
    ("policy #7731A", "policy #7731A", "ACCOUNT"),
    ("on 2024-01-15", "2024-01-15", "DATE"),
    ("at 2024-01-15T10:20:30Z", "2024-01-15T10:20:30Z", "DATE"),
    ("on 12/31/2024.", "12/31/2024", "DATE"),
    ("on 31.12.2024.", "31.12.2024", "DATE"),
    ("on 1/2/24", "1/2/24", "DATE"),
    ("1/2/2024-3/4/2024", "3/4/2024", "DATE"),
    ("12/2024", "12/2024", "DATE"),
    ("the 12th of March 2024", "12th of March 2024", "DATE"),
    ("12 March 2024", "12 March 2024", "DATE"),
    ("1-3 March 2024", "3 March 2024", "DATE"),
    ("12-Mar-24", "12-Mar-24", "DATE"),
    ("Monday, March 12, 2024", "March 12, 2024", "DATE"),
    ("Monday, March 12, 2024", "Monday", "CALENDAR"),
    ("Mar 12", "Mar 12", "DATE"),
    ("Sept. 11 attacks", "Sept. 11", "DATE"),
    ("by Sept. 2004.", "Sept. 2004", "DATE"),
    ("in DECEMBER", "DECEMBER", "CALENDAR"),
    ("late May rains", "late May", "CALENDAR"),
    ("This May, we", "This May", "CALENDAR"),
    ("we met in may.", "in may", "CALENDAR"),
    ("since march or", "since march", "CALENDAR"),
    ("on may 3 we", "on may 3", "DATE"),
    ("may 3rd is", "may 3rd", "DATE"),
    ("may 2004", "may 2004", "DATE"),
    ("the 3rd of may", "3rd of may", "DATE"),
    ("12-may it is", "12-may", "DATE"),
    ("on mondays", "mondays", "CALENDAR"),
    ("in 1999", "1999", "YEAR"),
    ("the 1990s", "1990s", "YEAR"),
    ("from 2003-2004", "2003-2004", "YEAR"),
    ("from 2003-04", "2003-04", "DATE"),
    ("at 14:30", "14:30", "TIME"),
    ("at 14:30:15.5 sharp", "14:30:15.5", "TIME"),
    ("at 2:30 pm", "2:30 pm", "TIME"),
    ("at 2.30pm", "2.30pm", "TIME"),
    ("9am-5pm", "9am", "TIME"),
    ("9:30-10:30", "10:30", "TIME"),
    ("at 9 p.m.", "9 p.m.", "TIME"),
    ("at 10 o’clock", "10 o’clock", "TIME"),
    ("$1,200.50 each", "$1,200.50", "MONEY"),
    ("EUR 30", "EUR 30", "MONEY"),
    ("30 euros,", "30 euros", "MONEY"),
    ("£5m", "£5m", "MONEY"),
    ("US$5.5 million-a-year", "US$5.5 million", "MONEY"),
    ("$5-10 million", "$5-10 million", "MONEY"),
    ("Rs. 860 crore", "Rs. 860 crore", "MONEY"),
    ("30 €", "30 €", "MONEY"),
    ("a  #36;10 million prize", "#36;10 million", "MONEY"),
    ("up 12.5%", "12.5%", "PERCENT"),
    ("up 5-10%", "10%", "PERCENT"),
    ("up 12 per cent", "12 per cent", "PERCENT"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "surface", "label"), FIND)
def test_finds(text: str, surface: str, label: str) -> None:
    assert (surface, label) in found(text)


NOTHING = [
    "The quick brown fox, e.g. one of the U.S. kind, jumps.",
    "10,000,000 people and 10 000 000 more",
    "3.14159265 and 20394857.25",
    "They won 3-2 and 21-14, then 7-5, 6-4.",
    "ASP.NET, Node.js and readme.md",
    "std::vector, a::b and ::",
    "a Boeing 747-400 and an A320-200",
    "She may march in the sun, and the 12 may follow.",
    "May I?",
    "this may be, and we may 3 times; you march 12 miles, and THIS MAY TOO",
    "the 12 may go; one second after they sat in the sun, an august sight",
    "an august marching band in the mayor's Marble hall, Mondayish",
    "open 24/7, 1/2 of it",
    "@handle and @@ and a@b",
    "300 4.5",
    "version 1.2.3",
    "order 66 and case 7",
    "IPv4 999.1.1.1",
    "100 people, 5 m, 30 kg",
]


@pytest.mark.parametrize("text", NOTHING)
def test_finds_nothing(text: str) -> None:
    assert found(text) == []


NOT_THAT = [
    ("4111 1111 1111 1112", "CARD", "ACCOUNT"),  # Luhn
    ("4111111111111112", "CARD", "ACCOUNT"),
    ("GB82WEST12345698765433", "IBAN", "ACCOUNT"),  # mod 97
    ("XX82WEST12345698765432", "IBAN", "ACCOUNT"),  # no such country
    ("4111111111111111", "PHONE", "CARD"),
    ("DE89 3704 0044 0532 0130 00", "PHONE", "IBAN"),
    ("2024-01-15", "PHONE", "DATE"),
    ("31.12.2024", "PHONE", "DATE"),
    ("192.168.100.200", "PHONE", "IP"),
    ("415-555-0133", "ACCOUNT", "PHONE"),
    ("078-05-1120", "PHONE", "SSN"),
    ("bob@example.com", "URL", "EMAIL"),
    ("$20394857", "ACCOUNT", "MONEY"),
    ("2004", "ACCOUNT", "YEAR"),
    ("AC-13101234", "PHONE", "ACCOUNT"),
]


@pytest.mark.parametrize(("text", "wrong", "right"), NOT_THAT)
def test_the_more_specific_wins(text: str, wrong: str, right: str) -> None:
    labels = [label for _, label in found(f"so {text}, then")]
    assert right in labels
    assert wrong not in labels


def test_unicode_offsets_are_those_of_the_string() -> None:
    text = "🙂 naïve “İstanbul” — ¡14:30! 東京で　bob@example.com。"
    assert found(text) == [("14:30", "TIME"), ("bob@example.com", "EMAIL")]


def test_detects_per_sentence_in_order() -> None:
    texts = ["call 555-0133", "", "on Monday"]
    assert list(US.detect(texts)) == [[Span(5, 13, "PHONE")], [], [Span(3, 9, "CALENDAR")]]
    assert US.propagates is False


# --- region -------------------------------------------------------------------------------------


def test_region_says_which_digits_are_a_phone_number() -> None:
    british = load_detector("patterns:gb")
    assert isinstance(british, Patterns)
    assert found("ring 02079460958", british) == [("02079460958", "PHONE")]
    assert found("ring 02079460958") == [("02079460958", "ACCOUNT")]


def test_default_region_is_the_us() -> None:
    default = load_detector("patterns")
    assert isinstance(default, Patterns)
    assert found("4155552671", default) == [("4155552671", "PHONE")]


@pytest.mark.parametrize(("region", "remedy"), [("UK", "GB"), ("XX", "two-letter"), ("usa", "US")])
def test_unknown_region_names_the_remedy(region: str, remedy: str) -> None:
    with pytest.raises(UserError, match=f"patterns:{region}.*{remedy}"):
        load_detector(f"patterns:{region}")


# --- the same form is found everywhere ----------------------------------------------------------

# Letters that make no unit, no month and no hexadecimal.
_words = st.sampled_from(
    ["the", "we", "naïve", "Привет", "東京", "🙂", "Σ", "it's", "e.g.", "well-known", "Mr."]
) | st.text("ghjlqrstvwzGHJLQRSTVWZé", min_size=3, max_size=9)
_some_words = st.lists(_words, max_size=4).map(" ".join)
_opening = st.sampled_from(
    [" ", " (", ' "', " '", "\n", "—", ": ", ", ", " [", " <", " …", "\t", " “"]
)
_closing = st.sampled_from(
    [" ", ".", ",", ";", ":", "!", "?", ")", '"', "'", "\n", "—", "...", "…", "]", ">", "”", " - "]
)


def _fill(template: str) -> st.SearchStrategy[str]:
    """The template with a random digit for each `#`."""
    count = template.count("#")
    return st.text("0123456789", min_size=count, max_size=count).map(
        lambda digits: template.replace("#", "{}").format(*digits)
    )


def _iban(country: str, account: str) -> str:
    return country + str(iban.calc_check_digits(f"{country}00{account}")) + account


def _grouped(number: str) -> str:
    return " ".join(number[start : start + 4] for start in range(0, len(number), 4))


def _date_forms(day: date) -> st.SearchStrategy[str]:
    forms = (
        "%Y-%m-%d",
        "%m/%d/%Y",
        "%d.%m.%Y",
        "%d %B %Y",
        "%B %d, %Y",
        "%d-%b-%Y",
        "%b %d",
        "%B %Y",
    )
    return st.sampled_from([day.strftime(form) for form in forms])


_digits = st.text("0123456789", min_size=1, max_size=3)
_local = st.from_regex(r"[a-z][a-z0-9]{0,5}([.+_-][a-z0-9]{1,5}){0,2}", fullmatch=True)
_host = st.from_regex(r"[a-z][a-z0-9]{1,6}(-[a-z0-9]{1,4})?\.(com|org|de|co\.uk)", fullmatch=True)
_ibans = st.one_of(
    _fill("WEST##############").map(lambda account: _iban("GB", account)),
    _fill("##################").map(lambda account: _iban("DE", account)),
    _fill("###########").map(lambda account: _iban("NO", account)),
).filter(iban.is_valid)
_cards = _fill("4##############").map(lambda body: body + str(luhn.calc_check_digit(body)))
_addresses = st.ip_addresses(v=4).map(IPv4Address.exploded.fget) | st.ip_addresses(v=6).map(
    lambda address: IPv6Address(address).exploded
)
FORMS: dict[str, st.SearchStrategy[str]] = {
    "EMAIL": st.builds("{}@{}".format, _local, _host),
    "PHONE": st.sampled_from(
        ["+1 (###) ###-####", "###-###-####", "(###) ###-####", "###.###.####", "###-####",
         "0## ### ####"]
    ).flatmap(_fill),
    "IBAN": _ibans | _ibans.map(_grouped),
    "CARD": _cards | _cards.map(_grouped),
    "IP": _addresses,
    "URL": st.one_of(
        st.builds("https://{}/{}".format, _host, _local), st.builds("www.{}".format, _host), _host
    ),
    "SSN": _fill("###-##-####"),
    "ACCOUNT": _fill("AC-########") | _fill("AC-1310####"),  # in use in Canada without the letters
    "DATE": st.dates(date(1900, 1, 1), date(2099, 12, 31)).flatmap(_date_forms),
    "CALENDAR": st.sampled_from(["Monday", "FRIDAY", "january", "October", "in may"]),
    "YEAR": st.sampled_from(["1999", "2024", "1980s", "1999-2000"]),
    "TIME": st.times().map(lambda moment: moment.strftime("%H:%M")) | st.just("9 pm"),
    "MONEY": st.one_of(
        st.builds("${}.50".format, _digits),
        st.builds("EUR {}".format, _digits),
        st.builds("{} euros".format, _digits),
        st.builds("£{}m".format, _digits),
    ),
    "PERCENT": st.builds("{}%".format, _digits) | st.builds("{}.5 percent".format, _digits),
}  # fmt: skip


@pytest.mark.parametrize("label", FORMS)
@given(data=st.data())
def test_a_form_is_found_wherever_it_stands(label: str, data: st.DataObject) -> None:
    form = data.draw(FORMS[label])
    before = data.draw(_some_words) + data.draw(_opening)
    # Addresses may go on after a mark, as in a.com/b,c.
    space = " " if label in {"EMAIL", "URL", "IP"} else ""
    after = data.draw(_closing) + space + data.draw(_some_words)
    before, after = data.draw(
        st.sampled_from([(before, after), ("", after), (before, ""), ("", "")])
    )
    expected = [Span(len(before), len(before) + len(form), label)]
    assert US.find(before + form + after) == expected


@given(st.lists(st.one_of(*FORMS.values(), _words, st.text("019-./:+(), @$%'#aA", max_size=12))))
def test_spans_are_sorted_apart_and_known(pieces: list[str]) -> None:
    text = " ".join(pieces)
    last = 0
    for start, end, label in US.find(text):
        assert last <= start < end <= len(text)
        assert label in LABELS["patterns"]
        last = end


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    for start, end, _ in US.find(text):
        assert text[start:end].strip() == text[start:end]


def test_every_label_is_emitted_and_listed() -> None:
    assert set(FORMS) == set(LABELS["patterns"])


# --- no text is slow ----------------------------------------------------------------------------

REPEATED = [
    "1", "@", "1-1-1-", "a.a.a.", "a@", "a.com.", "::", "1:", "(", "+1 ", "$1", "GB82 ", "4111 ",
    "11 ", "415-555-", "1'", "1/1/", "a'", "May ", "1 May ", "account ", "id 1/", "http://a)",
    "[at]", "1a-", "0 ", "2004-", "USD 1-", "٣", "日1",
    "a-111111-", "A/1111111 ", "in may ", "may 3 ", "3 of may ", "1999-2000-", "1999-2000 ",
]  # fmt: skip


def test_long_repetition_is_read_in_linear_time() -> None:
    """A pattern that takes quadratic time needs seconds for a text of this length."""
    slow = {}
    for unit in REPEATED:
        # The ending opens the gates of patterns that would not read the repetition by itself.
        text = unit * (25_000 // len(unit)) + "a 5 dollars at x@y.com ::1"
        # a pause of the interpreter or the machine does not come three times
        if all((taken := _seconds_to_find(text)) > 0.5 for _ in range(3)):
            slow[unit] = taken
    assert slow == {}


def _seconds_to_find(text: str) -> float:
    began = time.process_time()
    US.find(text)
    return time.process_time() - began
