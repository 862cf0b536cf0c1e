"""The words of a certificate: who is protected, the guarantee in one sentence, and its caveats.

Verification compares them: certificates issued before a change of wording no longer verify.
"""

import decimal
import math
from collections.abc import Callable, Sequence
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
NOT_PROTECTED = (
    "that a user took part",
    "sentence counts",
    "which sentences carry detected entities",
    "which users and sentences share an anonymous entity",
    "edits that change detection or linking",
    "mentions missed or split over several ids (see `missed_mentions`)",
    "facts about an entity in sentences that do not name it",
    "evaluation data",
    "what the model had learned before this run",
    "what later runs on the same corpus add (`corpus_total` is the sum so far)",
    "coverage, where it is stated",
)
LATE_NOT_PROTECTED = (
    "an entity in text of an earlier epoch where it was found only later (see `growth`)"
)
PUBLIC_NOT_PROTECTED = "text that was declared public (see `setup.public`)"
FEDERATED = (
    "the texts stayed with clients: the guarantee does not hold against the server, which drew the "
    "users, added the noise and received the clipped updates of single users, nor against a "
    "client, which knew the orders for its own users; each client was trusted with the share of an "
    "entity within its own texts"
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
        f"an epsilon above {LARGE_EPSILON} says little: it bounds odds by a factor of "
        "e^epsilon": LARGE_EPSILON < epsilon < math.inf,
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
    cases = [
        f"in {row.words}: "
        + (NO_FINITE_EPSILON if row.epsilon is None else f"epsilon {rounded(row.epsilon)}")
        for row in table
    ]
    return f"If the detector missed the entity {'; '.join(cases)}." if cases else ""


def rounded(value: float, digits: int = 4, down: bool = False) -> str:
    """A number in so many digits; up by default, for an epsilon must not promise too much."""
    context = decimal.Context(digits, decimal.ROUND_FLOOR if down else decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):.{digits}g}"


def finite(value: float) -> float | None:
    return value if value < math.inf else None
