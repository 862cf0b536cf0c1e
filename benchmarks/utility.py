"""Perplexity against epsilon on CoNLL-2003, with rates and rounds tried side by side.

    python benchmarks/utility.py prepare --data DIR --materials FOLDER
    python benchmarks/utility.py train --materials FOLDER --model gpt=FOLDER --out FOLDER
    python benchmarks/utility.py table FOLDER

`train` goes through the same loop as `uedp train`, several runs at once; what is finished is not
run again. Choices are made on the validation part; the test part is measured once per finished run
and decides nothing. The paper's comparisons are `uedp experiment next-word-gpt` and its like.
"""

import argparse
import json
from pathlib import Path

from uedp.experiments import runs
from uedp.experiments.material import prepare
from uedp.experiments.runs import Trial
from uedp.experiments.settings import FINE_TUNING, as_published, config


def trials() -> list[Trial]:
    """A pretrained model with adapters of rank 8, in the order of what is wanted most."""
    rare, often = {"privacy__user_rate": 0.05}, {"privacy__user_rate": 0.2}
    fast, slow = {"optimiser__rate": 4e-3}, {"optimiser__rate": 1e-3}
    faster, half = {"optimiser__rate": 8e-3}, {"model__train": "lora-b"}
    private = {
        "rotation-8-at-.2-faster": ("rotation", 8, often | fast),
        "rotation-2-faster": ("rotation", 2, fast),
        "rotation-8-half": ("rotation", 8, half | fast),
        "rotation-2-half": ("rotation", 2, half | fast),
        "user-8-at-.1-faster": ("user-level", 8, fast),
        "user-2-at-.1-faster": ("user-level", 2, fast),
        "user-8-at-.05-faster": ("user-level", 8, rare | fast),
        "user-2-at-.05-faster": ("user-level", 2, rare | fast),
        "rotation-8-half-fastest": ("rotation", 8, half | faster),
        "rotation-2-half-fastest": ("rotation", 2, half | faster),
        "rotation-8-faster": ("rotation", 8, fast),
        "rotation-8": ("rotation", 8, {}),
        "rotation-2": ("rotation", 2, {}),
        "user-8-at-.05": ("user-level", 8, rare),
        "user-2-at-.05": ("user-level", 2, rare),
    }
    configs = {
        name: config(FINE_TUNING, method, epsilon, **changes)
        for name, (method, epsilon, changes) in private.items()
    }
    configs["noiseless"] = config(FINE_TUNING, "noiseless", **slow)
    configs["uedp-alg"] = as_published(FINE_TUNING, privacy__noise=2.0, privacy__user_rate=50 / 946)
    return [Trial(name, "conll", found) for name, found in configs.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--materials", type=Path, required=True)
    training = commands.add_parser("train")
    training.add_argument("--materials", type=Path, required=True)
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
        prepare("conll", options.data, options.materials / "conll")
    elif options.command == "train":
        models = dict(part.split("=", 1) for part in options.model)
        place = runs.Place(options.materials, models, options.out, options.rounds)
        asked = [trial for trial in trials() if not options.runs or trial.name in options.runs]
        found = runs.carry_out(
            asked, place, options.jobs, options.deadline, say=lambda line: print(line, flush=True)
        )
        print(runs.table(found.values()))
    else:
        results = sorted(options.folder.glob("*.json"))
        print(runs.table([json.loads(path.read_text()) for path in results]))


if __name__ == "__main__":
    main()
