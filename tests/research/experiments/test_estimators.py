"""The estimators experiment on tiny data and a tiny model."""

from pathlib import Path

import pytest

from research.base import Result
from research.catalogue import EXPERIMENTS
from research.experiments import estimators
from research.experiments.classification import trials as classification_trials
from tests.research import trained
from tests.research.conftest import Make
from uedp.accounting import published

NAME = "estimators"


@pytest.fixture(scope="module")
def result(trained_options: Make) -> Result:
    return trained.measure_in_process(EXPERIMENTS[NAME], trained_options(NAME))


def test_trials_differ_only_in_estimator_and_noise() -> None:
    trials = {trial.name: trial for trial in estimators.trials(quick=True)}
    assert len(trials) == 6
    assert len(list(estimators.trials())) == 3 * 6
    elsewhere = {trial.name: trial for trial in classification_trials()}
    assert trials["topics-uedp-alg"] == elsewhere["topics-uedp-alg"]
    for trial in trials.values():
        privacy = trial.config["privacy"]
        assert (privacy["rounds"], privacy["user_rate"]) == (100, 0.05)
        assert privacy["noise"] == (0.0 if trial.name.endswith("no-noise") else 2.5)
    kinds = [t.config.get("method_options", {}).get("estimator", "f_E+") for t in trials.values()]
    assert kinds.count("f_E") == 2


def test_runs_without_noise_have_no_epsilon(result: Result) -> None:
    for name, noisy, clean in estimators.by_estimator(result):
        ((with_noise,), (without,)) = (noisy, clean)
        assert without["epsilon"] is None
        assert without["published"] is None
        assert without["noise"] == 0
        assert with_noise["epsilon"] > 0
        if name != "user-level":
            assert with_noise["published"] < with_noise["epsilon"]
    rows = {row["name"]: row for row in result["rows"]}
    # proven is the same for both; the published accountant is handed a smaller rate for f_E+
    plus, plain = rows["topics-uedp-alg"], rows["topics-uedp-alg-f_e"]
    assert plus["epsilon"] == plain["epsilon"]
    assert plus["published"] < plain["published"]
    user = rows["topics-user-paper"]
    assert user["published"] == published.epsilon(user["user_rate"], 2.5, user["rounds"], 1e-5)


def test_conclusions_follow_the_numbers(result: Result) -> None:
    def page(plus: float, plain: float) -> str:
        errors = {"topics-uedp-alg": plus, "topics-uedp-alg-f_e": plain}
        rows = [{**row, "test": errors.get(row["name"], row["test"])} for row in result["rows"]]
        return EXPERIMENTS[NAME].table({**result, "rows": rows})

    assert "With the stated noise, f_E+ has a lower error than f_E: 20.0% and 30.0%" in page(
        0.2, 0.3
    )
    assert "f_E+ has no lower error than f_E: 30.0% and 20.0%" in page(0.3, 0.2)
    assert "neither f_E+ nor f_E learns anything: 74.0% and 80.0%" in page(0.74, 0.8)


def test_trials_not_run_appear_in_page_and_figure(result: Result, tmp_path: Path) -> None:
    rows = [
        {**row, "test": None} if row["name"] == "topics-user-paper" else row
        for row in result["rows"]
    ]
    some = {**result, "rows": rows}
    page = EXPERIMENTS[NAME].table(some)
    (line,) = [line for line in page.splitlines() if line.startswith("| user-level")]
    assert line.endswith("| not run |")
    assert "Not run: 1 of 6 trials; settings without any run: `topics-user-paper`." in page
    estimators.draw(some, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("not run") == 1
