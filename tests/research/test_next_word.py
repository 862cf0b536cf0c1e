"""next-word-gpt and next-word-lstm on tiny data and models; and what all that train share."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from research import next_word, runs
from research.base import Options, Result
from research.catalogue import EXPERIMENTS
from research.runs import Trial, changed
from research.select_results import Row, chosen, not_run, score
from research.settings import FINE_TUNING, LSTM, config
from research.trial_runner import measured, repeats
from tests.conftest import Run
from tests.research import trained
from uedp.accounting import published
from uedp.errors import UserError

GPT, LSTM_NAME = "next-word-gpt", "next-word-lstm"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("next-word")


@pytest.fixture(scope="module")
def options(folder: Path, ner: Path) -> Options:
    return trained.options(folder, ner, GPT)


@pytest.fixture(scope="module")
def result(options: Options) -> Result:
    found, here = trained.carried_out(EXPERIMENTS[GPT], options)
    assert here.names == [trial.name for trial in next_word.gpt_trials(quick=True)]
    return found


@pytest.fixture
def copied(result: Result, options: Options) -> Iterator[Path]:
    """The folder of the runs' results; what a test does there is undone."""
    where = options.common / "trials-quick"
    before = {path: path.read_bytes() for path in where.glob("*.json")}
    yield where
    for path in where.glob("*.json"):
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)


def one(result: Result, name: str) -> Result:
    (row,) = [row for row in result["rows"] if row["name"] == name]
    return dict(row)


# --- trials --------------------------------------------------------------------------------------


def test_names_are_unique_and_settings_are_what_they_say() -> None:
    trials = {trial.name: trial for trial in next_word.gpt_trials()}
    assert len(trials) == len(list(next_word.gpt_trials()))
    for data in ("conll", "ag", "edgar"):
        for epsilon in (8, 2):
            privacy = trials[f"{data}-rotation-{epsilon}"].config["privacy"]
            assert (privacy["method"], privacy["epsilon"]) == ("rotation", epsilon)
            assert trials[f"{data}-user-{epsilon}"].config["privacy"]["method"] == "user-level"
        one_category = trials[f"{data}-rotation-8-person"]
        user_rate = trials[f"{data}-user-8"].config["privacy"]["user_rate"]
        expected = changed(trials[f"{data}-rotation-8"].config, privacy__user_rate=user_rate)
        assert (one_category.category, one_category.config) == ("person", expected)
        alg = trials[f"{data}-uedp-alg"].config["privacy"]
        assert (alg["noise"], alg["user_rate"], alg["entity_rate"]) == (2.5, 0.05, 0.5)
        for name in (f"{data}-rotation-2", f"{data}-user-2"):
            flat, decayed = trials[name].config, trials[f"{name}-decayed"].config
            assert flat["optimiser"]["decay"] == "none"
            assert flat["optimiser"] != decayed["optimiser"]
            assert {**flat, "optimiser": None} == {**decayed, "optimiser": None}
    same_rate = changed(trials["conll-rotation-2"].config, privacy__user_rate=0.1)
    assert trials["conll-rotation-2-users-0.1"].config == same_rate
    assert trials["conll-noiseless"].config["optimiser"]["rate"] == 1e-3
    epsilons = {t.config["privacy"].get("epsilon") for t in next_word.lstm_trials()}
    assert epsilons == {8.0, 2.0, 0.5, None}
    assert {t.name for t in next_word.lstm_trials(quick=True)} < {
        t.name for t in next_word.lstm_trials()
    }


def test_repeats_differ_in_name_and_first_weights_alone() -> None:
    trial = Trial("x", "conll", config(LSTM, "noiseless"))
    second, third = repeats([trial], 3)
    assert [second.name, third.name] == ["x-repeat-2", "x-repeat-3"]
    seeds = [t.config["model"].get("seed", 0) for t in (trial, second, third)]
    assert len(set(seeds)) == 3
    for again in (second, third):
        model = {k: v for k, v in again.config["model"].items() if k != "seed"}
        assert {**again.config, "model": model} == trial.config


# --- what is measured ----------------------------------------------------------------------------


