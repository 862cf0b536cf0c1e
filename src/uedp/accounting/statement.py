"""The words of a certificate: who is protected, the guarantee in one sentence, and its caveats.

Verification compares them: certificates issued before a change of wording no longer verify.
"""

import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from uedp.accounting.decisions import (
    CORPUS_VOCABULARY,
    FOREIGN_VOCABULARY,
    Setup,
    StrictModel,
    Users,
)
from uedp.accounting.missed import MISSED_CASES, missed_epsilon, missed_words
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.vocabulary import VocabularyRelease

ADJACENCY = (
    "Compared with the same corpus with these texts emptied (replacing a text costs two steps)."
)
EXACT_ARITHMETIC = (
    "In exact arithmetic; rounding makes the epsilon of fair shares larger, and a run counts it "
    "(docs/privacy.md, section 8)."
)
COVERAGE_NOT_PROTECTED = "coverage, where it is stated"
_NOT_PROTECTED = {
    "that a user took part": "That a person's texts were in the collection at all. What they say "
    "is protected, not that they are there.",
    "sentence counts": "How many sentences each person wrote.",
    "which sentences carry detected entities": "Which sentences contain a sensitive entity. Which "
    "entity it is, is protected.",
    "which users and sentences share an anonymous entity": "Which people and sentences mention the "
    "same entity, its name aside. This pattern of who shares what is taken as known to everybody.",
    "edits that change detection or linking": "Changes of a text that would make the detectors "
    "find other entities.",
    "mentions missed or split over several ids (see `missed_mentions`)": "Mentions of an entity "
    "that the detectors missed, or took for another one: they have a weaker guarantee.",
    "facts about an entity in sentences that do not name it": "Facts about a person or a thing in "
    "sentences that do not name it, if somebody else wrote them.",
    "evaluation data": "The texts on which the quality of the model was measured.",
    "what the model had learned before this run": "What the model had learned before, when "
    "others trained it.",
    "what later runs on the same corpus add (`corpus_total` is the sum so far)": "What later "
    "training on the same collection gives away in addition.",
    COVERAGE_NOT_PROTECTED: "The figures on how much the detectors find, where they are stated.",
}
NOT_PROTECTED = tuple(_NOT_PROTECTED)
LATE_NOT_PROTECTED = (
    "an entity in text of an earlier epoch where it was found only later (see `growth`)"
)
PUBLIC_NOT_PROTECTED = "text that was declared public (see `setup.public`)"
# the same for readers who have not seen a certificate
PLAIN_WORDS: Mapping[str, str] = _NOT_PROTECTED | {
    PUBLIC_NOT_PROTECTED: "Text that was declared public, and that the model learned from first."
}
FEDERATED = (
    "the texts stayed with clients: the guarantee does not hold against the server, which drew the "
    "users, added the noise and received the clipped updates of single users, nor against a "
    "client, which knew the orders for its own users; each client was trusted with the share of an "
    "entity within its own texts, and whether an update arrived was taken to depend neither on "
    "texts nor on who else was drawn"
)
LARGE_EPSILON = 20  # a larger one says little
NO_FINITE_EPSILON = "no finite epsilon"


class MissedMention(StrictModel):
    """Epsilon for an entity that was missed in some sentences, which are emptied with the rest.

    `sentences_per_user` of null: all sentences of each of these users.
    """

    users: int
    sentences_per_user: int | None
    epsilon: float | None
    words: str


def unit(profile: Profile, users: Users = "as given") -> str:
    """The protected unit in words."""
    return profile.unit_of_groups if users == "assigned at random" else profile.unit


def statement(
    profile: Profile, epsilon: float, delta: float, private: bool, setup: Setup | None = None
) -> str:
    """The guarantee in one sentence; with a setup, lines with the entities and caveats follow."""
    lines = ["This run has no privacy guarantee."]
    if private:
        protected = unit(profile, "as given" if setup is None else setup.users)
        guarantee = f"({rounded(epsilon)}, {delta:g})-differentially private"
        lines = [f"The model is {guarantee} for {protected}."]
    if setup is not None:
        if private and profile.protects_entities and setup.entities is not None:
            lines.append(f"Entities: {setup.entities.describe()}.")
        lines += [f"Caveat: {text}." for text in caveats(profile, setup, epsilon)]
    return "\n".join(lines)


