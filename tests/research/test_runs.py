"""Trials: configs, processes, and the table of results."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from research import processes, runs
from research.runs import (
    TrainingTrial,
    Workspace,
    override,
    resolve_config,
    results_table,
    run_trials,
)
from uedp.errors import UserError

CONFIG: dict[str, dict[str, Any]] = {
    "privacy": {"method": "rotation", "epsilon": 8.0},
    "model": {"name": "gpt"},
}


def workspace(tmp_path: Path) -> Workspace:
    return Workspace(
        tmp_path / "datasets", {"gpt": "a-folder", "words": "a-list"}, tmp_path / "out"
    )


def test_override_does_not_change_its_base() -> None:
    config = override(CONFIG, privacy__epsilon=2, run__device="cpu")
    assert config["privacy"] == {"method": "rotation", "epsilon": 2}
    assert config["run"] == {"device": "cpu"}
    assert CONFIG["privacy"]["epsilon"] == 8.0


def test_models_and_data_are_resolved_by_part(tmp_path: Path) -> None:
    config = override(CONFIG, vocabulary__source="public")
    resolved = resolve_config(TrainingTrial("one", "conll", config), workspace(tmp_path))
    assert resolved["model"]["name"] == "a-folder"
    assert resolved["vocabulary"]["path"] == "a-list"
    assert resolved["data"]["train"] == str(tmp_path / "datasets" / "conll")
    assert "rounds" not in resolved["privacy"]


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replace training by a script, which is given the trial's name and the path of its result."""

    def start(trial: TrainingTrial, where: Workspace) -> Any:
        command = [sys.executable, "-c", script, trial.name, str(where.result(trial))]
        return processes.start_process(trial.name, command, where.out)

    monkeypatch.setattr(runs, "_start", start)


WRITES = """
import json, sys
print("done", sys.argv[1])
open(sys.argv[2], "w").write(json.dumps({"name": sys.argv[1]}))
"""


def test_a_trial_with_a_result_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = workspace(tmp_path)
    where.out.mkdir()
    (where.out / "old.json").write_text(json.dumps({"name": "kept"}))
    stand_in(monkeypatch, WRITES)
    said: list[str] = []
    trials = [TrainingTrial("old", "conll", CONFIG), TrainingTrial("new", "conll", CONFIG)]
    results = run_trials(trials, where, jobs=2, say=said.append)
    assert [results[name]["name"] for name in ("old", "new")] == ["kept", "new"]
    assert len(said) == 1
    assert "done new" in said[0]


def test_no_trial_starts_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, WRITES)
    assert (
        run_trials([TrainingTrial("new", "conll", CONFIG)], workspace(tmp_path), deadline=-1) == {}
    )


def test_a_failed_trial_is_named_with_the_last_line_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "import sys; sys.exit('no room' if sys.argv[1] == 'bad' else 0)")
    trials = [TrainingTrial(name, "conll", CONFIG) for name in ("bad", "good")]
    with pytest.raises(UserError, match="1 runs failed; bad: no room"):
        run_trials(trials, workspace(tmp_path))


def test_the_table_has_one_line_per_result() -> None:
    row = {
        "name": "one",
        "data": "conll",
        "config": {"privacy": {"method": "rotation", "user_rate": 0.1, "entity_share": 0.3}},
        "measure": "perplexity",
        "epsilon": 7.99,
        "noise": 1.5,
        "rounds": 3,
        "sentences": 12,
        "mean_update": 0.5,
        "before": {"perplexity": 9.0},
        "validation": {"perplexity": 8.0},
        "test": {"perplexity": 7.0},
        "seconds": 4.0,
    }
    lines = results_table(
        [row, {**row, "name": "two", "epsilon": None, "noise": None}]
    ).splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:4] == ["one", "conll", "7.99", "1.5"]
    assert lines[2].split()[:4] == ["two", "conll", "-", "-"]
