"""How often sentences without an entity are used: measured, and predicted from signal and noise.

The paper varies the rate `q_s` of extended entities and leaves open how to find the best one. Here
rotation is trained at proven epsilon 8 with several, and beside it with other entity shares, user
rates and rounds. The prediction (`planning.py`) reads the incidence alone: of each option, how long
the sum of updates can be before the noise is added (usable sentences, the share of each, until the
clip is full), over the noise that the theorem asks for, times the square root of the rounds.

What the theorem says of `q_s` by itself: as long as entities are used whenever they can be
(`q_e` = 1), the pair of a user and an entity needs as much noise as before, so that a smaller `q_s`
loses signal and gains nothing. How to run it on another machine: `series.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from research import markdown
from research.base import Options, Result, code_of, kept
from research.datasets import incidence
from research.render import NOT_RUN, missing, shown, spread
from research.runs import Config, Trial, changed
from research.select_results import Row, by_setting
from research.settings import (
    CORPORA,
    DELTA,
    FINE_TUNING,
    LSTM,
    LSTM_RATES,
    PROBE_ROTATION,
    TOPICS_PROBE,
    config,
)
from research.trial_runner import material, measured, repeats
from uedp.accounting.planning import Option, Supply
from uedp.accounting.planning import options as planned

EPSILON = 8.0
_ENOUGH = 3  # measured options, below which no rank correlation is told


@dataclass(frozen=True)
class Series:
    """One model on one data set: the option to begin from, and how others differ from it."""

    title: str
    name: str
    data: str
    measure: str
    base: Config
    rates: tuple[float, ...]  # of extended entities; 1 is the base
    others: Mapping[str, Mapping[str, Any]]
    times: int = 1  # each is run


def _drawn(user_rate: float, rounds: int) -> dict[str, Any]:
    return {"privacy__user_rate": user_rate, "privacy__rounds": rounds}


SERIES = {
    "gpt": Series(
        "CoNLL-2003, pretrained model",
        "conll-rotation-8",
        "conll",
        "perplexity",
        config(
            FINE_TUNING,
            "rotation",
            EPSILON,
            privacy__user_rate=CORPORA["conll"].rotation,
            privacy__entity_share=CORPORA["conll"].share,
            **CORPORA["conll"].flat,
        ),
        (0.0, 0.5, 1.0),
        {
            "users-0.1": _drawn(0.1, 200),
            "users-0.4-rounds-100": _drawn(0.4, 100),
        },
    ),
    "lstm": Series(
        "CoNLL-2003, AWD-LSTM",
        "lstm-rotation-8",
        "conll",
        "perplexity",
        config(LSTM, "rotation", EPSILON, optimiser__rate=LSTM_RATES[EPSILON]),
        (0.0, 0.5, 1.0),
        {},
    ),
    "topics": Series(
        "AG, pretrained encoder",
        "topics-rotation-8",
        "ag",
        "error rate",
        config(TOPICS_PROBE, "rotation", EPSILON, **PROBE_ROTATION),
        (0.0, 0.25, 0.5, 0.75, 1.0),
        {
            "share-0.3": {"privacy__entity_share": 0.3},
            "users-0.1-rounds-600": _drawn(0.1, 600),
            "users-0.6-rounds-100": _drawn(0.6, 100),
        },
        times=3,
    ),
}


def measure(options: Options) -> Result:
    trials = {key: list(_trials(key, options.quick)) for key in SERIES}
    rows = measured((trial for own in trials.values() for trial in own), options)
    by_name = {row["name"]: row for row in rows}
    return {
        "quick": options.quick,
        "epsilon": EPSILON,
        "series": {
            key: _series(SERIES[key], [by_name[trial.name] for trial in own], options)
            for key, own in trials.items()
        },
    }


def _trials(key: str, quick: bool) -> Iterator[Trial]:
    """The base is a trial of another experiment too, under the same name."""
    own = list(_options(SERIES[key], quick))
    yield from own
    yield from repeats(own, 1 if quick else SERIES[key].times)


def _options(series: Series, quick: bool) -> Iterator[Trial]:
    for rate in (0.0, 1.0) if quick else series.rates:
        name = series.name if rate == 1 else f"{series.name}-extended-{rate:g}"
        changes = {} if rate == 1 else {"privacy__extended_rate": rate}
        yield Trial(name, series.data, changed(series.base, **changes))
    for name, other in () if quick else series.others.items():
        yield Trial(f"{series.name}-{name}", series.data, changed(series.base, **other))


# --- predicting ----------------------------------------------------------------------------------


def _series(series: Series, rows: Sequence[Row], options: Options) -> Result:
    found = incidence(material(series.data, options))
    supply = Supply.of_incidence(found)

    def merit(row: Row) -> Result:
        own = {key: row[key] for key in ("user_rate", "rounds", "share", "extended_rate")}
        what = {**_known_by("merit", found.digest), **own}
        return kept(options.work / "predicted", what, lambda: _predicted(supply, own))

    told = [{**row, "predicted": merit(row)} for row in _together(rows)]
    ran = [row for row in told if row["test"] is not None]
    return {
        "title": series.title,
        "measure": series.measure,
        "rows": told,
        "best_of_all": _best(series, supply, found.digest, options),
        "predicted_best": max(told, key=lambda row: float(row["predicted"]["merit"]))["name"],
        "measured_best": min(ran, key=lambda row: float(row["validation"]), default={}).get("name"),
        "rank_correlation": rank_correlation(
            [row["predicted"]["merit"] for row in ran], [row["validation"] for row in ran]
        ),
    }


def _together(rows: Sequence[Row]) -> Iterator[Result]:
    """A row for each option: means of what was run of it, and `tests` one by one."""
    for own in by_setting(rows):
        ran = [row for row in own if row["test"] is not None]
        means = {part: mean(row[part] for row in ran) for part in ("validation", "test") if ran}
        yield {
            **(ran or own)[0],
            **means,
            "name": own[0]["name"],
            "tests": [r["test"] for r in ran],
        }


def _predicted(supply: Supply, own: Row) -> Result:
    (option,) = planned(
        EPSILON,
        DELTA,
        supply,
        [own["user_rate"]],
        [own["rounds"]],
        [own["share"]],
        [own["extended_rate"]],
    )
    signal = supply.norms(option.entity_share, option.extended_rate) / supply.users
    return {"merit": option.merit, "noise": option.noise, "clip_used": signal}


def _best(series: Series, supply: Supply, digest: str, options: Options) -> Result:
    """The best of a grid at the work of the base: as many users drawn in all its rounds."""
    privacy = series.base["privacy"]
    work = privacy["user_rate"] * privacy["rounds"]
    user_rates = (0.1, 0.4) if options.quick else (0.05, 0.1, 0.2, 0.4, 0.8)
    shares = (0.3,) if options.quick else (0.1, 0.3, 0.5, 1.0)
    what = {**_known_by("grid", digest), "work": work, "grid": [user_rates, shares]}

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

    return kept(options.work / "predicted", what, compute)


def _known_by(step: str, incidence: str) -> Result:
    code = code_of("accounting", "mechanism")  # noise, and what can be used of a corpus
    return {"step": step, "incidence": incidence, "epsilon": EPSILON, "code": code}


def rank_correlation(merits: Sequence[float], losses: Sequence[float]) -> float | None:
    """Spearman's, of merit against how low a loss is; None for too few or where all are equal.

    Guarantees:
      - 1 where a larger merit always goes with a lower loss, -1 where always with a higher one
    """
    from scipy import stats

    if len(merits) < _ENOUGH or len(set(merits)) == 1 or len(set(losses)) == 1:
        return None
    return float(stats.spearmanr(merits, [-loss for loss in losses]).statistic)


# --- for the results page ------------------------------------------------------------------------


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_extended_rate

    against_extended_rate(result, path)


def table(result: Result) -> str:
    """Every option: noise, predicted signal to noise, and what was measured; then the verdict."""
    header = (
        "rotation",
        "q_s",
        "share",
        "user rate",
        "rounds",
        "noise, proven",
        "predicted merit, of the best",
        "validation",
        "test",
    )
    rows = []
    for series in result["series"].values():
        top = max(row["predicted"]["merit"] for row in series["rows"])
        for row in series["rows"]:
            validation, tests = row["validation"], [{"test": test} for test in row["tests"]]
            rows.append(
                [
                    f"{series['title']} ({series['measure']})",
                    f"{row['extended_rate']:g}",
                    f"{row['share']:g}",
                    f"{row['user_rate']:g}",
                    f"{row['rounds']}",
                    f"{row['predicted']['noise']:.3g}",
                    f"{row['predicted']['merit'] / top:.2f}",
                    shown(validation, series["measure"]) if tests else NOT_RUN,
                    spread(tests, series["measure"]) if tests else NOT_RUN,
                ]
            )
    return "\n\n".join([markdown.table(header, rows), markdown.bullets(*_account(result))])


def _account(result: Result) -> Iterator[str]:
    yield (
        f"All at proven epsilon {result['epsilon']:g}. The paper finds every rate above 0 better "
        "than 0, and the best one different from task to task. Predicted for "
        "rotation: 1 is best, since a smaller rate loses sentences while the noise that an entity "
        "needs stays; how much it matters depends on how many sentences have no entity."
    )
    for series in result["series"].values():
        title, best = series["title"], series["best_of_all"]
        none = min(series["rows"], key=lambda row: float(row["extended_rate"]))
        base = next(row for row in series["rows"] if row["extended_rate"] == 1)  # the first is
        edge = ""
        if best["user_rate"] == best["largest_user_rate"]:
            edge = " That is the largest user rate tried; the prediction knows of no lack of steps."
        left = none["predicted"]["merit"] / base["predicted"]["merit"]
        yield (
            f"{title}: at `q_s` 0 the prediction keeps {left:.0%} of the signal to noise at 1. The "
            f"best of {best['options']} options with as many users drawn in all: user rate "
            f"{best['user_rate']:g}, {best['rounds']} rounds, share {best['entity_share']:g}, "
            f"`q_s` {best['extended_rate']:g}.{edge}"
        )
        ran = sum(row["test"] is not None for row in series["rows"])
        if series["rank_correlation"] is None:
            yield f"{title}: {ran} of {len(series['rows'])} options run; too few to compare."
        else:
            same = series["predicted_best"] == series["measured_best"]
            yield (
                f"{title}: over {ran} options run, predicted and measured order have a rank "
                f"correlation of {series['rank_correlation']:.2f}. Predicted best: "
                f"`{series['predicted_best']}`; measured best: `{series['measured_best']}`"
                f"{', the same' if same else ''}."
            )
    yield from missing([row for own in result["series"].values() for row in own["rows"]])
