"""f_E against f_E+ against user-level DP: what each learns, with the noise of its text and without.

All at the paper's rates and `z`, over the same rounds, with a probe, which learns from least
signal. Without noise there is no privacy; it shows what an estimator could learn. The paper
compares the estimators by epsilon and says that f_E+ learns more. How to run it on another machine:
`series.py`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research import markdown
from research.base import Options, Result
from research.render import NOT_RUN, missing, spread
from research.runs import Trial, changed
from research.select_results import Row, score
from research.settings import (
    PAPER_NOISE,
    PUBLISHED_PROBE,
    REPEATS,
    TOPICS_PROBE,
    config,
)
from research.trial_runner import measured, repeats

NO_NOISE = "-no-noise"  # at the end of a trial's name
LEARNED = 0.9  # of the error of guessing, from which on something was learned
GUESSING = 0.75  # of four classes, equally many


def measure(options: Options) -> Result:
    return {
        "quick": options.quick,
        "measure": "error rate",
        "noise": PAPER_NOISE["bert"],
        "guessing": GUESSING,
        "rows": measured(trials(options.quick), options),
    }


def trials(quick: bool = False) -> Iterator[Trial]:
    """Each estimator with noise and without, several times; once if quick."""
    once = list(_once())
    yield from once
    yield from repeats(once, 1 if quick else REPEATS)


def _once() -> Iterator[Trial]:
    """The first is a trial of `classification` too."""
    user = config(TOPICS_PROBE, "user-level", privacy__noise=PAPER_NOISE["bert"])
    for name, own in (
        ("topics-uedp-alg", PUBLISHED_PROBE),
        ("topics-uedp-alg-f_e", changed(PUBLISHED_PROBE, method_options__estimator="f_E")),
        ("topics-user-paper", user),
    ):
        yield Trial(name, "ag", own)
        yield Trial(f"{name}{NO_NOISE}", "ag", changed(own, privacy__noise=0.0))


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
        "error, without noise",
        "error, with it",
    )
    rows = []
    for name, noisy, clean in by_estimator(result):
        known = noisy[0] if noisy else None
        rows.append(
            [
                name,
                markdown.epsilon(known["published"] if known else None),
                markdown.epsilon(known["epsilon"] if known else None),
                *(spread(found, "error rate") if found else NOT_RUN for found in (clean, noisy)),
            ]
        )
    return "\n\n".join([markdown.table(header, rows), markdown.bullets(*_account(result))])


def by_estimator(result: Mapping[str, Any]) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """The name of each, its finished rows with noise, and those without."""
    for (method, estimator), name in _NAMES.items():
        own = [
            row
            for row in result["rows"]
            if (row["method"], row["estimator"]) == (method, estimator) and row["test"] is not None
        ]
        noisy = [row for row in own if not row["setting"].endswith(NO_NOISE)]
        yield name, noisy, [row for row in own if row not in noisy]


def _account(result: Result) -> Iterator[str]:
    found = {name: (score(noisy), score(clean)) for name, noisy, clean in by_estimator(result)}
    for kind, place in (("With the noise of its text", 0), ("Without noise", 1)):
        plus, plain, user = (found[name][place] for name in ("f_E+", "f_E", "user-level"))
        if plus is None or plain is None:
            continue
        if min(plus, plain) > LEARNED * result["guessing"]:
            says = "neither f_E+ nor f_E learns anything"
        else:
            says = f"f_E+ errs {'less' if plus < plain else 'no less'} often than f_E"
        beside = "" if user is None else f"; user-level DP {user:.1%}"
        yield (
            f"{kind}, {says}: {plus:.1%} and {plain:.1%}{beside}. Guessing gives "
            f"{result['guessing']:.0%}."
        )
    yield (
        f"The same `z` ({result['noise']:g}) is far more noise for f_E and f_E+ than for "
        "user-level DP: it counts in units of all drawn users' updates there, of one user's here."
    )
    yield from missing(result["rows"])
