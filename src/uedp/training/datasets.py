"""The data of a run: texts, labels, and the incidence."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp.corpus.column import Column
from uedp.corpus.digest import text_digest
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import method_named
from uedp.progress import SILENT, Progress
from uedp.training.config import Config, PublicSettings
from uedp.training.mentions import Mentions
from uedp.training.public_text import (
    Overlap,
    PublicText,
    name_of,
    overlap,
    plain_digest,
    read_public_file,
)

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus


@dataclass(frozen=True, eq=False)
class Texts:
    """Sentences in order, and their labels, if any; those of a corpus are read when needed.

    Where they mention entities is known of held-out texts, for measures on names.
    """

    texts: Sequence[str]
    labels: Sequence[str | None]
    mentions: Mentions | None = None


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything a run reads from disk, except the model.

    `ledger` is the folder with the ledger of all runs on this corpus. For a method that
    de-identifies, the texts are de-identified. `info` is the content of `corpus.json`.
    `text_digest` is a hash of users, texts and labels. `shared_users` is how many users of the
    held-out texts have the name of one in the corpus. `public` is text to train on first.
    `names` are the names of the users, where they are people. `epochs` are the digests, of the
    incidence and of the texts, of every epoch of a corpus that was extended. With
    `stays_with_clients`, texts are invented ones: the true ones are with clients of a federation.
    """

    train: Texts
    incidence: Incidence
    ledger: Path
    held_out: Texts | None = None
    info: Mapping[str, Any] | None = None
    shared_users: int = 0
    public: PublicText | None = None
    names: Collection[str] = ()
    epochs: tuple[tuple[str, str], ...] = ()
    stays_with_clients: bool = False
    text_digest: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.train.texts) != self.incidence.sentences:
            raise UserError(
                f"{len(self.train.texts):,} texts, but {self.incidence.sentences:,} sentences in "
                "the incidence; detect the corpus again"
            )
        if self.epochs:
            object.__setattr__(self, "text_digest", self.epochs[-1][1])
            return
        labels = self.train.labels or [None] * len(self.train.texts)
        digest = text_digest(self.incidence.sentence_user, self.train.texts, labels)
        object.__setattr__(self, "text_digest", digest)

    @cached_property
    def plain_digest(self) -> str:
        """A hash of the sentences that needs no key: for comparing, never to be written."""
        return plain_digest(self.train.texts)

    @cached_property
    def public_overlap(self) -> Overlap:
        """The sentences that the corpus has in common with the public text."""
        return overlap(self.train.texts, () if self.public is None else self.public.texts)

    @cached_property
    def evaluated_overlap(self) -> Overlap:
        """The same of the held-out texts."""
        held_out = () if self.held_out is None else self.held_out.texts
        return overlap(held_out, () if self.public is None else self.public.texts)

    def label_names(self) -> list[str]:
        """The labels in the corpus, sorted. The set of labels is not protected."""
        names = sorted({label for label in self.train.labels if label is not None})
        if len(names) < 2:
            raise UserError(
                f"{self.ledger}: classification needs sentences with at least two labels, found "
                f"{len(names)}; detect it again with `label=...`"
            )
        return names


