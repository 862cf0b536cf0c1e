"""UeDP-Alg as the paper ran it: with the noise that its released code adds.

The files that it reads are written by `python -m research.audit_released` (a model trained with
canaries, its perplexity, and lower bounds on its epsilon) and by `python -m
research.released_reach` (how far the code can move a pretrained model). They lie in `released/`
beside the trials: NAME.json and NAME-stated.json for a model of `audit_released.MODELS`, and
reach.json. `python -m research.audit_uedp_alg --released-code` attacks the mechanism by itself.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from research import markdown, paper
from research.base import Options, Result
from research.markdown import format_measure
from research.render import NOT_RUN, format_printed

FOLDER = "released"
MODELS = {
    "gpt": "CoNLL-2003, pretrained model",
    "lstm": "CoNLL-2003, AWD-LSTM",
    "small-lstm": "CoNLL-2003, AWD-LSTM of 200 units",
}
_STATED_TRIALS = {"gpt": "conll-uedp-alg", "lstm": "lstm-uedp-alg"}
_NOISELESS_TRIALS = {"gpt": "conll-noiseless", "lstm": "lstm-noiseless"}
_KEPT = ("kind", "score", "canaries", "guesses", "correct", "epsilon", "alarm", "most")


def measure(options: Options) -> Result:
    """Collect what was run; nothing is trained here."""
    folder = options.trials.parent / FOLDER
    return {
        "quick": options.quick,
        "paper": paper.PERPLEXITIES["conll"],
        "models": {name: _model(folder, options.trials, name) for name in MODELS},
        "reach": _read(folder / "reach.json"),
    }


def released_run(folder: Path, name: str) -> Result | None:
    """The perplexity, published epsilon and lower bounds of a model; None if it was not run."""
    found = _read(folder / f"{name}.json")
    if found is None:
        return None
    return {
        "test": found["test"]["perplexity"],
        "validation": found["validation"]["perplexity"],
        "rounds": found["config"]["privacy"]["rounds"],
        "words": found["vocabulary"],
        "published": found["published"],
        "too_small": found["noise"]["too_small"],
        "canaries": found["canaries"],
        "findings": [{key: one[key] for key in _KEPT} for one in found["findings"]],
        "bound": max((one["alarm"] for one in found["findings"]), default=None),
    }


def _model(folder: Path, trials: Path, name: str) -> Result:
    stated = released_run(folder, f"{name}-stated")
    return {
        "stated": stated or _trial(trials / f"{_STATED_TRIALS.get(name)}.json"),
        "released": released_run(folder, name),
        "noiseless": _trial(trials / f"{_NOISELESS_TRIALS.get(name)}.json"),
    }


def _trial(path: Path) -> Result | None:
    trial = _read(path)
    if trial is None:
        return None
    rounds = trial["config"]["privacy"]["rounds"]
    return {"test": trial["test"][trial["measure"]], "rounds": rounds}


def _read(path: Path) -> Result | None:
    if not path.is_file():
        return None
    content: Result = json.loads(path.read_text(encoding="utf-8"))
    return content


# --- for the results page ------------------------------------------------------------------------


def table(result: Result) -> str:
    """Perplexities beside the paper's; lower bounds on the epsilon of those models."""
    return "\n\n".join(
        [_perplexities(result), _bounds(result), markdown.bullets(*_conclusions(result))]
    )


def _perplexities(result: Result) -> str:
    header = (
        "perplexity on the test part",
        "paper (published epsilon)",
        "as published, with the stated noise",
        "as released, with the noise of its code (no guarantee)",
    )
    rows = []
    for name, title in MODELS.items():
        own = result["models"][name]
        printed = format_printed(result["paper"]["person"], "perplexity") if name == "gpt" else "-"
        rows.append([title, printed, _cell(own["stated"]), _cell(own["released"])])
    return markdown.table(header, rows)


def _cell(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return NOT_RUN
    return f"{format_measure(run['test'], 'perplexity')} after {run['rounds']} rounds"


def _bounds(result: Result) -> str:
    header = (
        "lower bounds on epsilon, as released",
        "published epsilon (not a guarantee)",
        "attack",
        "guesses correct",
        "epsilon at least",
        "most that could be proven",
    )
    rows = []
    for name, title in MODELS.items():
        run = result["models"][name]["released"]
        for one in () if run is None else run["findings"]:
            rows.append(
                [
                    f"{title}: {one['kind']}",
                    f"{run['published']:.2f}",
                    one["score"],
                    f"{one['correct']:,} of {one['guesses']:,}",
                    f"{one['epsilon']:.2f}",
                    f"{one['most']:.2f}",
                ]
            )
    return markdown.table(header, rows) if rows else f"*{NOT_RUN}*"


def _conclusions(result: Result) -> Iterator[str]:
    for name, title in MODELS.items():
        run = result["models"][name]["released"]
        if run is None:
            yield f"{title}: {NOT_RUN} (`python -m research.audit_released {name}`)."
            continue
        audit = _verdict(run["bound"], run["published"])
        words = "" if run["words"] is None else f" with {run['words']:,} public words"
        yield (
            f"{title}{words}: on this corpus the code draws {run['too_small']:,.0f} times less "
            f"noise than the text states (without canaries).{audit}"
        )
        if (plain := result["models"][name]["noiseless"]) is not None:
            yield (
                f"{title}: ordinary training without noise or clipping reaches {_cell(plain)}; "
                f"UeDP-Alg with the noise of the code reaches {_cell(run)}."
            )
    if (reach := result["reach"]) is not None:
        yield (
            "The paper's perplexities for GPT-2 cannot come from this code at the learning rate "
            f"that the paper states and the code has, 1e-5. After the {reach['rounds']} rounds of "
            f"its epsilon 0.2, updates have moved no weight by more than {reach['radius']:.1g}, "
            f"since they are divided by the number of entities. For {reach['model']} that changes "
            f"the perplexity, {reach['perplexity']:.4g} on {reach['sentences']} sentences of the "
            f"test part, by less than {_percent(reach)} (to first order); the paper prints "
            f"{reach['paper']:.4g}."
        )


def _verdict(bound: float | None, published: float) -> str:
    """By the bound whose confidence holds for all attacks on a model together."""
    if bound is None:
        return " It was trained without canaries: nothing bounds its epsilon from below."
    verdict = "refutes" if bound > published else "does not refute"
    return (
        f" The attacks together prove an epsilon of at least {bound:.2f}, which {verdict} the "
        f"published {published:.2f}."
    )


def _percent(reach: Mapping[str, Any]) -> str:
    part = reach["perplexity"] / reach["least_perplexity"] - 1
    return f"{part:.2%}" if part < 0.1 else f"{part:.0%}"


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import released_bounds

    released_bounds(result, MODELS, path)
