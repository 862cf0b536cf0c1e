"""How much of the human marks detectors cover; the paper reports over 94% for spaCy.

The paper's marks, by hired workers, are not public. Two other gold standards stand in for them: the
human marks in the parts of CoNLL-2003 that the pipeline was not trained on, and the spans of
presidio-research, whose texts are synthetic.
"""

from itertools import islice
from pathlib import Path
from typing import Any

from research import markdown
from research.base import Options, Result, cached
from research.corpora import QUICK_SENTENCES, data_set_file, file_hash, ner_pipeline
from research.paper import COVERAGE
from research.sources import DATA_SETS
from uedp.corpus.readers import read_sentences
from uedp.entities.categories import BASE, NAMES
from uedp.entities.coverage import coverage
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import load_detector
from uedp.errors import UserError
from uedp.files import scratch_dir

_CONLL = DATA_SETS["conll"]

# title: (file, reader). Without CoNLL's training file, from which the pipeline learned.
GOLD = {
    "CoNLL-2003 testa": (_CONLL.file("validation"), _CONLL.reader),
    "CoNLL-2003 testb": (_CONLL.file("test"), _CONLL.reader),
    "presidio v2": ("presidio_synth/synth_dataset_v2.json.gz", "presidio-research"),
    "presidio large": ("presidio_synth/generated_large.json.gz", "presidio-research"),
}
_SOURCES = ("uedp.corpus", "uedp.entities", "research.experiments.integrity")
_COUNTS = (
    "marks",
    "exact",
    "covered",
    "words",
    "words_covered",
    "sentences",
    "sentences_found",
    "sentences_complete",
)


def measure(options: Options) -> Result:
    """Every available detector against every gold standard: its hits, and every mention of them.

    The pipeline `ner` is measured by itself, under Presidio, and with patterns; Stanza and
    Transformers if `--model stanza=LANG` and `--model transformers=PATH` are given.
    """
    available, missing = _available_detectors(options)
    return {
        "quick": options.quick,
        "paper": COVERAGE,
        "not_at_hand": missing,
        "gold": {
            title: {
                detector: _compare(options, gold, names) for detector, names in available.items()
            }
            for title, gold in GOLD.items()
        },
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import coverage_bars

    coverage_bars(result["gold"], result["paper"], path)


def table(result: Result) -> str:
    rows = []
    for gold, detectors in result["gold"].items():
        for detector, coverages in detectors.items():
            hits, wide = coverages["hits"]["all"], coverages["every_mention"]["all"]
            rows.append(
                [
                    f"{gold}, {detector}",
                    markdown.count(hits["marks"]),
                    markdown.share(hits["covered"], hits["marks"]),
                    markdown.share(hits["words_covered"], hits["words"]),
                    markdown.share(wide["covered"], wide["marks"]),
                    markdown.share(wide["words_covered"], wide["words"]),
                    markdown.share(wide["sentences_found"], wide["sentences"]),
                    markdown.share(wide["sentences_complete"], wide["sentences"]),
                ]
            )
    header = (
        "gold, detector",
        "marks",
        "marks, hits",
        "words, hits",
        "marks, every mention",
        "words, every mention",
        "sentences found",
        "sentences complete",
    )
    return "\n\n".join(
        [
            markdown.table(header, rows),
            "Marks covered by every mention, in each category:",
            _each_category(result),
            markdown.bullets(*_conclusions(result)),
        ]
    )


def _each_category(result: Result) -> str:
    names = [
        name
        for name in NAMES
        if any(name in d["hits"] for each in result["gold"].values() for d in each.values())
    ]
    rows = []
    for gold, detectors in result["gold"].items():
        for detector, coverages in detectors.items():
            each = (coverages["every_mention"].get(name) for name in names)
            cells = (markdown.share(c["covered"], c["marks"]) if c else "-" for c in each)
            rows.append([f"{gold}, {detector}", *cells])
    return markdown.table(("gold, detector", *names), rows)


def _available_detectors(
    options: Options,
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The detectors that load, and the reasons why others do not."""
    ner = ner_pipeline(options)
    single = {"patterns": "patterns", "spacy": f"spacy:{ner}", "presidio": f"presidio:{ner}"}
    for kind in ("stanza", "transformers"):
        if kind in options.models:
            single[kind] = f"{kind}:{options.models[kind]}"
    missing = {
        kind: "no --model given" for kind in ("stanza", "transformers") if kind not in single
    }
    for kind, name in list(single.items()):
        try:
            load_detector(name)
        except UserError as error:
            missing[kind] = str(error).replace(ner, Path(ner).name)
            del single[kind]
    combined: dict[str, tuple[str, ...]] = {
        f"{kind} + patterns": (name, "patterns")
        for kind, name in single.items()
        if kind != "patterns"
    }
    return {**{kind: (name,) for kind, name in single.items()}, **combined}, missing


def _compare(options: Options, gold: tuple[str, str], detectors: tuple[str, ...]) -> Result:
    file, reader = gold
    path = data_set_file(options, file)
    kinds = [name.partition(":")[0] for name in detectors]

    def compute(propagate: bool) -> Result:
        sentences = list(
            islice(read_sentences(path, reader), QUICK_SENTENCES if options.quick else None)
        )
        with scratch_dir(options.work / "corpus") as folder:
            corpus = detect(
                sentences,
                folder / "corpus",
                Detection(detectors, frozenset(BASE), propagate=propagate, workers=options.jobs),
                total=len(sentences),
                progress=options.progress,
            )
            return _trimmed(coverage(corpus, options.progress))

    def measure_once(propagate: bool) -> Result:
        key = {
            "file": file_hash(path),
            "detectors": list(detectors),
            "pipeline": file_hash(Path(ner_pipeline(options)) / "meta.json"),
            "propagate": propagate,
            "quick": options.quick,
        }
        return cached(options.work, key, _SOURCES, lambda: compute(propagate))

    hits = measure_once(False)
    # patterns hit a form wherever it occurs: every mention is a hit
    return {"hits": hits, "every_mention": hits if kinds == ["patterns"] else measure_once(True)}


def _trimmed(coverage: dict[str, Any]) -> Result:
    categories = {
        name: {key: row[key] for key in _COUNTS} for name, row in coverage["categories"].items()
    }
    return {**categories, "mentions": coverage["mentions"], "extra": coverage["extra"]}


def _conclusions(result: Result) -> list[str]:
    lines = []
    for gold, detectors in result["gold"].items():
        if "spacy" not in detectors:
            continue
        hits = detectors["spacy"]["hits"]["all"]
        rate = hits["words_covered"] / max(hits["words"], 1)
        holds = "reaches" if rate > result["paper"] else "does not reach"
        lines.append(
            f"{gold}: spaCy by itself covers {rate:.1%} of the marked words and "
            f"{markdown.share(hits['covered'], hits['marks'])} of the marks, which {holds} the "
            f"paper's {result['paper']:.0%}."
        )
    for kind, reason in result["not_at_hand"].items():
        lines.append(f"Not measured: {kind} ({reason}).")
    return lines
