"""The trials of an experiment: prepare the data, run what has no result yet, collect the rows.

**On a machine with an accelerator.** Run the same command there; it needs only the data and the
models. Each run writes one file, `OUT/trials/NAME.json`. Copy these files into the same folder here
and run the command again: a trial with a result is not run again. With `--finished-only` nothing is
trained, and trials without a result are reported as not run. A result whose settings differ from
those of the trial of the same name is refused. A result of a mechanism that is no longer in the
code counts as none: its trial is run again, or reported as outdated. Prepared data sets
(`OUT/.work/common/datasets`) may be copied as well, in either direction.
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
from research.datasets import prepare_dataset
from research.paper import COUNTS
from research.runs import TrainingTrial, Workspace, override
from research.select_results import REPEAT, Row
from research.sources import TRAINING_SETS
from uedp.accounting import published
from uedp.accounting.published import PublishedMethod, PublishedSetting
from uedp.errors import UserError

QUICK_ROUNDS = 2
QUICK_SENTENCES = 400  # of each part
_QUICK_USER_RATE = 0.6  # the data are small
_QUICK_SIZES = {"embedding_size": 8, "hidden_size": 12, "num_hidden_layers": 2}


def repeats(trials: Iterable[TrainingTrial], times: int) -> Iterator[TrainingTrial]:
    """The second run of each trial, then the third: with other initial weights and randomness."""
    first = list(trials)
    for number in range(2, times + 1):
        for trial in first:
            again = override(trial.config, model__seed=number - 1)
            yield replace(trial, name=f"{trial.name}{REPEAT}{number}", config=again)


def measure_trials(trials: Iterable[TrainingTrial], options: Options) -> list[Result]:
    """Run trials. Returns a row for each: its settings and results, or that it was not run.

    Guarantees:
      - a trial with a result, from this or another experiment of the same folder, is not run again
      - a result whose settings differ from the trial's is refused
      - a result of a mechanism that is no longer in the code is not used: its trial is run again
      - with `finished_only`, nothing is trained, and trials without a result have `test` None
    """
    planned = list(trials)
    assert len({trial.name for trial in planned}) == len(planned), "trial names must be unique"
    if options.quick:
        planned = [replace(trial, config=_small(trial.config)) for trial in planned]
    workspace = _workspace(options)
    _refuse_other_settings(planned, workspace)
    if not options.finished_only:
        _check_models(planned, options.models)
        for data in {trial.data: None for trial in planned}:
            prepared_data(data, options)
        _clear_finished(planned, workspace)
    deadline = -1.0 if options.finished_only else float("inf")
    results = runs.run_trials(
        planned, workspace, options.jobs, deadline=deadline, progress=options.progress
    )
    return [_row(trial, results.get(trial.name), workspace) for trial in planned]


def prepared_data(data: str, options: Options) -> Path:
    """The folder of a prepared data set; prepares it if need be."""
    folder = _workspace(options).datasets / data
    if not (folder / "about.json").exists():
        for part in TRAINING_SETS[data].files:
            if not (path := options.data / TRAINING_SETS[data].file(part)).is_file():
                raise UserError(f"{path}: no such file; --data must hold it")
        most = QUICK_SENTENCES if options.quick else None
        prepare_dataset(data, options.data, folder, options.models.get("ner"), most)
    return folder


def _workspace(options: Options) -> Workspace:
    return Workspace(
        options.common / ("datasets-quick" if options.quick else "datasets"),
        dict(options.models),
        options.common / ("trials-quick" if options.quick else "trials"),
        QUICK_ROUNDS if options.quick else None,
        None if options.quick else options.trials,
    )


def _small(config: runs.Config) -> dict[str, dict[str, Any]]:
    small = override(config, privacy__user_rate=_QUICK_USER_RATE, model__max_tokens=32)
    if "sizes" in small["model"]:
        small["model"]["sizes"] = _QUICK_SIZES
    return small


def _check_models(trials: Sequence[TrainingTrial], models: Mapping[str, str]) -> None:
    for trial in trials:
        part = trial.config["model"]["name"]
        if trial.config.get("vocabulary", {}).get("source") == "public":
            part = "words"
        if part not in models:
            kind = "a public tokenizer.json" if part == "words" else "a saved model"
            raise UserError(f"--model {part}=PATH: missing; {trial.name} needs {kind}")


def _refuse_other_settings(trials: Sequence[TrainingTrial], workspace: Workspace) -> None:
    for trial in trials:
        path = workspace.result(trial)
        if not path.exists():
            continue
        result = _read(path)
        if not runs.is_outdated(result) and not _same(trial, result, workspace):
            raise UserError(
                f"{path}: made with other settings than those of {trial.name}; remove the file to "
                "run it again"
            )


def _clear_finished(trials: Sequence[TrainingTrial], workspace: Workspace) -> None:
    """Remove finished runs without a current result: without weights they cannot be resumed."""
    for trial in trials:
        folder = workspace.out / trial.name
        if (
            not runs.has_current_result(trial, workspace)
            and (folder / "result.json").exists()
            and not (folder / "model.safetensors").exists()
        ):
            shutil.rmtree(folder)
            shutil.rmtree(workspace.out / f"{trial.name}.corpus", ignore_errors=True)


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        kept = (*_FROM_RESULT, "config", "data", "category", "model")
        later = {"texts": None, "public": None, "version": 0}  # what older results do not say
        return {key: result[key] for key in kept} | {
            key: result.get(key, value) for key, value in later.items()
        }
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not the result of a run; remove it to run it again") from None


_FROM_RESULT = (
    "epsilon",
    "noise",
    "sentences",
    "seconds",
    "measure",
    "before",
    "validation",
    "test",
)


def _same(trial: TrainingTrial, result: Row, workspace: Workspace) -> bool:
    """Whether the settings of a result are the trial's, except for those of the machine."""
    from uedp.training.config import parse_config

    no_data = {"train": ".", "evaluate": "."}
    theirs = _without_removed_fields(override(result["config"], model__name=result["model"]))
    own = result["config"].get("alg", {})  # what older results call the options of uedp-alg
    if theirs["privacy"]["method"] == "uedp-alg":
        theirs.setdefault("method_options", own)
    if theirs.get("vocabulary", {}).get("source") == "public":
        theirs["vocabulary"]["path"] = "words"
    named = replace(workspace, models={"words": "words"})
    ours = runs.resolve_config(trial, named)
    both = [
        parse_config({**config, "data": no_data}, trial.name).model_dump(exclude={"run"})
        for config in (ours, theirs)
    ]
    return both[0] == both[1] and all(
        getattr(trial, key) == result[key] for key in ("data", "category", "texts", "public")
    )


