"""How much of what people marked the detectors find; the paper says spaCy covers over 94%.

The paper's marks, by workers it hired, are not public. Here are two other kinds of gold: the
people's marks in the parts of CoNLL-2003 that the pipeline was not trained on, and the spans that
presidio-research knows of because it made the texts up.
"""

from itertools import islice
from pathlib import Path
from typing import Any

from research import markdown
from research.base import Options, Result, kept
from research.corpora import QUICK_SENTENCES, data_set_file, file_hash, pipeline
from research.sources import DATA_SETS
from uedp.corpus.readers import read_sentences
from uedp.entities.categories import NAMES
from uedp.entities.coverage import coverage
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import load_detector
from uedp.errors import UserError
from uedp.files import scratch_dir

PAPER = 0.94  # "the results from spaCy cover over 94% of sensitive information"

_CONLL = DATA_SETS["conll"]

# title: (file, reader). CoNLL's training file is left out: the pipeline learned from it.
GOLD = {
    "CoNLL-2003 testa": (_CONLL.file("validation"), _CONLL.reader),
    "CoNLL-2003 testb": (_CONLL.file("test"), _CONLL.reader),
    "presidio v2": ("presidio_synth/synth_dataset_v2.json.gz", "presidio-research"),
    "presidio large": ("presidio_synth/generated_large.json.gz", "presidio-research"),
}
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
    """Every detector that is at hand, against every gold: its own hits, and every mention of them.

    Beside the pipeline `ner` (alone, under Presidio, with patterns), `--model stanza=LANG` and
    `--model transformers=PATH` are measured if given.
    """
    loaded, missing = _at_hand(options)
    return {
        "quick": options.quick,
        "paper": PAPER,
        "not_at_hand": missing,
        "gold": {
            title: {detector: _compared(options, gold, names) for detector, names in loaded.items()}
            for title, gold in GOLD.items()
        },
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import coverage_bars

    coverage_bars(result["gold"], result["paper"], path)


def table(result: Result) -> str:
    rows = []
    for gold, detectors in result["gold"].items():
        for detector, found in detectors.items():
            alone, wide = found["hits"]["all"], found["every_mention"]["all"]
            rows.append(
                [
                    f"{gold}, {detector}",
                    markdown.count(alone["marks"]),
                    markdown.share(alone["covered"], alone["marks"]),
                    markdown.share(alone["words_covered"], alone["words"]),
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
            markdown.bullets(*_account(result)),
        ]
    )


def _each_category(result: Result) -> str:
    names = [
        name
        for name in NAMES
        if any(name in d["hits"] for found in result["gold"].values() for d in found.values())
    ]
    rows = []
    for gold, detectors in result["gold"].items():
        for detector, found in detectors.items():
            each = (found["every_mention"].get(name) for name in names)
            cells = (markdown.share(c["covered"], c["marks"]) if c else "-" for c in each)
            rows.append([f"{gold}, {detector}", *cells])
    return markdown.table(("gold, detector", *names), rows)


def _at_hand(options: Options) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Detectors that load, and why others do not."""
    ner = pipeline(options)
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
    united: dict[str, tuple[str, ...]] = {
        f"{kind} + patterns": (name, "patterns")
        for kind, name in single.items()
        if kind != "patterns"
    }
    return {**{kind: (name,) for kind, name in single.items()}, **united}, missing


def _compared(options: Options, gold: tuple[str, str], detectors: tuple[str, ...]) -> Result:
    file, reader = gold
    path = data_set_file(options, file)
    kinds = [name.partition(":")[0] for name in detectors]

    def compute(propagate: bool) -> Result:
        sentences = list(
            islice(read_sentences(path, reader), QUICK_SENTENCES if options.quick else None)
        )
        with scratch_dir(options.work / "found") as folder:
            corpus = detect(
                sentences,
                folder / "corpus",
                Detection(detectors, propagate=propagate, workers=options.jobs),
                total=len(sentences),
                progress=options.progress,
            )
            return _trimmed(coverage(corpus, options.progress))

    def remembered(propagate: bool) -> Result:
        what = {
            "file": file_hash(path),
            "detectors": list(detectors),
            "pipeline": file_hash(Path(pipeline(options)) / "meta.json"),
            "propagate": propagate,
            "quick": options.quick,
        }
        return kept(options.work, what, lambda: compute(propagate))

    hits = remembered(False)
    # patterns find the same form wherever it stands: they have no mentions beside their hits
    return {"hits": hits, "every_mention": hits if kinds == ["patterns"] else remembered(True)}


def _trimmed(found: dict[str, Any]) -> Result:
    categories = {
        name: {key: row[key] for key in _COUNTS} for name, row in found["categories"].items()
    }
    return {**categories, "mentions": found["mentions"], "extra": found["extra"]}


def _account(result: Result) -> list[str]:
    lines = []
    for gold, detectors in result["gold"].items():
        if "spacy" not in detectors:
            continue
        hits = detectors["spacy"]["hits"]["all"]
        rate = hits["words_covered"] / max(hits["words"], 1)
        holds = "reaches" if rate > result["paper"] else "does not reach"
        lines.append(
            f"{gold}: spaCy alone covers {rate:.1%} of the marked words and "
            f"{markdown.share(hits['covered'], hits['marks'])} of the marks, which {holds} the "
            f"paper's {result['paper']:.0%}."
        )
    for kind, reason in result["not_at_hand"].items():
        lines.append(f"Not measured: {kind} ({reason}).")
    return lines
