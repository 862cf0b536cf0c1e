"""The extended-rate experiment on tiny data and models, and its prediction."""

from dataclasses import replace
from pathlib import Path

import pytest

from research import runs
from research.base import Options, Result
from research.catalogue import EXPERIMENTS
from research.datasets import load_incidence
from research.experiments import extended_rate
from research.experiments.classification import trials as classification_trials
from research.experiments.extended_rate import SWEEPS, rank_correlation
from research.experiments.next_word import gpt_trials, lstm_trials
from research.utility import private
from tests.research import trained
from tests.research.conftest import Make
from uedp.accounting.planning import options as planned
from uedp.mechanism.sampling import supply_of

NAME = "extended-rate"


@pytest.fixture(scope="module")
def options(trained_options: Make) -> Options:
    return trained_options(NAME)


@pytest.fixture(scope="module")
def result(options: Options) -> Result:
    with pytest.MonkeyPatch.context() as patch:  # the others differ only in their trials
        patch.setattr(extended_rate, "SWEEPS", {"gpt": SWEEPS["gpt"]})
        return trained.measure_in_process(EXPERIMENTS[NAME], options)


def test_the_base_of_each_sweep_is_a_trial_of_another_experiment() -> None:
    """So that it is run once."""
    study = private("conll", "rotation", 8.0)
    others = (study, *gpt_trials(), *lstm_trials(), *classification_trials())
    elsewhere = {trial.name: trial for trial in others}
    for key, sweep in SWEEPS.items():
        own = {trial.name: trial for trial in extended_rate._trials(key, False)}
        assert len(own) == (len(sweep.rates) + len(sweep.others)) * sweep.times
        shared = own.keys() & elsewhere.keys()
        assert sweep.name in shared
        assert all(own[name] == elsewhere[name] for name in shared)
        rates = {t.config["privacy"].get("extended_rate", 1.0) for t in own.values()}
        assert rates == set(sweep.rates)
        assert {0.0, 1.0} < rates


def test_the_prediction_is_the_planner_s_on_the_same_incidence(
    result: Result, options: Options
) -> None:
    incidence = load_incidence(options.common / "datasets-quick" / "conll")
    supply = supply_of(incidence)
    for row in result["series"]["gpt"]["rows"]:
        own = [[row["user_rate"]], [row["rounds"]], [row["share"]], [row["extended_rate"]]]
        (option,) = planned(8.0, 1e-5, supply, *own)
        assert row["predicted"]["merit"] == pytest.approx(option.merit)
        assert row["predicted"]["noise"] == pytest.approx(row["noise"], rel=1e-3)  # as it was run
    none, whole = result["series"]["gpt"]["rows"]
    assert (none["extended_rate"], whole["extended_rate"]) == (0, 1)
    assert none["predicted"]["merit"] < whole["predicted"]["merit"]
    assert none["sentences"] < whole["sentences"]


def test_the_best_of_the_grid_has_the_cost_of_the_base(result: Result) -> None:
    for key, series in result["series"].items():
        best, base = series["best_of_all"], SWEEPS[key].base["privacy"]
        assert best["options"] == 4
        work = base["user_rate"] * base["rounds"]
        assert best["user_rate"] * best["rounds"] == pytest.approx(work, rel=0.02)
        assert best["extended_rate"] == 1.0


def test_repeats_are_merged_into_one_row() -> None:
    def row(name: str, validation: float | None, test: float | None) -> Result:
        setting = name.split("-repeat-")[0]
        return {"name": name, "setting": setting, "validation": validation, "test": test}

    rows = [
        row("a", 1.0, 10.0),
        row("b", None, None),
        row("a-repeat-2", 2.0, 20.0),
        row("a-repeat-3", None, None),
    ]
    first, second = extended_rate._merge_repeats(rows)
    assert (first["name"], first["validation"], first["test"]) == ("a", 1.5, 15.0)
    assert (first["tests"], second["tests"], second["test"]) == ([10.0, 20.0], [], None)


def test_rank_correlation_is_of_merit_and_low_loss() -> None:
    """Guarantee of `rank_correlation`."""
    assert rank_correlation([1, 2, 3], [9.0, 8.0, 1.0]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [1.0, 8.0, 9.0]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [4.0, 2.0, 3.0, 1.0]) == pytest.approx(0.8)
    assert rank_correlation([1, 2], [2.0, 1.0]) is None
    assert rank_correlation([1, 2, 3], [0.75] * 3) is None


def test_the_page_and_the_figure(result: Result, tmp_path: Path) -> None:
    page = EXPERIMENTS[NAME].table(result)
    assert "CoNLL-2003, pretrained model: 2 of 2 options run; too few to compare." in page
    series = {**result["series"]["gpt"], "rank_correlation": 0.5}
    series |= {"predicted_best": "a", "measured_best": "b"}
    several = {**result, "series": {"gpt": series}}
    page = EXPERIMENTS[NAME].table(several)
    assert "measurement is 0.50. Predicted best: `a`; measured best: `b`." in page
    series["measured_best"] = "a"
    assert "`a`, the same." in EXPERIMENTS[NAME].table(several)
    extended_rate.draw(result, tmp_path / "x.svg")
    assert "predicted merit relative to the best" in (tmp_path / "x.svg").read_text()


def test_finished_trials_are_reported_without_training_or_new_predictions(
    result: Result, options: Options, trial_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extended_rate, "SWEEPS", {"gpt": SWEEPS["gpt"]})
    monkeypatch.setattr(runs, "_start", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(extended_rate, "planned", lambda *_: pytest.fail("predicted again"))
    (trial_results / "conll-rotation-8.json").unlink()
    again = extended_rate.measure(replace(options, finished_only=True))
    none, whole = again["series"]["gpt"]["rows"]
    assert none == result["series"]["gpt"]["rows"][0]
    assert whole["test"] is None
    assert again["series"]["gpt"]["measured_best"] == none["name"]
    assert "not run" in EXPERIMENTS[NAME].table(again)
    extended_rate.draw(again, options.work / "x.svg")
