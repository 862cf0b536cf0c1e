"""Experiments that train: many runs on prepared material, each known by its name.

**On a machine with an accelerator.** Give the same command there; it needs the data, the models and
nothing else. What a run leaves is one file, `OUT/trials/NAME.json`. Copy those files into
the same folder here and give the command again: what is there is not run again. With
`--finished-only` nothing is run at all, and what is missing is told as such. A file that was made
with other settings than the trial of its name has now is refused. Prepared data
(`OUT/.work/common/materials`) may be copied as well, in either direction.
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from research import runs
from research.base import Options, Result
from research.breakdown import PAPER as COUNTS
from research.datasets import prepare
from research.runs import Place, Trial, changed
from research.select_results import REPEAT, Row
from research.sources import DATA_SETS
from uedp.accounting import published
from uedp.accounting.published import PublishedMethod, PublishedSetting
from uedp.errors import UserError

QUICK_ROUNDS = 2
QUICK_SENTENCES = 400  # read of each part
_QUICK_USERS = 0.6  # of the few users there are then
_QUICK_SIZES = {"embedding_size": 8, "hidden_size": 12, "num_hidden_layers": 2}


def repeats(trials: Iterable[Trial], times: int) -> Iterator[Trial]:
    """The second of each trial, then the third: other first weights, and all else drawn anew."""
    found = list(trials)
    for number in range(2, times + 1):
        for trial in found:
            again = changed(trial.config, model__seed=number - 1)
            yield replace(trial, name=f"{trial.name}{REPEAT}{number}", config=again)


def measured(trials: Iterable[Trial], options: Options) -> list[Result]:
    """A row for each trial: what it was, and what came of it, or that it was not run.

    Guarantees:
      - a trial that has a result, here or in another experiment of the same folder, is not run
      - a result made with other settings than the trial's is refused
      - with `finished_only`, nothing is trained, and trials without a result have `test` None
    """
    found = list(trials)
    assert len({trial.name for trial in found}) == len(found), "a name for each trial"
    if options.quick:
        found = [replace(trial, config=_small(trial.config)) for trial in found]
    place = _place(options)
    _refuse_others(found, place)
    if not options.finished_only:
        _check_models(found, options.models)
        for data in {trial.data: None for trial in found}:
            material(data, options)
        _clear_finished(found, place)
    deadline = -1.0 if options.finished_only else float("inf")
    results = runs.run_trials(
        found, place, options.jobs, deadline=deadline, progress=options.progress
    )
    return [_row(trial, results.get(trial.name), place) for trial in found]


def material(data: str, options: Options) -> Path:
    """The folder of a data set as plain files, prepared if it is not there."""
    folder = _place(options).materials / data
    if not (folder / "about.json").exists():
        for part in DATA_SETS[data].files:
            if not (path := options.data / DATA_SETS[data].file(part)).is_file():
                raise UserError(f"{path}: no such file; --data must hold it")
        most = QUICK_SENTENCES if options.quick else None
        prepare(data, options.data, folder, options.models.get("ner"), most)
    return folder


def _place(options: Options) -> Place:
    return Place(
        options.common / ("materials-quick" if options.quick else "materials"),
        dict(options.models),
        options.common / ("trials-quick" if options.quick else "trials"),
        QUICK_ROUNDS if options.quick else None,
        None if options.quick else options.trials,
    )


def _small(config: runs.Config) -> dict[str, dict[str, Any]]:
    small = changed(config, privacy__user_rate=_QUICK_USERS, model__max_tokens=32)
    if "sizes" in small["model"]:
        small["model"]["sizes"] = _QUICK_SIZES
    return small


def _check_models(trials: Sequence[Trial], models: Mapping[str, str]) -> None:
    for trial in trials:
        part = trial.config["model"]["name"]
        if trial.config.get("vocabulary", {}).get("source") == "public":
            part = "words"
        if part not in models:
            kind = "a public tokenizer.json" if part == "words" else "a saved model"
            raise UserError(f"--model {part}=PATH: missing; {trial.name} needs {kind}")


def _refuse_others(trials: Sequence[Trial], place: Place) -> None:
    for trial in trials:
        path = place.result(trial)
        if path.exists() and not _same(trial, _read(path), place):
            raise UserError(
                f"{path}: made with other settings than {trial.name} has now; remove it to run it "
                "again"
            )


def _clear_finished(trials: Sequence[Trial], place: Place) -> None:
    """Away with runs whose result was removed: they were finished, and their weights are gone."""
    for trial in trials:
        folder = place.out / trial.name
        if (
            not place.result(trial).exists()
            and (folder / "result.json").exists()
            and not (folder / "model.safetensors").exists()
        ):
            shutil.rmtree(folder)
            shutil.rmtree(place.out / f"{trial.name}.corpus", ignore_errors=True)


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return {key: result[key] for key in (*_KEPT, "config", "data", "category", "model")}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not the result of a run; remove it to run it again") from None


_KEPT = ("epsilon", "noise", "sentences", "seconds", "measure", "before", "validation", "test")


def _same(trial: Trial, result: Row, place: Place) -> bool:
    """Whether a result is the trial's: all settings but of the machine it ran on."""
    from uedp.training.config import parse_config

    of_the_data = {"train": ".", "evaluate": "."}
    theirs = changed(result["config"], model__name=result["model"])
    if theirs.get("vocabulary", {}).get("source") == "public":
        theirs["vocabulary"]["path"] = "words"
    named = replace(place, models={"words": "words"})
    ours = runs.resolved(trial, named)
    both = [
        parse_config({**config, "data": of_the_data}, trial.name).model_dump(exclude={"run"})
        for config in (ours, theirs)
    ]
    return both[0] == both[1] and (trial.data, trial.category) == (
        result["data"],
        result["category"],
    )


