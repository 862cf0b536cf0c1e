"""What propagation by evidence does to real text, and to recall on human marks.

    python benchmarks/entities.py --data DATA --ner MODELS --work DIR [--out JSON] [--before JSON]

`DATA` holds `blogs/train.jsonl.gz`, `conll2003/eng.test[ab].gz` and `presidio_synth/*.json.gz`;
`MODELS` the spaCy pipelines `en_mixed_ner` and `en_news_ner`. Corpora are built in `DIR` once, and
linked again from their raw hits after that. Under an earlier release (no raw hits), the script
measures its rule, and writes the file that `--before` takes.

- *sensitive*: the share of sentences with an entity
- *usable*: the share of sentences whose entities are all lent to their user in a round (rotation)
- *ordinary*: how many of the fifty entities with the most users are ordinary English words
"""

import argparse
import gzip
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from uedp.corpus.store import Corpus
from uedp.entities.build import build_corpus
from uedp.entities.coverage import coverage
from uedp.mechanism.sampling import supply_of

try:
    from uedp.entities.detection import relink
    from uedp.entities.lists import PUBLIC_LISTS, Lists
    from uedp.entities.ordinary import is_ordinary
    from uedp.entities.propagation import Rule
except ImportError:  # an earlier release: its rule only
    relink = None

