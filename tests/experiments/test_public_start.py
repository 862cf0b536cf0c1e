"""Public text first: which model a trial begins with, and what is told of it."""

from pathlib import Path

import pytest

from tests.experiments import trained
from uedp.experiments import next_word, public_start
from uedp.experiments.base import Options, Result
from uedp.experiments.catalogue import EXPERIMENTS
from uedp.experiments.runs import Place, resolved

NAME = "public-start"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, ner: Path) -> Options:
    return trained.options(tmp_path_factory.mktemp(NAME), ner, NAME)


@pytest.fixture(scope="module")
def carried_out(options: Options) -> tuple[Result, trained.Here]:
    return trained.carried_out(EXPERIMENTS[NAME], options)


@pytest.fixture(scope="module")
def result(carried_out: tuple[Result, trained.Here]) -> Result:
    return carried_out[0]


def test_trials_differ_from_those_without_in_model_and_step_alone(tmp_path: Path) -> None:
    without = {trial.name: trial for trial in next_word.gpt_trials()}
    for data in ("conll", "ag", "edgar"):
        for trial in public_start.trials(data):
            name, _, how = trial.name.partition("-public")
            same = without[name]
            assert (trial.data, trial.category) == (same.data, same.category) == (data, "all")
            assert trial.config["privacy"] == same.config["privacy"]
            rate = same.config["optimiser"]["rate"] / (2 if how else 1)
            assert trial.config["optimiser"] == {**same.config["optimiser"], "rate": rate}
            first = trial.begins_with
            assert first is not None
            assert without[first].data != data  # its own text is not public
            assert without[first].config["privacy"]["method"] == "noiseless"
            place = Place(tmp_path, {"gpt": "elsewhere"}, tmp_path / "out")
            assert resolved(trial, place)["model"]["name"] == str(tmp_path / "out" / first)


def test_it_begins_with_what_was_learned_from_public_text(
    carried_out: tuple[Result, trained.Here], options: Options
) -> None:
    result, here = carried_out
    assert here.names[0] == "ag-noiseless"
    rows = {row["name"]: row for row in result["rows"]}
    assert rows["conll-rotation-8-public"]["before"] != rows["conll-rotation-8"]["before"]
    assert rows["conll-rotation-8-public"]["before"] == rows["conll-user-8-public"]["before"]
    kept = list((options.common / "trials-quick").glob("*/model.safetensors"))
    assert [path.parent.name for path in kept] == ["ag-noiseless"]


def test_a_model_that_is_gone_is_trained_again(
    carried_out: tuple[Result, trained.Here], options: Options
) -> None:
    where = options.common / "trials-quick"
    (where / "ag-noiseless" / "model.safetensors").unlink()
    (where / "conll-user-8-public.json").unlink()
    _, here = trained.carried_out(EXPERIMENTS[NAME], options)
    assert here.names == ["ag-noiseless", "conll-user-8-public"]
    _, here = trained.carried_out(EXPERIMENTS[NAME], options)
    assert here.names == []


def test_the_table_sets_both_side_by_side(result: Result) -> None:
    def told(**tests: float) -> str:
        rows = [
            {**row, "test": tests.get(row["name"].replace("-", "_"), row["test"])}
            for row in result["rows"]
        ]
        return public_start.table({**result, "rows": rows})

    page = told(conll_rotation_8_public=33.0, conll_user_8_public=32.0, conll_rotation_8=60.0)
    (line,) = [line for line in page.splitlines() if line.startswith("| CoNLL-2003")]
    assert [cell.strip() for cell in line.split("|")][1:7] == [
        "CoNLL-2003, AG first",
        "8",
        "33",
        "32",
        "1.03",
        "60",
    ]
    assert "1.03 times, within 10%" in page
    assert "not within 10%" in told(conll_rotation_8_public=40.0, conll_user_8_public=32.0)


def test_what_was_not_run_is_named(result: Result) -> None:
    rows = [
        {**row, "test": None} if row["name"] == "conll-user-8-public" else row
        for row in result["rows"]
    ]
    page = public_start.table({**result, "rows": rows})
    assert "never: `conll-user-8-public`" in page
    assert "times" not in page
