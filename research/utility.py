"""What protecting names costs: the trials of the utility study, in order of priority.

    python -m research.utility list [--stages ...]
    python -m research.utility train --datasets FOLDER --model gpt=FOLDER --out FOLDER --jobs 3
    python -m research.utility table FOLDER

`train` takes trials from a queue (`trial_queue.py`); it may be killed and started again. All
methods have the same rates, rounds and steps. Choices are made on the validation part.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from research import runs
from research.datasets import SURROGATES
from research.runs import Config, TrainingTrial, Workspace, override
from research.select_results import SEARCH
from research.settings import DELTA, EPSILONS, NOISELESS_RATE, method_config
from research.trial_queue import finished, run_queue
from research.trial_runner import repeats

SEEDS = 3
PRECISIONS = ("float32", "bfloat16", "bfloat16-fixed")
STEP, LONG_STEP = 3e-3, 2e-3
# seconds a million tokens of a private round take on an H200, passes of one shape
_PACE = {"bfloat16": 3.7, "float32": 13.9}
_SLOWER = 2.5  # what a round takes that goes through the engine instead
_OVERHEAD = 5.0  # seconds of the accelerator: trials of passes, evaluations

RANK = 8  # of adapters
BASE: Config = {
    "privacy": {"delta": DELTA},
    "model": {"name": "gpt", "train": "lora", "rank": RANK, "max_tokens": 128},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 30},
}


@dataclass(frozen=True)
class Setting:
    """How a data set is trained on: rates, rounds, shares, and its size for estimates of time."""

    user_rate: float
    rounds: int
    share: float
    cap: int | None  # sentences of a user in a round
    users: int
    tokens: float  # thousands of a user, with the cap

    @property
    def changes(self) -> dict[str, Any]:
        return {
            "privacy__user_rate": self.user_rate,
            "privacy__rounds": self.rounds,
            "privacy__sentences_per_user": self.cap,
        }

    @property
    def steps(self) -> dict[str, Any]:
        """The planner's: longer steps and a shorter average for fewer rounds than 200."""
        return {
            "optimiser__rate": float(f"{STEP * (200 / self.rounds) ** 0.5:.2g}"),
            "optimiser__average": 1 - 10 / self.rounds,
        }

    @property
    def of_entities(self) -> dict[str, Any]:
        clip = float(f"{0.3 / self.share:.2g}")  # the planner's
        return {"privacy__entity_share": self.share, "privacy__update_clip": clip}

    def million_tokens(self, rate: float, rounds: int) -> float:
        return rate * self.users * self.tokens * rounds / 1000


# Rates and caps: what a few minutes on an accelerator allow; shares: the planner's.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "conll": Setting(0.2, 200, 0.4, None, 946, 0.354),
        "blogs": Setting(0.05, 100, 0.4, 8, 8000, 0.168),
        "edgar": Setting(0.2, 200, 0.5, None, 1070, 0.199),
        "edgar-news": Setting(0.2, 200, 0.5, None, 1070, 0.199),
        "ag-sentences": Setting(0.1, 100, 0.5, 8, 2410, 0.343),
        "blogs-2000": Setting(0.1, 100, 0.4, 8, 2000, 0.168),
        "blogs-500": Setting(0.2, 100, 0.4, 8, 500, 0.168),
    }
)
DATA = ("conll", "blogs", "edgar", "edgar-news", "ag-sentences")
SMALLER = ("blogs-2000", "blogs-500")
SHORT = {"fair-shares": "fair", "rotation": "rotation", "user-level": "user"}

VALUES = ("v_proj", "o_proj", "down_proj")  # the layers that one of the variants adapts
SEARCHED = ("fair-shares", "user-level")
# Post-processing of the noisy sums, and other ways to more signal from the same noise.
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "": {},
        "-rank-2": {"model__rank": 2},
        "-rank-2-long": {"model__rank": 2, "optimiser__rate": 6e-3},
        "-rank-2-short": {"model__rank": 2, "optimiser__rate": 2.8e-3},
        "-rank-2-values": {"model__rank": 2, "model__targets": VALUES},
        "-kalman": {"optimiser__filter": "kalman", "optimiser__filter_gain": 0.5},
        "-low-pass": {"optimiser__filter": "low-pass", "optimiser__filter_gain": 0.3},
        "-tail": {"optimiser__average_tail": 0.5},
        "-falling": {"optimiser__decay": "linear"},
    }
)
POST_PROCESSING = ("-kalman", "-low-pass", "-tail", "-falling")  # those that fit any model
PUBLIC = "ag-as-conll"
PUBLIC_STEPS = {
    "public__steps": 150,
    "public__sentences": 64,
    "public__rate": 5e-4,
    "public__declared_by": "the authors of this study",
}
LONGER = {
    "privacy__user_rate": 0.3,
    "privacy__rounds": 400,
    "optimiser__rate": LONG_STEP,
    "optimiser__average": 0.975,
}


