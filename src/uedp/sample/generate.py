"""The bundled sample corpus: work messages of invented people, every entity in them marked.

A seeded generator, so that tests can have any amount of it. People work for a few organisations,
know some colleagues well and a few outsiders that hardly anyone else knows, and write about four
topics. Entities recur as in real mail: one client and one city nearly everywhere, most phone
numbers and names with one or two people.
"""

import datetime
import functools
import gzip
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.files import require_new_file, scratch_dir
from uedp.sample.words import FIRST_NAMES, LAST_NAMES, NAMES, RULES, TOPICS

T = TypeVar("T")

# The attributes of one entity, its name first; `LABELS` has the label of each.
Card = Mapping[str, str]
LABELS: Mapping[str, str] = {
    "person": "PERSON",
    "first": "PERSON",
    "org": "ORG",
    "city": "GPE",
    "date": "DATE",
    "phone": "PHONE",
    "email": "EMAIL",
    "account": "ACCOUNT",
}

MESSAGES = (8, 20)  # per person
WORDS = (6, 40)  # per message
PLAIN_SHARE = 0.32  # of messages without entities

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
PHONE_FORMATS = ("({0}) {1}-{2}", "{0}-{1}-{2}", "+1 {0} {1} {2}", "{0}.{1}.{2}")
DATE_FORMATS = (
    "{day.day} {month}",
    "{month} {day.day}",
    "{day.day} {month} {day.year}",
    "{day}",
    "{day.month}/{day.day}/{day.year}",
)


class Manner(NamedTuple):
    """Probabilities that a writer greets, leads in, adds a sentence, closes, and signs."""

    greet: float
    lead: float
    after: float
    close: float
    sign: float


MANNERS: Mapping[str, Manner] = {
    "curt": Manner(0.05, 0.0, 0.15, 0.15, 0.05),
    "plain": Manner(0.3, 0.25, 0.35, 0.2, 0.15),
    "polite": Manner(0.7, 0.5, 0.4, 0.6, 0.5),
    "chatty": Manner(0.4, 0.6, 0.7, 0.45, 0.2),
}
# Rules of which each person prefers one alternative; all others are drawn afresh.
HABITS = ("hello_all", "hello_one", "bye", "sign", *(f"close_{manner}" for manner in MANNERS))


@dataclass(frozen=True, slots=True)
class Writer:
    """A user: the entities they know (closest first), and their style."""

    user: str
    known: Mapping[str, Sequence[Card]]
    manner: str
    habits: Mapping[str, str]
    phone_format: str
    date_format: str
    topics: Sequence[float]


def sample_sentences(seed: int = 0, people: int = 300) -> Iterator[Sentence]:
    """The sample corpus, person by person.

    Guarantees:
      - the same seed and number of people give the same sentences
      - a sentence's label is one of `TOPICS`, and its text has 6 to 40 words
      - marks are in order, disjoint, exact and complete: no name, place, date, phone number,
        address or account number is outside them
    """
    if people < 1:
        raise UserError(f"people is {people}; the sample corpus needs at least 1")
    rng = random.Random(seed)
    for writer in _world(rng, people):
        for _ in range(rng.randint(*MESSAGES)):
            (topic,) = rng.choices(TOPICS, writer.topics)
            text, marks = _message(rng, writer, topic)
            yield Sentence(writer.user, text, topic, marks)


def write_sample(path: Path, seed: int = 0, people: int = 300) -> int:
    """Write the sample corpus as JSON lines, compressed if the name ends in `.gz`.

    Returns:
        the number of messages

    Guarantees:
      - the same seed and number of people give the same bytes
      - `path` appears complete or not at all
    """
    _require_people(people, 2)
    require_new_file(path)
    return write_sentences(list(sample_sentences(seed, people)), path)


