"""Next-word prediction: perplexity against epsilon, with a pretrained model and with an AWD-LSTM.

Three things stand beside each other. *Paper*: what it printed, at epsilons that are no guarantee.
*As published, honestly noised*: UeDP-Alg at the paper's rates and `z`, with the noise that its text
describes (the released code draws far less), a few rounds of it. *Proven*: rotation, which protects
users with entities, and user-level DP, which protects users alone, at proven epsilons. How to run
it on another machine: `series.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from research import render as telling
from research.base import Options, Result
from research.runs import Trial, changed
from research.settings import (
    CORPORA,
    EPSILONS,
    FINE_TUNING,
    LSTM,
    LSTM_RATES,
    NOISELESS_RATE,
    as_published,
    config,
)
from research.sources import DATA_SETS
from research.trial_runner import measured, repeats

LSTM_REPEATS = 2  # at the largest epsilon; it takes an accelerator
TITLES = {name: DATA_SETS[name].title for name in CORPORA}

# Lai et al. (2022), perplexities in the text: data, then who is protected, then published epsilon.
PRINTED: dict[str, dict[str, dict[str, float]]] = {
    "conll": {
        "person": {"0.185": 35.09, "0.2": 29.24},
        "org": {"0.185": 35.34, "0.2": 29.58},
        "loc": {"0.185": 36.79, "0.2": 29.75},
        "misc": {"0.185": 35.57, "0.2": 29.35},
        "user-level": {"0.185": 52.01, "0.2": 30.15},
        "deidentified": {"": 38.30},
        "noiseless": {"": 27.13},
    },
    "ag": {
        "org": {"0.19": 25.77},
        "loc": {"0.19": 25.33},
        "gpe": {"0.19": 26.01},
        "pii": {"0.19": 25.72},
        "user-level": {"0.19": 36.05},
        "deidentified": {"": 35.90},
        "noiseless": {"": 24.98},
    },
    "edgar": {
        "all": {"0.18": 43.77, "0.19": 21.33},
        "org": {"0.18": 43.70, "0.19": 21.50},
        "loc": {"0.18": 43.21, "0.19": 21.22},
        "gpe": {"0.18": 42.63, "0.19": 20.98},
        "pii": {"0.18": 43.30, "0.19": 21.12},
        "user-level": {"0.18": 583.06, "0.19": 36.07},
        "deidentified": {"": 34.07},
    },
}


def measure_gpt(options: Options) -> Result:
    """A pretrained model with adapters on the three data sets."""
    return _result(options, list(gpt_trials(options.quick)), PRINTED)


def measure_lstm(options: Options) -> Result:
    """An AWD-LSTM of the paper's sizes from nothing, on CoNLL."""
    return _result(options, list(lstm_trials(options.quick)), {})


def _result(options: Options, trials: list[Trial], printed: dict[str, Any]) -> Result:
    rows = measured(trials, options)
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
    """What the paper printed, its mechanism with its noise, and what is proven; then the claims."""
    return telling.page(result)


# --- trials --------------------------------------------------------------------------------------


def gpt_trials(quick: bool = False) -> Iterator[Trial]:
    """What is compared first, then categories one at a time."""
    if quick:
        names = {"conll-rotation-8-person", "conll-user-8", "conll-uedp-alg", "conll-deidentified"}
        names |= {f"{data}-{method}" for data in CORPORA for method in ("rotation-8", "noiseless")}
        yield from (trial for trial in gpt_trials() if trial.name in names)
        return
    for part in (_compared, _baselines):
        for data in CORPORA:
            yield from part(data)
    for data in CORPORA:
        for category in DATA_SETS[data].categories:
            yield _rotation(data, EPSILONS[0], category)


def _compared(data: str) -> Iterator[Trial]:
    for epsilon in EPSILONS:
        yield _rotation(data, epsilon)
        yield _user_level(data, epsilon)
    for epsilon in EPSILONS:
        yield _rotation(data, epsilon, decayed=True)
        yield _user_level(data, epsilon, decayed=True)
        yield from _too(_rotation(data, epsilon), CORPORA[data].rotation_too)
    yield from _too(_user_level(data, EPSILONS[0]), CORPORA[data].user_level_too)


def _too(trial: Trial, others: Mapping[str, Mapping[str, Any]]) -> Iterator[Trial]:
    for name, other in others.items():
        yield replace(trial, name=f"{trial.name}-{name}", config=changed(trial.config, **other))


def _rotation(data: str, epsilon: float, category: str = "all", decayed: bool = False) -> Trial:
    corpus = CORPORA[data]
    # with one category most sentences can be used, as they can if no entity counts
    user_rate = corpus.rotation if category == "all" else corpus.user_level
    drawn = {"privacy__user_rate": user_rate, "privacy__entity_share": corpus.share}
    own = config(FINE_TUNING, "rotation", epsilon, **drawn, **_steps(data, decayed))
    about = "" if category == "all" else f"-{category}"
    return Trial(f"{data}-rotation-{epsilon:g}{about}{_ending(decayed)}", data, own, category)


def _user_level(data: str, epsilon: float, decayed: bool = False) -> Trial:
    drawn = {"privacy__user_rate": CORPORA[data].user_level}
    own = config(FINE_TUNING, "user-level", epsilon, **drawn, **_steps(data, decayed))
    return Trial(f"{data}-user-{epsilon:g}{_ending(decayed)}", data, own)


def _steps(data: str, decayed: bool) -> dict[str, Any]:
    return CORPORA[data].decayed if decayed else CORPORA[data].flat


def _ending(decayed: bool) -> str:
    return "-decayed" if decayed else ""


def _baselines(data: str) -> Iterator[Trial]:
    plain = {
        "privacy__user_rate": CORPORA[data].plain,
        "privacy__rounds": CORPORA[data].rounds,
        "optimiser__rate": NOISELESS_RATE,
    }
    for method in ("noiseless", "deidentified"):
        yield Trial(f"{data}-{method}", data, config(FINE_TUNING, method, **plain))
    yield Trial(f"{data}-uedp-alg", data, as_published(FINE_TUNING))


def lstm_trials(quick: bool = False) -> Iterator[Trial]:
    """Each method at each epsilon, some of it again; once at the largest if quick."""
    private = [
        Trial(
            f"lstm-{name}-{epsilon:g}",
            "conll",
            config(LSTM, method, epsilon, optimiser__rate=rate),
        )
        for epsilon, rate in list(LSTM_RATES.items())[: 1 if quick else None]
        for name, method in (("rotation", "rotation"), ("user", "user-level"))
    ]
    yield from private
    for method in ("noiseless", "deidentified"):
        yield Trial(f"lstm-{method}", "conll", config(LSTM, method))
    yield Trial("lstm-uedp-alg", "conll", as_published(LSTM))
    yield from repeats(private[:2], 1 if quick else LSTM_REPEATS)
