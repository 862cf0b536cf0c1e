"""A run folder whose files another hand has changed, and who may read it."""

import json
import os
from pathlib import Path

import pytest

from tests.training import worlds
from uedp.errors import UserError
from uedp.models.load import public_tokenizer
from uedp.training import loop
from uedp.training.lineage import FILE as LINEAGE
from uedp.training.lineage import model_ancestors
from uedp.training.metrics import FILE as METRICS
from uedp.training.metrics import Metrics
from uedp.training.run_dir import CONFIG, IDENTITY, RESULT

DEEP = b"[" * 100_000


@pytest.fixture
def train(tmp_path, saved, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", (), raising=False)  # for speed
    config = worlds.config(saved(), privacy__rounds=1)

    def command(resume: bool = False) -> loop.Outcome:
        material = worlds.training_data(tmp_path / "corpus")
        return loop.run(config, tmp_path / "run", data=material, resume=resume)

    return command


def refused(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


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


def test_a_damaged_run_is_refused_by_the_file(train, tmp_path):
    train()
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
            assert refused(lambda: train(resume=True)).startswith(f"{path}: ")
        path.write_bytes(whole)
    assert train(resume=True).finished


@pytest.mark.parametrize("content", [b"{", b"7", b"[7]", b'[{"run": 1}]', b"\xff", DEEP, b'["a"]'])
def test_a_damaged_lineage_is_refused(content, tmp_path):
    (tmp_path / LINEAGE).write_bytes(content)
    assert "lineage.json: damaged" in refused(lambda: model_ancestors(str(tmp_path)))


def test_lineage_of_other_values_is_refused(tmp_path):
    entry = {"run": "a", "method": "noiseless", "incidence": ["0" * 64]}
    (tmp_path / LINEAGE).write_text(json.dumps([entry]))
    assert "lineage.json: damaged" in refused(lambda: model_ancestors(str(tmp_path)))


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"{}",
        b"[]",
        b"7",
        b"\xff",
        b'{"round": "1"}',
        b'{"round": 1e999}',
        b'{"round": 0.5}',
        b'{"round": 1, "round": 2}',
        b'{"round": -1',
        DEEP,
        b"",
    ],
)
def test_damaged_metrics_are_named_with_their_line(line, tmp_path):
    path = tmp_path / METRICS
    path.write_bytes(b'{"round": 1}\n' + line + b'\n{"round": 3}\n')
    before = path.read_bytes()
    message = refused(lambda: Metrics(tmp_path, 3))
    assert message.startswith(f"{path}:")
    assert "damaged" in message
    assert path.read_bytes() == before


def test_a_last_line_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / METRICS
    path.write_bytes(b'{"round": 1}\n{"round": 2, "rate": 0.\xff')
    with Metrics(tmp_path, 3):
        pass
    assert path.read_bytes() == b'{"round": 1}\n'


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"model": 7}', DEEP])
def test_a_damaged_vocabulary_is_refused(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    refused(lambda: public_tokenizer(tmp_path))
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    refused(lambda: public_tokenizer(tmp_path))


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_only_the_owner_can_read_a_run_whatever_the_umask(umask, train, tmp_path):
    def modes(folder: Path) -> set[tuple[bool, int]]:
        found = (folder, *folder.rglob("*"))
        return {(path.is_dir(), path.stat().st_mode & 0o777) for path in found}

    out = tmp_path / "run"
    before = os.umask(umask)
    try:
        out.mkdir()  # made by the user, empty, for all to see
        train()
        assert modes(out) == {(True, 0o700), (False, 0o600)}
        assert (tmp_path / "corpus" / "ledger.jsonl").stat().st_mode & 0o777 == 0o600
        out.chmod(0o755)
        (out / RESULT).chmod(0o644)
        train(resume=True)
        assert modes(out) == {(True, 0o700), (False, 0o600)}
    finally:
        os.umask(before)


def test_a_folder_that_is_no_run_keeps_its_mode(train, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    out.chmod(0o755)
    (out / "thesis.txt").write_text("years of work")
    assert "is not a run" in refused(train)
    assert out.stat().st_mode & 0o777 == 0o755
