"""The data of a run: texts, labels, and the incidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from uedp.corpus.column import Column
from uedp.corpus.digest import TextDigest, text_digest
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import method_named
from uedp.training.config import Config

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus


@dataclass(frozen=True, eq=False)
class Texts:
    """Sentences in order, and their labels, if any; those of a corpus are read when needed."""

    texts: Sequence[str]
    labels: Sequence[str | None]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything a run reads from disk, except the model.

    `ledger` is the folder with the ledger of all runs on this corpus. For a method that
    de-identifies, the texts are de-identified. `info` is the content of `corpus.json`.
    `text_digest` is a hash of users, texts and labels. `shared_users` is how many users of the
    held-out texts have the name of one in the corpus.
    """

    train: Texts
    incidence: Incidence
    ledger: Path
    held_out: Texts | None = None
    info: Mapping[str, Any] | None = None
    shared_users: int = 0
    text_digest: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.train.texts) != self.incidence.sentences:
            raise UserError(
                f"{len(self.train.texts):,} texts, but {self.incidence.sentences:,} sentences in "
                "the incidence; detect the corpus again"
            )
        labels = self.train.labels or [None] * len(self.train.texts)
        digest = text_digest(self.incidence.sentence_user, self.train.texts, labels)
        object.__setattr__(self, "text_digest", digest)

    def label_names(self) -> list[str]:
        """The labels in the corpus, sorted. The set of labels is not protected."""
        names = sorted({label for label in self.train.labels if label is not None})
        if len(names) < 2:
            raise UserError(
                f"{self.ledger}: classification needs sentences with at least two labels, found "
                f"{len(names)}; detect it again with `label=...`"
            )
        return names


def read_training_data(config: Config) -> TrainingData:
    """Read the corpora that a config names; de-identify the texts if the method does.

    Guarantees:
      - texts, labels and users are those that were detected: a corpus changed since is refused
      - a corpus to evaluate on is refused if it is, or repeats, the training corpus
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.deidentify import deidentified_texts

    corpus, held_out, shared = Corpus(config.data.train), None, 0
    train = _texts(corpus)
    if config.data.evaluate is not None:
        evaluated = Corpus(config.data.evaluate)
        held_out = _texts(evaluated)
        _refuse_training_users(corpus, train, evaluated, held_out)
        held_out = _first(held_out, config.data.evaluate_sentences)
        shared = _shared_users(corpus, evaluated)
    if method_named(config.privacy.method).deidentifies:
        train = Texts(Column.of(deidentified_texts(corpus)), train.labels)
    return TrainingData(train, corpus.incidence, corpus.folder, held_out, corpus.info, shared)


def training_data_from(corpus: "Corpus") -> TrainingData:
    """The texts of a corpus as they are, without a held-out set."""
    return TrainingData(_texts(corpus), corpus.incidence, corpus.folder, None, corpus.info)


def read_texts(corpus: Path, limit: int | None = None) -> Texts:
    """The first `limit` texts of a corpus."""
    from uedp.corpus.store import Corpus

    return _first(_texts(Corpus(corpus)), limit)


def _first(texts: Texts, limit: int | None) -> Texts:
    return Texts(texts.texts[:limit], texts.labels[:limit])


def _refuse_training_users(
    corpus: "Corpus", train: Texts, evaluated: "Corpus", held_out: Texts
) -> None:
    """Measures have no noise, so they must not be computed on the users that are protected."""
    if corpus.folder.resolve() == evaluated.folder.resolve():
        reason = "is the training corpus"
    elif corpus.incidence.digest == evaluated.incidence.digest:
        reason = "has the same users and entities as the training corpus"
    elif train.texts == held_out.texts:
        reason = "has the same texts as the training corpus"
    else:
        return
    raise UserError(
        f"data.evaluate {str(evaluated.folder)!r}: {reason}; name a corpus of other users, or "
        "leave it out"
    )


def _shared_users(corpus: "Corpus", evaluated: "Corpus") -> int:
    """Users of both corpora, by their names; groups formed at random are no people."""
    if any((one.info.get("source") or {}).get("assigned_users") for one in (corpus, evaluated)):
        return 0
    return len(set(corpus.user_names.to_pylist()) & set(evaluated.user_names.to_pylist()))


def _texts(corpus: "Corpus") -> Texts:
    """Texts and labels, to be read later; refuse a corpus that was changed after detection."""
    owners: list[npt.NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    digest = TextDigest()
    for batch in corpus.batches(("user", "text", "label")):
        user, text, label = batch.columns
        owners.append(user.to_numpy())
        digest.update(owners[-1], text.to_pylist(), label.to_pylist())
    path = corpus.folder / "sentences.arrow"
    if not np.array_equal(np.concatenate(owners), corpus.incidence.sentence_user):
        raise UserError(
            f"{path}: its users are not those of the incidence; detect the corpus again"
        )
    if digest.hexdigest() != corpus.text_digest:
        raise UserError(
            f"{path}: changed since detection: its digest is not the one in corpus.json; detect "
            "the corpus again"
        )
    return Texts(Column(corpus.sentences["text"]), Column(corpus.sentences["label"]))
