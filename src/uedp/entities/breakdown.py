"""Statistics of a corpus: the paper's data table, and how widely entities are held."""

from typing import Any

import numpy as np
import numpy.typing as npt

from uedp.corpus.normalise import normalise
from uedp.corpus.store import Corpus
from uedp.entities.categories import masks
from uedp.progress import SILENT, Progress


def breakdown(corpus: Corpus, progress: Progress = SILENT) -> dict[str, Any]:
    """Counts of users, sentences, entities and words, and of sensitive sentences per category.

    Guarantees:
      - a sentence counts once per category, however many mentions it has
      - every category has an entry, zero included; `all` counts sentences with any mention
    """
    incidence = corpus.incidence
    present = sentence_masks(corpus)
    return {
        "users": incidence.users,
        "sentences": incidence.sentences,
        "entities": incidence.entities,
        "vocabulary": len(vocabulary(corpus, progress)),
        "sensitive": {
            name: int(np.count_nonzero(present & bits)) for name, bits in masks().items()
        },
        "holders": quantiles(incidence.holders.counts),
        "sentences_per_user": quantiles(incidence.user_sentences.counts),
    }


def sentence_masks(corpus: Corpus) -> npt.NDArray[np.int32]:
    """For each sentence, the categories it mentions as bits."""
    present = np.zeros(len(corpus), dtype=np.int32)
    for batch in corpus.mentions.select(["sentence", "category"]).to_batches():
        sentence, category = (np.asarray(column) for column in batch.columns)
        np.bitwise_or.at(present, sentence, np.left_shift(1, category.astype(np.int32)))
    return present


def vocabulary(corpus: Corpus, progress: Progress = SILENT) -> set[str]:
    """Distinct words of the normalised text (lower-case, no punctuation), as in the paper."""
    seen: set[str] = set()
    with progress.stage("counting words", len(corpus), "sentences") as meter:
        for batch in corpus.batches():
            for text in batch.column(0).to_pylist():
                seen.update(normalise(text, ())[0].split())
            meter.advance(batch.num_rows)
    return seen


def quantiles(counts: npt.NDArray[Any]) -> dict[str, int]:
    """Median, tail and maximum of counts; each is one of the counts."""
    if not len(counts):
        return {"p50": 0, "p90": 0, "p99": 0, "max": 0}
    at = np.quantile(counts, [0.5, 0.9, 0.99, 1.0], method="inverted_cdf")
    return dict(zip(("p50", "p90", "p99", "max"), map(int, at), strict=True))


def widest_entities(corpus: Corpus, count: int = 10) -> list[tuple[str, int, int]]:
    """(surface, holders, sentences) of the most widely held entities. Do not release them."""
    incidence = corpus.incidence
    holders = incidence.holders.counts
    top = np.argsort(-holders, kind="stable")[:count]
    surfaces = corpus.entities["surface"].take(top).to_pylist()
    sentences = incidence.entity_sentences.counts[top]
    return list(zip(surfaces, map(int, holders[top]), map(int, sentences), strict=True))
