"""Utility against epsilon: language models on CoNLL-2003, AG and EDGAR, a classifier on AG.

    python benchmarks/utility.py prepare conll|ag|edgar --data DIR --materials FOLDER [--ner NAME]
    python benchmarks/utility.py train SUITE --materials FOLDER --model PART=FOLDER --out FOLDER
    python benchmarks/utility.py table FOLDER

`train` runs a suite, several runs at once, through the same loop as `uedp train`; what is finished
is not run again. Choices are made on the validation part; the test part is measured once per
finished run and decides nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from uedp.experiments import runs
from uedp.experiments.material import DATA_SETS, prepare
from uedp.experiments.runs import Trial, changed

BASE: dict[str, dict[str, Any]] = {
    "privacy": {"method": "rotation", "delta": 1e-5, "rounds": 200, "user_rate": 0.1},
    "model": {"name": "gpt", "train": "lora", "rank": 8, "max_tokens": 128},
    "optimiser": {"name": "adam", "rate": 2e-3},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 600, "tokens_at_once": 3 << 12},
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def config(method: str, epsilon: float | None = None, **changes: Any) -> dict[str, Any]:
    target = {} if epsilon is None else {"privacy__epsilon": epsilon}
    return changed(BASE, privacy__method=method, **target, **changes)


def on(data: str, **configs: dict[str, Any]) -> list[Trial]:
    return [Trial(name, data, found) for name, found in configs.items()]


def conll() -> list[Trial]:
    """SmolLM2 with adapters of rank 8."""
    rare = {"privacy__user_rate": 0.05}
    often = {"privacy__user_rate": 0.2}
    fast, slow = {"optimiser__rate": 4e-3}, {"optimiser__rate": 1e-3}
    found = {
        "rotation-8": config("rotation", 8),
        "rotation-2": config("rotation", 2),
        "noiseless": config("noiseless", **slow),
        "user-8-at-.05": config("user-level", 8, **rare),
        "user-2-at-.05": config("user-level", 2, **rare),
        "rotation-8-faster": config("rotation", 8, **fast),
        "user-8-at-.1": config("user-level", 8),
        "user-2-at-.1": config("user-level", 2),
        # moves users one step after another, which takes long; more rounds add noise only
        "uedp-alg": config(
            "uedp-alg", privacy__noise=2.0, privacy__user_rate=50 / 946, privacy__rounds=10
        ),
        "rotation-8-at-.2": config("rotation", 8, **often),
        "rotation-2-slower": config("rotation", 2, **slow),
        "deidentified": config("deidentified", **rare, **slow),
        "user-8-at-.05-faster": config("user-level", 8, **rare, **fast),
        "user-2-at-.05-slower": config("user-level", 2, **rare, **slow),
        "rotation-2-averaged": config("rotation", 2, optimiser__average=0.95),
    }
    return on("conll", **found)


def categories() -> list[Trial]:
    """One category protected at a time."""
    return [
        Trial(f"rotation-8-{category}", "conll", config("rotation", 8), category)
        for category in DATA_SETS["conll"].categories
    ]


def extended() -> list[Trial]:
    """How often sentences without an entity are used."""
    return on(
        "conll",
        **{
            f"rotation-8-extended-{rate:g}": config("rotation", 8, privacy__extended_rate=rate)
            for rate in (0, 0.25, 0.5)
        },
    )


def awd_lstm() -> list[Trial]:
    """From scratch, with a public word list; the paper's sizes."""
    scratch = {
        "model__name": "awd-lstm",
        "model__train": "full",
        "model__max_tokens": 64,
        "model__sizes": {"embedding_size": 100, "hidden_size": 1150, "num_hidden_layers": 3},
        "vocabulary__source": "public",
        "privacy__rounds": 150,
    }
    found = {
        "lstm-noiseless": config("noiseless", **scratch),
        "lstm-user-8": config("user-level", 8, **scratch),
        "lstm-rotation-8": config("rotation", 8, **scratch),
    }
    return on("conll", **found)


