"""The value of public text: private fine-tuning after fine-tuning on another data set.

    python benchmarks/public_text.py train --datasets FOLDER --model gpt=FOLDER --out FOLDER
    python benchmarks/public_text.py table FOLDER

Another data set is treated as public, and the model is fine-tuned on it without privacy. Then the
private trials of `python -m research next-word-gpt` at the larger epsilon follow, with the same
learning rate and with half of it, since less remains to be learned. `--datasets` holds all
three data sets (`python -m research` leaves them in OUT/.work/common/datasets). Of the committed
results, those of rotation were made with another order of lending (see docs/results.md).
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from research import runs
from research.experiments.next_word import gpt_trials
from research.runs import TrainingTrial, override
from research.settings import EPSILONS

PUBLIC = {"conll": "ag", "ag": "conll", "edgar": "ag"}  # news for news; contracts have none
KNOWN = {trial.name: trial for trial in gpt_trials()}


def trials() -> Iterator[TrainingTrial]:
    for (data, other), method in product(PUBLIC.items(), ("rotation", "user")):
        one = KNOWN[f"{data}-{method}-{EPSILONS[0]:g}"]
        own = override(one.config, model__name=part(other))
        yield replace(one, name=f"{one.name}-public", config=own)
        half = override(own, optimiser__rate=own["optimiser"]["rate"] / 2)
        yield replace(one, name=f"{one.name}-public-short", config=half)


def part(data: str) -> str:
    """The part name of the model that was fine-tuned on a data set."""
    return f"after:{data}-noiseless"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--datasets", type=Path, required=True)
    training.add_argument("--model", required=True, metavar="gpt=FOLDER")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--rounds", type=int, help="for a dry run")
    training.add_argument("--jobs", type=int, default=1)
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        print(runs.results_table(runs.load_results(options.folder)))
        return
    models = dict([options.model.split("=", 1)])
    first = runs.Workspace(options.datasets, dict(models), options.out / "public", options.rounds)
    first.out.mkdir(parents=True, exist_ok=True)
    for data in dict.fromkeys(PUBLIC.values()):
        trial = KNOWN[f"{data}-noiseless"]
        if not first.result(trial).exists():
            runs.run(trial, first, keep_weights=True)
        models[part(data)] = str(first.out / trial.name)
    place = runs.Workspace(options.datasets, models, options.out, options.rounds)
    results = runs.run_trials(list(trials()), place, options.jobs, say=print)
    print(runs.results_table(results.values()))


if __name__ == "__main__":
    main()
