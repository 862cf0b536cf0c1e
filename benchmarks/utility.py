"""The search for training settings on CoNLL-2003: adapters, learning rates, sampling, shares.

    python benchmarks/utility.py prepare --data DIR --datasets FOLDER
    python benchmarks/utility.py train --datasets FOLDER --model gpt=FOLDER --out FOLDER
    python benchmarks/utility.py table FOLDER

`train` uses the same loop as `uedp train`, in parallel, for all runs or those named; finished runs
are not repeated. Choices are made on the validation part; the test part is evaluated once per
finished run and decides nothing. `research/settings.py` holds the chosen settings, and `python -m
research next-word-gpt` the comparison made with them.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from research import runs
from research.datasets import prepare_dataset
from research.runs import TrainingTrial, override
from research.settings import DATA_SETTINGS, EPSILONS, FINE_TUNING, FLAT, LSTM, method_config

STEPS = (3e-3, 4e-3, 8e-3, 1.6e-2)
LSTM_STEPS = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
USER_LEVEL_RATES = (0.05, 0.2)  # beside the base's 0.1
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"model__train": "lora"},
    "flat": {"model__train": "lora", **FLAT},
    "half": {"model__train": "lora-b"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "at-0.2": {"privacy__user_rate": 0.2},
    "at-0.2-rounds-100": {"privacy__user_rate": 0.2, "privacy__rounds": 100},
    "rounds-400": {"privacy__rounds": 400},
    "share-0.3": {"privacy__entity_share": 0.3},
    "share-0.6": {"privacy__entity_share": 0.6},
    "average": {"optimiser__average": 0.95},
}


def trials() -> Iterator[TrainingTrial]:
    """Adapters of rank 8: kinds, learning rates and variants of each method; then an AWD-LSTM."""
    for epsilon, (kind, how), step in product(EPSILONS, KINDS.items(), STEPS):
        changes = {**how, "optimiser__rate": step}
        share = {"privacy__entity_share": DATA_SETTINGS["conll"].share}
        rotation = method_config(FINE_TUNING, "rotation", epsilon, **share, **changes)
        user = method_config(FINE_TUNING, "user-level", epsilon, **changes)
        ending = f"{epsilon:g}-{kind}-{step:g}"
        yield TrainingTrial(f"rotation-{ending}", "conll", rotation)
        yield TrainingTrial(f"user-{ending}", "conll", user)
        for rate in USER_LEVEL_RATES:
            other = override(user, privacy__user_rate=rate)
            yield TrainingTrial(f"user-{ending}-at-{rate:g}", "conll", other)
        if kind != "half":
            for name, other in OTHERS.items():
                yield TrainingTrial(
                    f"rotation-{ending}-{name}", "conll", override(rotation, **other)
                )
    for step in (1e-3, 2e-3):
        plain = method_config(FINE_TUNING, "noiseless", optimiser__rate=step)
        yield TrainingTrial(f"noiseless-{step:g}", "conll", plain)
    for step, (name, method) in product(
        LSTM_STEPS, (("rotation", "rotation"), ("user", "user-level"))
    ):
        own = method_config(LSTM, method, 8.0, optimiser__rate=step)
        yield TrainingTrial(f"lstm-{name}-8-step-{step:g}", "conll", own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--datasets", type=Path, required=True)
    training = commands.add_parser("train")
    training.add_argument("--datasets", type=Path, required=True)
    training.add_argument("--model", nargs="+", required=True, metavar="PART=FOLDER")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--runs", nargs="*", help="names of runs; default all")
    training.add_argument("--rounds", type=int, help="for a dry run")
    training.add_argument("--jobs", type=int, default=1)
    training.add_argument("--deadline", type=float, default=1e9, help="seconds")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare_dataset("conll", options.data, options.datasets / "conll")
    elif options.command == "train":
        models = dict(part.split("=", 1) for part in options.model)
        workspace = runs.Workspace(options.datasets, models, options.out, options.rounds)
        selected = [trial for trial in trials() if not options.runs or trial.name in options.runs]
        say = partial(print, flush=True)
        results = runs.run_trials(selected, workspace, options.jobs, options.deadline, say=say)
        print(runs.results_table(results.values()))
    else:
        print(runs.results_table(runs.load_results(options.folder)))


if __name__ == "__main__":
    main()
