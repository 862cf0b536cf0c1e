"""Next-word prediction: perplexity against epsilon, with a pretrained model and with an AWD-LSTM.

Three columns. *Paper*: the printed values, at epsilons that are not a guarantee. *As published*: a
few rounds of UeDP-Alg at the paper's sampling rates and `z`, with the noise that its text describes
(the released code adds far less). *Proven*: rotation and fair shares, which protect users and
entities, and user-level DP, which protects users, at proven epsilons. For the pretrained model they
are the trials of the utility study. How to run it on another machine: `trial_runner.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from research import render
from research.base import Options, Result
from research.experiments import utility
from research.paper import PERPLEXITIES
from research.runs import TrainingTrial
from research.select_results import Row, is_search
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
from research.sources import TRAINING_SETS
from research.trial_runner import measure_trials, repeats
from research.utility import SHORT, private

LSTM_REPEATS = 2  # at the largest epsilon; needs an accelerator
PROVEN_ON = ("conll", "edgar", "ag-sentences")


def measure_gpt(options: Options) -> Result:
    """A pretrained model with adapters; the proven rows are those of the utility study."""
    return _result(options, list(gpt_trials(options.quick)), PERPLEXITIES, _proven(options))


def _proven(options: Options) -> list[Row]:
    """Trials with a proven epsilon, on the text as it is and without more public text.

    Where the cost falls stands in the study.
    """
    return [
        row | {"parts": None}
        for row in utility.trial_rows(options)
        if row["data"] in PROVEN_ON and row["method"] in SHORT and not is_search(row)
    ]


def measure_lstm(options: Options) -> Result:
    """An AWD-LSTM of the paper's size, from scratch, on CoNLL."""
    return _result(options, list(lstm_trials(options.quick)), {})


def _result(
    options: Options,
    trials: list[TrainingTrial],
    printed: dict[str, Any],
    proven: Sequence[Row] = (),
) -> Result:
    rows: list[Row] = [row | {"panel": row["data"]} for row in measure_trials(trials, options)]
    rows += proven
    data = dict.fromkeys(row["data"] for row in rows)
    return {
        "quick": options.quick,
        "measure": "perplexity",
        "panels": {name: TRAINING_SETS[name].title for name in data},
        "paper": printed,
        "rows": rows,
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_epsilon

    against_epsilon(result, path)


def table(result: Result) -> str:
    """The paper's values, its mechanism with the stated noise, and proven results; conclusions."""
    return render.page(result)


# --- trials --------------------------------------------------------------------------------------


def gpt_trials(quick: bool = False) -> Iterator[TrainingTrial]:
    """The paper's mechanism with the noise of its text, and the baselines without noise.

    If quick, fewer of them, and a few of the utility study, which is not made quickly.
    """
    for data, settings in DATA_SETTINGS.items():
        plain = {
            "privacy__user_rate": settings.plain,
            "privacy__rounds": settings.rounds,
            "optimiser__rate": NOISELESS_RATE,
        }
        yield TrainingTrial(
            f"{data}-noiseless", data, method_config(FINE_TUNING, "noiseless", **plain)
        )
        if quick and data != "conll":
            continue
        yield TrainingTrial(
            f"{data}-deidentified", data, method_config(FINE_TUNING, "deidentified", **plain)
        )
        yield TrainingTrial(f"{data}-uedp-alg", data, published_config(FINE_TUNING))
    if quick:
        rotation = private("conll", "rotation", EPSILONS[0])
        yield rotation
        yield replace(rotation, name=f"{rotation.name}-person", category="person")
        yield private("conll", "user-level", EPSILONS[0])
        yield private("edgar", "rotation", EPSILONS[0])


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
