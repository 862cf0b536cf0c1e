"""The paper's data sets as detected corpora, each built once."""

import hashlib
from pathlib import Path

import numpy as np

from research.base import Options, digest
from research.public import public_words
from research.sources import DATA_SETS
from uedp.corpus.store import Corpus
from uedp.entities.categories import BASE, expand_categories
from uedp.entities.detection import Detection, detect
from uedp.entities.lists import Lists
from uedp.errors import UserError
from uedp.incidence import Incidence

QUICK_SENTENCES = 400
_SOURCES = ("uedp.corpus", "uedp.entities", "uedp.incidence", "research.corpora")


def detected_corpus(name: str, options: Options, protected: bool = True) -> Corpus:
    """A data set with its entities: human marks, or the hits of the pipeline `ner` and patterns.

    By default hits are propagated to every mention, and public words (`public.py`) are not
    entities: this is what training protects. With `protected=False` only the hits count.

    Guarantees:
      - built once: a corpus of the same file, detectors, lists, size and code is opened again
    """
    data_set = DATA_SETS[name]
    path = data_set_file(options, data_set.file("train"))
    pipeline = None if data_set.marked else ner_pipeline(options)
    detectors = ("labels",) if pipeline is None else (f"spacy:{pipeline}", "patterns")
    lists = Lists(public=public_words(data_set.public) if protected else {})
    propagate = protected and not data_set.marked
    key = {
        "file": file_hash(path),
        "detectors": [detector.partition(":")[0] for detector in detectors],
        "pipeline": None if pipeline is None else file_hash(Path(pipeline) / "meta.json"),
        "propagate": propagate,
        "quick": options.quick,
        **({"public": dict(lists.public)} if lists.public else {}),
    }
    folder = options.common / f"{name}-{digest(key, _SOURCES)}"
    if not folder.exists():
        most = QUICK_SENTENCES if options.quick else None
        sentences = data_set.sentences(options.data, "train", most)
        detect(
            sentences,
            folder,
            Detection(
                detectors,
                frozenset(BASE),
                propagate=propagate,
                lists=lists,
                workers=options.jobs,
            ),
            total=len(sentences),
            progress=options.progress,
        )
    return Corpus(folder)


def restrict_to_categories(corpus: Corpus, categories: tuple[str, ...]) -> Incidence:
    """The incidence when only these categories are sensitive; other names are ordinary words.

    Guarantees:
      - users and sentences are those of the corpus; entities are those mentioned in a category
    """
    whole = corpus.incidence
    chosen = expand_categories(categories)
    numbers = [number for number, name in enumerate(BASE) if name in chosen]
    mentions = corpus.mentions.select(["sentence", "category", "entity"])
    counts = np.isin(mentions["category"].to_numpy(), numbers)
    entities, renumbered = np.unique(mentions["entity"].to_numpy()[counts], return_inverse=True)
    return Incidence.build(
        np.asarray(whole.sentence_user),
        mentions["sentence"].to_numpy()[counts],
        renumbered,
        whole.users,
        len(entities),
    )


def ner_pipeline(options: Options) -> str:
    """The folder of the saved spaCy pipeline."""
    folder = options.models.get("ner")
    if folder is None:
        raise UserError("--model ner=FOLDER: missing; give a saved spaCy pipeline")
    if not (Path(folder) / "meta.json").is_file():
        raise UserError(f"--model ner={folder}: not a saved spaCy pipeline (no meta.json)")
    return folder


def data_set_file(options: Options, name: str) -> Path:
    path = options.data / name
    if not path.is_file():
        raise UserError(f"{path}: no such file; --data must hold {name}")
    return path


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