def write_sample_split(
    path: Path, held_out: Path, seed: int = 0, people: int = 300
) -> tuple[int, int]:
    """`write_sample` in two files, every fifth person in the second."""
    _require_people(people, 5)
    for each in (path, held_out):
        require_new_file(each)
    if held_out == path:
        raise UserError(f"{path}: named twice; choose another file for the held-out people")
    parts: tuple[list[Sentence], list[Sentence]] = [], []
    for sentence in sample_sentences(seed, people):
        parts[int(sentence.user[1:]) % 5 == 4].append(sentence)
    return write_sentences(parts[0], path), write_sentences(parts[1], held_out)


def _require_people(people: int, least: int) -> None:
    if people < least:
        raise UserError(f"`people={people}`: at least {least} are needed")


def write_sentences(sentences: Sequence[Sentence], path: Path) -> int:
    """Write JSON lines that corpora are read from, compressed if the name ends in `.gz`."""
    rows = (asdict(s) | {"marks": [mark._asdict() for mark in s.marks]} for s in sentences)
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    # gzip writes the time into its header by default.
    data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    with scratch_dir(path) as folder:
        (folder / "draft").write_bytes(data)
        (folder / "draft").replace(path)
    return len(sentences)


def _zipf(rng: random.Random, items: Sequence[T], exponent: float = 1.0) -> T:
    """One of the items, the i-th with weight i^-exponent."""
    return rng.choices(items, cum_weights=_cumulative(len(items), exponent))[0]


@functools.cache
def _cumulative(count: int, exponent: float) -> list[float]:
    return list(itertools.accumulate((i + 1) ** -exponent for i in range(count)))


def _several(rng: random.Random, items: Sequence[T], count: int, exponent: float) -> list[T]:
    """Up to `count` different items, the early ones more likely."""
    drawn = [_zipf(rng, items, exponent) for _ in range(3 * count)] if items else []
    return [item for i, item in enumerate(drawn) if item not in drawn[:i]][:count]


def _shuffled(rng: random.Random, items: Sequence[T]) -> list[T]:
    return rng.sample(items, len(items))


# --- people and organisations ---------------------------------------------------------------


