"""The cost of a change of the clip rule: one CoNLL run at epsilon 8 with two versions of the code.

    python benchmarks/utility.py prepare --data DIR --datasets FOLDER        (with each version)
    python benchmarks/clip_cost.py train --before TREE --datasets FOLDER FOLDER --model FOLDER
        --out FOLDER
    python benchmarks/clip_cost.py table FILE

TREE is an older checkout. Both versions run the same trial of their own `benchmarks/utility.py`,
side by side, from the same weights, with fresh sampling and noise. The older version reads the
first of the two folders of prepared data. `train` writes OUT/clip_cost.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from research import processes, runs

HERE = Path(__file__).resolve().parents[1]
TRIAL = "rotation-8-flat-0.003-at-0.2"  # the settings for CoNLL in `research/settings.py`


def train(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    trees = {"before": options.before, "after": HERE}
    datasets = dict(zip(trees, options.datasets, strict=True))

    def start(name: str) -> processes.Process:
        script = trees[name] / "benchmarks/utility.py"
        path = ":".join([str(trees[name] / "src"), str(trees[name]), *options.packages])
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-W", "ignore", str(script)]
        option = next(o for o in ("--datasets", "--materials") if o in script.read_text())
        command += ["train", option, str(datasets[name]), "--runs", TRIAL]
        command += ["--model", f"gpt={options.model}", "--out", str(options.out / name)]
        command += ["--rounds", str(options.rounds)] if options.rounds else []
        return processes.start_process(name, command, options.out)

    jobs = {name: (lambda name=name: start(name)) for name in trees}
    failed = processes.run_processes(jobs, options.out, 2, say=lambda line: print(line, flush=True))
    if failed:
        raise SystemExit(f"{failed[0]}; the logs are in {options.out}")
    results = {
        name: json.loads((options.out / name / f"{TRIAL}.json").read_text()) | {"name": name}
        for name in trees
    }
    path = options.out / "clip_cost.json"
    path.write_text(json.dumps({"trial": TRIAL, "runs": results}, indent=1) + "\n")
    table(path)


def table(path: Path) -> None:
    results: dict[str, Any] = json.loads(path.read_text())["runs"]
    print(runs.results_table(results.values()))
    for part in ("validation", "test"):
        before, after = (results[name][part]["perplexity"] for name in ("before", "after"))
        print(
            f"{part} perplexity {before:.2f} before, {after:.2f} after: {after / before - 1:+.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--before", type=Path, required=True, metavar="TREE")
    training.add_argument("--datasets", type=Path, nargs=2, required=True)
    training.add_argument("--model", required=True)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--packages", nargs="*", default=[], help="more folders to import from")
    training.add_argument("--rounds", type=int, help="for a dry run")
    shown = commands.add_parser("table")
    shown.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "train":
        train(options)
    else:
        table(options.file)


if __name__ == "__main__":
    main()