def test_rows_hold_what_the_run_was_and_gave(result: Result) -> None:
    assert list(result["panels"]) == ["conll", "ag", "edgar"]
    rotation = one(result, "conll-rotation-8")
    assert rotation["epsilon"] <= 8.0 == rotation["target"]
    assert rotation["published"] is None  # the paper has no accountant of it
    assert min(rotation[part] for part in ("before", "validation", "test")) > 1
    assert rotation["sentences"] > 0
    for name in ("conll-noiseless", "conll-deidentified"):
        assert one(result, name)["epsilon"] is None
    assert one(result, "conll-noiseless")["test"] < rotation["before"]
    assert one(result, "conll-rotation-8-person")["category"] == "person"


def test_published_and_proven_epsilons_do_not_mix(result: Result) -> None:
    alg = one(result, "conll-uedp-alg")
    rate = alg["user_rate"] * 0.5 * 11176 / 14040
    assert alg["published"] == published.epsilon(rate, 2.5, alg["rounds"], 1e-5)
    assert alg["epsilon"] > alg["published"]
    told = EXPERIMENTS[GPT].table(result)
    assert f"(published {alg['published']:.2f}, proven {alg['epsilon']:.2f})" in told


def test_lstm(options: Options) -> None:
    own = replace(options, work=options.work.parent / LSTM_NAME)
    result, here = trained.carried_out(EXPERIMENTS[LSTM_NAME], own)
    assert len(here.names) == 5
    assert not not_run(result["rows"])
    assert "CoNLL-2003, noiseless" in EXPERIMENTS[LSTM_NAME].table(result)


# --- going on, and other machines ----------------------------------------------------------------


def test_only_what_is_missing_is_run_and_in_a_process_of_its_own(
    result: Result, options: Options, copied: Path
) -> None:
    """Guarantee of `measured`."""
    (copied / "edgar-noiseless.json").unlink()
    again = {row["name"]: row for row in next_word.measure_gpt(options)["rows"]}
    for row in result["rows"]:
        if row["name"] != "edgar-noiseless":
            assert again[row["name"]] == row
    assert again["edgar-noiseless"]["test"] > 1
    assert again["edgar-noiseless"]["seconds"] != one(result, "edgar-noiseless")["seconds"]


def test_finished_only_trains_nothing_and_says_what_was_not_run(
    result: Result, options: Options, copied: Path, run: Run
) -> None:
    """Guarantee of `measured`; as a person types it, without models and without the data."""
    for name in ("conll-user-8", "ag-rotation-8"):
        (copied / f"{name}.json").unlink()
    out = options.work.parent.parent
    (out / "nothing").mkdir(exist_ok=True)
    arguments = (GPT, "--data", out / "nothing", "--out", out, "--quick")
    made = run(*arguments, "--finished-only")
    assert (made.code, made.err) == (0, "")
    found = json.loads((out / f"{GPT}.json").read_text())
    assert not_run(found["rows"]) == ["conll-user-8", "ag-rotation-8"]
    assert not (copied / "conll-user-8.json").exists()
    told = EXPERIMENTS[GPT].table(found)
    assert "Not run: 2 of 10 trials; never: `conll-user-8`, `ag-rotation-8`." in told
    assert "| AG, UeDP: all entities | - | - | not run |" in told
    refused = run(*arguments)
    assert refused.code == 2
    assert "--model gpt=PATH: missing; conll-rotation-8 needs a saved model" in refused.err


def test_a_result_of_other_settings_is_refused_and_that_of_another_machine_is_not(
    options: Options, copied: Path
) -> None:
    """Guarantee of `measured`."""
    path = copied / "conll-user-8.json"
    found = json.loads(path.read_text())
    found["config"]["run"] |= {"device": "cuda", "tokens_at_once": 7}
    path.write_text(json.dumps(found))
    finished = replace(options, finished_only=True)
    assert not not_run(next_word.measure_gpt(finished)["rows"])
    faster = {**found["config"], "optimiser": {**found["config"]["optimiser"], "rate": 0.5}}
    path.write_text(json.dumps({**found, "config": faster}))
    with pytest.raises(UserError, match=r"conll-user-8.json: made with other settings"):
        next_word.measure_gpt(finished)
    path.write_text(json.dumps({**found, "category": "person"}))
    with pytest.raises(UserError, match="other settings"):
        next_word.measure_gpt(finished)
    path.write_text("{}")
    with pytest.raises(UserError, match="not the result of a run"):
        next_word.measure_gpt(finished)


