"""Recall, precision and the cost of errors of detectors on human marks.

    python benchmarks/coverage.py --data FOLDER --ner FOLDER [--out benchmarks/results]

`--data` holds `conll2003` and `presidio_synth` as downloaded, `--ner` a spaCy pipeline. Writes
coverage.json: what `uedp coverage --json` prints for patterns, and for the pipeline with patterns,
with propagation, in the default categories.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from uedp.audit.detection import false_hit_costs, miss_costs
from uedp.entities.build import build_corpus
from uedp.entities.coverage import compare

GOLD = {
    "CoNLL-2003 testa": ("conll2003/eng.testa.gz", "conll"),
    "CoNLL-2003 testb": ("conll2003/eng.testb.gz", "conll"),
    "presidio v2": ("presidio_synth/synth_dataset_v2.json.gz", "presidio-research"),
    "presidio large": ("presidio_synth/generated_large.json.gz", "presidio-research"),
}


def measure(source: Path, reader: str, detectors: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        corpus = build_corpus(
            source,
            Path(folder) / "corpus",
            reader=reader,
            detectors=detectors,
            on_warning=lambda warning: None,
        )
        compared = compare(corpus)
        del compared.result["labels"]
        return {
            "sentences": len(corpus),
            "sensitive": float((~corpus.incidence.extended).mean()),
            **compared.result,
            "false_hits": false_hit_costs(compared.errors),
            "misses": miss_costs(compared.errors),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ner", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    detectors = {"patterns": ["patterns"], options.ner.name: [f"spacy:{options.ner}", "patterns"]}
    result: dict[str, Any] = {}
    for gold, (file, reader) in GOLD.items():
        for name, chosen in detectors.items():
            row = measure(options.data / file, reader, chosen)
            result.setdefault(gold, {})[name] = row
            recall, precision = (row[part].get("protected") for part in ("categories", "precision"))
            costs, misses = row["false_hits"], row["misses"]["categories"]["protected"]
            print(
                f"{gold:18} {name:14} covered {recall['span_recall_covered']:6.1%}"
                f" right {precision['precision'] if precision else float('nan'):6.1%}"
                f" usable {costs['usable']:6.1%} of {costs['usable_without']:6.1%}"
                f" epsilon of 90% {misses['epsilon']['p90']}",
                flush=True,
            )
    (options.out / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
