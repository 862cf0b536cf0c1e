"""Runs on a corpus that grows: what holds for whoever joined, or left, in which epoch (Theorem 8).

A run sees the corpus as it is in one epoch. Whoever joins later is in none of its rounds, and is
not charged for them. A model that was trained on has all runs that it went through charged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from uedp.accounting.decisions import StrictModel
from uedp.accounting.missed import MISSED_CASES, missed_words
from uedp.accounting.profile import PrivacyEvent, Profile, profile_from_record, profile_to_record
from uedp.accounting.proven import guarantee
from uedp.accounting.statement import finite, named_epsilon
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

UNKNOWN = 0
"""In place of an epoch: of a run on another corpus in the same folder. It is charged to all."""

Chain = Sequence[tuple[str, str]]
"""The digests of every epoch of a corpus: of its incidence, and of its texts under its key."""


def epoch_of(chain: Chain, incidence: str, texts: str) -> int:
    """The epoch of a corpus that a run saw, by its digests."""
    pair = (incidence, texts)
    return [*chain].index(pair) + 1 if pair in [*chain] else UNKNOWN


def charged(epoch: int, joined: int = 1, left: int | None = None) -> bool:
    """Whether a run of an epoch is charged to one who joined, and perhaps left, in others.

    Who left in an epoch is in no round of it. A run of an unknown epoch is charged to everybody.
    """
    return epoch == UNKNOWN or (joined <= epoch and (left is None or epoch < left))


@dataclass(frozen=True)
class PastRun:
    """A finished run on the same corpus that a model went through; `texts` under its key."""

    run: str
    profile: Profile
    rounds: int
    incidence: str
    texts: str
    vocabulary: VocabularyRelease | None = None
    sentences_per_user: int | None = None

    @property
    def events(self) -> list[tuple[PrivacyEvent, int]]:
        events = ((self.profile.in_some_sentences(), self.rounds), (self.vocabulary, 1))
        return [(event, count) for event, count in events if event is not None]

    @property
    def events_user_alone(self) -> list[tuple[PrivacyEvent, int]]:
        events: list[tuple[PrivacyEvent, int]] = [(self.profile.user_alone(), self.rounds)]
        if self.vocabulary is not None:
            events.append((self.vocabulary.user_alone(), 1))
        return events

    def events_missed(
        self, users: int, sentences: int | None
    ) -> list[tuple[PrivacyEvent, int]] | None:
        """The same for an entity that was missed; None where nothing is promised about it."""
        missed = self.profile.missed(users, sentences, self.sentences_per_user)
        if missed is None:
            return None
        events: list[tuple[PrivacyEvent, int]] = [(missed, self.rounds)]
        if self.vocabulary is not None:
            events.append((self.vocabulary.missed(users, sentences), 1))
        return events

    def record(self) -> dict[str, Any]:
        words = {} if self.vocabulary is None else {"vocabulary": asdict(self.vocabulary)}
        return {
            "run": self.run,
            "profile": profile_to_record(self.profile),
            "rounds": self.rounds,
            "incidence": self.incidence,
            "texts": self.texts,
            "sentences_per_user": self.sentences_per_user,
            **words,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "PastRun":
        """Raises KeyError, TypeError or ValueError for a record of any other kind."""
        bound, words = record["sentences_per_user"], record.get("vocabulary")
        if type(record["rounds"]) is not int or record["rounds"] < 0:
            raise TypeError("a number of rounds")
        if bound is not None and (type(bound) is not int or bound < 1):
            raise TypeError("a number of sentences")
        if not all(isinstance(record[name], str) for name in ("run", "incidence", "texts")):
            raise TypeError("the name of a run, or a digest")
        return cls(
            run=record["run"],
            profile=profile_from_record(record["profile"]),
            rounds=record["rounds"],
            incidence=record["incidence"],
            texts=record["texts"],
            vocabulary=None if words is None else VocabularyRelease(**words),
            sentences_per_user=bound,
        )


class ModelRun(StrictModel):
    """A run that the model went through, this one included. Epoch 0: of another detection."""

    run: str
    epoch: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=0)]


class JoinedEpoch(StrictModel):
    """Epsilons for those who joined in an epoch, or later; null: not finite.

    `epsilon`: a user who joined and an entity first found then. `epsilon_user_alone`: such a user,
    without an entity. `epsilon_left`: a user alone who was there from the first epoch, and left
    when this one began; null in the first epoch as well.
    """

    epoch: Annotated[int, Field(ge=1)]
    epsilon: float | None
    epsilon_user_alone: float | None
    epsilon_left: float | None = None


class LateMention(StrictModel):
    """Epsilon for an entity that was found, in text of an earlier epoch, only in this one.

    It was found late in the sentences that `words` says, and at once in all others. Found late, but
    in an epoch before this one, it pays less: this one is the last.
    """

    epoch: Annotated[int, Field(ge=2)]
    users: int
    sentences_per_user: int | None
    epsilon: float | None
    words: str


class Growth(StrictModel):
    """The guarantee of a model by epochs. Its own epsilon is the worst case, that of epoch 1."""

    epoch: Annotated[int, Field(ge=1)]  # that the rounds of this run saw
    runs: tuple[ModelRun, ...]
    by_joining_epoch: tuple[JoinedEpoch, ...]
    late_mentions: tuple[LateMention, ...]


def growth_of(chain: Chain, runs: Sequence[PastRun], delta: float) -> Growth:
    """The guarantee by epochs of a model that went through these runs, the last on `chain[-1]`.

    Guarantees:
      - a run is charged to those who joined in its epoch or before, and to all if that is unknown
      - an entity found late pays for the rounds before as for a missed mention, and for the others
        as for any entity
    """
    placed = [(epoch_of(chain, one.incidence, one.texts), one) for one in runs]
    epochs = range(1, len(chain) + 1)
    return Growth(
        epoch=len(chain),
        runs=tuple(ModelRun(run=o.run, epoch=e, rounds=o.rounds) for e, o in placed),
        by_joining_epoch=tuple(
            JoinedEpoch(
                epoch=joined,
                epsilon=_epsilon([o.events for e, o in placed if charged(e, joined)], delta),
                epsilon_user_alone=_epsilon(
                    [o.events_user_alone for e, o in placed if charged(e, joined)], delta
                ),
                epsilon_left=None
                if joined == 1
                else _epsilon(
                    [o.events_user_alone for e, o in placed if charged(e, 1, joined)], delta
                ),
            )
            for joined in epochs
        ),
        late_mentions=tuple(_late(placed, len(chain), delta)),
    )


def _late(placed: Sequence[tuple[int, PastRun]], found: int, delta: float) -> Iterator[LateMention]:
    if found == 1 or any(one.profile.missed(1, 1) is None for _, one in placed):
        return  # there is no older text, or nothing is promised
    for users, sentences in MISSED_CASES:
        events = [
            # of an unknown epoch: it may have been missed there
            one.events_missed(users if epoch < found else 0, sentences) or []
            for epoch, one in placed
        ]
        yield LateMention(
            epoch=found,
            users=users,
            sentences_per_user=sentences,
            epsilon=_epsilon(events, delta),
            words=missed_words(users, sentences),
        )


def _epsilon(events: Sequence[Sequence[tuple[PrivacyEvent, int]]], delta: float) -> float | None:
    try:
        return finite(guarantee([one for each in events for one in each]).epsilon(delta))
    except UserError:  # more rounds together than this delta can be computed for
        return None


def growth_lines(growth: Growth | None) -> tuple[str, ...]:
    """Lines to follow a statement: the worst case was stated, now by epochs."""
    if growth is None:
        return ()
    runs = len(growth.runs)
    lines = []
    if runs > 1:
        lines.append(
            f"This counts all {runs} runs on this corpus that the model went through, for those "
            "who were there from the first of them on. It is assumed that nobody chose the rounds, "
            "rates and noise of a run by what an earlier model shows, or by counts of what was "
            "written because of it."
        )
    if len(growth.by_joining_epoch) > 1:
        since = [
            f"{row.epoch}: {named_epsilon(row.epsilon)} "
            f"(a user alone {named_epsilon(row.epsilon_user_alone)})"
            for row in growth.by_joining_epoch
        ]
        lines.append(
            "By epoch, for a user who joined and an entity that was first found in it or later: "
            f"{'; '.join(since)}. An entity is covered in the sentences where it was found when "
            "they joined."
        )
        left = [f"{r.epoch}: {named_epsilon(r.epsilon_left)}" for r in growth.by_joining_epoch[1:]]
        lines.append(
            "For a user alone who was there from the start, by the epoch in which the user left: "
            f"{'; '.join(left)}. What the model learned before stays in it, within this bound."
        )
        lines.append(_late_line(growth))
    return tuple(lines)


def _late_line(growth: Growth) -> str:
    if not growth.late_mentions:
        return "Nothing is claimed for an entity in older sentences where it was found late."
    cases = "; ".join(
        f"in {row.words}: {named_epsilon(row.epsilon)}" for row in growth.late_mentions
    )
    return f"If an entity was found in older text only later, up to epoch {growth.epoch}, {cases}."
