"""What a run reads: texts, labels, and the incidence that says whose they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uedp.corpus.digest import text_digest
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import method_named
from uedp.training.config import Config

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus  # at run time only where it is used: it needs Arrow


@dataclass(frozen=True, eq=False)
class Texts:
    """Sentences in order, and their labels where there are any."""

    texts: Sequence[str]
    labels: Sequence[str | None]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything a run reads from disk but the model.

    `ledger` is the folder whose ledger keeps what all runs on this corpus spent. For the method
    `deidentified`, the texts are those without names. `info` is what `corpus.json` says of how the
    corpus was made. `text_digest` is a hash of who wrote what, labels included.
    """

    train: Texts
    incidence: Incidence
    ledger: Path
    held_out: Texts | None = None
    info: Mapping[str, Any] | None = None
    text_digest: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.train.texts) != self.incidence.sentences:
            raise UserError(
                f"{len(self.train.texts):,} texts, but the incidence is of "
                f"{self.incidence.sentences:,} sentences; detect the corpus again"
            )
        labels = self.train.labels or [None] * len(self.train.texts)
        made = text_digest(self.incidence.sentence_user, self.train.texts, labels)
        object.__setattr__(self, "text_digest", made)

    def label_names(self) -> list[str]:
        """The labels there are, sorted. Which there are is not protected."""
        names = sorted({label for label in self.train.labels if label is not None})
        if len(names) < 2:
            raise UserError(
                f"{self.ledger}: classification needs sentences with at least two labels, found "
                f"{len(names)}; detect it again with `label=...`"
            )
        return names


def read_training_data(config: Config) -> TrainingData:
    """From the corpora a config names; de-identified if that is the method.

    Guarantees:
      - texts, labels and who wrote them are those that were detected: a corpus that was changed
        since is refused
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.deidentify import deidentified_texts

    corpus = Corpus(config.data.train)
    train = _texts(corpus)
    if method_named(config.privacy.method).deidentifies:
        train = Texts(deidentified_texts(corpus), train.labels)
    incidence, held_out = Incidence.of(config.data.train), None
    if config.data.evaluate is not None:
        refuse_training_corpus(config, incidence)
        held_out = read_texts(config.data.evaluate, config.data.evaluate_sentences)
    return TrainingData(train, corpus.incidence, corpus.folder, held_out, corpus.info)


def training_data_of(corpus: "Corpus") -> TrainingData:
    """The texts of a corpus as they are, with nothing held out."""
    return TrainingData(_texts(corpus), corpus.incidence, corpus.folder, None, corpus.info)


def read_texts(corpus: Path, limit: int | None = None) -> Texts:
    """The first texts of a corpus."""
    from uedp.corpus.store import Corpus

    texts = _texts(Corpus(corpus))
    return Texts(texts.texts[:limit], texts.labels[:limit])


def refuse_training_corpus(config: Config, incidence: Incidence) -> None:
    """What is measured is shown as it is, so it must not be measured on whom the noise protects."""
    from uedp.corpus.store import Corpus

    if config.data.evaluate is None:
        return
    corpus, others = Corpus(config.data.train), Corpus(config.data.evaluate)
    if corpus.folder.resolve() == others.folder.resolve():
        how = "is the corpus that is trained on"
    elif others.incidence.digest == incidence.digest:
        how = "has the same users and entities as the corpus that is trained on"
    elif len(corpus) == len(others) and _texts(corpus).texts == _texts(others).texts:
        how = "has the same texts as the corpus that is trained on"
    else:
        return
    raise UserError(
        f"data.evaluate {str(config.data.evaluate)!r}: {how}; name a corpus of other users, or "
        "leave it out"
    )


def _texts(corpus: "Corpus") -> Texts:
    """Texts and labels, if they are those the corpus was written with."""
    owners: list[int] = []
    texts: list[str] = []
    labels: list[str | None] = []
    for batch in corpus.batches(("user", "text", "label")):
        owners += batch.column("user").to_pylist()
        texts += batch.column("text").to_pylist()
        labels += batch.column("label").to_pylist()
    path = corpus.folder / "sentences.arrow"
    if not np.array_equal(owners, corpus.incidence.sentence_user):
        raise UserError(
            f"{path}: its users are not those of the incidence; detect the corpus again"
        )
    if text_digest(owners, texts, labels) != corpus.text_digest:
        raise UserError(
            f"{path}: was changed: the digest of its texts is not that in corpus.json; detect the "
            "corpus again"
        )
    return Texts(texts, labels)