# as if one sense per author were one sense for everybody
ANYWHERE = None if relink is None else Rule(name_share=Rule.sure_share)
FIRST = 40_000  # sentences of the blogs, besides all of them
COMMON = 50
MARKED = {
    "conll testa": ("conll2003/eng.testa.gz", "conll"),
    "conll testb": ("conll2003/eng.testb.gz", "conll"),
    "presidio large": ("presidio_synth/generated_large.json.gz", "presidio-research"),
    "presidio v2": ("presidio_synth/synth_dataset_v2.json.gz", "presidio-research"),
}
RECALL = ("span_recall_covered", "word_recall", "sentence_recall", "sentence_recall_complete")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data", "--ner", "--work"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"blogs": measure_blogs(options), "recall": measure_recall(options)}
    if options.before:
        result["before"] = json.loads(options.before.read_text())
        result["recall_lost"] = recall_lost(result)
        for name, lost in result["recall_lost"].items():
            print(f"{name:28} recall of marks lost: {lost:+.2%}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def measure_blogs(options: argparse.Namespace) -> dict[str, Any]:
    source, rows = options.data / "blogs" / "train.jsonl.gz", {}
    print(
        f"{'blogs':38} {'users':>6} {'sensitive':>9} {'usable':>7} {'entities':>9} {'ordinary':>8}"
    )
    for name, count in ((f"first {FIRST:,}", FIRST), ("all", None)):
        folder = options.work / f"blogs-{count or 'all'}"
        if not folder.exists():
            detectors = (f"spacy:{options.ner / 'en_mixed_ner'}", "patterns")
            with gzip.open(source, "rb") as lines:
                path = options.work / f"{folder.name}.jsonl"
                path.write_bytes(b"".join(islice(lines, count)))
            build_corpus(path, folder, detectors=detectors, split=None)
            path.unlink()
        for setting, changes in settings().items():
            began = time.perf_counter()
            with linked(folder, changes) as corpus:
                seconds = round(time.perf_counter() - began, 1) if changes else None
                row = rows[f"{name}, {setting}"] = blog_row(corpus) | {"seconds": seconds}
            print(
                f"{name + ', ' + setting:42} {row['users']:>6,} {row['sensitive']:>9.1%} "
                f"{row['usable']:>7.1%} {row['entities']:>9,} {row['ordinary_of_common']!s:>8}"
            )
    return rows


def settings() -> dict[str, dict[str, Any]]:
    """What is linked again, by name."""
    if relink is None:
        return {"one hit is enough": {}}
    return {
        "by evidence": {},
        "by evidence, names only": {"categories": ("person", "loc", "org", "misc")},
        "any name by one hit in twenty": {"rule": ANYWHERE},
        "with months and weekdays alone": {"categories": ("default", "calendar")},
        "by evidence, all lists public": {"lists": Lists(shipped=tuple(PUBLIC_LISTS))},
        "no propagation": {"propagate": False},
    }


@contextmanager
def linked(folder: Path, changes: dict[str, Any]) -> Iterator[Corpus]:
    if not changes:
        yield Corpus(folder)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        yield relink(Corpus(folder), Path(scratch) / "linked", **changes)


def blog_row(corpus: Corpus) -> dict[str, Any]:
    incidence = corpus.incidence
    holders = incidence.holders.counts
    widest = np.argsort(-holders, kind="stable")[:COMMON]
    surfaces = corpus.entities["surface"].take(widest).to_pylist()
    usable = supply_of(incidence).sentences_per_user.sum()
    return {
        "users": incidence.users,
        "sentences": incidence.sentences,
        "entities": incidence.entities,
        "sensitive": float(1 - np.mean(incidence.extended)),
        "usable": float(usable / incidence.sentences),
        "common": [
            [surface, int(holders[at])] for surface, at in zip(surfaces, widest, strict=True)
        ],
        "ordinary_of_common": None if relink is None else sum(map(is_ordinary, surfaces)),
        "propagation": corpus.info.get("propagation"),
        "hits_by_label": None if relink is None else hits_by_label(corpus),
    }


def hits_by_label(corpus: Corpus) -> dict[str, dict[str, int]]:
    """The raw hits of each label, and the sentences in which nothing else was hit."""
    hits = corpus.hits
    sentence, label = hits["sentence"].to_pylist(), hits["label"].to_pylist()
    labels: dict[int, set[str]] = {}
    for at, name in zip(sentence, label, strict=True):
        labels.setdefault(at, set()).add(name)
    alone = Counter(min(names) for names in labels.values() if len(names) == 1)
    return {
        name: {"hits": count, "sentences_with_nothing_else": alone[name]}
        for name, count in Counter(label).most_common()
    }


def measure_recall(options: argparse.Namespace) -> dict[str, Any]:
    rows = {}
    print(f"{'marks':28} {'spans':>7} {'words':>7} {'sent.':>7} {'whole':>7} {'precision':>9}")
    for model in ("en_mixed_ner", "en_news_ner"):
        for name, (file, reader) in MARKED.items():
            folder = options.work / f"{name.replace(' ', '-')}-{model}"
            if not folder.exists():
                build_corpus(
                    options.data / file,
                    folder,
                    reader=reader,
                    detectors=(f"spacy:{options.ner / model}", "patterns"),
                    categories="all",
                    split=None,
                )
            found = coverage(Corpus(folder))
            marks = found["categories"]["all"]
            precision = found.get("precision", {}).get("all", {}).get("precision")
            row = {key: marks[key] for key in RECALL} | {
                "marks": marks["marks"],
                "mentions": found["mentions"],
                "extra": found["extra"],
                "precision": precision,
            }
            if relink is not None:
                others = {"by_half": {"rule": Rule(name_share=0.5)}, "off": {"propagate": False}}
                for other, changes in others.items():
                    with linked(folder, changes) as corpus:
                        recall = coverage(corpus)["categories"]["all"][RECALL[0]]
                    row[f"{RECALL[0]}_{other}"] = recall
            rows[f"{name}, {model}"] = row
            shown = " ".join(f"{row[key]:>7.2%}" for key in RECALL)
            print(f"{name + ', ' + model:28} {shown} {precision or 0:>9.2%}")
    return rows


def recall_lost(result: dict[str, Any]) -> dict[str, float]:
    """The share of marks that the earlier rule covered, less that of this one."""
    before, after = result["before"]["recall"], result["recall"]
    key = RECALL[0]
    return {name: before[name][key] - after[name][key] for name in after}


if __name__ == "__main__":
    main()
