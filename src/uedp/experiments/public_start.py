"""Public text first: what is left of the price of privacy where a model knows the kind of text.

The pretrained model of `next_word.py` has never seen text in lower case and without punctuation, and
much of what it learns from private text at first is that. Here it is fine-tuned without privacy on
another data set, taken as public, before it is fine-tuned privately on this one. What it learned
there costs no epsilon, which is about the private text alone. How to run it on another machine:
`series.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from uedp.experiments import markdown
from uedp.experiments.base import Options, Result
from uedp.experiments.next_word import TITLES, gpt_trials
from uedp.experiments.rows import Row, chosen, score
from uedp.experiments.runs import AFTER, Trial, changed
from uedp.experiments.series import measured
from uedp.experiments.settings import CORPORA, EPSILONS
from uedp.experiments.telling import NOT_RUN, against_user_level, missing, shown

# News for news; contracts have none of their kind.
PUBLIC: Mapping[str, str] = MappingProxyType({"conll": "ag", "ag": "conll", "edgar": "ag"})
SHORTER = 0.5  # steps that are tried too: less is left to learn
METHODS = MappingProxyType({"rotation": "rotation", "user": "user-level"})


def measure(options: Options) -> Result:
    trials = list(_all(options.quick))
    rows = measured(trials, options)
    return {
        "quick": options.quick,
        "measure": "perplexity",
        "public": dict(PUBLIC),
        "panels": {data: TITLES[data] for data in dict.fromkeys(row["data"] for row in rows)},
        "rows": [
            row | {"panel": row["data"], "public": trial.begins_with is not None}
            for trial, row in zip(trials, rows, strict=True)
        ],
    }


def _all(quick: bool) -> Iterator[Trial]:
    """What begins with public text, what it begins with, and the same without it."""
    without = {trial.name: trial for trial in gpt_trials(quick)}
    data = [name for name in CORPORA if not quick or name == "conll"]
    for name in dict.fromkeys(PUBLIC[own] for own in data):
        yield replace(without[f"{name}-noiseless"], kept=True)
    for own in data:
        yield from (t for t in without.values() if t.data == own and _compared(t))
    for own in data:
        yield from trials(own, quick)


def _compared(trial: Trial) -> bool:
    return trial.config["privacy"]["method"] in METHODS.values() and trial.category == "all"


def trials(data: str, quick: bool = False) -> Iterator[Trial]:
    """A data set's, after public text; those of `next_word.py` in all but the model and the step."""
    base = {trial.name: trial for trial in gpt_trials()}
    for epsilon in EPSILONS[: 1 if quick else None]:
        for short, method in METHODS.items():
            one = base[f"{data}-{short}-{epsilon:g}"]
            own = changed(one.config, model__name=f"{AFTER}{PUBLIC[data]}-noiseless")
            yield replace(one, name=f"{one.name}-public", config=own)
            if not quick:
                step = SHORTER * own["optimiser"]["rate"]
                shorter = changed(own, optimiser__rate=step)
                yield replace(one, name=f"{one.name}-public-short", config=shorter)


def draw(result: Result, path: Path) -> None:
    from uedp.report.utility_plots import against_epsilon

    against_epsilon({**result, "rows": _after(result)}, path)


def _after(result: Result) -> list[Row]:
    return [row for row in result["rows"] if row["public"]]


def table(result: Result) -> str:
    """Both methods with public text first and without, and how far they are apart."""
    header = (
        f"{result['measure']} on the test part",
        "proven epsilon",
        "users with entities",
        "users alone",
        "ratio",
        "without public text",
        "users alone",
        "ratio",
    )
    rows = [
        [
            f"{title}, {TITLES[result['public'][data]]} first",
            f"{epsilon:g}",
            *_pair(result, data, epsilon, public=True),
            *_pair(result, data, epsilon, public=False),
        ]
        for data, title in result["panels"].items()
        for epsilon in _epsilons(result, data)
    ]
    return "\n\n".join([markdown.table(header, rows), markdown.bullets(*_account(result))])


def _epsilons(result: Result, data: str) -> list[float]:
    own = [row["target"] for row in _after(result) if row["data"] == data]
    return list(dict.fromkeys(own))


def _pair(result: Result, data: str, epsilon: float, public: bool) -> Iterator[str]:
    scores = [
        score(
            chosen(
                result["rows"],
                data=data,
                method=method,
                target=epsilon,
                category="all",
                public=public,
                extended_rate=1.0,
            )
        )
        for method in METHODS.values()
    ]
    yield from (NOT_RUN if one is None else shown(one, result["measure"]) for one in scores)
    ours, theirs = scores
    yield "-" if ours is None or theirs is None else f"{ours / theirs:.2f}"


def _account(result: Result) -> Iterator[str]:
    for data, title in result["panels"].items():
        own = [row for row in _after(result) if row["data"] == data]
        if ran := [row for row in own if row["test"] is not None]:
            first = TITLES[result["public"][data]]
            yield (
                f"{title}: the model that has learned from {first} alone has a perplexity of "
                f"{shown(ran[0]['before'], result['measure'])} on the validation part."
            )
        yield from against_user_level(own, title, result["measure"])
    yield from missing(_after(result))