def private(data: str, method: str, epsilon: float, **changes: Any) -> TrainingTrial:
    """A method with noise, at the settings of a data set."""
    setting = SETTINGS[data]
    own = setting.of_entities if method in runs.SHARING else {}
    flat = {"optimiser__decay": "none", "optimiser__warm_up": 0.0}
    every = setting.changes | flat | setting.steps | own | changes
    config = method_config(BASE, method, epsilon, **every)
    return TrainingTrial(f"{data}-{SHORT[method]}-{epsilon:g}", data, config)


def noiseless(data: str, method: str = "noiseless", texts: str | None = None) -> TrainingTrial:
    """Without noise; de-identified texts by the method, or by name."""
    setting = SETTINGS[data]
    changes = {**setting.changes, "optimiser__rate": NOISELESS_RATE, "privacy__rounds": 100}
    name = f"{data}-{method}" + (f"-{texts}" if texts else "")
    return TrainingTrial(name, data, method_config(BASE, method, **changes), texts=texts)


def hidden(data: str, epsilon: float, texts: str) -> TrainingTrial:
    """User-level DP on de-identified texts."""
    trial = private(data, "user-level", epsilon)
    return replace(trial, name=f"{data}-{texts}-{epsilon:g}", texts=texts)


def variant(trial: TrainingTrial, name: str, changes: Mapping[str, Any]) -> TrainingTrial:
    return replace(trial, name=f"{trial.name}-{name}", config=override(trial.config, **changes))


# --- stages --------------------------------------------------------------------------------------


def core(data: str) -> Iterator[TrainingTrial]:
    """Both guarantees at both epsilons."""
    for epsilon in EPSILONS:
        yield private(data, "fair-shares", epsilon)
        yield private(data, "user-level", epsilon)


def search(data: str) -> Iterator[TrainingTrial]:
    """Ways to more signal, in a quarter of the time: kept if they gain 2% on two data sets."""
    quick = replace(SETTINGS[data], user_rate=0.1, rounds=100)
    for method, epsilon in product(SEARCHED, EPSILONS):
        base = private(data, method, epsilon, **quick.changes | quick.steps)
        for name, changes in VARIANTS.items():
            yield variant(base, SEARCH + name, changes)


def longer(data: str) -> Iterator[TrainingTrial]:
    for method in ("fair-shares", "user-level"):
        yield variant(private(data, method, EPSILONS[0]), "rounds-400", LONGER)


def rules(data: str) -> Iterator[TrainingTrial]:
    """The other rule of shares."""
    for epsilon in EPSILONS:
        yield private(data, "rotation", epsilon)


def baselines(data: str) -> Iterator[TrainingTrial]:
    yield noiseless(data)
    yield noiseless(data, "deidentified")
    yield noiseless(data, texts=SURROGATES)


def deidentified(data: str) -> Iterator[TrainingTrial]:
    """User-level DP on texts without names."""
    for texts in ("deidentified", SURROGATES):
        for epsilon in EPSILONS:
            yield hidden(data, epsilon, texts)


def public(data: str) -> Iterator[TrainingTrial]:
    """AG's news as public text first; less remains to be learned, so half of both rates."""
    setting = SETTINGS[data]
    less = {
        "privacy__user_rate": setting.user_rate / 2,
        "optimiser__rate": setting.steps["optimiser__rate"] / 2,
    }
    for epsilon, method in product(EPSILONS, SEARCHED):
        trial = private(data, method, epsilon, **less, **PUBLIC_STEPS)
        yield replace(trial, name=f"{trial.name}-public", public=PUBLIC)


def smaller(found: Iterable[TrainingTrial]) -> Iterator[TrainingTrial]:
    """With adapters of rank 2: fewer weights, and less noise in all."""
    for trial in found:
        yield variant(trial, "rank-2", {"model__rank": 2})


def categories(data: str) -> Iterator[TrainingTrial]:
    for category in ("person", "org", "loc", "pii"):
        trial = private(data, "fair-shares", EPSILONS[0])
        yield replace(trial, name=f"{trial.name}-{category}", category=category)


