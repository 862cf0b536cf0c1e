"""Which runs a studio shows, their state, and their metrics while they grow."""

import json
import math

import pytest

from tests.report.runs import finished_run
from uedp.errors import UserError
from uedp.studio.run_folders import Live, MetricsTail, find_run, run_folders, state_of
from uedp.studio.settings import ForbiddenError, Settings
from uedp.training.run_dir import lock_run_dir


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    finished_run(folder / "a", rounds=4)
    finished_run(folder / "b", rounds=4, rounds_spent=2)
    (folder / "notes").mkdir()
    (folder / "file").write_text("")
    return folder


def test_folders_of_runs_and_runs(runs):
    settings = Settings(runs=(runs, runs / "a"))
    assert [(run.key, run.name) for run in run_folders(settings)] == [
        ("0/a", "a"),
        ("0/b", "b"),
        ("1/.", "a"),
    ]
    for run in run_folders(settings):
        assert find_run(settings, run.key).folder == run.folder.resolve()


@pytest.mark.parametrize("key", ["", "0", "0/notes", "0/file", "0/missing", "0/."])
def test_what_holds_no_run_is_refused(runs, key):
    with pytest.raises(UserError):
        find_run(Settings(runs=(runs,)), key or "0/")


@pytest.mark.parametrize(
    "key", ["0/..", "0/../other", "0/../../etc", "0//etc", "1/a", "-1/a", "x/a", "0/link", "0/\0"]
)
def test_other_folders_are_forbidden(runs, tmp_path, key):
    finished_run(tmp_path / "other", rounds=1)
    (runs / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ForbiddenError):
        find_run(Settings(runs=(runs,)), key)
    assert [run.name for run in run_folders(Settings(runs=(runs,)))] == ["a", "b"]


def test_states(runs):
    live = Live()
    assert state_of(live.record(runs / "a")) == "finished"
    assert state_of(live.record(runs / "b")) == "stopped"
    with lock_run_dir(runs / "b"):
        assert state_of(live.record(runs / "b")) == "running"
    assert state_of(live.record(runs / "b")) == "stopped"


def test_a_run_can_be_locked_while_somebody_looks(runs, monkeypatch):
    """Looking must not make training fail."""
    import fcntl

    with (runs / "b" / "run.json").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
        with lock_run_dir(runs / "b"):
            pass


def test_metrics_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.columns() == {}
    path.write_text('{"round": 1, "users": 5}\n{"round": 2, "us')
    assert tail.columns()["round"].tolist() == [1]
    with path.open("a") as file:
        file.write('ers": 6}\n{"round": 3, "perplexity": 9.5}\n')
    columns = tail.columns()
    assert columns["round"].tolist() == [1, 2, 3]
    assert columns["users"].tolist()[:2] == [5, 6]
    assert math.isnan(columns["users"][2])
    assert columns["perplexity"][2] == 9.5


def test_only_what_was_added_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n')
    tail = MetricsTail(path)
    tail.columns()
    changed = '{"round": 9}\n{"round": 2}\n'  # the first line was read before
    with path.open("r+") as file:
        file.write(changed)
    assert tail.columns()["round"].tolist() == [1, 2]


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"round": {n}}}\n' for n in range(1, 5)))
    tail = MetricsTail(path)
    assert len(tail.columns()["round"]) == 4
    path.write_text('{"round": 1}\n')  # a resumed run drops what was lost
    assert tail.columns()["round"].tolist() == [1]
    other = tmp_path / "new"
    other.write_text("".join(f'{{"round": {n}}}\n' for n in range(11, 20)))
    other.replace(path)
    assert len(tail.columns()["round"]) == 9
    path.unlink()
    assert tail.columns() == {}


def test_lines_that_no_run_wrote_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        "no JSON",
        "[1]",
        "[" * 100_000,
        '{"users": 1}',
        '{"round": "1"}',
        '{"round": 1, "users": "<script>", "rate": 1' + "0" * 400 + "}",
        json.dumps({"round": 2, **{f"c{n}": n for n in range(1000)}}),
    ]
    path.write_text("\n".join(lines) + "\n")
    columns = MetricsTail(path).columns()
    assert columns["round"].tolist() == [1, 2]
    assert len(columns) <= 200
    assert all(len(values) == 2 for values in columns.values())


def test_a_run_that_ends_while_it_is_looked_at(tmp_path):
    folder = finished_run(tmp_path / "run", rounds=4)
    result = (folder / "result.json").read_bytes()
    (folder / "result.json").unlink()
    live = Live()
    assert not live.record(folder).finished
    (folder / "result.json").write_bytes(result)
    assert live.record(folder).finished
