"""The value of public text: private fine-tuning after another data set, which is declared public.

    python benchmarks/public_text.py train --datasets FOLDER --model gpt=FOLDER --out FOLDER
    python benchmarks/public_text.py table FOLDER

The private trials of `python -m research next-word-gpt` at the larger epsilon, each after public
text, with the same learning rate and with half of it, since less remains to be learned.
`--datasets` holds all three data sets (`python -m research` leaves them in
OUT/.work/common/datasets). The committed results were made in two runs, of which the first was on
AG or CoNLL-2003 (100 steps of about 700 articles or sentences at a rate of 1e-3); those of rotation
were made with another order of lending (see docs/results.md).
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from research import runs
from research.experiments.next_word import gpt_trials
from research.runs import TrainingTrial, override, public_first
from research.settings import EPSILONS

PUBLIC = {"conll": "ag", "ag": "conll", "edgar": "ag"}  # news for news; contracts have none
KNOWN = {trial.name: trial for trial in gpt_trials()}


def trials() -> Iterator[TrainingTrial]:
    for (data, other), method in product(PUBLIC.items(), ("rotation", "user")):
        trial = public_first(KNOWN[f"{data}-{method}-{EPSILONS[0]:g}"], other)
        yield trial
        half = override(trial.config, optimiser__rate=trial.config["optimiser"]["rate"] / 2)
        yield replace(trial, name=f"{trial.name}-half-steps", config=half)


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
    place = runs.Workspace(options.datasets, models, options.out, options.rounds)
    results = runs.run_trials(list(trials()), place, options.jobs, say=print)
    print(runs.results_table(results.values()))


if __name__ == "__main__":
    main()