def caveats(profile: Profile, setup: Setup, epsilon: float) -> tuple[str, ...]:
    """The limits of the guarantee, one sentence each."""
    cases = {
        FEDERATED: setup.holders == "clients",
        "the noise came from a fixed seed: whoever knows it can remove the noise": (
            setup.noise_source == "fixed seed"
        ),
        "the vocabulary or the tokenizer was made from this corpus, outside of what is charged "
        "here: which words are in it is not covered": setup.vocabulary == CORPUS_VOCABULARY,
        "the vocabulary or the tokenizer was made from another corpus: what it tells of that is "
        "not covered, also if the texts are in part the same": (
            setup.vocabulary == FOREIGN_VOCABULARY
        ),
        f"with this noise and so many rounds there is {NO_FINITE_EPSILON}": epsilon == math.inf,
        f"an epsilon above {LARGE_EPSILON} says little: it lets odds grow by a factor of "
        "2 e^epsilon, and with a probability of 2 delta by more": LARGE_EPSILON
        < epsilon
        < math.inf,
        "who wrote what is not known: users are groups of texts put together at random, and "
        "people are not protected beyond the texts in one group": (
            setup.users == "assigned at random"
        ),
        "which entities were looked for, and by which detectors, is not stated": (
            setup.entities is None and profile.protects_entities
        ),
        "recall and precision of the entities were measured on marks in this corpus, without "
        "noise, and are not covered": (
            setup.entities is not None and setup.entities.coverage is not None
        ),
        "which labels there are was taken from the corpus and is not covered": (
            setup.labels == "from the corpus, not covered"
        ),
        "the model went through other runs before, on other corpora: what it learned there is "
        "not covered, also if their texts are in part the same": (
            setup.earlier_runs == "on other corpora"
        ),
        "settings were chosen by counts of this corpus (users, sentences, usable sentences, "
        f"lengths), which are not covered: {setup.chosen_by_planner}": bool(
            setup.chosen_by_planner
        ),
        "who chose the clip bounds and rates, and on which data, is not stated": (
            not setup.chooser_stated
        ),
    }
    public = () if setup.public is None else (setup.public.describe(),)
    return (*public, *(text for text, holds in cases.items() if holds))


def not_protected(setup: Setup, grown: bool = False) -> tuple[str, ...]:
    """What the guarantee of any run leaves out, and what this one does beside that."""
    more = ((PUBLIC_NOT_PROTECTED, setup.public is not None), (LATE_NOT_PROTECTED, grown))
    return (*NOT_PROTECTED, *(text for text, holds in more if holds))


MissedBeside = Callable[[int, int | None], tuple[tuple[PrivacyEvent, int], ...]]


def missed_table(
    profile: Profile | None,
    rounds: int,
    delta: float,
    setup: Setup,
    vocabulary: VocabularyRelease | None,
    beside: MissedBeside = lambda users, sentences: (),
) -> tuple[MissedMention, ...]:
    """Epsilon by `MISSED_CASES`; empty where the method makes no promise about them.

    `beside` gives what else is charged to an entity that was missed.
    """
    if profile is None or profile.missed(1, 1) is None:
        return ()
    per_user = setup.sentences_per_user
    return tuple(
        MissedMention(
            users=users,
            sentences_per_user=sentences,
            epsilon=finite(
                missed_epsilon(
                    profile,
                    rounds,
                    delta,
                    users,
                    sentences,
                    per_user,
                    vocabulary,
                    beside(users, sentences),
                )
            ),
            words=missed_words(users, sentences),
        )
        for users, sentences in MISSED_CASES
    )


class MissedRow(Protocol):
    """Epsilon for an entity that was missed where `words` says."""

    @property
    def words(self) -> str: ...

    @property
    def epsilon(self) -> float | None: ...


def missed_line(table: Sequence[MissedRow]) -> str:
    """The line below a statement: the epsilon where the detector missed the entity."""
    cases = [f"in {row.words}: {named_epsilon(row.epsilon)}" for row in table]
    return f"If the detector missed the entity {'; '.join(cases)}." if cases else ""


def rounded(value: float, digits: int = 4, down: bool = False) -> str:
    """A number in so many digits; up by default, for an epsilon must not promise too much."""
    context = decimal.Context(digits, decimal.ROUND_FLOOR if down else decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):.{digits}g}"


def epsilon_text(value: float | None, digits: int = 4, down: bool = False) -> str:
    """An epsilon in so many digits; up by default, so that it is never understated."""
    if value is None or value == math.inf:
        return NO_FINITE_EPSILON
    return rounded(value, digits, down)


def named_epsilon(value: float | None) -> str:
    """The same in a sentence: `epsilon 7.99`."""
    text = epsilon_text(value)
    return text if text == NO_FINITE_EPSILON else f"epsilon {text}"


def finite(value: float) -> float | None:
    return value if value < math.inf else None
