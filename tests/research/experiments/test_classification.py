"""The classification experiment on tiny data and models."""

from pathlib import Path

import pytest

from research.base import Result
from research.catalogue import EXPERIMENTS
from research.experiments import classification
from research.select_results import names_not_run
from tests.research import trained
from tests.research.conftest import Make

NAME = "classification"


@pytest.fixture(scope="module")
def result(trained_options: Make) -> Result:
    return trained.measure_in_process(EXPERIMENTS[NAME], trained_options(NAME))


def test_trials_cover_both_models_and_their_names_are_unique() -> None:
    trials = {trial.name: trial for trial in classification.trials()}
    assert len(trials) == len(list(classification.trials()))
    assert {trial.config["model"]["name"] for trial in trials.values()} == {"bert", "awd-lstm"}
    probe = trials["topics-rotation-8"].config
    assert (probe["model"]["train"], probe["optimiser"]["decay"]) == ("probe", "none")
    assert trials["topics-uedp-alg"].config["model"]["train"] == "probe"
    assert (probe["privacy"]["user_rate"], probe["privacy"]["entity_share"]) == (0.3, 1.0)
    for name in ("fair", "user"):  # the same steps for all
        own = trials[f"topics-{name}-8"].config
        assert own["optimiser"] == probe["optimiser"]
        assert own["privacy"]["user_rate"] == probe["privacy"]["user_rate"]
        assert own["privacy"]["rounds"] == probe["privacy"]["rounds"]
    for name in ("topics-rotation-8-extended-0", "topics-uedp-alg-extended-0"):
        assert trials[name].config["privacy"]["extended_rate"] == 0
    assert trials["topics-lstm-uedp-alg"].config["privacy"]["extended_rate"] == 0.6
    assert "topics-rotation-8-repeat-3" in trials
    again = [name.partition("-repeat")[0] for name in trials if name.endswith("-repeat-3")]
    probes = [name for name, t in trials.items() if t.config["model"]["train"] == "probe"]
    assert again == [name for name in probes if "repeat" not in name]
    quick = {trial.name for trial in classification.trials(quick=True)}
    assert quick < set(trials)


def test_rows(result: Result) -> None:
    assert not names_not_run(result["rows"])
    assert {row["panel"] for row in result["rows"]} == {"bert", "awd-lstm"}
    for row in result["rows"]:
        assert 0 <= row["test"] <= 1
        assert row["measure"] == "error rate"
        assert (row["epsilon"] is None) is (row["method"] == "noiseless")
    rotation = [row for row in result["rows"] if row["target"] == 8.0]
    assert len(rotation) == 4
    assert all(row["epsilon"] <= 8.0 for row in rotation)


def test_the_page(result: Result) -> None:
    rows = [dict(row) for row in result["rows"]]
    by_name = {row["name"]: row for row in rows}
    by_name["topics-rotation-8-extended-0"]["test"] = 0.6
    by_name["topics-rotation-8"]["test"] = 0.3
    by_name["topics-user-8"]["test"] = 0.2
    page = EXPERIMENTS[NAME].table({**result, "rows": rows})
    # without extended entities is a row of its own, and never taken for the method's best
    assert "| AG, pretrained encoder | 75% | - | 60.0% at 8 |" in page
    assert "rotation (users and entities) 30.0%, user-level DP 20.0%: a factor of 1.50, not" in page
    for table in page.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1


def test_the_search_is_told_by_validation_and_decides_nothing(result: Result) -> None:
    base = next(row for row in result["rows"] if row["name"] == "topics-user-8")
    assert "more signal" not in EXPERIMENTS[NAME].table(result)

    def searched(name: str, factor: float | None) -> dict[str, object]:
        setting = f"topics-user-8-search-{name}"
        validation = None if factor is None else factor * base["validation"]
        return {**base, "name": setting, "setting": setting, "validation": validation, "test": 0.01}

    found = [searched("kalman", 0.9), searched("tail", 1.5), searched("falling", None)]
    page = EXPERIMENTS[NAME].table({**result, "searched": found})
    assert "(-10.0%)" in page
    assert "(+50.0%)" in page
    assert "| falling | - |" in page
    assert "Better by 2%: `kalman` for user-level DP, 8." in page
    assert page.startswith(EXPERIMENTS[NAME].table(result))


def test_the_search_has_repeats_and_the_settings_of_the_comparison() -> None:
    trials = {trial.name: trial for trial in classification.trials()}
    base, falling = (trials[f"topics-fair-2{end}"].config for end in ("", "-search-falling"))
    assert falling["optimiser"].pop("decay") == "linear"
    assert base["optimiser"].pop("decay") == "none"
    assert base == falling
    assert len([name for name in trials if "-search" in name]) == 48


def test_settings_not_run_make_the_conclusion_preliminary(result: Result) -> None:
    planned = [row for row in result["rows"] if row["name"] == "topics-user-8"]
    other = {**planned[0], "name": "topics-user-8-other", "setting": "topics-user-8-other"}
    rows = [*result["rows"], {**other, "test": None, "validation": None}]
    page = EXPERIMENTS[NAME].table({**result, "rows": rows})
    assert "Preliminary: `topics-user-8-other` not run." in page
    assert "So far" not in EXPERIMENTS[NAME].table(result)


def test_drawn_with_the_spread_of_repeats(result: Result, tmp_path: Path) -> None:
    first = next(row for row in result["rows"] if row["name"] == "topics-rotation-8")
    again = {**first, "name": "topics-rotation-8-repeat-2", "test": first["test"] / 2}
    more = {**result, "rows": [*result["rows"], again]}
    classification.draw(more, tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    assert "AG, AWD-LSTM" in drawn
    assert "error rate" in drawn
    low, high = first["test"] / 2, first["test"]
    page = EXPERIMENTS[NAME].table(more)
    assert f"{(low + high) / 2:.1%} ({low:.1%} to {high:.1%}) at 8" in page
