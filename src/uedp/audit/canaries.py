"""Canaries: texts planted in a corpus to measure what a run reveals.

A canary *user* has a few sentences of its own; a canary *entity* is a made-up name in sentences of
several users. Each is in or out by a fair coin of its own, and out means what adjacency means
(`docs/privacy.md`, section 4): its texts are emptied, their places in the incidence stay.
"""

import json
import math
import string
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from uedp.incidence import Incidence, Ints
from uedp.methods import method_named
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData

CanaryKind = Literal["user", "entity"]
CANARY_KINDS: tuple[CanaryKind, ...] = ("user", "entity")

FEWEST = 20  # canaries of a kind: fewer prove nothing

_MANY_WORDS = 1000
_WORDS, _LETTERS = 12, 7  # words of a canary, and letters of a made-up word
_COPIES = 4
_LEAST_SHOWN = 16  # of a fifth that is shown: cuts from fewer are often bad ones


@dataclass(frozen=True)
class Canary:
    """A text that is in the corpus or out of it by a coin.

    The attacker sees the coins of those `shown` and tunes its guesses on them; only the others are
    guessed and counted.
    """

    kind: CanaryKind
    text: str
    label: str | None
    inside: bool
    shown: bool


@dataclass(frozen=True)
class Canaries:
    """Canaries, and how they sit in the corpus.

    A user canary has its text in `copies` sentences without detected entities: as many as fill its
    update where sentences are clipped, as many as others have where nothing is. An entity canary
    has its text in `mentions` sentences (one where they share a clip) of each of `holders` users,
    who carry nothing but entity canaries.
    """

    canaries: tuple[Canary, ...]
    copies: int
    mentions: int
    holders: int

    def of(self, kind: CanaryKind) -> Ints:
        """The positions of those of a kind."""
        return np.flatnonzero([canary.kind == kind for canary in self.canaries])

    def texts(self) -> Texts:
        """The texts of all canaries, in and out."""
        return Texts([c.text for c in self.canaries], [c.label for c in self.canaries])

    def plant(self, data: TrainingData, ledger: Path) -> TrainingData:
        """The corpus with the canaries that are in, and with empty texts for the others.

        Guarantees:
          - the incidence is the same however the coins fell
          - turning one user canary's coin empties or fills the texts of one user; turning an
            entity canary's, those of all sentences that mention one entity: one step of adjacency
          - the ledger of the corpus is not touched: the run gets its own
        """
        natural = data.incidence
        users, carried = self.of("user"), self.of("entity")
        carriers = max(len(carried), self.holders) if len(carried) else 0
        owners: list[int] = []
        mentions: list[tuple[int, int]] = []
        planted: list[Canary] = []

        def add(canary: Canary, owner: int) -> None:
            owners.append(natural.users + owner)
            planted.append(canary)

        for user, place in enumerate(users):
            for _ in range(self.copies):
                add(self.canaries[place], user)
        for entity, place in enumerate(carried):
            for holder in np.repeat(range(self.holders), self.mentions).tolist():
                mentions.append((natural.sentences + len(planted), natural.entities + entity))
                add(self.canaries[place], len(users) + (entity + holder) % carriers)
        rows, entities = np.array(mentions, dtype=np.int64).reshape(-1, 2).T
        incidence = Incidence.build(
            np.concatenate([natural.sentence_user, np.array(owners, dtype=np.int64)]),
            np.concatenate([natural.sentence_entities.row_of_value(), rows]),
            np.concatenate([natural.sentence_entities.values, entities]),
            natural.users + len(users) + carriers,
            natural.entities + len(carried),
        )
        train = Texts(
            [*data.train.texts, *(c.text if c.inside else "" for c in planted)],
            [*data.train.labels, *(c.label if c.inside else None for c in planted)],
        )
        # no evaluation: it would cost time
        return TrainingData(train, incidence, ledger, public=data.public)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Canaries":
        return TypeAdapter(cls).validate_json(text)


def draw_canaries(
    config: Config,
    data: TrainingData,
    users: int,
    entities: int,
    holders: int,
    rng: np.random.Generator,
) -> Canaries:
    """New canaries: texts of random words, so that their gradients have little in common.

    Words are drawn uniformly from the corpus, so that every canary is improbable and in every
    vocabulary; where the corpus has few, they are made up. Labels are random too.
    """
    natural = data.train
    known = {word for text in natural.texts for word in text.split()}
    words = sorted(known)

    def made_up_word() -> str:
        while (word := "".join(rng.choice([*string.ascii_lowercase], _LETTERS))) in known:
            pass
        known.add(word)
        return word

    def text() -> str:
        if len(words) < _MANY_WORDS:
            return " ".join(made_up_word() for _ in range(_WORDS // 2))
        return " ".join(words[i] for i in rng.integers(len(words), size=_WORDS))

    names = sorted({label for label in natural.labels if label is not None})
    classifies = config.task.kind == "classification"
    canaries = []
    for kind, count in zip(CANARY_KINDS, (users, entities), strict=True):
        shown = rng.permutation(count) < min(max(count // 5, _LEAST_SHOWN), count // 2)
        for number in range(count):
            own = text() if kind == "user" else f"{made_up_word().capitalize()} {text()}"
            label = names[rng.integers(len(names))] if classifies and names else None
            coin = bool(rng.integers(2))
            canaries.append(Canary(kind, own, label, coin, bool(shown[number])))
    method = method_named(config.privacy.method)
    if method.profile_type is None:  # nothing is clipped
        filling = int(np.median(data.incidence.user_sentences.counts)) if natural.texts else 1
    else:
        filling = math.ceil(1 / method.clips(config.privacy, 0.0).share)
    copies = max(_COPIES, filling)
    shared_clip = method.profile_type is not None and method.profile_type.protects_entities
    return Canaries(tuple(canaries), copies, 1 if shared_clip else copies, holders)
