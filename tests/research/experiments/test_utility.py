"""The utility study on the page, from results that stand in for those of an accelerator."""

import json
from pathlib import Path
from typing import Any

import pytest

from research import utility as study
from research.base import Options, Result
from research.catalogue import EXPERIMENTS
from research.experiments import next_word, utility
from research.runs import TrainingTrial, resolve_config
from research.runs import Workspace as Where
from tests.research.test_plots import drawn, readable
from uedp.errors import UserError
from uedp.methods import method_named
from uedp.training.config import parse_config

LEVELS = {"user-level": 40.0, "fair-shares": 46.0, "rotation": 48.0, "noiseless": 30.0}


def stand_in(trial: TrainingTrial, level: float, where: Where, **changes: Any) -> Result:
    config = parse_config(resolve_config(trial, where))
    measured = {
        "perplexity": level,
        "perplexity on names": 4 * level,
        "perplexity on other tokens": level / 2,
        "tokens": 300.0,
        "name tokens": 100.0,
    }
    return {
        "name": trial.name,
        "data": trial.data,
        "category": trial.category,
        "texts": trial.texts,
        "public": trial.public,
        "config": config.model_dump(mode="json"),
        "measure": "perplexity",
        "epsilon": config.privacy.epsilon,
        "noise": 1.0,
        "incidence": f"{trial.data}, {trial.category}",
        "seconds": 1.0,
        **dict.fromkeys(("before", "validation", "test"), measured),
        "after_public": {"perplexity": 52.0} if trial.public else None,
        "version": method_named(config.privacy.method).version,
    } | changes


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two per cent less for each seed; the Kalman filter gains 5% on both data sets."""
    out = tmp_path_factory.mktemp("study")
    where = Where(out, {"gpt": "a-folder"}, out)
    (out / "utility").mkdir()
    for trial in study.trials():
        privacy = trial.config["privacy"]
        level = LEVELS.get(privacy["method"], 55.0) * (1.2 if privacy.get("epsilon") == 2 else 1.0)
        level *= 1.1 if trial.texts else 1.0
        level *= {"blogs-500": 1.3, "blogs-2000": 1.1}.get(
            trial.data if privacy["method"] == "fair-shares" else "", 1.0
        )
        level *= 0.95 if "-kalman" in trial.name else 1.0
        level *= 0.98 if "-repeat-2" in trial.name else 1.0
        changes = {"version": 0} if trial.name == "edgar-rotation-2" else {}
        own = stand_in(trial, level, where, **changes)
        (out / "utility" / f"{trial.name}.json").write_text(json.dumps(own))
    return utility.measure(Options(out, out / ".work" / "utility"))


def test_methods_stand_beside_user_level_dp(result: Result) -> None:
    page = EXPERIMENTS["utility"].table(result)
    assert "| CoNLL-2003, fair shares: users and entities | 45.69 (45.08 to 46)" in page
    assert "| CoNLL-2003, rotation: users and entities | 48 | 57.6 | 1.21 | 1.21 | - |" in page
    assert "| CoNLL-2003, noiseless (no guarantee) | - | - | - | - | 30 |" in page
    assert "| Blogs, user-level DP on surrogates | 44 | 52.8 |" in page


def test_public_text_first_is_compared_with_the_same(result: Result) -> None:
    """Half of user-level DP's perplexity after public text is no gain of the method."""
    rows = [
        row | {"test": row["test"] / 2} if row["method"].endswith("-public") else row
        for row in result["rows"]
    ]
    page = EXPERIMENTS["utility"].table({**result, "rows": rows})
    lines = {name: cells for name, *cells in (line.split(" | ") for line in page.splitlines())}
    for name in ("fair shares, public text first", "fair shares: users and entities"):
        assert lines[f"| CoNLL-2003, {name}"][2:4] == ["1.15", "1.15"]
    assert (
        "- CoNLL-2003: the public text alone takes perplexity on the validation part from 4" in page
    )
    assert " to 52.\n" in page
    assert "CoNLL-2003, fair shares, public first, epsilon 8: perplexity is" in page


