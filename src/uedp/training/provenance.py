"""Where texts, entities, users and words of a run come from: what its plan has to put on record."""

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
    Entities,
    EntityList,
    Origin,
    Precision,
    Users,
)
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.training import lineage
from uedp.training.config import Config
from uedp.training.datasets import TrainingData
from uedp.training.lineage import Ancestor

# what corpus.json calls a person's own lists
_LISTS = {
    "public": ("declared_public", "declared_public_not_met"),
    "sensitive": ("declared_sensitive",),
    "aliases": ("aliases",),
}

Keyed = Callable[[str], str]


@dataclass(frozen=True)
class Provenance:
    """What is known of a run before it begins, beside its config and its incidence."""

    texts: str = ""  # their digest, under the key of the corpus
    entities: Entities | None = None
    users: Users = "as given"
    precision: Precision = "float32"
    words: Origin | None = None  # of the tokenizer; None: what the config says
    model: tuple[Ancestor, ...] = ()  # runs that the model went through
    vocabulary: tuple[Ancestor, ...] = ()  # runs that the words come from

    @property
    def lineage(self) -> tuple[Ancestor, ...]:
        return tuple(dict.fromkeys((*self.model, *self.vocabulary)))


def gather(
    config: Config,
    data: TrainingData,
    ledger: CorpusLedger,
    precision: Precision,
    ancestors: Sequence[Ancestor] = (),
) -> Provenance:
    """What is on record of the corpus and the model; `ancestors` are further runs of the model."""
    texts = ledger.keyed(data.text_digest)
    incidence = data.incidence.digest
    words = lineage.of_all_words(config)
    origin: Origin | None = lineage.origin_of_words(words, incidence, texts) if words else None
    if config.vocabulary.source == "corpus":
        origin = CORPUS_VOCABULARY
    return Provenance(
        texts=texts,
        entities=entities_of(data.info, ledger.keyed),
        users=users_of(data.info),
        precision=precision,
        words=origin,
        model=tuple(dict.fromkeys((*lineage.of_model(config.model.name), *ancestors))),
        vocabulary=words,
    )


def entities_of(info: Mapping[str, Any] | None, keyed: Keyed | None = None) -> Entities | None:
    """Which entities a corpus was searched for, from its `corpus.json`; lists by keyed digests."""
    if info is None or "detectors" not in info:
        return None
    try:
        versions = info.get("detector_versions", {})
        measured = info.get("coverage")
        return Entities(
            detectors={name: versions.get(name, "version unknown") for name in info["detectors"]},
            categories=tuple(info.get("categories", ())),
            propagated=info.get("propagated", False),
            lists={
                name: EntityList(
                    entries=sum(len(part) for part in held),
                    digest="" if keyed is None else keyed(json.dumps(held, sort_keys=True)),
                )
                for name, fields in _LISTS.items()
                if any(held := [info.get(field) or [] for field in fields])
            },
            coverage=None if measured is None else Coverage.model_validate(measured),
        )
    except (ValidationError, TypeError, AttributeError):
        raise UserError(
            "corpus.json: what it says of detectors, categories, lists or coverage cannot be read; "
            "detect the corpus again"
        ) from None


def users_of(info: Mapping[str, Any] | None) -> Users:
    source = {} if info is None else info.get("source") or {}
    assigned = isinstance(source, Mapping) and source.get("assigned_users")
    return "assigned at random" if assigned else "as given"


def refuse_other_corpus(certificate: Certificate, corpus: Path) -> None:
    """Raise unless the texts and the detection of a corpus are those that a run was made on."""
    from uedp.corpus.store import Corpus
    from uedp.training.datasets import training_data_of

    opened, ledger = Corpus(corpus), CorpusLedger(corpus)
    data = training_data_of(opened)
    if data.incidence.digest != certificate.incidence.digest:
        raise UserError(f"{corpus}: users and entities are not those that the run was made on")
    if certificate.setup.texts and ledger.keyed(data.text_digest) != certificate.setup.texts:
        raise UserError(f"{corpus}: its texts are not those that the run was made on")
    if (users := users_of(opened.info)) != (said := certificate.setup.users):
        raise UserError(f"{corpus}: its users are {users}, not {said} as the certificate states")
    stated, here = certificate.setup.entities, entities_of(opened.info, ledger.keyed)
    if stated is not None and here is not None:
        here = here.model_copy(update={"coverage": stated.coverage})  # may be measured later
    if stated is not None and here != stated:
        raise UserError(f"{corpus}: its detection is not the one that the certificate states")