def read_training_data(
    config: Config, progress: Progress = SILENT, begun: str | None = None
) -> TrainingData:
    """Read the corpora that a config names; de-identify the texts if the method does.

    Args:
        begun: the digest of the incidence that a run to be resumed began with: a corpus that was
            extended since is read as it was then.

    Guarantees:
      - texts of users who left a corpus are not among those to train on
      - texts, labels and users are those that were detected: a corpus changed since is refused
      - a corpus to evaluate on is refused if it is, or repeats, the training corpus
      - so is public text that is a copy of either, or of users that the corpus protects
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.deidentify import deidentified_texts

    corpus, held_out, shared = _corpus_of(config.data.train, begun), None, 0
    _, incidence = corpus.for_rounds()
    train = _texts(corpus)
    if config.data.evaluate is not None:
        evaluated = Corpus(config.data.evaluate)
        held_out = _texts(evaluated)
        _refuse_training_users(corpus, train, evaluated, held_out)
        held_out = _first(held_out, evaluated, config.data.evaluate_sentences)
        shared = _shared_users(corpus, evaluated)
    public = None
    if config.data.public is not None:
        public = read_public_text(config.data.public, config.public, progress)
        refuse_unlabelled(config, public)
    data = TrainingData(
        train,
        incidence,
        corpus.folder,
        held_out,
        corpus.info,
        shared,
        public,
        () if public is None else _people(corpus),
        _epochs(corpus),
    )
    if public is not None:
        refuse_private_text(data)  # before names are replaced, which would hide what it repeats
    if not method_named(config.privacy.method).deidentifies:
        return data
    texts = Column.of(deidentified_texts(corpus))
    return replace(data, train=Texts(texts, train.labels), epochs=())


def _corpus_of(folder: Path, begun: str | None) -> "Corpus":
    """A corpus; that of a run to be resumed as it was when the run began."""
    from uedp.corpus.store import Corpus

    corpus = Corpus(folder)
    for epoch in corpus.epochs[:-1]:
        if epoch.incidence == begun:
            since = corpus.epochs[epoch.number :]
            if any(later.left for later in since):
                raise UserError(
                    f"{folder}: users have left since this run began, and its rounds would use "
                    "their texts; close the run, and start a new one"
                )
            return Corpus(folder, epoch.number)
    return corpus


def _epochs(corpus: "Corpus") -> tuple[tuple[str, str], ...]:
    if len(corpus.epochs) == 1:
        return ()
    return tuple((epoch.incidence, epoch.texts) for epoch in corpus.epochs)


def read_public_text(
    path: Path, settings: PublicSettings, progress: Progress = SILENT
) -> PublicText:
    """The text that a config declares public: a corpus, or a file."""
    from uedp.corpus.store import Corpus

    if (path / "corpus.json").is_file():
        corpus = Corpus(path)
        texts, digest = _texts(corpus), corpus.incidence.digest
        public = PublicText(
            texts.texts, texts.labels, name_of(path), corpus.folder, _people(corpus), digest
        )
    else:
        public = read_public_file(path, settings, progress)
    if not len(public.texts):
        raise UserError(f"data.public {str(path)!r}: has no sentences; name another text")
    return public


def refuse_unlabelled(config: Config, public: PublicText) -> None:
    """A classifier learns nothing from texts without labels."""
    if config.task.kind == "classification" and all(label is None for label in public.labels):
        raise UserError(
            f"data.public {public.name!r}: has no labels to learn from; name their column in "
            "public.label, or leave it out"
        )


def refuse_private_text(data: TrainingData) -> None:
    """Refuse public text that is not: all of it is learned without noise.

    Guarantees:
      - the corpus itself, a copy of it (texts, detection, or over 1% of the longer sentences of one
        of the two), and texts by a user of the corpus are refused
      - so is a copy of the held-out texts, whose measures would be of what was learned by heart
    """
    public = data.public
    if public is None:
        return
    mine, held_out = data.public_overlap, data.evaluated_overlap
    shared = len(public.users.intersection(data.names))
    reason = remedy = ""
    if public.folder is not None and public.folder.resolve() == data.ledger.resolve():
        reason = "is the corpus to protect"
    elif public.incidence == data.incidence.digest:
        reason = "has the users and entities of the corpus to protect"
    elif public.digest == data.plain_digest:
        reason = "has the texts of the corpus to protect"
    elif mine.copied:
        reason = (
            f"{mine.longer:,} of its longer sentences stand in the corpus to protect "
            f"({mine.share:.0%} of the smaller text)"
        )
    elif shared:
        reason = f"{shared:,} of its users have the name of a user in the corpus to protect"
        remedy = ", or, if they are other people, give its texts as a file without users"
    elif held_out.copied or (
        data.held_out is not None and public.digest == plain_digest(data.held_out.texts)
    ):
        raise UserError(
            f"data.public {public.name!r}: {held_out.common:,} of its sentences stand in "
            "data.evaluate, and would be learned by heart before they are measured; name other "
            "text"
        )
    if reason:
        raise UserError(
            f"data.public {public.name!r}: {reason}; what is in it is learned without any "
            f"protection: name text by others{remedy}"
        )


def public_warnings(data: TrainingData) -> Iterator[str]:
    """Sentences in common that are too few to be a copy. For the curator only: a private count."""
    if data.public is None:
        return
    if common := data.public_overlap.common:
        yield (
            f"sentences that data.public has in common with the corpus to protect: {common:,} "
            "(greetings and quotations, as a rule); they are learned without protection: make sure "
            "that nobody's private text is among them"
        )
    if common := data.evaluated_overlap.common:
        yield (
            f"sentences that data.public has in common with data.evaluate: {common:,}; measures "
            "will look better for them"
        )


def training_data_from(corpus: "Corpus") -> TrainingData:
    """The texts of a corpus as they are, without a held-out set."""
    _, incidence = corpus.for_rounds()
    return TrainingData(
        _texts(corpus), incidence, corpus.folder, None, corpus.info, epochs=_epochs(corpus)
    )


def read_texts(corpus: Path, limit: int | None = None) -> Texts:
    """The first `limit` texts of a corpus, and the entities that they mention."""
    from uedp.corpus.store import Corpus

    opened = Corpus(corpus)
    return _first(_texts(opened), opened, limit)


def _first(texts: Texts, corpus: "Corpus", limit: int | None) -> Texts:
    mentions = Mentions.in_corpus(corpus)
    kept, _ = corpus.for_rounds()
    if kept is not None:
        mentions = mentions.among(kept)
    mentions = mentions.between(0, limit)
    return Texts(texts.texts[:limit], texts.labels[:limit], mentions)


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
    return len(_people(corpus) & _people(evaluated))


def _people(corpus: "Corpus") -> frozenset[str]:
    """The names of the users; none if they are groups formed at random."""
    if (corpus.info.get("source") or {}).get("assigned_users"):
        return frozenset()
    return frozenset(corpus.user_names.to_pylist())


def _texts(corpus: "Corpus") -> Texts:
    """Texts and labels, to be read later; refuse a corpus that was changed after detection."""
    corpus.check_texts()
    kept, _ = corpus.for_rounds()
    columns = corpus.sentences.select(["text", "label"])
    if kept is not None:
        columns = columns.take(kept)
    return Texts(Column(columns["text"]), Column(columns["label"]))
