"""The paper's data sets as detected corpora, made once and kept."""

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


def detected(name: str, options: Options, protected: bool = True) -> Corpus:
    """A data set with its entities: people's marks, or what the pipeline `ner` and patterns find.

    As it is protected, every mention of what was found once counts, and what `public.py` declares
    public does not. With `protected=False`, hits count as the detectors give them.

    Guarantees:
      - made once: a corpus of the same file, detectors, lists and size is opened, not made again
    """
    data_set = DATA_SETS[name]
    path = data_set_file(options, data_set.file("train"))
    detectors = ("labels",) if data_set.marked else (f"spacy:{pipeline(options)}", "patterns")
    lists = Lists(public=public_words(data_set.public) if protected else {})
    propagate = protected and not data_set.marked
    what = {
        "file": file_hash(path),
        "detectors": [detector.partition(":")[0] for detector in detectors],
        "pipeline": None if data_set.marked else file_hash(Path(pipeline(options)) / "meta.json"),
        "propagate": propagate,
        "quick": options.quick,
        **({"public": dict(lists.public)} if lists.public else {}),
    }
    folder = options.common / f"{name}-{digest(what)}"
    if not folder.exists():
        most = QUICK_SENTENCES if options.quick else None
        sentences = data_set.sentences(options.data, "train", most)
        detect(
            sentences,
            folder,
            Detection(detectors, propagate=propagate, lists=lists, workers=options.jobs),
            total=len(sentences),
            progress=options.progress,
        )
    return Corpus(folder)


def protecting(corpus: Corpus, categories: tuple[str, ...]) -> Incidence:
    """The incidence when only these categories are sensitive; other names are ordinary words.

    Guarantees:
      - users and sentences are those of the corpus; entities are those with a mention that counts
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


def pipeline(options: Options) -> str:
    """The saved spaCy pipeline, which whoever detects needs."""
    folder = options.models.get("ner")
    if folder is None:
        raise UserError("--model ner=FOLDER: missing; name a saved spaCy pipeline to detect with")
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
