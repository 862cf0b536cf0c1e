"""The origin of the texts, entities, users and words of a run, as its plan records them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from uedp.accounting.certificate import Certificate
from uedp.accounting.decisions import (
    CORPUS_VOCABULARY,
    Coverage,
    DeclaredText,
    Entities,
    EntityList,
    Holders,
    Origin,
    Precision,
    Propagation,
    Users,
)
from uedp.accounting.growth import UNKNOWN, Chain, PastRun, epoch_of
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import CheckFailedError, UserError
from uedp.training import lineage
from uedp.training.config import Config, PublicSettings, load_config
from uedp.training.datasets import TrainingData, read_public_text, training_data_from
from uedp.training.lineage import Ancestor
from uedp.training.run_dir import CONFIG

# fields of corpus.json that hold a person's own lists
_LISTS = {
    "public": ("declared_public", "declared_public_not_met"),
    "sensitive": ("declared_sensitive",),
    "aliases": ("aliases",),
}

KeyedDigest = Callable[[str], str]


@dataclass(frozen=True)
class Provenance:
    """What is known about a run before it starts, besides its config and its incidence."""

    texts: str = ""  # their digest, under the key of the corpus
    entities: Entities | None = None
    users: Users = "as given"
    precision: Precision = "float32"
    words: Origin | None = None  # of the tokenizer; None: as the config says
    model: tuple[Ancestor, ...] = ()  # runs that the model went through
    vocabulary: tuple[Ancestor, ...] = ()  # runs that the words come from
    public: DeclaredText | None = None  # text to train on first; null while its steps are open
    # the digests of each epoch of a corpus that was extended, the texts' under its key
    epochs: tuple[tuple[str, str], ...] = ()
    earlier: tuple[PastRun, ...] = ()  # runs on this corpus that the model is trained on from
    holders: Holders = "the curator"  # of the texts

    @property
    def uncounted(self) -> tuple[Ancestor, ...]:
        """The runs that the model went through, without those on this corpus that are counted."""
        counted = {run.run for run in self.earlier}
        return tuple(one for one in self.model if one.run not in counted)

    @property
    def lineage(self) -> tuple[Ancestor, ...]:
        return tuple(dict.fromkeys((*self.model, *self.vocabulary)))


def gather_provenance(
    config: Config,
    data: TrainingData,
    ledger: CorpusLedger,
    precision: Precision,
    ancestors: Sequence[Ancestor] = (),
) -> Provenance:
    """The provenance of a corpus and a model; `ancestors` are further runs of the model."""
    texts = ledger.keyed(data.text_digest)
    epochs = tuple((incidence, ledger.keyed(digest)) for incidence, digest in data.epochs)
    vocabulary = lineage.vocabulary_ancestors(config)
    chain = epochs or ((data.incidence.digest, texts),)
    earlier = _earlier(config, ledger, chain)
    words: Origin | None = None
    if config.vocabulary.source == "corpus":
        words = CORPUS_VOCABULARY
    elif vocabulary or earlier:
        words = lineage.vocabulary_origin(vocabulary, chain, earlier)
    return Provenance(
        texts=texts,
        entities=detected_entities(data.info, ledger.keyed),
        users=user_assignment(data.info),
        precision=precision,
        words=words,
        model=tuple(dict.fromkeys((*lineage.model_ancestors(config.model.name), *ancestors))),
        vocabulary=vocabulary,
        public=_stated(config, data),
        epochs=epochs,
        earlier=earlier,
        holders="clients" if data.stays_with_clients else "the curator",
    )


def _earlier(config: Config, ledger: CorpusLedger, chain: Chain) -> tuple[PastRun, ...]:
    if not config.model.continued or not config.private:
        return ()
    if config.data.public is not None:
        raise UserError(
            "data.public: public text comes before the first private round of a model; leave it "
            "out, or start from a model that has seen none"
        )
    runs = lineage.continued_runs(Path(config.model.name).expanduser(), ledger)
    for run in runs:
        if epoch_of(chain, run.incidence, run.texts) == UNKNOWN:
            # a sentence in which only this detection found an entity was not hidden with it there
            raise UserError(
                f"model.name {config.model.name!r}: run {run.run}, which it went through, saw "
                "another detection of these texts, or an epoch that the corpus no longer has; "
                "train on from a run on the corpus as it is, or start from a model that has not "
                "learned from it"
            )
    return runs


def _stated(config: Config, data: TrainingData) -> DeclaredText | None:
    if data.public is None or config.public.steps is None:
        return None
    return data.public.stated(config.public)


def detected_entities(
    info: Mapping[str, Any] | None, keyed: KeyedDigest | None = None
) -> Entities | None:
    """The detection that `corpus.json` describes; a person's own lists as keyed digests."""
    if info is None or "detectors" not in info:
        return None
    try:
        versions, coverage = info.get("detector_versions", {}), info.get("coverage")
        return Entities(
            detectors={name: versions.get(name, "version unknown") for name in info["detectors"]},
            categories=tuple(info.get("categories", ())),
            propagated=info.get("propagated", False),
            propagation=_propagation(info.get("propagation")),
            public_lists=info.get("public_lists", {}),
            lists={
                name: EntityList(
                    entries=sum(len(part) for part in parts),
                    digest="" if keyed is None else keyed(json.dumps(parts, sort_keys=True)),
                )
                for name, fields in _LISTS.items()
                if any(parts := [info.get(field) or [] for field in fields])
            },
            coverage=None if coverage is None else Coverage.model_validate(coverage),
        )
    except (ValidationError, TypeError, AttributeError, KeyError):
        raise UserError(
            "corpus.json: its detectors, categories, lists or coverage cannot be read; detect the "
            "corpus again"
        ) from None


