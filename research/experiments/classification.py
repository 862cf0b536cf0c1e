"""AG's four topics: error rate against epsilon, with a pretrained encoder and with an AWD-LSTM.

Almost every article mentions an entity that other users mention too, so rotation has few usable
articles in a round. The encoder is frozen under a probe, which has far fewer weights to add noise
to than adapters. A row without extended entities (`q_s = 0`) stands beside the paper's 75%. How to
run it on another machine: `trial_runner.py`.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from research import markdown, parts, render
from research.base import Options, Result
from research.paper import ERROR_WITHOUT_EXTENDED, LSTM_EXTENDED_RATE
from research.runs import Config, TrainingTrial, override
from research.search_table import AS_IT_IS, KEPT, search_table
from research.select_results import SEARCH, best_setting, is_search
from research.settings import (
    EPSILONS,
    LSTM_RATES,
    PROBE_RATES,
    PROBE_SHARES,
    PUBLISHED_PROBE,
    REPEATS,
    TOPICS,
    TOPICS_LSTM,
    TOPICS_PROBE,
    TOPICS_ROTATION,
    method_config,
    published_config,
)
from research.sources import DATA_SETS
from research.trial_runner import measure_trials, repeats
from research.utility import POST_PROCESSING, SEARCHED, SHORT, VARIANTS, variant

PANELS = {"bert": "AG, pretrained encoder", "awd-lstm": "AG, AWD-LSTM"}
LSTM_ALG_ROUNDS = 3  # each takes ten minutes without an accelerator


def measure(options: Options) -> Result:
    rows = measure_trials(trials(options.quick), options)
    searched = [row for row in rows if is_search(row)]
    return {
        "quick": options.quick,
        "measure": "error rate",
        "panels": PANELS,
        "paper": {},
        "paper_without_extended": ERROR_WITHOUT_EXTENDED,
        "rows": [row | {"panel": row["model"]} for row in rows if not is_search(row)],
        "searched": searched,
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_epsilon

    against_epsilon(result, path)


def table(result: Result) -> str:
    """Errors by method and epsilon; the rows without extended entities; conclusions."""
    header = (
        "without extended entities (q_s = 0)",
        "paper",
        "as published, with the stated noise",
        "proven",
    )
    without = []
    for panel, title in result["panels"].items():
        own = [r for r in result["rows"] if r["panel"] == panel and r["extended_rate"] == 0]
        if own:
            alg, rotation = (
                [r for r in own if r["method"] == method] for method in ("uedp-alg", "rotation")
            )
            without.append(
                [title, f"{result['paper_without_extended']:.0%}", _error(alg), _error(rotation)]
            )
    sections = (
        render.main_table(result),
        markdown.table(header, without),
        parts.table(result),
        render.conclusions(result),
        _search_table(result),
    )
    return "\n\n".join(filter(None, sections))


def _search_table(result: Result) -> str:
    """What post-processing of the noisy sums changes, averaged over repeats."""
    if not result["searched"]:
        return ""
    rows = [*result["rows"], *result["searched"]]
    columns = {
        (method, target): f"{parts.METHODS[method]}, {target:g}"
        for method, target in product(SEARCHED, EPSILONS)
    }

    def measured(column: tuple[str, float], name: str) -> float | None:
        ending = f"-{SEARCH}{name}" if name != AS_IT_IS else ""
        setting = f"topics-{SHORT[column[0]]}-{column[1]:g}{ending}"
        own = [row["validation"] for row in rows if row["setting"] == setting]
        return mean(own) if own and None not in own else None

    table, better = search_table(result["measure"], columns, POST_PROCESSING, measured)
    if not table:
        return ""
    found = [
        f"`{name.strip('-')}` for {' and '.join(columns[key] for key in columns if key in where)}"
        for name, where in better.items()
    ]
    told = f"Better by {KEPT:.0%}: {'; '.join(found) or 'none of them'}."
    return "\n\n".join([table, markdown.bullets(told)])


def _error(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    at = f" at {rows[0]['target']:g}" if rows[0]["target"] else ""
    best = best_setting(rows)
    return f"{render.format_repeats(best, 'error rate')}{at}" if best else render.NOT_RUN


# --- trials --------------------------------------------------------------------------------------


def trials(quick: bool = False) -> Iterator[TrainingTrial]:
    """Every method with both models, then repeats of the cheap ones; fewer trials if quick."""
    once = [*_pretrained(), *_lstm()]
    if quick:
        yield from (trial for trial in once if trial.name in _QUICK)
        return
    searched = list(_search())
    yield from (*once, *searched)
    probes = [trial for trial in once if trial.config["model"]["train"] == "probe"]
    yield from repeats((*probes, *searched), REPEATS)


_QUICK = (
    *("topics-rotation-8", "topics-user-8", "topics-noiseless", "topics-uedp-alg"),
    *("topics-rotation-8-extended-0", "topics-lstm-rotation-8"),
)


def _pretrained() -> Iterator[TrainingTrial]:
    for epsilon in EPSILONS:
        for name, method, rates in (
            ("fair", "fair-shares", PROBE_SHARES),
            ("rotation", "rotation", PROBE_SHARES),
            ("user", "user-level", PROBE_RATES),
        ):
            probe = method_config(TOPICS_PROBE, method, epsilon, **rates)
            yield TrainingTrial(f"topics-{name}-{epsilon:g}", "ag", probe)
    yield from _plain("topics", TOPICS)
    probe = method_config(TOPICS_PROBE, "rotation", 8.0, **PROBE_SHARES)
    yield TrainingTrial(
        "topics-rotation-8-extended-0", "ag", override(probe, privacy__extended_rate=0.0)
    )
    for category in DATA_SETS["ag"].categories:
        yield TrainingTrial(f"topics-rotation-8-{category}", "ag", probe, category)
    yield from _published("topics", PUBLISHED_PROBE)


def _lstm() -> Iterator[TrainingTrial]:
    for epsilon in EPSILONS:
        base = override(TOPICS_LSTM, optimiser__rate=LSTM_RATES[epsilon])
        rotation = method_config(base, "rotation", epsilon, **TOPICS_ROTATION)
        yield TrainingTrial(f"topics-lstm-rotation-{epsilon:g}", "ag", rotation)
        user = method_config(base, "user-level", epsilon)
        yield TrainingTrial(f"topics-lstm-user-{epsilon:g}", "ag", user)
    yield from _plain("topics-lstm", TOPICS_LSTM)
    base = override(TOPICS_LSTM, optimiser__rate=LSTM_RATES[8.0])
    none = method_config(base, "rotation", 8.0, **TOPICS_ROTATION, privacy__extended_rate=0.0)
    yield TrainingTrial("topics-lstm-rotation-8-extended-0", "ag", none)
    published = published_config(
        TOPICS_LSTM, privacy__extended_rate=LSTM_EXTENDED_RATE, privacy__rounds=LSTM_ALG_ROUNDS
    )
    yield from _published("topics-lstm", published)


def _search() -> Iterator[TrainingTrial]:
    """Post-processing of the noisy sums, for the methods of the comparison."""
    for base in _pretrained():
        method, target = (base.config["privacy"].get(key) for key in ("method", "epsilon"))
        if target and method in SEARCHED and base.category == "all":
            for name in POST_PROCESSING:
                yield variant(base, SEARCH + name, VARIANTS[name])


def _plain(name: str, base: Config) -> Iterator[TrainingTrial]:
    for method in ("noiseless", "deidentified"):
        yield TrainingTrial(f"{name}-{method}", "ag", method_config(base, method))


def _published(name: str, published: Config) -> Iterator[TrainingTrial]:
    yield TrainingTrial(f"{name}-uedp-alg", "ag", published)
    without = override(published, privacy__extended_rate=0.0)
    yield TrainingTrial(f"{name}-uedp-alg-extended-0", "ag", without)