class _Registry:
    """Assigns names and numbers: unique up to thousands of people."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        names = list(itertools.product(FIRST_NAMES, LAST_NAMES))
        phones = [f"{area}55501{line:02d}" for area in NAMES["area_codes"] for line in range(100)]
        self.names = itertools.cycle(_shuffled(rng, names))
        self.phones = itertools.cycle(_shuffled(rng, phones))

    def organisation(self, name: str) -> Card:
        return {
            "org": name,
            "account": self._account(),
            "phone": next(self.phones),
            "email": f"office@{_domain(name)}",
        }

    def person(self, employer: Card, city: Card, domain: str) -> Card:
        first, last = next(self.names)
        return {
            "person": f"{first} {last}",
            "first": first,
            "org": employer["org"],
            "city": city["city"],
            "phone": next(self.phones),
            "email": f"{first}.{last}@{domain}".lower(),
            "account": self._account(),
        }

    def _account(self) -> str:
        return f"AC-{self.rng.randrange(10**7, 10**8)}"


def _world(rng: random.Random, people: int) -> Iterator[Writer]:
    """The writers, each with the entities they know."""
    registry = _Registry(rng)
    cities: list[Card] = [{"city": name} for name in _shuffled(rng, NAMES["cities"])]
    employers = [registry.organisation(name) for name in _shuffled(rng, NAMES["employers"])]
    trades = _shuffled(rng, list(itertools.product(NAMES["client_stems"], NAMES["client_trades"])))
    clients = [registry.organisation(" ".join(pair)) for pair in trades[: 20 + people // 2]]
    pools = {"CARRIER": "carriers", "HOTEL": "hotels", "VENDOR": "vendors", "AGENCY": "agencies"}
    common = {
        kind: [registry.organisation(name) for name in NAMES[pool]] for kind, pool in pools.items()
    }

    staff: dict[str, list[Card]] = {employer["org"]: [] for employer in employers}
    everyone: list[Card] = []
    for _ in range(people):
        employer = _zipf(rng, employers)
        me = registry.person(employer, _zipf(rng, cities, 1.2), _domain(employer["org"]))
        everyone.append(me)
        staff[me["org"]].append(me)

    outsiders: list[Card] = []
    for number, me in enumerate(everyone):
        # Staff are in order of seniority: managers are known to all, most others to few.
        near = [card for card in staff[me["org"]] if card is not me]
        colleagues = _several(rng, near, 2 + min(int(rng.paretovariate(1.3)), 12), 0.8)
        colleagues += [card for card in _several(rng, everyone, 1, 0.0) if card is not me]
        own = []
        for _ in range(rng.randint(3, 6)):
            client = _zipf(rng, clients, 0.4)
            private = rng.random() < 0.3
            domain = rng.choice(NAMES["mailboxes"]) if private else _domain(client["org"])
            own.append(registry.person(client, rng.choice(cities), domain))
        shared = _several(rng, outsiders[-40:], rng.choice((0, 0, 1, 1, 2)), 0.0)
        outsiders += own
        yield Writer(
            user=f"u{number:03d}",
            known={
                "ME": [me],
                "HOME": [{"city": me["city"]}],
                "EMPLOYER": [card for card in employers if card["org"] == me["org"]],
                "COLLEAGUE": colleagues or own,
                "CONTACT": own + shared,
                "TO": colleagues + own,
                "CLIENT": [clients[0], *_several(rng, clients[1:], rng.randint(2, 4), 0.7)],
                "CITY": [cities[0], *_several(rng, cities[1:], 5, 0.8)],
                **common,
            },
            manner=rng.choices(tuple(MANNERS), (3, 4, 3, 2))[0],
            habits={rule: _zipf(rng, RULES[rule], 0.5) for rule in HABITS},
            phone_format=_zipf(rng, PHONE_FORMATS),
            date_format=_zipf(rng, DATE_FORMATS, 0.7),
            topics=[3.0 if i == number % len(TOPICS) else 1.0 for i in range(len(TOPICS))],
        )


def _domain(organisation: str) -> str:
    return organisation.replace(" ", "").lower() + ".example"


# --- messages -------------------------------------------------------------------------------

_CHOICE = re.compile(r"\((?!n\))([^()\[\]]*)\)|\[([^()\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
# Entities are delimited by control characters until spacing, articles and capitals are final; then
# offsets are taken.
_MARK = re.compile("\x02([A-Z]+)\x1f([^\x03]*)\x03")
_ARTICLE = re.compile("a\\(n\\)(?= (?:\x02[A-Z]+\x1f)?(\\w))")
_START = re.compile("(?:^|(?<=[.?!] ))(?:\x02[A-Z]+\x1f)?[a-z]")


def _message(rng: random.Random, writer: Writer, topic: str) -> tuple[str, tuple[Span, ...]]:
    while True:
        text, marks = _finish(_Draft(rng, writer).write(topic))
        if WORDS[0] <= len(text.split()) <= WORDS[1]:
            return text, marks


class _Draft:
    """A message being written: the entities mentioned so far, and the phrases used."""

    def __init__(self, rng: random.Random, writer: Writer) -> None:
        self.rng = rng
        self.writer = writer
        self.bound: dict[str, Card] = {}
        self.used: set[str] = set()
        self.today = datetime.date(2025, 1, 1) + datetime.timedelta(days=rng.randrange(365))

    def write(self, topic: str) -> str:
        """A message on the topic: a core sentence, and the additions of the writer's manner."""
        rng, manner = self.rng, MANNERS[self.writer.manner]
        named = rng.random() >= PLAIN_SHARE
        curt = self.writer.manner == "curt" and rng.random() < 0.5
        core = self.choose(f"{topic}_{'named' if named else 'curt' if curt else 'plain'}")
        mood, core = (core[0], core[2:]) if core[0] in "?!" else (".", core)

        parts = []
        if rng.random() < manner.greet:
            parts.append("{hello_one}" if named and rng.random() < 0.6 else "{hello_all}")
        if rng.random() < manner.lead:
            # No hearsay about oneself.
            say = "{lead_tell}" if re.search(r"\b(I|my)\b", core) else "{lead_say}"
            parts.append({"?": "{lead_ask}", "!": "{lead_do}"}.get(mood, say))
        parts.append(core)
        if rng.random() < manner.after:
            personal = named and rng.random() < 0.35
            parts.append("{after_named}" if personal else f"{{{topic}_after}}")
        if rng.random() < manner.close:
            parts.append(f"{{close_{self.writer.manner}}}")
        if named and rng.random() < manner.sign:
            parts.append("{sign}")
        return self.expand(" ".join(parts))

    def expand(self, text: str) -> str:
        """The text with choices made and slots filled, entities delimited."""
        while _CHOICE.search(text):
            text = _CHOICE.sub(self._decide, text)
        return _SLOT.sub(self._fill, text)

    def choose(self, rule: str) -> str:
        """An alternative of a rule, if possible one not yet used in this message."""
        habit = self.writer.habits.get(rule)
        if habit is not None and self.rng.random() < 0.7:
            return habit
        fresh = [choice for choice in RULES[rule] if choice not in self.used] or RULES[rule]
        choice = _zipf(self.rng, fresh, 0.4)
        self.used.add(choice)
        return choice

    def _decide(self, match: re.Match[str]) -> str:
        options: str | None = match[1]
        optional: str = match[2]
        return self.rng.choice(options.split("|") if options is not None else ("", optional))

    def _fill(self, match: re.Match[str]) -> str:
        name, field = match.groups()
        if name.islower():
            text = self.expand(self.choose(name))
            return _plural(text) if field == "s" else text
        card = self._date(name) or self._card(name)
        field = field or next(iter(card))
        surface = card[field]
        if field == "phone":
            surface = self.writer.phone_format.format(surface[:3], surface[3:6], surface[6:])
        return f"\x02{LABELS[field]}\x1f{surface}\x03"

    def _card(self, name: str) -> Card:
        """The entity of a slot: the same throughout a message, and different for each slot."""
        if name not in self.bound:
            known = self.writer.known[name.rstrip("23")]
            taken = {value for card in self.bound.values() for value in card.values()}
            free = [card for card in known if next(iter(card.values())) not in taken]
            self.bound[name] = _zipf(self.rng, free or known, 1.2)
        return self.bound[name]

    def _date(self, name: str) -> Card | None:
        """A day or period around the day of writing; None if the slot is not a date."""
        weekday = self.rng.choice(WEEKDAYS)
        away = datetime.timedelta(days=self.rng.randint(3, 60))
        days: Mapping[str, Sequence[str]] = {
            "PAST": ("yesterday", "last week", f"last {weekday}", "last month"),
            "NEXT": ("tomorrow", "next week", f"next {weekday}", "today", "next month"),
            "TERM": ("tomorrow", "next week", "the end of the week", f"next {weekday}"),
            "WEEKDAY": (weekday,),
            "MONTH": (MONTHS[(self.today - away).month - 1],),
            "BEFORE": (self._written(self.today - away),),
            "AFTER": (self._written(self.today + away),),
        }
        return {"date": _zipf(self.rng, days[name], 0.5)} if name in days else None

    def _written(self, day: datetime.date) -> str:
        return self.writer.date_format.format(day=day, month=MONTHS[day.month - 1])


def _plural(phrase: str) -> str:
    if phrase.endswith("y") and phrase[-2] not in "aeiou":
        return phrase[:-1] + "ies"
    return phrase + ("es" if phrase.endswith(("s", "x", "ch", "sh")) else "s")


def _finish(draft: str) -> tuple[str, tuple[Span, ...]]:
    """Correct spaces, articles and capitals; then remove the delimiters and take the offsets."""
    draft = re.sub(" +", " ", draft).strip()
    draft = _ARTICLE.sub(lambda m: "an" if m[1].lower() in "aeiou" else "a", draft)
    draft = _START.sub(lambda m: m[0][:-1] + m[0][-1].upper(), draft)
    text, marks, end = "", [], 0
    for match in _MARK.finditer(draft):
        text += draft[end : match.start()]
        marks.append(Span(len(text), len(text) + len(match[2]), match[1]))
        text += match[2]
        end = match.end()
    return text + draft[end:], tuple(marks)
