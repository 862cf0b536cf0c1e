from typing import Any

import pytest
import torch
import transformers
from torch import nn

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.models import awd_lstm
from uedp.models.load import load_model
from uedp.models.probe import ProbeForSequenceClassification
from uedp.models.trainable import make_trainable, save_model, trained_names

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def probe(trained: bool = True, **options: Any) -> Any:
    made: Any = make_trainable(tiny.bert(num_labels=3, **options), "probe")
    if trained:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            made.classifier.weight.normal_()
    return made


def test_it_begins_by_guessing_and_trains_its_head_alone():
    model = probe(trained=False)
    assert trained_names(model) == ["classifier.weight"]
    assert torch.equal(model(IDS, MASK).logits, torch.zeros(2, 3))
    Engine(model)  # can be clipped


def test_the_encoder_drops_nothing():
    model = probe(hidden_dropout_prob=0.5)
    model.train()
    assert model.classifier.training
    assert torch.equal(model(IDS, MASK).logits, model(IDS, MASK).logits)
    assert not any(p.requires_grad for p in model.encoder.parameters())


def test_a_vector_is_the_mean_over_a_texts_own_tokens():
    model = probe()
    vectors = model.encode(IDS, MASK)
    states = model.encoder(input_ids=IDS[1:, :2]).last_hidden_state
    assert torch.allclose(vectors[1], states[0].mean(0), atol=1e-5)
    assert torch.allclose(model.encode(IDS[:1], None), vectors[:1], atol=1e-5)
    assert not vectors.requires_grad


def test_logits_are_the_same_from_texts_and_from_vectors():
    model = probe()
    vectors = model.encode(IDS, MASK)
    assert torch.allclose(model(IDS, MASK).logits, model(vectors=vectors).logits, atol=1e-5)
    assert torch.allclose(model(vectors=3 * vectors).logits, model(vectors=vectors).logits)


def test_saved_it_loads_as_a_classifier(tmp_path):
    model = probe(id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2})
    save_model(model, tmp_path, tiny.tokenizer(pad_token="<|end|>"))
    loaded = load_model(tmp_path, "classification")
    assert loaded.new_weights == ()
    assert loaded.max_tokens == 64
    assert loaded.model.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert torch.allclose(loaded.model(IDS, MASK).logits, model(IDS, MASK).logits, atol=1e-6)
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(auto, ProbeForSequenceClassification)


def test_a_saved_probe_is_trained_further_from_where_it_was(tmp_path):
    save_model(probe(), tmp_path, tiny.tokenizer(pad_token="<|end|>"))
    loaded = load_model(tmp_path, "classification").model
    again: Any = make_trainable(loaded, "probe")
    assert again.classifier.weight.any()
    assert trained_names(again) == ["classifier.weight"]
    for how in ("full", "lora", "last:1"):
        with pytest.raises(UserError, match="the model is a probe; train it as one"):
            make_trainable(loaded, how)


def test_no_path_of_this_machine_is_saved(tmp_path):
    where = tiny.saved(tmp_path / "own", tiny.bert(num_labels=2))
    model = load_model(where, "classification", labels=2).model
    save_model(make_trainable(model, "probe"), tmp_path / "probe")
    assert str(tmp_path) not in (tmp_path / "probe" / "config.json").read_text()


def test_what_an_encoder_reads_at_most_is_kept(tmp_path):
    made: Any = make_trainable(tiny.gpt2(labels=2), "probe")
    save_model(made, tmp_path, tiny.tokenizer(pad_token="<|end|>"))
    assert load_model(tmp_path, "classification").max_tokens == 64


def test_decoders_can_be_probed_too():
    made: Any = make_trainable(tiny.gpt2(labels=2), "probe")
    assert made(IDS, MASK).logits.shape == (2, 2)
    assert trained_names(made) == ["classifier.weight"]


def test_a_model_without_an_encoder_is_refused():
    lstm = awd_lstm.AwdLstmConfig(
        vocab_size=tiny.WORDS, hidden_size=8, embedding_size=6, num_hidden_layers=2, num_labels=2
    )
    with pytest.raises(UserError, match="has no encoder to build on"):
        make_trainable(awd_lstm.AwdLstmForSequenceClassification(lstm), "probe")

    class BagForSequenceClassification(nn.Module):
        @property
        def base_model(self) -> nn.Module:
            return self

    with pytest.raises(UserError, match="BagForSequenceClassification has no encoder"):
        make_trainable(BagForSequenceClassification(), "probe")
