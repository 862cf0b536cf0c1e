"""What training with noise was tried on CoNLL-2003: kinds, steps, rates, rounds, shares.

    python benchmarks/utility.py prepare --data DIR --datasets FOLDER
    python benchmarks/utility.py train --datasets FOLDER --model gpt=FOLDER --out FOLDER
    python benchmarks/utility.py table FOLDER

`train` goes through the same loop as `uedp train`, several runs at once, all or those named; what
is finished is not run again. Choices are made on the validation part; the test part is measured
once per finished run and decides nothing. `research/settings.py` holds what was chosen, and
`python -m research next-word-gpt` is the comparison made with it.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from research import runs
from research.datasets import prepare_dataset
from research.runs import Trial, override
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


def trials() -> Iterator[Trial]:
    """Adapters of rank 8: kinds and steps for each method, other changes; steps of an LSTM."""
    for epsilon, (kind, how), step in product(EPSILONS, KINDS.items(), STEPS):
        changes = {**how, "optimiser__rate": step}
        share = {"privacy__entity_share": DATA_SETTINGS["conll"].share}
        rotation = method_config(FINE_TUNING, "rotation", epsilon, **share, **changes)
        user = method_config(FINE_TUNING, "user-level", epsilon, **changes)
        ending = f"{epsilon:g}-{kind}-{step:g}"
        yield Trial(f"rotation-{ending}", "conll", rotation)
        yield Trial(f"user-{ending}", "conll", user)
        for rate in USER_LEVEL_RATES:
            other = override(user, privacy__user_rate=rate)
            yield Trial(f"user-{ending}-at-{rate:g}", "conll", other)
        if kind != "half":
            for name, other in OTHERS.items():
                yield Trial(f"rotation-{ending}-{name}", "conll", override(rotation, **other))
    for step in (1e-3, 2e-3):
        plain = method_config(FINE_TUNING, "noiseless", optimiser__rate=step)
        yield Trial(f"noiseless-{step:g}", "conll", plain)
    for step, (name, method) in product(
        LSTM_STEPS, (("rotation", "rotation"), ("user", "user-level"))
    ):
        own = method_config(LSTM, method, 8.0, optimiser__rate=step)
        yield Trial(f"lstm-{name}-8-step-{step:g}", "conll", own)


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
    training.add_argument("--runs", nargs="*", help="some of them")
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
        place = runs.Workspace(options.datasets, models, options.out, options.rounds)
        asked = [trial for trial in trials() if not options.runs or trial.name in options.runs]
        found = runs.run_trials(
            asked, place, options.jobs, options.deadline, say=lambda line: print(line, flush=True)
        )
        print(runs.results_table(found.values()))
    else:
        print(runs.results_table(runs.load_results(options.folder)))


if __name__ == "__main__":
    main()
