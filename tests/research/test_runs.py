"""Trials: configs, processes, and the table of results."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research import processes, runs
from research.datasets import save_texts
from research.runs import (
    TrainingTrial,
    Workspace,
    override,
    resolve_config,
    results_table,
    run_trials,
)
from tests.models import tiny
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import method_named

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
    version = method_named("rotation").version
    kept = {"name": "kept", "config": CONFIG, "version": version}
    (where.out / "old.json").write_text(json.dumps(kept))
    stand_in(monkeypatch, WRITES)
    said: list[str] = []
    trials = [TrainingTrial("old", "conll", CONFIG), TrainingTrial("new", "conll", CONFIG)]
    results = run_trials(trials, where, jobs=2, say=said.append)
    assert [results[name]["name"] for name in ("old", "new")] == ["kept", "new"]
    assert len(said) == 1
    assert "done new" in said[0]


def test_a_result_of_an_earlier_mechanism_is_outdated() -> None:
    def result(method: str, **recorded: Any) -> dict[str, Any]:
        return {"config": {"privacy": {"method": method}}, **recorded}

    for method in ("rotation", "user-level", "noiseless", "uedp-alg"):
        version = method_named(method).version
        assert not runs.is_outdated(result(method, version=version))
        assert runs.is_outdated(result(method, version=version + 1))
        assert runs.is_outdated(result(method)) == (version != 0)  # recorded by none
    assert runs.is_outdated(result("rotation"))
    assert not runs.is_outdated(result("noiseless"))
    assert runs.is_outdated(result("abandoned", version=1))


def test_a_trial_with_an_outdated_result_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = workspace(tmp_path)
    where.out.mkdir()
    (where.out / "old.json").write_text(json.dumps({"name": "kept", "config": CONFIG}))
    stand_in(monkeypatch, WRITES)
    results = run_trials([TrainingTrial("old", "conll", CONFIG)], where)
    assert results["old"]["name"] == "old"


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


def test_a_trial_after_public_text(tmp_path: Path) -> None:
    """The product's own path: one run, whose certificate names the other data set."""
    for name, word in (("conll", "waits"), ("ag", "sold")):
        folder = tmp_path / "datasets" / name
        folder.mkdir(parents=True)
        for part in ("train", "validation", "test"):
            texts = [f"{part} {number} {word}" for number in range(20)]
            save_texts(folder, part, texts, [None] * 20)
        none = np.zeros(0, dtype=np.int64)
        Incidence.build(np.arange(20) // 2, none, none, 10, 0).save(folder / "incidence")
    where = Workspace(
        tmp_path / "datasets", {"gpt": str(tiny.saved(tmp_path / "gpt", tiny.gpt2()))}, tmp_path
    )
    rates = {"privacy__user_rate": 0.6, "privacy__rounds": 2, "privacy__delta": 1e-5}
    steps = {"public__steps": 3, "public__sentences": 4, "public__rate": 1e-3}
    config = override(CONFIG, **rates, **steps, run__device="cpu")
    trial = TrainingTrial("conll-rotation", "conll", config, public="ag")
    result = runs.run(trial, where)
    assert result["public"] == "ag"
    assert result["after_public"]["perplexity"] != result["before"]["perplexity"]
    assert any("on 'ag' (20 sentences" in text for text in result["certificate"]["caveats"])
    assert json.loads(where.result(trial).read_text())["rounds"] == 2
