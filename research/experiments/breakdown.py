"""The paper's data table and its histograms, for the data at hand."""

from collections import Counter
from pathlib import Path

import numpy as np

from research import markdown
from research.base import Options, Result
from research.corpora import detected_corpus
from research.paper import COUNTS
from research.sources import DATA_SETS
from uedp.corpus.store import Corpus
from uedp.entities.breakdown import breakdown, sentence_masks
from uedp.entities.categories import BASE, expand_categories, mask_of
from uedp.incidence import Ints


def measure(options: Options) -> Result:
    """Counts of the three data sets, beside the paper's.

    `all` is the union of the categories that the paper protects in a data set. Text without human
    marks is counted twice: by the detectors' hits, and as it is protected here, with hits
    propagated to every mention and without public words.
    """
    return {
        "quick": options.quick,
        "data": {name: _data_set(name, options) for name in DATA_SETS},
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import breakdown_histograms

    breakdown_histograms(result["data"], path)


def table(result: Result) -> str:
    """The data table with the paper's rows and ours, and the quantiles of the histograms."""
    counts, spread = [], []
    for data in result["data"].values():
        categories = [*data["categories"], "all"]
        for source, numbers in _sources(data):
            sensitive = ", ".join(f"{c} {numbers['sensitive'][c]:,}" for c in categories)
            sizes = (markdown.count(numbers.get(k)) for k in ("vocabulary", "sentences", "users"))
            sentences = numbers.get("sentences", data["here"]["sentences"])
            share = markdown.share(numbers["sensitive"]["all"], sentences)
            counts.append([f"{data['title']}, {source}", *sizes, sensitive, share])
        for name, key in (
            ("sentences per user", "sentences_per_user"),
            ("users per entity", "holders"),
        ):
            at = data["here"][key]
            spread.append([f"{data['title']}, {name}", *(f"{at[q]:,}" for q in _QUANTILES)])
    header = ("data", "words", "sentences", "users", "sensitive sentences", "share")
    return "\n\n".join(
        [
            markdown.table(header, counts),
            markdown.table(("here", "median", "90%", "99%", "maximum"), spread),
            markdown.bullets(*_conclusions(result["data"])),
        ]
    )


_QUANTILES = ("p50", "p90", "p99", "max")


def _data_set(name: str, options: Options) -> Result:
    categories = DATA_SETS[name].paper_categories
    corpus = detected_corpus(name, options)
    numbers = breakdown(corpus, options.progress)
    incidence = corpus.incidence
    result: Result = {
        "title": DATA_SETS[name].title,
        "categories": list(categories),
        "detectors": [detector.partition(":")[0] for detector in corpus.info["detectors"]],
        "paper": COUNTS[name],
        "here": {
            **{key: numbers[key] for key in ("users", "sentences", "vocabulary", "entities")},
            "sensitive": _sensitive(corpus, categories),
            "sensitive_in_any_category": numbers["sensitive"]["all"],
            "mentions": _mentions(corpus, categories),
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
        hits = detected_corpus(name, options, protected=False)
        result["hits_alone"] = {
            "entities": int(hits.info["entities"]),
            "sensitive": _sensitive(hits, categories),
        }
    return result


def _sensitive(corpus: Corpus, categories: tuple[str, ...]) -> dict[str, int]:
    """The number of sentences that mention each category, and any of them."""
    present = sentence_masks(corpus)
    bits = {name: mask_of(expand_categories([name])) for name in categories} | {
        "all": mask_of(expand_categories(categories))
    }
    return {name: int(np.count_nonzero(present & mask)) for name, mask in bits.items()}


def _mentions(corpus: Corpus, categories: tuple[str, ...]) -> dict[str, int]:
    """The number of mentions of each category; a sentence may have several."""
    counts = Counter(corpus.mentions["category"].to_pylist())
    index = {name: number for number, name in enumerate(BASE)}
    return {
        name: sum(counts[index[base]] for base in expand_categories([name])) for name in categories
    }


def _histogram(counts: Ints) -> dict[str, int]:
    values, times = np.unique(counts, return_counts=True)
    return {str(value): int(many) for value, many in zip(values, times, strict=True)}


def _sources(data: Result) -> list[tuple[str, Result]]:
    rows = [("paper", data["paper"])]
    if "hits_alone" in data:
        rows.append(("hits", data["hits_alone"]))
    return [*rows, ("here" if len(rows) == 1 else "protected", data["here"])]


def _conclusions(result: Result) -> list[str]:
    lines = []
    for data in result.values():
        paper, here, title = data["paper"], data["here"], data["title"]
        for name, number in paper["sensitive"].items():
            if name != "all" and number == here["mentions"][name] != here["sensitive"][name]:
                lines.append(
                    f"{title}: the paper's {number:,} sensitive sentences of category {name} equal "
                    f"the number of {name} mentions; {here['sensitive'][name]:,} sentences contain "
                    "one."
                )
        empty = [name for name in data["categories"] if not here["sensitive"][name]]
        if empty and data["detectors"] != ["labels"]:
            lines.append(
                f"{title}: no entities of category {', '.join(empty)}, because the pipeline at "
                "hand labels all places `loc`."
            )
        if "hits_alone" in data:
            hits = data["hits_alone"]["sensitive"]["all"]
            lines.append(
                f"{title}: the detectors hit something in {hits:,} sentences. "
                f"{here['declared_public']:,} words that they mistook for names are declared "
                f"public; {here['sensitive']['all']:,} sentences mention an entity after "
                "propagation."
            )
    return lines
