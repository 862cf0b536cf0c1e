import os
from pathlib import Path

import pytest
import yaml

from tests.training import worlds
from tests.training.runs import DEEP, RoundWatcher, refused, snapshot, spent, stopping_after
from uedp.errors import UserError
from uedp.training import loop
from uedp.training.config import load_config, parse_config
from uedp.training.run_dir import CONFIG, IDENTITY, RESULT, as_planned

RESULTS = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"{}",
    b'{"before": {}, "after": {}, "rounds": "1"}',
    b'{"before": null, "after": {}, "rounds": 1}',
    DEEP,
]


def test_the_run_directory_holds_the_resolved_config(train, tmp_path, saved):
    train(privacy__rounds=1)
    values = yaml.safe_load((tmp_path / "run" / CONFIG).read_text())
    assert values["privacy"]["delta"] == 1e-5  # a default, spelled out
    assert worlds.config(saved(), privacy__rounds=1) == load_config(tmp_path / "run" / CONFIG)


@pytest.mark.parametrize(
    ("method", "kept"),
    [("rotation", True), ("fair-shares", True), ("user-level", False), ("noiseless", False)],
)
def test_a_method_left_out_is_that_of_the_run_if_the_planner_could_choose_it(
    method, kept, tmp_path, saved
):
    """Nobody who leaves it out continues a run that protects less than the default."""
    noise = {"privacy__noise": None} if method == "noiseless" else {}
    config = worlds.config(saved(), privacy__method=method, **noise)
    (tmp_path / CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    values = config.model_dump(mode="json")
    del values["privacy"]["method"]
    values["privacy"]["noise"] = 1.0
    found = as_planned(parse_config(values), tmp_path).privacy.method
    assert found == (method if kept else "rotation")


@pytest.mark.parametrize("method", ["rotation", "noiseless"])
def test_two_processes_never_share_a_run_directory(method, train, tmp_path, saved):
    refused = []

    def another(done):
        with pytest.raises(UserError, match="run: another process is using this run") as no:
            loop.run(
                worlds.config(saved(), privacy__method=method),
                tmp_path / "run",
                data=worlds.training_data(tmp_path / "corpus"),
                resume=True,
            )
        refused.append(str(no.value))

    outcome = train(privacy__method=method, progress=RoundWatcher(another))
    assert len(refused) == 4
    assert outcome.finished
    if method == "rotation":
        assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


def test_resuming_with_another_config_is_refused(train, tmp_path):
    train(progress=stopping_after(1))
    before = snapshot(tmp_path / "run")
    with pytest.raises(UserError, match=r"config.yaml: privacy.rounds is 4, not 5; resume"):
        train(resume=True, privacy__rounds=5)
    with pytest.raises(UserError, match=r"optimiser.rate is 0.01, not 0.5"):
        train(resume=True, optimiser__rate=0.5)
    assert snapshot(tmp_path / "run") == before


def test_a_run_without_its_config_is_refused(train, tmp_path):
    train(progress=stopping_after(1))
    (tmp_path / "run" / CONFIG).unlink()
    with pytest.raises(UserError, match=r"config.yaml: cannot be read: No such file"):
        train(resume=True)


def test_unsuitable_run_directories_are_refused(train, tmp_path):
    with pytest.raises(UserError, match="holds no run to resume; leave out `resume=True`"):
        train("a/b/run", resume=True)
    assert not (tmp_path / "a").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(
        UserError, match=r"mine: exists and is not a run; choose another `out=\.\.\.`"
    ):
        train("mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: not a folder"):
        train("file")
    train("run", privacy__rounds=1)
    with pytest.raises(UserError, match="run: holds a run already; add `resume=True`"):
        train("run", privacy__rounds=1)
    (tmp_path / "run" / IDENTITY).write_text("what?")
    with pytest.raises(UserError, match=r"run.json: damaged"):
        train("run", privacy__rounds=1, resume=True)
    (tmp_path / "empty").mkdir()
    assert train("empty", privacy__rounds=1).finished


def test_a_run_killed_at_its_start_can_be_started_again(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / IDENTITY).touch()
    assert train(privacy__rounds=1).finished


def test_a_damaged_run_is_refused_by_file_name(train, tmp_path):
    train(privacy__rounds=1)
    out = tmp_path / "run"
    for name, contents in {
        RESULT: RESULTS,
        IDENTITY: [
            b"{",
            b"[]",
            b"{}",
            b'{"run": 7}',
            b'{"run": ""}',
            b'{"run": "../x"}',
            b"\xff",
            DEEP,
        ],
        CONFIG: [b"{", b"\xff", b"a: &a [*a]", DEEP, b"privacy: {}\nprivacy: {}\n"],
    }.items():
        path = out / name
        whole = path.read_bytes()
        for content in contents:
            path.write_bytes(content)
            assert refused(lambda: train(resume=True, privacy__rounds=1)).startswith(f"{path}: ")
        path.write_bytes(whole)
    assert train(resume=True, privacy__rounds=1).finished


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_can_read_a_run_whatever_the_umask(umask, train, tmp_path):
    def modes(folder: Path) -> set[tuple[bool, int]]:
        paths = (folder, *folder.rglob("*"))
        return {(path.is_dir(), path.stat().st_mode & 0o777) for path in paths}

    out = tmp_path / "run"
    before = os.umask(umask)
    try:
        out.mkdir()  # made by the user, empty, for all to see
        train(privacy__rounds=1)
        assert modes(out) == {(True, 0o700), (False, 0o600)}
        assert (tmp_path / "corpus" / "ledger.jsonl").stat().st_mode & 0o777 == 0o600
        out.chmod(0o755)
        (out / RESULT).chmod(0o644)
        train(resume=True, privacy__rounds=1)
        assert modes(out) == {(True, 0o700), (False, 0o600)}
    finally:
        os.umask(before)


def test_a_directory_that_is_not_a_run_keeps_its_mode(train, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    out.chmod(0o755)
    (out / "thesis.txt").write_text("years of work")
    assert "is not a run" in refused(train)
    assert out.stat().st_mode & 0o777 == 0o755