def _propagation(report: Mapping[str, Any] | None) -> Propagation | None:
    if report is None:
        return None
    return Propagation(**report["rule"])


def user_assignment(info: Mapping[str, Any] | None) -> Users:
    source = {} if info is None else info.get("source") or {}
    assigned = isinstance(source, Mapping) and source.get("assigned_users")
    return "assigned at random" if assigned else "as given"


def refuse_other_public_text(certificate: Certificate, path: Path, run: Path) -> None:
    """Refuse a text that is not the one that a run was trained on first."""
    stated = certificate.setup.public
    if stated is None:
        raise UserError(f"{path}: the run learned from no public text; leave it out")
    config = load_config(run / CONFIG) if (run / CONFIG).is_file() else None
    settings = PublicSettings() if config is None else config.public
    public = read_public_text(path, settings)
    if public.digest != stated.digest:
        raise CheckFailedError(
            f"{path}: not the public text that the run was trained on (SHA-256 "
            f"{public.digest[:12]}, not {stated.digest[:12]})"
        )


def refuse_other_corpus(certificate: Certificate, corpus: Path) -> None:
    """Refuse a corpus whose texts or detection differ from those that a run was trained on."""
    from uedp.corpus.store import Corpus

    setup, keyed, opened = certificate.setup, CorpusLedger(corpus).keyed, Corpus(corpus)
    for epoch in opened.epochs[:-1]:  # a run of before the corpus was extended
        if epoch.incidence == certificate.incidence.digest:
            opened = Corpus(corpus, epoch.number)
    data = training_data_from(opened)
    if data.incidence.digest != certificate.incidence.digest:
        raise CheckFailedError(f"{corpus}: not the users and entities that the run was trained on")
    if setup.texts and keyed(data.text_digest) != setup.texts:
        raise CheckFailedError(f"{corpus}: not the texts that the run was trained on")
    if (users := user_assignment(data.info)) != setup.users:
        raise CheckFailedError(f"{corpus}: its users are {users}, not {setup.users} as certified")
    stated, here = setup.entities, detected_entities(data.info, keyed)
    if stated is not None and here is not None:
        here = here.model_copy(update={"coverage": stated.coverage})  # may be measured later
    if stated is not None and here != stated:
        raise CheckFailedError(f"{corpus}: its detection is not the certified one")
