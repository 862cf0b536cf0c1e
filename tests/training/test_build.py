import dataclasses
import math

import pytest
import torch
import transformers

from tests.methods.rounds import gpt2, method_on, plan
from tests.models import tiny
from tests.training import worlds
from tests.training.runs import (
    PRIVATE,
)
from uedp.accounting import certificate as certificates
from uedp.errors import UserError
from uedp.models.load import load_model
from uedp.training import build as building
from uedp.training import tasks, vectors
from uedp.training.build import _autocast, device_of, precision_of, refuse_mixing
from uedp.training.config import parse_config
from uedp.training.datasets import Texts
from uedp.training.tasks import Classification


def test_a_classifier_learns_and_loads(train, saved, tmp_path):
    outcome = train(
        model=saved("bert"),
        task__kind="classification",
        privacy__method="noiseless",
        privacy__rounds=12,
        model__dropout=0.0,
    )
    assert outcome.after["error rate"] < outcome.before["error rate"] or (
        outcome.after["error rate"] == 0
    )
    assert outcome.after["loss"] < outcome.before["loss"]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert loaded.config.id2label == {0: "named", 1: "plain"}
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = ["the Ann is good", "the day is good"]
    guesses = []
    for text in texts:
        ids = torch.tensor([words(text)["input_ids"]])
        with torch.no_grad():
            guesses.append(loaded.config.id2label[int(loaded(input_ids=ids).logits.argmax())])
    wrong = sum(g != t for g, t in zip(guesses, ["named", "plain"], strict=True))
    assert (wrong == 0) == (outcome.after["error rate"] == 0)


@pytest.mark.parametrize("method", PRIVATE)
def test_classifiers_train_with_every_private_method(method, train, saved, tmp_path):
    outcome = train(
        model=saved("bert"),
        task__kind="classification",
        privacy__method=method,
        privacy__rounds=1,
        model__train="last:1",
    )
    assert certificates.verify(tmp_path / "run") == outcome.certificate
    assert outcome.after.keys() == {"error rate", "loss", "sentences"}


def test_a_probe_encodes_each_text_once(train, saved, tmp_path, monkeypatch):
    read_chain, encode = [], vectors.Encoder._encode

    def counted(self, texts, filled):
        read_chain.extend([len(texts)] * (len(texts) > 2))  # it is tried with two
        return encode(self, texts, filled)

    monkeypatch.setattr(vectors.Encoder, "_encode", counted)
    options = {
        "model": saved("bert"),
        "task__kind": "classification",
        "model__train": "probe",
        "privacy__rounds": 20,
        "optimiser__rate": 0.1,
        "run__vectors": str(tmp_path / "vectors"),
    }
    plain = train(privacy__method="noiseless", **options)
    assert read_chain == [120, 15]
    assert plain.after["loss"] < plain.before["loss"] == pytest.approx(math.log(2), rel=1e-4)
    for method in PRIVATE:
        outcome = train(method, privacy__method=method, **options)
        assert certificates.verify(tmp_path / method) == outcome.certificate
    assert read_chain == [120, 15]  # what is kept is not read again
    # measured on texts, a saved probe does what it did on vectors
    loaded = load_model(tmp_path / "run", "classification")
    held = worlds.training_data(tmp_path / "corpus").held_out
    task = tasks.build_task(
        "classification", held.texts, held.labels, ["named", "plain"], loaded.tokenizer, 32
    )
    measured = task.evaluate(loaded.model, torch.no_grad, 1 << 12)
    assert measured["loss"] == pytest.approx(plain.after["loss"], rel=1e-4)


def test_a_saved_classifier_keeps_its_label_order(train, saved, tmp_path):
    first = train(
        "first",
        model=saved("bert"),
        task__kind="classification",
        task__labels=["plain", "named"],  # not in the order of the alphabet
        privacy__method="noiseless",
        privacy__rounds=12,
        model__dropout=0.0,
    )
    assert first.model.config.id2label == {0: "plain", 1: "named"}
    second = train(
        "second",
        model=tmp_path / "first",
        task__kind="classification",
        privacy__method="noiseless",
        privacy__rounds=1,
        optimiser__rate=1e-9,
    )
    assert second.model.config.id2label == {0: "plain", 1: "named"}
    assert second.before["loss"] == pytest.approx(first.after["loss"], rel=1e-4)


def test_labels_from_the_corpus_are_reported(train, saved):
    options = {"task__kind": "classification", "privacy__rounds": 1, "model__train": "last:1"}
    found = train(model=saved("bert"), **options)
    assert any(line.startswith("labels in the corpus: named, plain") for line in train.said)
    assert any(caveat.startswith("which labels there are") for caveat in found.certificate.caveats)
    declared = train("named", model=saved("bert"), task__labels=["named", "plain"], **options)
    assert not any(line.startswith("labels in the corpus") for line in train.said)
    assert not any("labels" in caveat for caveat in declared.certificate.caveats)


