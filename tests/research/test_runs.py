"""Trials: configs, processes, and what is kept of them."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research import processes, runs
from research.datasets import incidence, prepare, texts
from research.runs import Place, Trial, changed, resolved, run_trials, table
from research.sources import DATA_SETS
from uedp.errors import UserError

CONFIG: dict[str, dict[str, Any]] = {
    "privacy": {"method": "rotation", "epsilon": 8.0},
    "model": {"name": "gpt"},
}


def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "materials", {"gpt": "a-folder", "words": "a-list"}, tmp_path / "out")


def test_a_change_leaves_the_base_alone() -> None:
    found = changed(CONFIG, privacy__epsilon=2, run__device="cpu")
    assert found["privacy"] == {"method": "rotation", "epsilon": 2}
    assert found["run"] == {"device": "cpu"}
    assert CONFIG["privacy"]["epsilon"] == 8.0


def test_models_and_data_are_named_by_their_part(tmp_path: Path) -> None:
    config = changed(CONFIG, vocabulary__source="public")
    found = resolved(Trial("one", "conll", config), place(tmp_path))
    assert found["model"]["name"] == "a-folder"
    assert found["vocabulary"]["path"] == "a-list"
    assert found["data"]["train"] == str(tmp_path / "materials" / "conll")
    assert "rounds" not in found["privacy"]


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Processes that run a script in place of training; it is told the file of its result."""

    def start(trial: Trial, where: Place) -> Any:
        command = [sys.executable, "-c", script, trial.name, str(where.result(trial))]
        return processes.start(trial.name, command, where.out)

    monkeypatch.setattr(runs, "_start", start)


WRITES = """
import json, sys
print("done", sys.argv[1])
open(sys.argv[2], "w").write(json.dumps({"name": sys.argv[1]}))
"""


def test_what_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(tmp_path)
    where.out.mkdir()
    (where.out / "old.json").write_text(json.dumps({"name": "kept"}))
    stand_in(monkeypatch, WRITES)
    said: list[str] = []
    trials = [Trial("old", "conll", CONFIG), Trial("new", "conll", CONFIG)]
    found = run_trials(trials, where, jobs=2, say=said.append)
    assert [found[name]["name"] for name in ("old", "new")] == ["kept", "new"]
    assert len(said) == 1
    assert "done new" in said[0]


def test_nothing_is_begun_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, WRITES)
    assert run_trials([Trial("new", "conll", CONFIG)], place(tmp_path), deadline=-1) == {}


def test_a_trial_that_fails_is_named_with_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "import sys; sys.exit('no room' if sys.argv[1] == 'bad' else 0)")
    trials = [Trial(name, "conll", CONFIG) for name in ("bad", "good")]
    with pytest.raises(UserError, match="1 runs failed; bad: no room"):
        run_trials(trials, place(tmp_path))


def test_a_table_has_a_line_for_each() -> None:
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
    lines = table([row, {**row, "name": "two", "epsilon": None, "noise": None}]).splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:4] == ["one", "conll", "7.99", "1.5"]
    assert lines[2].split()[:4] == ["two", "conll", "-", "-"]


def test_material_by_hand(data: Path, tmp_path: Path) -> None:
    prepare("conll", data, tmp_path / "conll")
    train = texts(tmp_path / "conll", "train")
    hidden = texts(tmp_path / "conll", "deidentified")
    assert len(train.texts) == len(hidden.texts) == 5
    assert "Peter Blackburn" in train.texts[1]
    assert "Peter" not in " ".join(hidden.texts)
    whole, people = incidence(tmp_path / "conll"), incidence(tmp_path / "conll", "person")
    assert (~whole.extended).tolist() == [True, True, True, False, True]
    assert (~people.extended).tolist() == [False, True, False, False, False]
    assert np.array_equal(whole.sentence_user, people.sentence_user)
    about = json.loads((tmp_path / "conll" / "about.json").read_text())
    assert about["all"]["sensitive"] == 4
    assert {*DATA_SETS["conll"].categories} < about.keys()


def test_without_marks_a_pipeline_must_be_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ner=PATH"):
        prepare("ag", data, tmp_path / "ag")
