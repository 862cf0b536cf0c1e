"""The trials of the utility study."""

from pathlib import Path

import pytest

from research import utility
from research.runs import Workspace, resolve_config
from research.sources import TRAINING_SETS
from uedp.methods import method_names
from uedp.training.config import parse_config

TRIALS = utility.trials(None, "float32")


def test_every_trial_has_a_valid_config() -> None:
    workspace = Workspace(Path("datasets"), {"gpt": "a-folder"}, Path("out"))
    for trial in TRIALS:
        if trial.config["privacy"]["method"] in method_names():
            config = parse_config(resolve_config(trial, workspace), trial.name)
            assert config.privacy.rounds in (100, 200, 400)
        assert trial.data in TRAINING_SETS


def test_names_are_unique_and_the_first_come_first() -> None:
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)
    assert [trial.name for trial in TRIALS[:2]] == ["conll-fair-8", "conll-user-8"]


def test_methods_differ_in_nothing_but_what_protects_entities() -> None:
    own = {"method", "entity_share", "update_clip"}
    by_name = {trial.name: trial.config for trial in TRIALS}
    for data in (*utility.DATA, *utility.SMALLER):
        for epsilon in ("8", "2"):
            fair, user = (by_name[f"{data}-{kind}-{epsilon}"] for kind in ("fair", "user"))
            assert fair["optimiser"] == user["optimiser"]
            assert {k: v for k, v in fair["privacy"].items() if k not in own} == {
                k: v for k, v in user["privacy"].items() if k not in own
            }


def test_precision_is_one_switch() -> None:
    found = {t.name: t.config["run"]["precision"] for t in utility.trials(None, "bfloat16-fixed")}
    assert found["conll-fair-8"] == "bfloat16-fixed"
    assert found["conll-noiseless"] == "auto"  # nothing to protect
    assert found["blogs-surrogates-8"] == "float32"  # not in passes of one shape


def test_changes_are_part_of_the_name() -> None:
    (trial,) = utility.changed(TRIALS[:1], ["model.rank=2"])
    assert trial.name == "conll-fair-8-rank-2"
    assert trial.config["model"]["rank"] == 2


def test_the_list_says_how_long(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("sys.argv", ["utility", "list", "--stages", "users"])
    utility.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("blogs-2000-fair-8")
    assert lines[-1].endswith("in all")