def _without_removed_fields(config: runs.Config) -> dict[str, dict[str, Any]]:
    """Fields that no longer exist are left out; a change of the mechanism is a new version."""
    from uedp.training.config import Config

    kept = {}
    for section, field in Config.model_fields.items():
        if section in config:
            # a method's own options have no fields here
            known = getattr(field.annotation, "model_fields", None) or config[section]
            kept[section] = {k: value for k, value in config[section].items() if k in known}
    return kept


def _row(trial: TrainingTrial, result: Row | None, workspace: Workspace) -> Result:
    """The settings and results of a trial that tables and plots show."""
    config = runs.resolve_config(trial, replace(workspace, models={"words": "words"}))
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
        "share": privacy.get("entity_share", 0.3) if privacy["method"] in runs.SHARING else None,
        "extended_rate": privacy.get("extended_rate", 1.0),
    }
    row["outdated"] = result is not None and runs.is_outdated(result)
    if result is None or row["outdated"]:
        return row | dict.fromkeys(("published", "parts", *_FROM_RESULT))
    row["parts"] = measured_apart(result["test"])
    row |= {key: result[key] for key in _FROM_RESULT}
    if row["epsilon"] is not None and not math.isfinite(row["epsilon"]):
        row["epsilon"] = None  # no noise, no finite epsilon
    row |= {part: result[part][result["measure"]] for part in ("before", "validation", "test")}
    return row | {"published": _published(row, privacy)}


def measured_apart(measured: Row) -> Result | None:
    """Names and other tokens, or sentences with entities and without: measures and numbers."""
    for names, others, part, whole in _MEASURED_APART:
        if names in measured and others in measured:
            counts = {"count": measured[whole], "names_count": measured[part]}
            return {"names": measured[names], "others": measured[others], **counts}
    return None


_MEASURED_APART = (
    ("perplexity on names", "perplexity on other tokens", "name tokens", "tokens"),
    (
        "error rate with entities",
        "error rate without entities",
        "sentences with entities",
        "sentences",
    ),
)


def _published(row: Row, privacy: Row) -> float | None:
    """Epsilon by the paper's accountant, with the counts of the paper's data."""
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
