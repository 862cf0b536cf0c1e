"""Data sets as plain files, which a machine without Arrow or detectors can train on.

FOLDER/
  train.json.gz, validation.json.gz, test.json.gz    texts and labels
  deidentified.json.gz                               the training texts without names
  incidence/                                         of all categories
  incidence-CATEGORY/                                the same corpus, this category protected
  about.json                                         what was detected, and how much
"""

import gzip
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from research.public import public_words
from research.sources import DATA_SETS, DataSet
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.training.datasets import Texts

if TYPE_CHECKING:
    from uedp.corpus.sentence import Sentence
    from uedp.corpus.store import Corpus

_HELD_OUT = 10  # one user in so many is kept for validation where no part is set aside for it
# Names, not numbers and dates: those would leave no AG article and few clauses without an entity.
_NAMES = frozenset({"person", "loc", "org", "misc", "gpe", "norp", "contact"})


def prepare(
    name: str, data: Path, out: Path, ner: str | None = None, most: int | None = None
) -> None:
    """Read, detect, and write the plain files of a data set into a folder; a part of it if asked.

    CoNLL's entities are its human marks. For the others they are what the spaCy pipeline `ner` and
    the patterns find; AG's users are drawn at random as in the paper, and one user in ten is held
    out before detection, so that no entity is linked across.
    """
    import uedp
    from uedp.entities.lists import Lists

    if (out / "about.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    data_set = DATA_SETS[name]
    if data_set.marked:
        detectors: tuple[str, ...] = ("labels",)
    elif ner is None:
        raise UserError(f"{name}: name a spaCy pipeline with --model ner=PATH")
    else:
        detectors = (f"spacy:{ner}", "patterns")
    lists = Lists(public=public_words(data_set.public))
    corpora = {}
    for part, sentences in _parts(data_set, data, most).items():
        how = detectors if part == "train" else ("labels",)
        corpora[part] = uedp.detect(
            sentences,
            out / f"corpus-{part}",
            uedp.Detection(how, _NAMES, lists=lists),
            overwrite=True,
        )
    _write_plain(data_set, corpora, out, detectors)
    for part in corpora:
        shutil.rmtree(out / f"corpus-{part}")


def texts(folder: Path, part: str, most: int | None = None) -> Texts:
    """What `prepare` wrote of a part."""
    with gzip.open(folder / f"{part}.json.gz", "rt", encoding="utf-8") as file:
        found = json.load(file)
    return Texts(found["texts"][:most], found["labels"][:most])


def incidence(folder: Path, category: str = "all") -> Incidence:
    """Who mentions what, as far as a category is protected."""
    return Incidence.load(folder / ("incidence" if category == "all" else f"incidence-{category}"))


def _parts(data_set: DataSet, data: Path, most: int | None) -> dict[str, list["Sentence"]]:
    found = {part: data_set.sentences(data, part, most) for part in data_set.files}
    if "validation" in found:
        return found
    whole = found["train"]
    held_out = set(sorted({sentence.user for sentence in whole})[::_HELD_OUT])
    return {
        "train": [s for s in whole if s.user not in held_out],
        "validation": [s for s in whole if s.user in held_out],
        "test": found["test"],
    }


def _write_plain(
    data_set: DataSet, corpora: dict[str, "Corpus"], out: Path, detectors: Sequence[str]
) -> None:
    from research.corpora import protecting
    from uedp.entities.deidentify import deidentified_texts

    for part, corpus in corpora.items():
        write_texts(out, part, (s.text for s in corpus), (s.label for s in corpus))
    train = corpora["train"]
    write_texts(out, "deidentified", deidentified_texts(train), (s.label for s in train))
    whole = train.incidence
    incidences = {"all": whole} | {
        category: protecting(train, (category,)) for category in data_set.categories
    }
    about = {"detectors": [d.split(":")[0] for d in detectors], "users": whole.users}
    for category, found in incidences.items():
        folder = out / ("incidence" if category == "all" else f"incidence-{category}")
        shutil.rmtree(folder, ignore_errors=True)
        found.save(folder)
        about[category] = {
            "sentences": found.sentences,
            "sensitive": int((~found.extended).sum()),
            "entities": found.entities,
            "most holders": int(found.holders.counts.max(initial=0)),
        }
    (out / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def write_texts(
    folder: Path, part: str, found: Iterable[str], labels: Iterable[str | None]
) -> None:
    """What `texts` reads."""
    with gzip.open(folder / f"{part}.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"texts": list(found), "labels": list(labels)}, file)