def topics() -> list[Trial]:
    """MiniLM with adapters tells AG's four topics apart."""
    classify = {
        "model__name": "bert",
        "task__kind": "classification",
        "privacy__rounds": 100,
        "run__tokens_at_once": 1 << 16,
    }
    whole = {**classify, "privacy__user_rate": 0.05}
    found = {}
    for epsilon in (8, 2):
        # few articles name nobody that another user names: so users are drawn often, and one
        # article may move an update as far as the clip allows
        found[f"topics-rotation-{epsilon}"] = config(
            "rotation", epsilon, **classify, privacy__user_rate=0.3, privacy__entity_share=1.0
        )
        found[f"topics-user-{epsilon}"] = config("user-level", epsilon, **whole)
    found["topics-noiseless"] = config("noiseless", **whole)
    found["topics-deidentified"] = config("deidentified", **whole)
    for estimator in ("f_E+", "f_E"):
        found[f"topics-uedp-alg-{estimator}"] = config(
            "uedp-alg",
            **{**whole, "privacy__rounds": 10},
            privacy__noise=2.5,
            privacy__entity_rate=0.5,
            alg__estimator=estimator,
        )
    return on("ag", **found)


def next_word(data: str, often: float, rare: float, share: float) -> list[Trial]:
    """SmolLM2 on a corpus in which few sentences are free of others' entities."""
    brief = {"privacy__rounds": 100}
    found = {}
    for epsilon in (8, 2):
        found[f"{data}-rotation-{epsilon}"] = config(
            "rotation", epsilon, **brief, privacy__user_rate=often, privacy__entity_share=share
        )
        found[f"{data}-user-{epsilon}"] = config(
            "user-level", epsilon, **brief, privacy__user_rate=rare
        )
    gentle = {**brief, "privacy__user_rate": rare, "optimiser__rate": 1e-3}
    found[f"{data}-noiseless"] = config("noiseless", **gentle)
    found[f"{data}-deidentified"] = config("deidentified", **gentle)
    return on(data, **found)


def edgar() -> list[Trial]:
    return next_word("edgar", often=0.3, rare=0.1, share=0.8)


def ag() -> list[Trial]:
    return next_word("ag", often=0.3, rare=0.02, share=1.0)


SUITES = {
    "conll": conll,
    "categories": categories,
    "extended": extended,
    "awd-lstm": awd_lstm,
    "topics": topics,
    "edgar": edgar,
    "ag": ag,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("which", choices=list(DATA_SETS))
    making.add_argument("--ner", help="a spaCy pipeline, for all but conll")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--materials", type=Path, required=True)
    training = commands.add_parser("train")
    training.add_argument("suite", nargs="+", choices=list(SUITES))
    training.add_argument("--materials", type=Path, required=True)
    training.add_argument("--model", nargs="+", required=True, metavar="PART=FOLDER")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--runs", nargs="*", help="some of the suite")
    training.add_argument("--rounds", type=int, help="for a dry run")
    training.add_argument("--jobs", type=int, default=1)
    training.add_argument("--deadline", type=float, default=1e9, help="seconds")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.which, options.data, options.materials / options.which, options.ner)
    elif options.command == "train":
        models = dict(part.split("=", 1) for part in options.model)
        place = runs.Place(options.materials, models, options.out, options.rounds)
        trials = [trial for suite in options.suite for trial in SUITES[suite]()]
        if options.runs:
            trials = [trial for trial in trials if trial.name in options.runs]
        found = runs.carry_out(
            trials, place, options.jobs, options.deadline, say=lambda line: print(line, flush=True)
        )
        print(runs.table(found.values()))
    else:
        results = sorted(options.folder.glob("*.json"))
        print(runs.table([json.loads(path.read_text()) for path in results]))


if __name__ == "__main__":
    main()