def of_each(
    names: Iterable[str], stage: Callable[[str], Iterator[TrainingTrial]]
) -> Iterator[TrainingTrial]:
    return (trial for data in names for trial in stage(data))


def told() -> Iterator[TrainingTrial]:
    """What comparisons are made of, which a single run cannot tell."""
    for stage in ("core", "public", "users", "ranks"):
        yield from STAGES[stage]()


STAGES: Mapping[str, Any] = MappingProxyType(
    {
        "core": lambda: of_each(DATA, core),
        "public": lambda: public("conll"),
        "users": lambda: of_each(SMALLER, core),
        "ranks": lambda: smaller((*public("conll"), *core("edgar"), *core("edgar-news"))),
        "baselines": lambda: of_each(DATA, baselines),
        "deidentified": lambda: deidentified("blogs"),
        "seeds": lambda: repeats(told(), SEEDS),
        "search": lambda: of_each(("conll", "edgar"), search),
        "longer": lambda: of_each(("conll", "edgar"), longer),
        "rules": lambda: of_each(DATA, rules),
        "categories": lambda: of_each(("conll", "edgar"), categories),
    }
)


def trials(stages: list[str] | None = None, precision: str = "auto") -> list[TrainingTrial]:
    """The trials of some stages, or of all, in order of priority."""
    chosen: dict[str, TrainingTrial] = {}
    for stage in stages or list(STAGES):
        for trial in STAGES[stage]():
            own = override(trial.config, run__precision=_precision(trial, precision))
            chosen.setdefault(trial.name, replace(trial, config=own))
    return list(chosen.values())


def _precision(trial: TrainingTrial, precision: str) -> str:
    """Without noise there is nothing to round up; surrogates need the engine, and so float32."""
    if trial.config["privacy"]["method"] not in SHORT:
        return "auto"
    return "float32" if trial.texts == SURROGATES else precision


def seconds(trial: TrainingTrial, precision: str) -> float:
    """About how long a trial takes on an H200 that it has for itself."""
    privacy = trial.config["privacy"]
    million = SETTINGS[trial.data].million_tokens(privacy["user_rate"], privacy["rounds"])
    noisy = privacy["method"] in SHORT
    own = _precision(trial, precision)
    pace = _PACE["float32" if own == "float32" else "bfloat16"]
    slower = 1 if noisy and trial.texts != SURROGATES else _SLOWER
    return _OVERHEAD + million * pace * slower


def changed(found: list[TrainingTrial], changes: list[str]) -> list[TrainingTrial]:
    """Trials with `section.field=value` changes, which are part of their names."""
    import yaml

    if not changes:
        return found
    own, names = {}, []
    for change in changes:
        path, _, value = change.partition("=")
        own[path.replace(".", "__")] = yaml.safe_load(value)
        names.append(f"{path.partition('.')[2]}-{value}")
    return [variant(trial, "-".join(names), own) for trial in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listed, training = commands.add_parser("list"), commands.add_parser("train")
    for command in (listed, training):
        command.add_argument("--stages", nargs="*", choices=STAGES, help="default all")
        command.add_argument("--runs", nargs="*", help="names of trials, in this order")
        command.add_argument("--precision", default="float32", choices=PRECISIONS)
        command.add_argument("--set", nargs="*", default=[], metavar="SECTION.FIELD=VALUE")
    training.add_argument("--datasets", type=Path, required=True)
    training.add_argument("--model", nargs="+", required=True, metavar="PART=FOLDER")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--jobs", type=int, default=1)
    training.add_argument("--deadline", type=float, default=float("inf"), help="seconds")
    training.add_argument("--rounds", type=int, help="for a dry run")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        print(runs.results_table(runs.load_results(options.folder)))
        return
    found = trials(options.stages, options.precision)
    if options.runs:
        by_name = {trial.name: trial for trial in trials(None, options.precision)}
        found = [by_name[name] for name in options.runs]
    found = changed(found, options.set)
    if options.command == "list":
        total = 0.0
        for trial in found:
            total += (own := seconds(trial, options.precision))
            print(f"{trial.name:40} {own:6.0f} s  {total:7.0f} s in all")
        return
    models = dict(part.split("=", 1) for part in options.model)
    results = options.out / "results"
    workspace = Workspace(options.datasets, models, options.out, options.rounds, results)
    run_queue(found, workspace, options.jobs, options.deadline, partial(print, flush=True))
    done = finished(found, workspace)
    print(f"{len(done)} of {len(found)} trials finished", flush=True)


if __name__ == "__main__":
    main()
