import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tests.training.runs import (
    spent,
)
from uedp.errors import UserError
from uedp.training import checkpoint


def tensors(value: float):
    return {"weight": torch.full((3, 2), value), "optimiser.steps": torch.tensor(value)}


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / checkpoint.FOLDER).iterdir())


def test_a_checkpoint_survives_writing_and_loading(tmp_path):
    assert checkpoint.load_newest_checkpoint(tmp_path) is None
    checkpoint.write_checkpoint(tmp_path, 3, tensors(0.1), {"before": {"perplexity": 7.5}})
    found, info = checkpoint.load_newest_checkpoint(tmp_path)
    assert info == {"before": {"perplexity": 7.5}, "done": 3}
    assert found.keys() == tensors(0.1).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors(0.1).items())


def test_the_newest_checkpoint_is_loaded_and_older_ones_are_removed(tmp_path):
    for done in (0, 9, 10, 100):
        checkpoint.write_checkpoint(tmp_path, done, tensors(done), {})
    assert folders(tmp_path) == ["00000100"]
    assert checkpoint.load_newest_checkpoint(tmp_path)[1]["done"] == 100


def test_an_existing_checkpoint_is_not_rewritten(tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    checkpoint.write_checkpoint(tmp_path, 1, tensors(2), {})
    assert float(checkpoint.load_newest_checkpoint(tmp_path)[0]["optimiser.steps"]) == 1


def test_tied_overlapping_and_strided_tensors_are_saved(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    made = {
        "one": whole,
        "same": whole,
        "part": whole[1:],
        "turned": whole.T,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    checkpoint.write_checkpoint(tmp_path, 1, made, {})
    found, _ = checkpoint.load_newest_checkpoint(tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in made.items())
    assert found["half"].dtype == torch.bfloat16


# --- dying while one is written ------------------------------------------------------------------


class DeathError(Exception):
    """Stands in for a death; that of a process is in test_killed.py."""


@pytest.mark.parametrize("where", ["save_file", "json.dumps", "fsync_tree", "shutil.rmtree"])
def test_a_checkpoint_is_complete_or_absent(where, tmp_path, monkeypatch):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    owner, _, name = where.rpartition(".")
    module = getattr(checkpoint, owner) if owner else checkpoint

    def die(*arguments, **options):
        raise DeathError

    with monkeypatch.context() as patch:
        patch.setattr(module, name, die)
        with pytest.raises(DeathError):
            checkpoint.write_checkpoint(tmp_path, 2, tensors(2), {})
    found, info = checkpoint.load_newest_checkpoint(tmp_path)
    assert info["done"] == (2 if where == "shutil.rmtree" else 1)
    assert float(found["optimiser.steps"]) == info["done"]
    # the one before goes only when the new one is there, and the next write is as ever
    assert "00000001" in folders(tmp_path)
    checkpoint.remove_scratch(tmp_path)
    checkpoint.write_checkpoint(tmp_path, 3, tensors(3), {})
    assert folders(tmp_path) == ["00000003"]


def test_only_scratch_directories_are_removed(tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    left = [
        tmp_path / checkpoint.FOLDER / ".00000002.0123456789ab" / "new",
        tmp_path / ".model.0123456789ab",
    ]
    kept = [tmp_path / ".git", tmp_path / "adapter", tmp_path / ".config.yaml.swp"]
    for folder in left + kept[:2]:
        folder.mkdir(parents=True)
    kept[2].touch()
    checkpoint.remove_scratch(tmp_path)
    assert folders(tmp_path) == ["00000001"]
    assert not left[1].exists()
    assert all(path.exists() for path in kept)
    checkpoint.remove_scratch(tmp_path / "nowhere")


def test_ctrl_c_waits_for_the_checkpoint(tmp_path, monkeypatch):
    save = checkpoint.save_file

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    assert checkpoint.load_newest_checkpoint(tmp_path)[1]["done"] == 1


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    """Safetensors has an error of its own for it."""
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})

    def full(*arguments):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match=r"00000002: cannot be written .No space.*free space"):
        checkpoint.write_checkpoint(tmp_path, 2, tensors(2), {})
    assert folders(tmp_path) == ["00000001"]


@pytest.mark.parametrize("file", [checkpoint.STATE, checkpoint.INFO])
def test_a_damaged_checkpoint_is_refused_by_name(file, tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    path = tmp_path / checkpoint.FOLDER / "00000001" / file
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(UserError, match=r"00000001: damaged .*remove it") as refused:
        checkpoint.load_newest_checkpoint(tmp_path)
    assert "\n" not in str(refused.value)
    path.unlink()
    with pytest.raises(UserError, match="00000001: damaged"):
        checkpoint.load_newest_checkpoint(tmp_path)


def rewritten(run: Path, text: str) -> None:
    """A checkpoint whose info says this, with hashes to match."""
    folder = run / checkpoint.FOLDER / "00000001"
    (folder / checkpoint.INFO).write_text(text)
    digests = json.loads((folder / checkpoint.DIGESTS).read_text())
    digests[checkpoint.INFO] = hashlib.sha256(text.encode()).hexdigest()
    (folder / checkpoint.DIGESTS).write_text(json.dumps(digests))


@pytest.mark.parametrize("file", [checkpoint.STATE, checkpoint.INFO])
def test_changed_files_are_refused_by_name(file, tmp_path):
    """Weights of another round, or of another hand, still are weights."""
    checkpoint.write_checkpoint(tmp_path / "a", 1, tensors(1), {"before": {"perplexity": 5.0}})
    checkpoint.write_checkpoint(tmp_path / "b", 1, tensors(2), {"before": {"perplexity": 6.0}})
    one, other = (tmp_path / run / checkpoint.FOLDER / "00000001" / file for run in "ab")
    one.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match=rf"00000001: damaged \({file} is not the file"):
        checkpoint.load_newest_checkpoint(tmp_path / "a")


@pytest.mark.parametrize("digests", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, None])
def test_invalid_digests_are_refused(digests, tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    path = tmp_path / checkpoint.FOLDER / "00000001" / checkpoint.DIGESTS
    path.unlink() if digests is None else path.write_bytes(digests)
    with pytest.raises(UserError, match="00000001: damaged") as refused:
        checkpoint.load_newest_checkpoint(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        '{"done": "1", "before": {}}',
        '{"done": true, "before": {}}',
        '{"done": 2, "before": {}}',
        '{"done": 1, "before": []}',
        '{"done": 1, "before": {"perplexity": "low"}}',
        '{"done": 1, "done": 1, "before": {}}',
        "[" * 100_000,
    ],
)
def test_invalid_info_is_refused(text, tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {"before": {}})
    rewritten(tmp_path, text)
    with pytest.raises(UserError, match="00000001: damaged") as refused:
        checkpoint.load_newest_checkpoint(tmp_path)
    assert "\n" not in str(refused.value)


def test_only_the_owner_can_read_a_checkpoint(tmp_path):
    before = os.umask(0)
    try:
        checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    finally:
        os.umask(before)
    folder = tmp_path / checkpoint.FOLDER / "00000001"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_other_folders_are_ignored(tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {})
    (tmp_path / checkpoint.FOLDER / "\u00b2").mkdir()  # a digit, but no number
    assert checkpoint.load_newest_checkpoint(tmp_path)[1]["done"] == 1
    checkpoint.write_checkpoint(tmp_path, 2, tensors(2), {})


def test_the_info_is_json(tmp_path):
    checkpoint.write_checkpoint(tmp_path, 1, tensors(1), {"before": {}})
    text = (tmp_path / checkpoint.FOLDER / "00000001" / checkpoint.INFO).read_text()
    assert json.loads(text) == {"before": {}, "done": 1}


def test_a_run_resumes_after_a_full_disk(train, tmp_path, monkeypatch):
    save, calls = checkpoint.save_file, []

    def full(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise SafetensorError("No space left on device")
        return save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(UserError, match=r"cannot be written .No space left.*`resume=True`"):
            train(run__checkpoint_seconds=0)
    assert train(resume=True).finished
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]
