"""What the detectors find on real text: breakdowns of three data sets, recall against human marks.

    python benchmarks/coverage.py DATA PIPELINE [--out benchmarks/results]

DATA holds `conll2003`, `ag_news`, `edgar` and `presidio_synth`; PIPELINE is a spaCy pipeline
trained on CoNLL's training file (so that eng.testa and eng.testb are new to it). Each step is a
`uedp` command; its JSON goes to OUT/coverage.json, the tables to OUT/coverage.txt.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def uedp(*arguments: object) -> str:
    command = [sys.executable, "-m", "uedp", *map(str, arguments)]
    print("uedp", *(str(a).replace(str(Path.cwd()), ".") for a in arguments), flush=True)
    return subprocess.check_output(command, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    data, spacy = options.data, f"spacy:{options.pipeline}"
    results: dict[str, Any] = {"breakdown": {}, "coverage": {}}
    tables: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def breakdown(name: str, source: Path, *how: object) -> None:
            uedp("detect", source, "--out", folder / name, "--workers", options.workers, *how)
            results["breakdown"][name] = json.loads(uedp("inspect", folder / name, "--json"))

        def coverage(name: str, source: Path, reader: str, *detectors: str) -> None:
            uedp(
                "detect", source, "--reader", reader, "--detector", "labels", "--out", folder / name
            )
            for detector in detectors:
                key = f"{name}, {detector.replace(str(options.pipeline), options.pipeline.name)}"
                how = ("coverage", folder / name, "--detector", detector)
                found = json.loads(uedp(*how, "--workers", options.workers, "--json"))
                results["coverage"][key] = {k: v for k, v in found.items() if k != "detectors"}

        conll = data / "conll2003"
        breakdown(
            "conll2003 train, labels",
            conll / "eng.train.gz",
            "--reader",
            "conll",
            "--detector",
            "labels",
        )
        for split in ("testa", "testb"):
            coverage(f"conll2003 {split}", conll / f"eng.{split}.gz", "conll", spacy)
        united = f"patterns,{spacy}"
        breakdown(
            "ag_news train, spacy",
            data / "ag_news/train.csv.gz",
            "--reader",
            "ag",
            "--detector",
            spacy,
        )
        breakdown(
            "edgar train, spacy+patterns", data / "edgar/train.jsonl.gz", "--detector", united
        )
        presidio = f"presidio:{options.pipeline}"
        for name in ("synth_dataset_v2", "generated_large"):
            source = data / f"presidio_synth/{name}.json.gz"
            coverage(
                name, source, "presidio-research", "patterns", presidio, f"patterns,{presidio}"
            )
    for name, numbers in results["breakdown"].items():
        found = {k: n for k, n in numbers["sensitive"].items() if n}
        tables.append(
            f"{name}: {numbers['users']:,} users, {numbers['sentences']:,} sentences, "
            f"{numbers['entities']:,} entities, {numbers['vocabulary']:,} words\n  sensitive: "
            + ", ".join(f"{k} {n:,}" for k, n in found.items())
        )
    columns = ("marks", "span_recall_exact", "span_recall_covered", "word_recall")
    columns += ("sentences", "sentence_recall", "sentence_recall_complete")
    for name, found in results["coverage"].items():
        head = " ".join(f"{c.removeprefix('span_').replace('recall_', ''):>16}" for c in columns)
        lines = [
            f"{name}: {found['extra']:,} of {found['mentions']:,} mentions over no mark",
            " " * 22 + head,
        ]
        rows = found["categories"] | {f"  {name}": row for name, row in found["labels"].items()}
        for category, row in rows.items():
            cells = (
                f"{row[c]:>16,}" if isinstance(row[c], int) else f"{row[c]:>16.3f}" for c in columns
            )
            lines.append(f"  {category:20}" + " ".join(cells))
        tables.append("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "coverage.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "coverage.txt").write_text("\n\n".join(tables) + "\n")
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
