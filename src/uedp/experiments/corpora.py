"""The paper's data sets as detected corpora, made once and kept."""

import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from uedp.corpus.readers import read
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.corpus.users import assign, random_groups
from uedp.entities.categories import BASE, expand
from uedp.entities.detection import Detection, detect
from uedp.entities.lists import Lists
from uedp.errors import UserError
from uedp.experiments.base import Options, digest
from uedp.experiments.public import public_words
from uedp.incidence import Incidence

QUICK_SENTENCES = 400
_AG_GROUPS = (15.0, 2.0, 0)  # mean and spread of a user's articles, as in the paper; the seed


@dataclass(frozen=True)
class DataSet:
    """One of the paper's three: its training file, and the categories it protects there."""

    title: str
    file: str
    reader: str
    categories: tuple[str, ...]
    public: str  # the list of what is declared public in it
    marked: bool = False  # by people: then their marks are the entities


DATA_SETS = {
    "conll2003": DataSet(
        "CoNLL-2003",
        "conll2003/eng.train.gz",
        "conll",
        ("org", "loc", "person", "misc"),
        "conll",
        marked=True,
    ),
    "ag_news": DataSet("AG", "ag_news/train.csv.gz", "ag", ("org", "loc", "gpe", "pii"), "ag"),
    # stands in for the paper's SEC contracts, which are not public
    "edgar": DataSet(
        "EDGAR", "edgar/train.jsonl.gz", "jsonl", ("org", "loc", "gpe", "pii"), "edgar"
    ),
}


def detected(name: str, options: Options, protected: bool = True) -> Corpus:
    """A data set with its entities: people's marks, or what the pipeline `ner` and patterns find.

    As it is protected, every mention of what was found once counts, and what `public.py` declares
    public does not. With `protected=False`, hits count as the detectors give them.

    Guarantees:
      - made once: a corpus of the same file, detectors, lists and size is opened, not made again
      - AG's users are random groups of 15 +- 2 articles, the same every time
    """
    data_set = DATA_SETS[name]
    path = data_set_file(options, data_set.file)
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
        sentences = _sentences(data_set, path, options.quick)
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
    whole = Incidence.of(corpus.folder)
    chosen = expand(categories)
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


def _sentences(data_set: DataSet, path: Path, quick: bool) -> list[Sentence]:
    sentences = list(islice(read(path, data_set.reader), QUICK_SENTENCES if quick else None))
    if data_set.reader == "ag":
        mean, spread, seed = _AG_GROUPS
        groups = random_groups(len(sentences), mean, spread, seed)
        sentences = list(assign(sentences, groups))
    return sentences


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