def test_the_search_decides_nothing_in_the_comparison(result: Result) -> None:
    page = EXPERIMENTS["utility"].table(result)
    assert "| kalman | 43.7 (-5.0%) | 52.44 (-5.0%) | 38 (-5.0%) | 45.6 (-5.0%) | 43.7" in page
    assert "Better by 2% on two data sets: `kalman`." in page
    assert "fair shares: users and entities | 43.7" not in page


def test_the_ratio_falls_with_the_number_of_users(result: Result) -> None:
    page = EXPERIMENTS["utility"].table(result)
    assert "| blogs, ratio to user-level DP | 500 users | 2,000 users | 8,000 users |" in page
    assert "| fair shares, epsilon 8 | 1.50 | 1.26 | 1.15 |" in page


def test_ranks_stand_beside_each_other(result: Result) -> None:
    page = EXPERIMENTS["utility"].table(result)
    assert "| perplexity on the validation part | this rank | rank 8 |" in page
    assert "| EDGAR, news detector, fair shares, epsilon 8, rank 2 | 45.69 | 45.69 |" in page


def test_names_and_outdated_trials(result: Result) -> None:
    page = EXPERIMENTS["utility"].table(result)
    assert "| CoNLL-2003, rotation, epsilon 8 | 192 | 24 | 48 |" in page
    assert "no longer in the code: `edgar-rotation-2`." in page
    assert "| EDGAR, rotation: users and entities | 48 | - |" in page


def test_trials_with_different_entities_are_not_compared(tmp_path: Path) -> None:
    where = Where(tmp_path, {"gpt": "a-folder"}, tmp_path)
    (tmp_path / "utility").mkdir()
    for trial, entities in zip(
        study.trials(["core"])[:2], ("found by one", "by another"), strict=True
    ):
        own = stand_in(trial, 50.0, where, incidence=entities)
        (tmp_path / "utility" / f"{trial.name}.json").write_text(json.dumps(own))
    with pytest.raises(UserError, match="conll-user-8 and conll-fair-8: trained with different"):
        utility.measure(Options(tmp_path, tmp_path / ".work" / "utility"))


def test_the_papers_table_has_the_proven_trials(result: Result, tmp_path: Path) -> None:
    work = tmp_path / ".work" / "next-word-gpt"
    options = Options(tmp_path, work, finished_only=True)
    (tmp_path / "utility").mkdir()
    where = Where(tmp_path, {"gpt": "a-folder"}, tmp_path)
    for trial in study.trials(["core", "categories", "public", "search", "baselines"]):
        own = stand_in(trial, 50.0, where)
        (tmp_path / "utility" / f"{trial.name}.json").write_text(json.dumps(own))
    measured = next_word.measure_gpt(options)
    proven = {row["name"] for row in measured["rows"] if row["test"] is not None}
    core = {
        f"{data}-{rule}-{at}"
        for data in next_word.PROVEN_ON
        for rule in ("fair", "user")
        for at in (8, 2)
    }
    assert core < proven
    others = proven - core
    assert all("fair-8-" in name for name in others), others
    assert not any(part in name for name in others for part in ("search", "public", "noiseless"))
    assert "| EDGAR, UeDP: person |" in EXPERIMENTS["next-word-gpt"].table(measured)


def test_the_figure(result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn("utility", result, tmp_path, monkeypatch)
    readable(figure)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[: len(result["panels"])] == list(result["panels"].values())
    assert titles[-1] == "Blogs, by the number of users"


def test_without_results_nothing_is_told(tmp_path: Path) -> None:
    empty = utility.measure(Options(tmp_path, tmp_path / ".work" / "utility"))
    assert EXPERIMENTS["utility"].table(empty) == "*not run*"
    EXPERIMENTS["utility"].draw(empty, tmp_path / "empty.svg")
    assert "not run" in (tmp_path / "empty.svg").read_text()
