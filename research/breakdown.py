"""The paper's data table and its histograms, on the data at hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from research import markdown
from research.base import Options, Result
from research.corpora import detected
from research.sources import DATA_SETS
from uedp.corpus.store import Corpus
from uedp.entities.breakdown import breakdown, sentence_masks
from uedp.entities.categories import BASE, expand_categories, mask_of
from uedp.incidence import Ints

# Lai et al. (2022), "Breakdown of CONLL-2003, AG, and SEC datasets".
PAPER: dict[str, dict[str, Any]] = {
    "conll": {
        "vocabulary": 8882,
        "sentences": 14040,
        "users": 946,
        "sensitive": {"org": 5187, "loc": 5433, "person": 4406, "misc": 3438, "all": 11176},
    },
    "ag": {
        "vocabulary": 30000,
        "sentences": 112000,
        "users": 7536,
        "sensitive": {"org": 58177, "loc": 39988, "gpe": 18506, "pii": 42683, "all": 67157},
    },
    "edgar": {
        "vocabulary": 12651,
        "sentences": 5188,
        "users": 1592,
        "sensitive": {"org": 1955, "loc": 273, "gpe": 60, "pii": 357, "all": 2166},
    },
}


def measure(options: Options) -> Result:
    """Counts of the three data sets, beside the paper's.

    `all` is the union of the categories that the paper protects in a data set. Text that no people
    marked is counted twice: as the detectors hit it, and as it is protected here, with every other
    mention of what was hit and without what is declared public.
    """
    return {
        "quick": options.quick,
        "data": {name: _data_set(name, options) for name in DATA_SETS},
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import breakdown_histograms

    breakdown_histograms(result["data"], path)


def table(result: Result) -> str:
    """The data table, the paper's rows and ours, and how far entities spread."""
    counts, spread = [], []
    for found in result["data"].values():
        chosen = [*found["categories"], "all"]
        for who, numbers in _sources(found):
            sensitive = ", ".join(f"{c} {numbers['sensitive'][c]:,}" for c in chosen)
            sizes = (markdown.count(numbers.get(k)) for k in ("vocabulary", "sentences", "users"))
            sentences = numbers.get("sentences", found["here"]["sentences"])
            of_all = markdown.share(numbers["sensitive"]["all"], sentences)
            counts.append([f"{found['title']}, {who}", *sizes, sensitive, of_all])
        for what, key in (
            ("sentences per user", "sentences_per_user"),
            ("users per entity", "holders"),
        ):
            at = found["here"][key]
            spread.append([f"{found['title']}, {what}", *(f"{at[q]:,}" for q in _QUANTILES)])
    header = ("data", "words", "sentences", "users", "sensitive sentences", "of all")
    return "\n\n".join(
        [
            markdown.table(header, counts),
            markdown.table(("here", "median", "90%", "99%", "most"), spread),
            markdown.bullets(*_account(result["data"])),
        ]
    )


_QUANTILES = ("p50", "p90", "p99", "max")


def _data_set(name: str, options: Options) -> Result:
    chosen = DATA_SETS[name].paper_categories
    corpus = detected(name, options)
    numbers = breakdown(corpus, options.progress)
    incidence = corpus.incidence
    found: Result = {
        "title": DATA_SETS[name].title,
        "categories": list(chosen),
        "detectors": [detector.partition(":")[0] for detector in corpus.info["detectors"]],
        "paper": PAPER[name],
        "here": {
            **{key: numbers[key] for key in ("users", "sentences", "vocabulary", "entities")},
            "sensitive": _sensitive(corpus, chosen),
            "sensitive_in_any_category": numbers["sensitive"]["all"],
            "mentions": _mentions(corpus, chosen),
            "declared_public": len(corpus.info["declared_public"]),
            "sentences_per_user": numbers["sentences_per_user"],
            "holders": numbers["holders"],
        },
        "histograms": {
            "sentences_per_user": _histogram(incidence.user_sentences.counts),
            "holders": _histogram(incidence.holders.counts),
        },
    }
    if not DATA_SETS[name].marked:
        hits = detected(name, options, protected=False)
        found["hits_alone"] = {
            "entities": int(hits.info["entities"]),
            "sensitive": _sensitive(hits, chosen),
        }
    return found


def _sensitive(corpus: Corpus, categories: tuple[str, ...]) -> dict[str, int]:
    """Sentences that mention each category, and any of them."""
    present = sentence_masks(corpus)
    bits = {name: mask_of(expand_categories([name])) for name in categories} | {
        "all": mask_of(expand_categories(categories))
    }
    return {name: int(np.count_nonzero(present & mask)) for name, mask in bits.items()}


def _mentions(corpus: Corpus, categories: tuple[str, ...]) -> dict[str, int]:
    """Mentions of each category: more than sentences, since one sentence may hold several."""
    each = Counter(corpus.mentions["category"].to_pylist())
    numbers = dict(zip(BASE, range(len(BASE)), strict=True))
    return {
        name: sum(each[numbers[base]] for base in expand_categories([name])) for name in categories
    }


def _histogram(counts: Ints) -> dict[str, int]:
    values, times = np.unique(counts, return_counts=True)
    return {str(value): int(many) for value, many in zip(values, times, strict=True)}


def _sources(found: Result) -> list[tuple[str, Result]]:
    rows = [("paper", found["paper"])]
    if "hits_alone" in found:
        rows.append(("hits", found["hits_alone"]))
    return [*rows, ("here" if len(rows) == 1 else "protected", found["here"])]


def _account(data: Result) -> list[str]:
    lines = []
    for found in data.values():
        paper, here, title = found["paper"], found["here"], found["title"]
        for name, number in paper["sensitive"].items():
            if name != "all" and number == here["mentions"][name] != here["sensitive"][name]:
                lines.append(
                    f"{title}: the paper's {number:,} sensitive sentences of category {name} equal "
                    f"the number of {name} mentions; the sentences that hold one are "
                    f"{here['sensitive'][name]:,}."
                )
        empty = [name for name in found["categories"] if not here["sensitive"][name]]
        if empty and found["detectors"] != ["labels"]:
            lines.append(
                f"{title}: none of category {', '.join(empty)}, because the detector at hand says "
                "`loc` for places of every kind."
            )
        if "hits_alone" in found:
            hits = found["hits_alone"]["sensitive"]["all"]
            lines.append(
                f"{title}: the detectors hit something in {hits:,} sentences. "
                f"{here['declared_public']:,} words that they took for names are declared public; "
                f"{here['sensitive']['all']:,} sentences mention something else that was hit "
                "somewhere."
            )
    return lines
