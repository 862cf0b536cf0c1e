"""The utility of f_E, f_E+ and user-level DP, with the stated noise and without.

All at the paper's sampling rates and `z`, over the same rounds, with a probe, which needs the least
signal. Runs without noise have no privacy; they show what an estimator could learn. The paper
compares the estimators by epsilon and says that f_E+ learns more. How to run it on another machine:
`trial_runner.py`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research import markdown
from research.base import Options, Result
from research.paper import NOISE
from research.render import NOT_RUN, format_repeats, not_run_note
from research.runs import TrainingTrial, override
from research.select_results import Row, mean_test
from research.settings import (
    PUBLISHED_PROBE,
    REPEATS,
    TOPICS_PROBE,
    method_config,
)
from research.trial_runner import measure_trials, repeats

NO_NOISE = "-no-noise"  # suffix of a trial's name
LEARNED = 0.9  # relative to the error of guessing; below it, something was learned
GUESSING = 0.75  # four balanced classes


def measure(options: Options) -> Result:
    return {
        "quick": options.quick,
        "measure": "error rate",
        "noise": NOISE["bert"],
        "guessing": GUESSING,
        "rows": measure_trials(trials(options.quick), options),
    }


def trials(quick: bool = False) -> Iterator[TrainingTrial]:
    """Each estimator with noise and without, with repeats; no repeats if quick."""
    once = list(_once())
    yield from once
    yield from repeats(once, 1 if quick else REPEATS)


def _once() -> Iterator[TrainingTrial]:
    """The first is also a trial of `classification`."""
    user = method_config(TOPICS_PROBE, "user-level", privacy__noise=NOISE["bert"])
    for name, own in (
        ("topics-uedp-alg", PUBLISHED_PROBE),
        ("topics-uedp-alg-f_e", override(PUBLISHED_PROBE, method_options__estimator="f_E")),
        ("topics-user-paper", user),
    ):
        yield TrainingTrial(name, "ag", own)
        yield TrainingTrial(f"{name}{NO_NOISE}", "ag", override(own, privacy__noise=0.0))


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import estimator_bars

    estimator_bars(result, path)


_NAMES = {
    ("uedp-alg", "f_E+"): "f_E+",
    ("uedp-alg", "f_E"): "f_E",
    ("user-level", "f_E+"): "user-level",
}


def table(result: Result) -> str:
    """Error rates; epsilons as published and proven."""
    header = (
        "estimator, AG topics",
        "published epsilon (not a guarantee)",
        "proven epsilon (f_E, f_E+: with the most common entity)",
        "error without noise",
        "error with noise",
    )
    rows = []
    for name, noisy, clean in by_estimator(result):
        first = noisy[0] if noisy else None
        rows.append(
            [
                name,
                markdown.epsilon(first["published"] if first else None),
                markdown.epsilon(first["epsilon"] if first else None),
                *(format_repeats(r, "error rate") if r else NOT_RUN for r in (clean, noisy)),
            ]
        )
    return "\n\n".join([markdown.table(header, rows), markdown.bullets(*_conclusions(result))])


def by_estimator(result: Mapping[str, Any]) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """The name of each estimator, its finished rows with noise, and those without."""
    for (method, estimator), name in _NAMES.items():
        own = [
            row
            for row in result["rows"]
            if (row["method"], row["estimator"]) == (method, estimator) and row["test"] is not None
        ]
        noisy = [row for row in own if not row["setting"].endswith(NO_NOISE)]
        yield name, noisy, [row for row in own if row not in noisy]


def _conclusions(result: Result) -> Iterator[str]:
    for kind, place in (("With the stated noise", 0), ("Without noise", 1)):
        means = {name: mean_test(rows[place]) for name, *rows in by_estimator(result)}
        plus, plain, user = (means[name] for name in ("f_E+", "f_E", "user-level"))
        if plus is None or plain is None:
            continue
        if min(plus, plain) > LEARNED * result["guessing"]:
            verdict = "neither f_E+ nor f_E learns anything"
        else:
            verdict = f"f_E+ has {'a lower' if plus < plain else 'no lower'} error than f_E"
        others = "" if user is None else f"; user-level DP {user:.1%}"
        yield (
            f"{kind}, {verdict}: {plus:.1%} and {plain:.1%}{others}. Guessing gives "
            f"{result['guessing']:.0%}."
        )
    yield (
        f"The same `z` ({result['noise']:g}) means far more noise for f_E and f_E+ than for "
        "user-level DP: it multiplies the updates of all sampled users, not one user's update."
    )
    yield from not_run_note(result["rows"])
