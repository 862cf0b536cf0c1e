"""AG's four topics: error rate against epsilon, with a pretrained encoder and with an AWD-LSTM.

Almost every article names somebody whom other users name too, so rotation has few articles in a
round. Adapters then learn nothing; a probe, which has far fewer weights, is tried beside them. A
row with no extended entities (`q_s = 0`) answers the paper's 75%. How to run it on another machine:
`series.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from research import markdown
from research import render as telling
from research.base import Options, Result
from research.runs import Config, Trial, changed
from research.select_results import chosen
from research.settings import (
    EPSILONS,
    LSTM_RATES,
    PROBE_ROTATION,
    PUBLISHED_PROBE,
    REPEATS,
    TOPICS,
    TOPICS_LSTM,
    TOPICS_PROBE,
    TOPICS_ROTATION,
    as_published,
    config,
)
from research.sources import DATA_SETS
from research.trial_runner import measured, repeats

PANELS = {"bert": "AG, pretrained encoder", "awd-lstm": "AG, AWD-LSTM"}
LSTM_ALG_ROUNDS = 3  # one takes ten minutes without an accelerator
WITHOUT_EXTENDED = 0.75  # the paper's error rate at q_s = 0, "in all cases"
LSTM_EXTENDED = 0.6  # the paper's q_s of this model in this task


def measure(options: Options) -> Result:
    rows = measured(trials(options.quick), options)
    return {
        "quick": options.quick,
        "measure": "error rate",
        "panels": PANELS,
        "paper": {},
        "paper_without_extended": WITHOUT_EXTENDED,
        "rows": [row | {"panel": row["model"]} for row in rows],
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_epsilon

    against_epsilon(result, path)


def table(result: Result) -> str:
    """Errors by method and epsilon; the row without extended entities; then the claims."""
    header = (
        "without extended entities (q_s = 0)",
        "paper",
        "as published, honestly noised",
        "proven",
    )
    lines = []
    for panel, title in result["panels"].items():
        own = [r for r in result["rows"] if r["panel"] == panel and r["extended_rate"] == 0]
        if own:
            alg, rotation = (
                [r for r in own if r["method"] == method] for method in ("uedp-alg", "rotation")
            )
            lines.append(
                [title, f"{result['paper_without_extended']:.0%}", _error(alg), _error(rotation)]
            )
    return "\n\n".join(
        [telling.main_table(result), markdown.table(header, lines), telling.claims(result)]
    )


def _error(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    at = f" at {rows[0]['target']:g}" if rows[0]["target"] else ""
    found = chosen(rows)
    return f"{telling.spread(found, 'error rate')}{at}" if found else telling.NOT_RUN


# --- trials --------------------------------------------------------------------------------------


def trials(quick: bool = False) -> Iterator[Trial]:
    """Every method with both models, then what is cheap again; a few of them if quick."""
    found = [*_pretrained(), *_lstm()]
    if quick:
        yield from (trial for trial in found if trial.name in _QUICK)
        return
    yield from found
    yield from repeats((t for t in found if t.config["model"]["train"] == "probe"), REPEATS)


_QUICK = (
    *("topics-rotation-8", "topics-user-8", "topics-noiseless", "topics-uedp-alg"),
    *("topics-rotation-8-extended-0", "topics-lstm-rotation-8"),
)


def _pretrained() -> Iterator[Trial]:
    for epsilon in EPSILONS:
        for name, method, of_probe, of_adapters in (
            ("rotation", "rotation", PROBE_ROTATION, TOPICS_ROTATION),
            ("user", "user-level", {}, {}),
        ):
            probe = config(TOPICS_PROBE, method, epsilon, **of_probe)
            yield Trial(f"topics-{name}-{epsilon:g}", "ag", probe)
            adapters = config(TOPICS, method, epsilon, **of_adapters)
            yield Trial(f"topics-{name}-{epsilon:g}-adapters", "ag", adapters)
    yield from _plain("topics", TOPICS)
    probe = config(TOPICS_PROBE, "rotation", 8.0, **PROBE_ROTATION)
    yield Trial("topics-rotation-8-extended-0", "ag", changed(probe, privacy__extended_rate=0.0))
    for category in DATA_SETS["ag"].categories:
        yield Trial(f"topics-rotation-8-{category}", "ag", probe, category)
    yield from _published("topics", PUBLISHED_PROBE)


def _lstm() -> Iterator[Trial]:
    for epsilon in EPSILONS:
        base = changed(TOPICS_LSTM, optimiser__rate=LSTM_RATES[epsilon])
        rotation = config(base, "rotation", epsilon, **TOPICS_ROTATION)
        yield Trial(f"topics-lstm-rotation-{epsilon:g}", "ag", rotation)
        user = config(base, "user-level", epsilon)
        yield Trial(f"topics-lstm-user-{epsilon:g}", "ag", user)
    yield from _plain("topics-lstm", TOPICS_LSTM)
    base = changed(TOPICS_LSTM, optimiser__rate=LSTM_RATES[8.0])
    none = config(base, "rotation", 8.0, **TOPICS_ROTATION, privacy__extended_rate=0.0)
    yield Trial("topics-lstm-rotation-8-extended-0", "ag", none)
    published = as_published(
        TOPICS_LSTM, privacy__extended_rate=LSTM_EXTENDED, privacy__rounds=LSTM_ALG_ROUNDS
    )
    yield from _published("topics-lstm", published)


def _plain(name: str, base: Config) -> Iterator[Trial]:
    for method in ("noiseless", "deidentified"):
        yield Trial(f"{name}-{method}", "ag", config(base, method))


def _published(name: str, published: Config) -> Iterator[Trial]:
    yield Trial(f"{name}-uedp-alg", "ag", published)
    without = changed(published, privacy__extended_rate=0.0)
    yield Trial(f"{name}-uedp-alg-extended-0", "ag", without)
