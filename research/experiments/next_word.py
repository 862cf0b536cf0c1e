"""Next-word prediction: perplexity against epsilon, with a pretrained model and with an AWD-LSTM.

Three columns. *Paper*: the printed values, at epsilons that are not a guarantee. *As published*: a
few rounds of UeDP-Alg at the paper's sampling rates and `z`, with the noise that its text describes
(the released code adds far less). *Proven*: rotation, which protects users and entities, and
user-level DP, which protects users, at proven epsilons. How to run it on another machine:
`trial_runner.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from research import render
from research.base import Options, Result
from research.paper import PERPLEXITIES
from research.runs import TrainingTrial, override
from research.settings import (
    DATA_SETTINGS,
    EPSILONS,
    FINE_TUNING,
    LSTM,
    LSTM_RATES,
    NOISELESS_RATE,
    method_config,
    published_config,
)
from research.sources import DATA_SETS
from research.trial_runner import measure_trials, repeats

LSTM_REPEATS = 2  # at the largest epsilon; needs an accelerator
TITLES = {name: DATA_SETS[name].title for name in DATA_SETTINGS}


def measure_gpt(options: Options) -> Result:
    """A pretrained model with adapters on the three data sets."""
    return _result(options, list(gpt_trials(options.quick)), PERPLEXITIES)


def measure_lstm(options: Options) -> Result:
    """An AWD-LSTM of the paper's size, from scratch, on CoNLL."""
    return _result(options, list(lstm_trials(options.quick)), {})


def _result(options: Options, trials: list[TrainingTrial], printed: dict[str, Any]) -> Result:
    rows = measure_trials(trials, options)
    return {
        "quick": options.quick,
        "measure": "perplexity",
        "panels": {data: TITLES[data] for data in dict.fromkeys(row["data"] for row in rows)},
        "paper": printed,
        "rows": [row | {"panel": row["data"]} for row in rows],
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_epsilon

    against_epsilon(result, path)


def table(result: Result) -> str:
    """The paper's values, its mechanism with the stated noise, and proven results; conclusions."""
    return render.page(result)


# --- trials --------------------------------------------------------------------------------------


def gpt_trials(quick: bool = False) -> Iterator[TrainingTrial]:
    """The main comparison and the baselines, then single categories; fewer trials if quick."""
    if quick:
        names = {"conll-rotation-8-person", "conll-user-8", "conll-uedp-alg", "conll-deidentified"}
        names |= {
            f"{data}-{method}" for data in DATA_SETTINGS for method in ("rotation-8", "noiseless")
        }
        yield from (trial for trial in gpt_trials() if trial.name in names)
        return
    for part in (_comparison, _baselines):
        for data in DATA_SETTINGS:
            yield from part(data)
    for data in DATA_SETTINGS:
        for category in DATA_SETS[data].categories:
            yield _rotation(data, EPSILONS[0], category)


def _comparison(data: str) -> Iterator[TrainingTrial]:
    for epsilon in EPSILONS:
        yield _rotation(data, epsilon)
        yield _user_level(data, epsilon)
    for epsilon in EPSILONS:
        yield _rotation(data, epsilon, decayed=True)
        yield _user_level(data, epsilon, decayed=True)
        yield from _variants(_rotation(data, epsilon), DATA_SETTINGS[data].rotation_variants)
    yield from _variants(_user_level(data, EPSILONS[0]), DATA_SETTINGS[data].user_level_variants)


def _variants(
    trial: TrainingTrial, variants: Mapping[str, Mapping[str, Any]]
) -> Iterator[TrainingTrial]:
    for name, changes in variants.items():
        yield replace(trial, name=f"{trial.name}-{name}", config=override(trial.config, **changes))


def _rotation(
    data: str, epsilon: float, category: str = "all", decayed: bool = False
) -> TrainingTrial:
    settings = DATA_SETTINGS[data]
    # with a single category most sentences are usable, as in user-level DP
    user_rate = settings.rotation if category == "all" else settings.user_level
    rates = {"privacy__user_rate": user_rate, "privacy__entity_share": settings.share}
    own = method_config(FINE_TUNING, "rotation", epsilon, **rates, **_steps(data, decayed))
    suffix = "" if category == "all" else f"-{category}"
    return TrainingTrial(
        f"{data}-rotation-{epsilon:g}{suffix}{_suffix(decayed)}", data, own, category
    )


def _user_level(data: str, epsilon: float, decayed: bool = False) -> TrainingTrial:
    rates = {"privacy__user_rate": DATA_SETTINGS[data].user_level}
    own = method_config(FINE_TUNING, "user-level", epsilon, **rates, **_steps(data, decayed))
    return TrainingTrial(f"{data}-user-{epsilon:g}{_suffix(decayed)}", data, own)


def _steps(data: str, decayed: bool) -> dict[str, Any]:
    return DATA_SETTINGS[data].decayed if decayed else DATA_SETTINGS[data].flat


def _suffix(decayed: bool) -> str:
    return "-decayed" if decayed else ""


def _baselines(data: str) -> Iterator[TrainingTrial]:
    plain = {
        "privacy__user_rate": DATA_SETTINGS[data].plain,
        "privacy__rounds": DATA_SETTINGS[data].rounds,
        "optimiser__rate": NOISELESS_RATE,
    }
    for method in ("noiseless", "deidentified"):
        yield TrainingTrial(f"{data}-{method}", data, method_config(FINE_TUNING, method, **plain))
    yield TrainingTrial(f"{data}-uedp-alg", data, published_config(FINE_TUNING))


def lstm_trials(quick: bool = False) -> Iterator[TrainingTrial]:
    """Each method at each epsilon, and repeats at the largest; only the largest if quick."""
    private = [
        TrainingTrial(
            f"lstm-{name}-{epsilon:g}",
            "conll",
            method_config(LSTM, method, epsilon, optimiser__rate=rate),
        )
        for epsilon, rate in list(LSTM_RATES.items())[: 1 if quick else None]
        for name, method in (("rotation", "rotation"), ("user", "user-level"))
    ]
    yield from private
    for method in ("noiseless", "deidentified"):
        yield TrainingTrial(f"lstm-{method}", "conll", method_config(LSTM, method))
    yield TrainingTrial("lstm-uedp-alg", "conll", published_config(LSTM))
    yield from repeats(private[:2], 1 if quick else LSTM_REPEATS)