def test_unknown_and_missing_labels_are_refused(train, saved, tmp_path):
    corpus = tmp_path / "corpus"
    options = {"model": saved("bert"), "task__kind": "classification"}
    unknown = dataclasses.replace(worlds.training_data(corpus), held_out=Texts(["a"], ["other"]))
    with pytest.raises(UserError, match="label 'other': not one of named, plain"):
        train(data=unknown, **options)
    with pytest.raises(UserError, match="label 'plain': not one of named, x; correct it"):
        train(task__labels=["named", "x"], **options)
    same = worlds.training_data(corpus, train=Texts(worlds.texts(), ["x"] * 120))
    with pytest.raises(UserError, match="at least two labels, found 1"):
        train(data=same, **options)
    assert not (tmp_path / "run").exists()


def test_warnings_are_reported(train):
    train(privacy__user_rate=0.2, privacy__rounds=1)
    assert any(line.startswith("warning: a round draws about 8 users") for line in train.said)
    train("other", privacy__rounds=1)
    assert not any(line.startswith("warning") for line in train.said)


def test_devices_and_autocast():
    assert device_of(worlds.config("m", run__device="auto")).type in ("cpu", "cuda")
    with pytest.raises(UserError, match=r"run.device 'cuda:77'"):
        device_of(worlds.config("m", run__device="cuda:77"))
    cpu = torch.device("cpu")
    with _autocast(False, cpu)():
        assert not torch.is_autocast_enabled("cpu")
    with _autocast(True, cpu)():
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("device", "method", "asked", "found"),
    [
        ("cpu", "noiseless", "auto", "float32"),
        ("cuda", "noiseless", "auto", "bfloat16"),
        # in half precision, who else was drawn would move everybody's gradient
        ("cuda", "rotation", "auto", "float32"),
        ("cuda", "user-level", "auto", "float32"),
        ("cuda", "rotation", "bfloat16", "bfloat16"),
        ("cuda", "noiseless", "float32", "float32"),
    ],
)
def test_private_runs_use_float32_by_default(device, method, asked, found, monkeypatch):
    monkeypatch.setattr(building, "device_of", lambda config: torch.device(device))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    budget = {} if method == "noiseless" else {"epsilon": 8}
    values = {"privacy": {"method": method, **budget}, "data": {"train": "c"}}
    config = parse_config({**values, "model": {"name": "m"}, "run": {"precision": asked}})
    assert precision_of(config) == found


def test_a_model_that_depends_on_row_width_is_refused():
    """The sentences it is tried with differ in length."""

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gpt2()

        def forward(self, input_ids):
            output = self.inner(input_ids=input_ids)
            output.logits = output.logits * (1 + 0.1 * input_ids.shape[1])
            return output

    texts = worlds.texts()[:60] + [text + " and more" for text in worlds.texts()[60:]]
    with pytest.raises(UserError, match="changes with the sentences beside it"):
        method_on(plan(), texts, model=Padded())


def test_a_model_that_attends_to_padding_is_refused():
    config = transformers.FNetConfig(
        vocab_size=tiny.WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2
    )
    torch.manual_seed(0)
    model = transformers.FNetForSequenceClassification(config)
    texts = [10 * "a" * (1 + place // 4) for place in range(12)]
    words = tiny.tokenizer(pad_token="<|end|>")
    task = Classification(texts, ["x", "y"] * 6, ["x", "y"], words, 60)
    with pytest.raises(UserError, match="FNetForSequenceClassification mixes"):
        refuse_mixing(model, task)
    refuse_mixing(tiny.bert(), task)
    few_longer = ["a" * (1 + place % 9) for place in range(99)] + ["a" * 50]
    task = Classification(few_longer, ["x", "y"] * 50, ["x", "y"], words, 60)
    with pytest.raises(UserError, match="FNetForSequenceClassification mixes"):
        refuse_mixing(model, task)


def test_sentences_are_padded_no_more_than_shows(monkeypatch):
    texts = ["a" * length for length in range(1, 59)]
    words = tiny.tokenizer(pad_token="<|end|>")
    task, widths = Classification(texts, ["x", "y"] * 29, ["x", "y"], words, 60), []
    losses = task.losses
    monkeypatch.setattr(
        task, "losses", lambda m, s, p: widths.append(task.lengths[s].max()) or losses(m, s, p)
    )
    refuse_mixing(tiny.bert(), task)
    assert 2 * sorted(set(widths))[-2] <= max(widths)


def test_a_model_that_mixes_sentences_is_refused():
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gpt2()

        def forward(self, input_ids):
            output = self.inner(input_ids=input_ids)
            output.logits = output.logits - output.logits.mean(0, keepdim=True)
            return output

    texts = [f"{number} and so on" for number in range(120)]
    with pytest.raises(UserError, match="changes with the sentences beside it"):
        method_on(plan(), texts, model=Mixing())


def test_what_is_cut_is_told_before_training(train):
    train(model__max_tokens=4, privacy__rounds=1)
    (line,) = [line for line in train.said if "sentences are longer than 4 tokens" in line]
    assert line.startswith("warning: ")
    assert "raise model.max_tokens" in line
    train("whole", privacy__rounds=1)
    assert not [line for line in train.said if "sentences are longer" in line]
