"""Data sets prepared as plain files: training on them needs neither Arrow nor detectors.

FOLDER/
  train.json.gz, validation.json.gz, test.json.gz    texts, labels and mentions
  deidentified.json.gz                               the training texts with placeholders
  surrogates.json.gz                                 the training texts with surrogates
  incidence/                                         all categories protected
  incidence-CATEGORY/                                one category protected
  about.json                                         detectors, and counts per category
"""

import gzip
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from research.public import public_words
from research.sources import TRAINING_SETS, DataSet
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.training.datasets import Texts
from uedp.training.mentions import Mentions, Row

if TYPE_CHECKING:
    from uedp.corpus.sentence import Sentence
    from uedp.corpus.store import Corpus

SURROGATES = "surrogates"

_HELD_OUT = 10  # one user in ten is the validation part of a data set that has none
# Numbers and dates would leave no AG article and few clauses without an entity.
_NAMES = frozenset({"person", "loc", "org", "misc", "gpe", "norp", "contact"})


def prepare_dataset(
    name: str, data: Path, out: Path, ner: str | None = None, most: int | None = None
) -> None:
    """Read a data set, detect entities, and write the plain files into a folder.

    CoNLL's entities are its human marks; those of the others are the hits of the spaCy pipeline
    `ner` and of the patterns. AG's users are random groups, as in the paper. Users are held out
    before detection, so that no entity is linked between training and validation; in the held-out
    parts, entities only tell names from other tokens. Corpora of parts (`corpus-PART`) that are in
    the folder already are used as they are.

    Args:
        most: read only so many sentences of each part.
    """
    import uedp
    from uedp.entities.lists import Lists

    if (out / "about.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    data_set = TRAINING_SETS[name]
    if data_set.marked:
        detectors: tuple[str, ...] = ("labels",)
    elif ner is None:
        raise UserError(f"{name}: give a spaCy pipeline with --model ner=PATH")
    else:
        detectors = (f"spacy:{ner}", "patterns")
    lists = Lists(public=public_words(data_set.public))
    corpora = {}
    for part, sentences in _parts(data_set, data, most).items():
        folder = out / f"corpus-{part}"
        if not folder.exists():
            uedp.detect(sentences, folder, uedp.Detection(detectors, _NAMES, lists=lists))
        corpora[part] = uedp.Corpus(folder)
    _write_plain(data_set, corpora, out, detectors)
    for part in corpora:
        shutil.rmtree(out / f"corpus-{part}")


def load_texts(folder: Path, part: str, most: int | None = None) -> Texts:
    """The texts, labels and mentions of a part."""
    with gzip.open(folder / f"{part}.json.gz", "rt", encoding="utf-8") as file:
        content = json.load(file)
    rows = ((*row[:3], row[3]) for row in content.get("mentions", ()))
    mentions = Mentions.of_rows(rows).between(0, most)
    return Texts(content["texts"][:most], content["labels"][:most], mentions)


def load_incidence(folder: Path, category: str = "all") -> Incidence:
    """The incidence of all entities, or of one protected category."""
    return Incidence.load(folder / ("incidence" if category == "all" else f"incidence-{category}"))


def _parts(data_set: DataSet, data: Path, most: int | None) -> dict[str, list["Sentence"]]:
    parts = {part: data_set.sentences(data, part, most) for part in data_set.files}
    if "validation" in parts:
        return parts
    whole = parts["train"]
    held_out = set(sorted({sentence.user for sentence in whole})[::_HELD_OUT])
    return {
        "train": [s for s in whole if s.user not in held_out],
        "validation": [s for s in whole if s.user in held_out],
        "test": parts["test"],
    }


def _write_plain(
    data_set: DataSet, corpora: dict[str, "Corpus"], out: Path, detectors: Sequence[str]
) -> None:
    from research.corpora import restrict_to_categories
    from research.surrogates import surrogate_texts
    from uedp.entities.deidentify import deidentified_texts

    for part, corpus in corpora.items():
        rows = Mentions.in_corpus(corpus).rows()
        save_texts(out, part, (s.text for s in corpus), (s.label for s in corpus), rows)
    train = corpora["train"]
    labels = [s.label for s in train]
    save_texts(out, "deidentified", deidentified_texts(train), labels)
    texts, rows = surrogate_texts(train)
    save_texts(out, SURROGATES, texts, labels, rows)
    whole = train.incidence
    incidences = {"all": whole} | {
        category: restrict_to_categories(train, (category,)) for category in data_set.categories
    }
    about = {"detectors": [d.split(":")[0] for d in detectors], "users": whole.users}
    for category, incidence in incidences.items():
        folder = out / ("incidence" if category == "all" else f"incidence-{category}")
        shutil.rmtree(folder, ignore_errors=True)
        incidence.save(folder)
        about[category] = {
            "sentences": incidence.sentences,
            "sensitive": int((~incidence.extended).sum()),
            "entities": incidence.entities,
            "most holders": int(incidence.holders.counts.max(initial=0)),
        }
    (out / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def save_texts(
    folder: Path,
    part: str,
    texts: Iterable[str],
    labels: Iterable[str | None],
    mentions: Iterable[Row] = (),
) -> None:
    """Write a part as `load_texts` reads it."""
    content = {"texts": list(texts), "labels": list(labels), "mentions": list(mentions)}
    with gzip.open(folder / f"{part}.json.gz", "wt", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)