def _row(trial: Trial, result: Row | None, place: Place) -> Result:
    """What tables and plots need of a trial."""
    config = runs.resolved(trial, replace(place, models={"words": "words"}))
    privacy = config["privacy"]
    row: Result = {
        "name": trial.name,
        "setting": trial.name.partition(REPEAT)[0],
        "data": trial.data,
        "model": trial.config["model"]["name"],
        "train": config["model"]["train"],
        "category": trial.category,
        "method": privacy["method"],
        "estimator": config.get("method_options", config.get("alg", {})).get("estimator", "f_E+"),
        "target": privacy.get("epsilon"),
        "rate": config["optimiser"]["rate"],
        "user_rate": privacy["user_rate"],
        "rounds": privacy["rounds"],
        "share": privacy.get("entity_share", 0.3) if privacy["method"] == "rotation" else None,
        "extended_rate": privacy.get("extended_rate", 1.0),
    }
    if result is None:
        return row | dict.fromkeys(("published", *_KEPT))
    row |= {key: result[key] for key in _KEPT}
    if row["epsilon"] is not None and not math.isfinite(row["epsilon"]):
        row["epsilon"] = None  # without noise there is none
    row |= {part: result[part][result["measure"]] for part in ("before", "validation", "test")}
    return row | {"published": _published(row, privacy)}


def _published(row: Row, privacy: Row) -> float | None:
    """By the paper's accountant; sensitive sentences, which it counts, as in the paper's data."""
    if row["method"] not in ("uedp-alg", "user-level") or not row["noise"]:
        return None
    if row["method"] == "user-level":
        return published.epsilon(row["user_rate"], row["noise"], row["rounds"], privacy["delta"])
    counts = COUNTS[row["data"]]
    sensitive = counts["sensitive"].get(row["category"])
    if sensitive is None:
        return None
    setting = PublishedSetting(1, 1, privacy["entity_rate"], sensitive, counts["sentences"])
    method = PublishedMethod.f_e_plus if row["estimator"] == "f_E+" else PublishedMethod.f_e
    rate = row["user_rate"] * setting.rate(method)
    return published.epsilon(rate, row["noise"], row["rounds"], privacy["delta"])