def test_what_another_experiment_has_run_is_not_run_again(
    result: Result, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee of `measured`; other settings under the same name are refused there too."""
    monkeypatch.setattr(runs, "_start", lambda *_: pytest.fail("run again"))
    elsewhere = replace(options, work=options.work.parent / "elsewhere")
    same = [t for t in next_word.gpt_trials(quick=True) if t.name == "conll-rotation-8"]
    (row,) = measured(same, elsewhere)
    assert row == {k: v for k, v in one(result, "conll-rotation-8").items() if k != "panel"}
    other = Trial("conll-rotation-8", "conll", config(FINE_TUNING, "rotation", 3.0))
    with pytest.raises(UserError, match="other settings"):
        measured([other], elsewhere)


def test_missing_data_are_named(options: Options, tmp_path: Path) -> None:
    bare = replace(options, data=tmp_path, work=tmp_path / ".work" / GPT)
    with pytest.raises(UserError, match=r"eng.train.gz: no such file; --data must hold it"):
        next_word.measure_gpt(bare)


# --- choosing and telling ------------------------------------------------------------------------


def test_settings_are_chosen_by_validation_and_never_by_test() -> None:
    """Guarantee of `chosen`."""
    rows: list[Row] = [
        {"setting": "a", "name": "a", "validation": 2.0, "test": 1.0, "method": "m"},
        {"setting": "b", "name": "b", "validation": 1.0, "test": 5.0, "method": "m"},
        {"setting": "b", "name": "b-repeat-2", "validation": 2.5, "test": 7.0, "method": "m"},
        {"setting": "c", "name": "c", "validation": None, "test": None, "method": "m"},
        {"setting": "d", "name": "d", "validation": 0.1, "test": 0.1, "method": "other"},
    ]
    assert chosen(rows, method="m") == [rows[1], rows[2]]
    assert score(chosen(rows, method="m")) == 6.0
    assert chosen(rows, method="none") == []
    assert score([]) is None


def test_the_verdict_follows_the_numbers(result: Result) -> None:
    def told(**tests: float) -> str:
        rows = [
            {**row, "test": tests.get(row["name"].replace("-", "_"), row["test"])}
            for row in result["rows"]
        ]
        return EXPERIMENTS[GPT].table({**result, "rows": rows})

    near = told(conll_rotation_8=109.0, conll_user_8=100.0, conll_deidentified=120.0)
    assert "users with entities 109, users alone 100: 1.09 times, within 10%" in near
    assert "109 is below de-identification (120)" in near
    far = told(conll_rotation_8=111.0, conll_user_8=100.0, conll_deidentified=101.0)
    assert "1.11 times, not within 10%" in far
    assert "111 is not below de-identification (101)" in far
    assert "| CoNLL-2003, UeDP: person | 35.09 (0.185); 29.24 (0.2) |" in near


def test_being_near_counts_for_nothing_where_nothing_was_learned(result: Result) -> None:
    def told(*idle: str) -> str:
        rows = [
            {
                **row,
                "test": 100.0,
                "validation": row["before"] * (0.96 if row["name"] in idle else 0.5),
            }
            for row in result["rows"]
        ]
        return EXPERIMENTS[GPT].table({**result, "rows": rows})

    assert "next to nothing" not in told()
    assert "within 10%. But the second learned next to nothing." in told("conll-user-8")
    both = told("conll-rotation-8", "conll-user-8")
    assert "But the first and the second learned next to nothing." in both


def test_written_and_drawn(result: Result, options: Options, copied: Path, tmp_path: Path) -> None:
    out = options.work.parent.parent
    assert (out / f"{GPT}.png").read_bytes().startswith(b"\x89PNG")
    next_word.draw(result, tmp_path / "again.svg")
    drawn = (tmp_path / "again.svg").read_text()
    for words in ("hollow marks; not a guarantee", "CoNLL-2003", "noiseless (no guarantee)"):
        assert words in drawn
    empty = {**result, "rows": [{**row, "test": None} for row in result["rows"]]}
    next_word.draw(empty, tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").read_text().count("not run") == 3
