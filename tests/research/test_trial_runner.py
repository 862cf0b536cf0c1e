"""Running the trials of an experiment: rows, repeats, resuming, results of other machines."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from research import runs
from research.base import Options, Result
from research.catalogue import EXPERIMENTS
from research.experiments import next_word
from research.runs import TrainingTrial, override
from research.select_results import names_not_run
from research.settings import LSTM, method_config
from research.trial_runner import measure_trials, repeats
from tests.conftest import Run
from uedp.accounting import published
from uedp.errors import UserError
from uedp.methods import method_named

GPT = "next-word-gpt"


def one(result: Result, name: str) -> Result:
    (row,) = [row for row in result["rows"] if row["name"] == name]
    return dict(row)


def test_repeats_differ_only_in_name_and_initial_weights() -> None:
    trial = TrainingTrial("x", "conll", method_config(LSTM, "noiseless"))
    second, third = repeats([trial], 3)
    assert [second.name, third.name] == ["x-repeat-2", "x-repeat-3"]
    seeds = [t.config["model"].get("seed", 0) for t in (trial, second, third)]
    assert len(set(seeds)) == 3
    for again in (second, third):
        model = {k: v for k, v in again.config["model"].items() if k != "seed"}
        assert {**again.config, "model": model} == trial.config


def test_rows_hold_settings_and_results(gpt_result: Result) -> None:
    assert list(gpt_result["panels"]) == ["conll", "ag", "edgar"]
    rotation = one(gpt_result, "conll-rotation-8")
    assert rotation["epsilon"] <= 8.0 == rotation["target"]
    assert rotation["published"] is None  # the paper has no accountant of it
    assert min(rotation[part] for part in ("before", "validation", "test")) > 1
    assert rotation["sentences"] > 0
    for name in ("conll-noiseless", "conll-deidentified"):
        assert one(gpt_result, name)["epsilon"] is None
    assert one(gpt_result, "conll-noiseless")["test"] < rotation["before"]
    assert one(gpt_result, "conll-rotation-8-person")["category"] == "person"


def test_published_and_proven_epsilons_do_not_mix(gpt_result: Result) -> None:
    alg = one(gpt_result, "conll-uedp-alg")
    rate = alg["user_rate"] * 0.5 * 11176 / 14040
    assert alg["published"] == published.epsilon(rate, 2.5, alg["rounds"], 1e-5)
    assert alg["epsilon"] > alg["published"]
    page = EXPERIMENTS[GPT].table(gpt_result)
    assert f"(published {alg['published']:.2f}, proven {alg['epsilon']:.2f})" in page


# --- resuming, and other machines ----------------------------------------------------------------


def test_only_missing_trials_are_run_each_in_its_own_process(
    gpt_result: Result, gpt_options: Options, trial_results: Path
) -> None:
    """Guarantee of `measure_trials`."""
    (trial_results / "edgar-noiseless.json").unlink()
    again = {row["name"]: row for row in next_word.measure_gpt(gpt_options)["rows"]}
    for row in gpt_result["rows"]:
        if row["name"] != "edgar-noiseless":
            assert again[row["name"]] == row
    assert again["edgar-noiseless"]["test"] > 1
    assert again["edgar-noiseless"]["seconds"] != one(gpt_result, "edgar-noiseless")["seconds"]


def test_finished_only_trains_nothing_and_names_trials_not_run(
    gpt_result: Result, gpt_options: Options, trial_results: Path, run: Run
) -> None:
    """Guarantee of `measure_trials`; as a user types it, without models and without the data."""
    for name in ("conll-user-8", "edgar-rotation-8"):
        (trial_results / f"{name}.json").unlink()
    out = gpt_options.work.parent.parent
    (out / "nothing").mkdir(exist_ok=True)
    arguments = (GPT, "--data", out / "nothing", "--out", out, "--quick")
    made = run(*arguments, "--finished-only")
    assert (made.code, made.err) == (0, "")
    assert (out / f"{GPT}.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((out / f"{GPT}.json").read_text())
    assert names_not_run(result["rows"]) == ["conll-user-8", "edgar-rotation-8"]
    assert not (trial_results / "conll-user-8.json").exists()
    page = EXPERIMENTS[GPT].table(result)
    assert (
        "Not run: 2 of 9 trials; settings without any run: `conll-user-8`, `edgar-rotation-8`."
        in page
    )
    assert re.search(r"\| EDGAR, UeDP: all entities \|[^|]+\| - \| not run \|", page)
    refused = run(*arguments)
    assert refused.code == 2
    assert "--model gpt=PATH: missing; conll-noiseless needs a saved model" in refused.err


def test_results_of_an_earlier_mechanism_are_left_out(
    gpt_result: Result, gpt_options: Options, trial_results: Path
) -> None:
    """Guarantee of `measure_trials`; whatever their settings were."""
    path = trial_results / "conll-user-8.json"
    result = json.loads(path.read_text())
    assert result["version"] == method_named("user-level").version
    config = {**result["config"], "optimiser": {**result["config"]["optimiser"], "rate": 0.5}}
    del result["version"]
    path.write_text(json.dumps({**result, "config": config}))
    measured = next_word.measure_gpt(replace(gpt_options, finished_only=True))
    row = one(measured, "conll-user-8")
    assert row["outdated"]
    assert row["test"] is None
    assert [other["name"] for other in measured["rows"] if other["outdated"]] == [row["name"]]
    page = EXPERIMENTS[GPT].table(measured)
    assert "Left out, of a mechanism that is no longer in the code: `conll-user-8`." in page
    assert "| CoNLL-2003, user-level DP | 52.01 (0.185); 30.15 (0.2) | - | not run |" in page


def test_every_result_tells_names_from_other_tokens(gpt_result: Result) -> None:
    for row in gpt_result["rows"]:
        parts = row["parts"]
        share = parts["names_count"] / parts["count"]
        assert 0 < share < 1
        logs = share * math.log(parts["names"]) + (1 - share) * math.log(parts["others"])
        assert math.exp(logs) == pytest.approx(row["test"], rel=1e-9)


def test_results_of_other_settings_are_refused_those_of_other_machines_accepted(
    gpt_result: Result, gpt_options: Options, trial_results: Path
) -> None:
    """Guarantee of `measure_trials`."""
    path = trial_results / "conll-user-8.json"
    result = json.loads(path.read_text())
    result["config"]["run"] |= {"device": "cuda", "tokens_at_once": 7}
    result["config"]["privacy"]["a_removed_field"] = 1
    path.write_text(json.dumps(result))
    finished = replace(gpt_options, finished_only=True)
    assert not names_not_run(next_word.measure_gpt(finished)["rows"])
    faster = {**result["config"], "optimiser": {**result["config"]["optimiser"], "rate": 0.5}}
    path.write_text(json.dumps({**result, "config": faster}))
    with pytest.raises(UserError, match=r"conll-user-8.json: made with other settings"):
        next_word.measure_gpt(finished)
    alg = trial_results / "conll-uedp-alg.json"
    ran = json.loads(alg.read_text())
    options = {**ran["config"]["method_options"], "estimator": "f_E"}
    alg.write_text(json.dumps({**ran, "config": {**ran["config"], "method_options": options}}))
    path.write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"conll-uedp-alg.json: made with other settings"):
        next_word.measure_gpt(finished)
    alg.write_text(json.dumps(ran))
    path.write_text(json.dumps({**result, "category": "person"}))
    with pytest.raises(UserError, match="other settings"):
        next_word.measure_gpt(finished)
    path.write_text("{}")
    with pytest.raises(UserError, match="not the result of a run"):
        next_word.measure_gpt(finished)


def test_a_trial_of_another_experiment_is_not_run_again(
    gpt_result: Result, gpt_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee of `measure_trials`; other settings under the same name are refused there too."""
    monkeypatch.setattr(runs, "_start", lambda *_: pytest.fail("run again"))
    elsewhere = replace(gpt_options, work=gpt_options.work.parent / "elsewhere")
    same = [t for t in next_word.gpt_trials(quick=True) if t.name == "conll-rotation-8"]
    (row,) = measure_trials(same, elsewhere)
    assert row == {k: v for k, v in one(gpt_result, "conll-rotation-8").items() if k != "panel"}
    other = replace(same[0], config=override(same[0].config, privacy__epsilon=3.0))
    with pytest.raises(UserError, match="other settings"):
        measure_trials([other], elsewhere)


def test_missing_data_are_named(gpt_options: Options, tmp_path: Path) -> None:
    bare = replace(gpt_options, data=tmp_path, work=tmp_path / ".work" / GPT)
    with pytest.raises(UserError, match=r"eng.train.gz: no such file; --data must hold it"):
        next_word.measure_gpt(bare)
