"""Texts planted in a corpus to see whether a run gives them away.

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

from uedp.incidence import Incidence, Ints
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData

Kind = Literal["user", "entity"]
KINDS: tuple[Kind, ...] = ("user", "entity")


@dataclass(frozen=True)
class Canary:
    """A text that is in the corpus or out of it by a coin; `shown` coins are told to the attacker.

    Those shown are what the attacker tunes its guesses on; only the others are guessed and counted.
    """

    kind: Kind
    text: str
    label: str | None
    inside: bool
    shown: bool


@dataclass(frozen=True)
class Canaries:
    """Canaries, and how they sit in the corpus.

    A user canary has its text in `copies` sentences without detected entities: as many as leave it
    a whole update where sentences are clipped, as many as others have where nothing is. An entity
    canary has its text in `mentions` sentences (one for rotation, which shares a clip among them)
    of each of `holders` users, who carry nothing but entity canaries.
    """

    canaries: tuple[Canary, ...]
    copies: int
    mentions: int
    holders: int

    def of(self, kind: Kind) -> Ints:
        """The places of those of a kind."""
        return np.flatnonzero([canary.kind == kind for canary in self.canaries])

    def texts(self) -> Texts:
        """As they would be, were all inside."""
        return Texts([c.text for c in self.canaries], [c.label for c in self.canaries])

    def plant(self, material: TrainingData, ledger: Path) -> TrainingData:
        """The corpus with the canaries that are inside, and with empty texts for the others.

        Guarantees:
          - the incidence is the same however the coins fell
          - turning one user canary's coin empties or fills the texts of one user; turning an
            entity canary's, those of all sentences that mention one entity: one step of adjacency
          - the ledger of the corpus is not touched: the run gets its own
        """
        natural = material.incidence
        users, carriers = self.of("user"), self.of("entity")
        circle = max(len(carriers), self.holders)  # users who carry entities, some of each
        owners: list[int] = []
        mentions: list[tuple[int, int]] = []
        texts: list[str] = []
        labels: list[str | None] = []

        def add(canary: Canary, owner: int) -> None:
            owners.append(natural.users + owner)
            texts.append(canary.text if canary.inside else "")
            labels.append(canary.label if canary.inside else None)

        for user, place in enumerate(users):
            for _ in range(self.copies):
                add(self.canaries[place], user)
        for entity, place in enumerate(carriers):
            for holder in np.repeat(range(self.holders), self.mentions).tolist():
                mentions.append((natural.sentences + len(texts), natural.entities + entity))
                add(self.canaries[place], len(users) + (entity + holder) % circle)
        where, what = np.array(mentions, dtype=np.int64).reshape(-1, 2).T
        incidence = Incidence.build(
            np.concatenate([natural.sentence_user, np.array(owners, dtype=np.int64)]),
            np.concatenate([natural.sentence_entities.row_of_value(), where]),
            np.concatenate([natural.sentence_entities.values, what]),
            natural.users + len(users) + (circle if len(carriers) else 0),
            natural.entities + len(carriers),
        )
        train = Texts([*material.train.texts, *texts], [*material.train.labels, *labels])
        return TrainingData(train, incidence, ledger)  # nothing is held out: it would cost time

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Canaries":
        values = json.loads(text)
        found = tuple(Canary(**canary) for canary in values.pop("canaries"))
        return cls(canaries=found, **values)


def draw(
    config: Config,
    material: TrainingData,
    users: int,
    entities: int,
    holders: int,
    rng: np.random.Generator,
) -> Canaries:
    """New canaries: texts of random words, so that their gradients have little in common.

    Words are the corpus's own, each as likely as any, which makes every canary improbable and
    known to every vocabulary; where there are few, they are made up. Labels are at random too.
    """
    natural = material.train
    known = {word for text in natural.texts for word in text.split()}
    words = sorted(known)

    def invented(length: int) -> str:
        while (word := "".join(rng.choice([*string.ascii_lowercase], length))) in known:
            pass
        known.add(word)
        return word

    def text() -> str:
        if len(words) < _MANY_WORDS:
            return " ".join(invented(_LETTERS) for _ in range(_WORDS // 2))
        return " ".join(words[i] for i in rng.integers(len(words), size=_WORDS))

    names = sorted({label for label in natural.labels if label is not None})
    classifies = config.task.kind == "classification"
    found = []
    for kind, count in zip(KINDS, (users, entities), strict=True):
        shown = rng.permutation(count) < min(max(count // 5, _LEAST_SHOWN), count // 2)
        for number in range(count):
            own = text() if kind == "user" else f"{invented(_LETTERS).capitalize()} {text()}"
            label = names[rng.integers(len(names))] if classifies and names else None
            coin = bool(rng.integers(2))
            found.append(Canary(kind, own, label, coin, bool(shown[number])))
    copies = max(_COPIES, _enough(config, material.incidence))
    mentions = 1 if config.privacy.method == "rotation" else copies
    return Canaries(tuple(found), copies, mentions, holders)


def _enough(config: Config, natural: Incidence) -> int:
    if config.privacy.method == "noiseless":
        return int(np.median(natural.user_sentences.counts)) if natural.users else 1
    share = config.privacy.entity_share if config.privacy.method == "rotation" else 1.0
    return math.ceil(1 / share)


_MANY_WORDS = 1000
_WORDS, _LETTERS = 12, 7  # of a canary, and of a word that is made up
_COPIES = 4
_LEAST_SHOWN = 16  # of a fifth that is shown: cuts from fewer are often bad ones
FEWEST = 20  # canaries of a kind: fewer prove nothing
