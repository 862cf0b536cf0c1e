"""The sampling rate of sentences without an entity: measured, and predicted from signal and noise.

The paper varies the rate `q_s` of extended entities and leaves open how to choose it. Here rotation
is trained at proven epsilon 8 with several rates, and with other entity shares, user rates and
rounds. The prediction (`uedp.accounting.planning`) reads only the incidence: for each option, the
largest norm of the sum of updates (usable sentences times their share, up to the clip), divided by
the noise that the theorem requires, times the square root of the rounds.

The theorem settles `q_s` by itself: as long as entities are used whenever possible (`q_e` = 1), a
pair of user and entity needs the same noise at every `q_s`, so a smaller rate loses signal and
gains nothing. How to run it on another machine: `trial_runner.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from research import markdown
from research.base import Options, Result, cached
from research.datasets import load_incidence
from research.markdown import format_measure
from research.render import NOT_RUN, format_repeats, not_run_note
from research.runs import Config, TrainingTrial, override
from research.select_results import Row, group_by_setting
from research.settings import (
    DELTA,
    LSTM,
    LSTM_RATES,
    PROBE_SHARES,
    TOPICS_PROBE,
    method_config,
)
from research.supply import update_norms
from research.trial_runner import measure_trials, prepared_data, repeats
from research.utility import private
from uedp.accounting.planning import Option, Supply
from uedp.accounting.planning import options as planned
from uedp.mechanism.sampling import supply_of

EPSILON = 8.0
_SOURCES = ("uedp.accounting", "uedp.mechanism", "research.experiments.extended_rate")
_FEWEST = 3  # measured options for a rank correlation


@dataclass(frozen=True)
class Sweep:
    """One model on one data set: the base option, and how the others differ from it."""

    title: str
    name: str
    data: str
    measure: str
    base: Config
    rates: tuple[float, ...]  # of extended entities; the base has 1
    others: Mapping[str, Mapping[str, Any]]
    times: int = 1  # runs of each option


def _sampling(user_rate: float, rounds: int) -> dict[str, Any]:
    return {"privacy__user_rate": user_rate, "privacy__rounds": rounds}


SWEEPS = {
    "gpt": Sweep(
        "CoNLL-2003, pretrained model",
        "conll-rotation-8",
        "conll",
        "perplexity",
        private("conll", "rotation", EPSILON).config,
        (0.0, 0.5, 1.0),
        {
            "users-0.1": _sampling(0.1, 200),
            "users-0.4-rounds-100": _sampling(0.4, 100),
        },
    ),
    "lstm": Sweep(
        "CoNLL-2003, AWD-LSTM",
        "lstm-rotation-8",
        "conll",
        "perplexity",
        method_config(LSTM, "rotation", EPSILON, optimiser__rate=LSTM_RATES[EPSILON]),
        (0.0, 0.5, 1.0),
        {},
    ),
    "topics": Sweep(
        "AG, pretrained encoder",
        "topics-rotation-8",
        "ag",
        "error rate",
        method_config(TOPICS_PROBE, "rotation", EPSILON, **PROBE_SHARES),
        (0.0, 0.25, 0.5, 0.75, 1.0),
        {
            "share-0.3": {"privacy__entity_share": 0.3},
            "users-0.1-rounds-600": _sampling(0.1, 600),
            "users-0.6-rounds-100": _sampling(0.6, 100),
        },
        times=3,
    ),
}


def measure(options: Options) -> Result:
    trials = {key: list(_trials(key, options.quick)) for key in SWEEPS}
    rows = measure_trials((trial for own in trials.values() for trial in own), options)
    by_name = {row["name"]: row for row in rows}
    return {
        "quick": options.quick,
        "epsilon": EPSILON,
        "series": {
            key: _sweep_result(SWEEPS[key], [by_name[trial.name] for trial in own], options)
            for key, own in trials.items()
        },
    }


def _trials(key: str, quick: bool) -> Iterator[TrainingTrial]:
    """The base is also a trial of another experiment, under the same name."""
    own = list(_options(SWEEPS[key], quick))
    yield from own
    yield from repeats(own, 1 if quick else SWEEPS[key].times)


def _options(sweep: Sweep, quick: bool) -> Iterator[TrainingTrial]:
    for rate in (0.0, 1.0) if quick else sweep.rates:
        name = sweep.name if rate == 1 else f"{sweep.name}-extended-{rate:g}"
        changes = {} if rate == 1 else {"privacy__extended_rate": rate}
        yield TrainingTrial(name, sweep.data, override(sweep.base, **changes))
    for name, other in () if quick else sweep.others.items():
        yield TrainingTrial(f"{sweep.name}-{name}", sweep.data, override(sweep.base, **other))


# --- predicting ----------------------------------------------------------------------------------


def _sweep_result(sweep: Sweep, rows: Sequence[Row], options: Options) -> Result:
    incidence = load_incidence(prepared_data(sweep.data, options))
    supply = supply_of(incidence)

    def predict(row: Row) -> Result:
        own = {key: row[key] for key in ("user_rate", "rounds", "share", "extended_rate")}
        key = {"step": "merit", "incidence": incidence.digest, "epsilon": EPSILON, **own}
        return cached(options.work / "predicted", key, _SOURCES, lambda: _predict(supply, own))

    merged = [{**row, "predicted": predict(row)} for row in _merge_repeats(rows)]
    ran = [row for row in merged if row["test"] is not None]
    return {
        "title": sweep.title,
        "measure": sweep.measure,
        "rows": merged,
        "best_of_all": _best_of_grid(sweep, supply, incidence.digest, options),
        "predicted_best": max(merged, key=lambda row: float(row["predicted"]["merit"]))["name"],
        "measured_best": min(ran, key=lambda row: float(row["validation"]), default={}).get("name"),
        "rank_correlation": rank_correlation(
            [row["predicted"]["merit"] for row in ran], [row["validation"] for row in ran]
        ),
    }


def _merge_repeats(rows: Sequence[Row]) -> Iterator[Result]:
    """One row per option: the means of its finished runs, and their `tests` one by one."""
    for own in group_by_setting(rows):
        ran = [row for row in own if row["test"] is not None]
        means = {part: mean(row[part] for row in ran) for part in ("validation", "test") if ran}
        yield {
            **(ran or own)[0],
            **means,
            "name": own[0]["name"],
            "tests": [r["test"] for r in ran],
        }


def _predict(supply: Supply, own: Row) -> Result:
    (option,) = planned(
        EPSILON,
        DELTA,
        supply,
        [own["user_rate"]],
        [own["rounds"]],
        [own["share"]],
        [own["extended_rate"]],
    )
    signal = update_norms(supply, option.entity_share, option.extended_rate) / supply.users
    return {"merit": option.merit, "noise": option.noise, "clip_used": signal}


def _best_of_grid(sweep: Sweep, supply: Supply, incidence: str, options: Options) -> Result:
    """The best option of a grid at the cost of the base: as many users sampled in total."""
    privacy = sweep.base["privacy"]
    work = privacy["user_rate"] * privacy["rounds"]
    user_rates = (0.1, 0.4) if options.quick else (0.05, 0.1, 0.2, 0.4, 0.8)
    shares = (0.3,) if options.quick else (0.1, 0.3, 0.5, 1.0)
    key = {
        "step": "grid",
        "incidence": incidence,
        "epsilon": EPSILON,
        "work": work,
        "grid": [user_rates, shares],
    }

    def compute() -> Result:
        tried: list[Option] = []
        with options.progress.stage("predicting", len(user_rates), "user rates") as meter:
            for rate in user_rates:
                rounds = [max(1, round(work / rate))]
                tried += planned(EPSILON, DELTA, supply, [rate], rounds, shares, (0.5, 1.0))
                meter.advance(1)
        return asdict(max(tried, key=lambda option: option.merit)) | {
            "options": len(tried),
            "largest_user_rate": user_rates[-1],
        }

    return cached(options.work / "predicted", key, _SOURCES, compute)


def rank_correlation(merits: Sequence[float], losses: Sequence[float]) -> float | None:
    """Spearman's correlation of merit and negative loss; None if undefined or for too few values.

    Guarantees:
      - 1 if a larger merit always has a lower loss, -1 if always a higher one
    """
    from scipy import stats

    if len(merits) < _FEWEST or len(set(merits)) == 1 or len(set(losses)) == 1:
        return None
    return float(stats.spearmanr(merits, [-loss for loss in losses]).statistic)


# --- for the results page ------------------------------------------------------------------------


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_extended_rate

    against_extended_rate(result, path)


def table(result: Result) -> str:
    """Every option: noise, predicted merit, and measured results; conclusions."""
    header = (
        "rotation",
        "q_s",
        "share",
        "user rate",
        "rounds",
        "noise, proven",
        "predicted merit relative to the best",
        "validation",
        "test",
    )
    rows = []
    for sweep in result["series"].values():
        top = max(row["predicted"]["merit"] for row in sweep["rows"])
        for row in sweep["rows"]:
            validation, tests = row["validation"], [{"test": test} for test in row["tests"]]
            rows.append(
                [
                    f"{sweep['title']} ({sweep['measure']})",
                    f"{row['extended_rate']:g}",
                    f"{row['share']:g}",
                    f"{row['user_rate']:g}",
                    f"{row['rounds']}",
                    f"{row['predicted']['noise']:.3g}",
                    f"{row['predicted']['merit'] / top:.2f}",
                    format_measure(validation, sweep["measure"]) if tests else NOT_RUN,
                    format_repeats(tests, sweep["measure"]) if tests else NOT_RUN,
                ]
            )
    return "\n\n".join([markdown.table(header, rows), markdown.bullets(*_conclusions(result))])


def _conclusions(result: Result) -> Iterator[str]:
    yield (
        f"All at proven epsilon {result['epsilon']:g}. The paper finds every rate above 0 better "
        "than 0, and the best rate different from task to task. The prediction for rotation: 1 is "
        "best, since a smaller rate loses sentences while an entity needs the same noise; the "
        "difference depends on the number of sentences without an entity."
    )
    for sweep in result["series"].values():
        title, best = sweep["title"], sweep["best_of_all"]
        none = min(sweep["rows"], key=lambda row: float(row["extended_rate"]))
        base = next(row for row in sweep["rows"] if row["extended_rate"] == 1)  # comes first
        edge = ""
        if best["user_rate"] == best["largest_user_rate"]:
            edge = " This is the largest user rate tried; the prediction ignores the lack of steps."
        left = none["predicted"]["merit"] / base["predicted"]["merit"]
        yield (
            f"{title}: at `q_s` 0 the predicted signal-to-noise ratio is {left:.0%} of that at 1. "
            f"The best of {best['options']} options with as many users sampled in total: user rate "
            f"{best['user_rate']:g}, {best['rounds']} rounds, share {best['entity_share']:g}, "
            f"`q_s` {best['extended_rate']:g}.{edge}"
        )
        ran = sum(row["test"] is not None for row in sweep["rows"])
        if sweep["rank_correlation"] is None:
            yield f"{title}: {ran} of {len(sweep['rows'])} options run; too few to compare."
        else:
            same = sweep["predicted_best"] == sweep["measured_best"]
            yield (
                f"{title}: over {ran} options, the rank correlation of prediction and measurement "
                f"is {sweep['rank_correlation']:.2f}. Predicted best: "
                f"`{sweep['predicted_best']}`; measured best: `{sweep['measured_best']}`"
                f"{', the same' if same else ''}."
            )
    yield from not_run_note([row for own in result["series"].values() for row in own["rows"]])
