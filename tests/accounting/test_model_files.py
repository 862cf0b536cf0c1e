"""The files of a model: changed, removed and added ones are detected."""

import hashlib

import pytest

from tests.accounting.runs import FILES, SETUP, make_run
from uedp.accounting.certificate import issue, not_checked, verify
from uedp.errors import UserError


def test_the_files_of_the_model_are_certified(folder):
    shown = verify(folder)
    assert shown.files == {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }


@pytest.mark.parametrize("name", FILES)
def test_another_file_in_place_of_the_certified_one_is_found(folder, name):
    """Weights of a run without noise, copied into a certified folder."""
    (folder / name).write_bytes(b"of a run without noise")
    with pytest.raises(UserError, match="is not the file that was certified") as found:
        verify(folder)
    assert str(folder / name) in str(found.value)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_is_found(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match="missing, but certified"):
        verify(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "adapter_config.json",
        "adapter_model.safetensors",
        "adapter/adapter_model.safetensors",
        "modeling_gpt2.py",
        "tokenizer.json",
        "chat_template.jinja",
        "weights.gguf",
        "1_Pooling/config.json",
    ],
)
def test_a_file_that_a_loader_could_take_is_found(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    with pytest.raises(UserError, match="is not part of the certified model"):
        verify(folder)


def test_a_link_to_a_folder_is_found(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not part of the certified model"):
        verify(folder)


def test_what_a_run_writes_beside_its_model_is_left_alone(folder):
    for name in ("metrics.jsonl", "result.json", "config.yaml", "run.json", "lineage.json"):
        (folder / name).write_text("x")
    for name in ("checkpoints/00000004/state.safetensors", "vocabulary/tokenizer.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    (folder / "README.md").write_text("x")
    (folder / ".gitattributes").write_text("x")
    verify(folder)


def test_a_run_that_is_not_finished_has_no_certified_model(tmp_path):
    folder = make_run(tmp_path / "run", **SETUP)
    shown = issue(folder)
    assert shown.files == {}
    verify(folder)
    assert any("none is certified" in text for text in not_checked(shown, True, True))
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="no model was certified"):
        verify(folder)
