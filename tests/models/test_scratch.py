"""Models that begin from nothing, and the public tokenizers they begin with."""

import gzip
import json
import random

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import tiny
from uedp.errors import UserError
from uedp.models import scratch
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable, save_model

SIZES = {"hidden_size": 12, "embedding_size": 6, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def asked(monkeypatch, tmp_path):
    """Whoever asks the network fails the test; the cache is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with tiny.no_network() as attempts:
        yield attempts
    assert not attempts


def new(**options):
    return load_model("awd-lstm", **{"tokenizer": "bytes", "sizes": SIZES, **options})


def refused(**options):
    with pytest.raises(UserError) as caught:
        new(**options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- bytes ---------------------------------------------------------------------------------------


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_any_text_is_its_bytes_and_comes_back(text):
    tokenizer = scratch.byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode("utf-8", "replace"))
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == text


def test_every_byte_has_a_token_of_its_own():
    tokenizer = scratch.byte_tokenizer()
    every = "".join(map(chr, range(0x800))) + "\uffff\U0010ffff"  # all bytes UTF-8 has
    found = set(tokenizer(every)["input_ids"])
    assert len(tokenizer) == 259
    assert len(found) == len(set(every.encode()))


def test_no_text_can_spell_a_special_token(tmp_path):
    tokenizer = scratch.byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    for found in (tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path)):
        ids = found("a <eos> b <pad>")["input_ids"]
        assert not set(ids) & {found.pad_token_id, found.bos_token_id, found.eos_token_id}
        assert found("")["input_ids"] == []
        assert found.decode([found.bos_token_id, *ids], skip_special_tokens=True) == (
            "a <eos> b <pad>"
        )


# --- other tokenizers ----------------------------------------------------------------------------


def test_a_tokenizer_from_a_folder_a_file_or_a_packed_file(tmp_path):
    original = tiny.tokenizer(eos_token="<|end|>")
    original.save_pretrained(tmp_path / "folder")
    text = (tmp_path / "folder" / "tokenizer.json").read_text()
    alone = tmp_path / "alone"
    alone.mkdir()
    # its end token under a name that is known
    (alone / "tokenizer.json").write_text(text.replace("<|end|>", "<|endoftext|>"))
    packed = tmp_path / "gpt.json.gz"
    packed.write_bytes(gzip.compress((alone / "tokenizer.json").read_bytes()))
    wanted = original("the end")["input_ids"]
    for named in (
        *(tmp_path / "folder", tmp_path / "folder" / "tokenizer.json"),
        *(alone, alone / "tokenizer.json", packed),
    ):
        found = new(tokenizer=str(named))
        assert found.tokenizer("the end")["input_ids"] == wanted
        assert found.tokenizer.eos_token_id == 0
        assert found.model.config.vocab_size == tiny.WORDS
        assert found.model.config.eos_token_id == 0


def test_a_tokenizer_of_another_run(tmp_path):
    first = new()
    save_model(first.model, tmp_path / "run", first.tokenizer)
    again = new(tokenizer=str(tmp_path / "run"))
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()


def test_bad_tokenizers_are_refused_in_one_line(tmp_path, monkeypatch):
    assert "needs a public tokenizer" in refused(tokenizer=None)
    assert "no such folder or file" in refused(tokenizer="./nowhere")
    (tmp_path / "x.json").write_text("{}")
    assert "not a tokenizer.json" in refused(tokenizer=str(tmp_path / "x.json"))
    (tmp_path / "x.json.gz").write_bytes(b"nothing")
    assert "not a tokenizer.json" in refused(tokenizer=str(tmp_path / "x.json.gz"))
    tiny.tokenizer().backend_tokenizer.save(str(tmp_path / "odd.json"))
    assert "start or end a text" in refused(tokenizer=str(tmp_path / "odd.json"))
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refused(tokenizer=str(tmp_path / "empty"))


def test_a_name_that_is_nowhere(asked):
    assert "not in the local cache" in refused(tokenizer="nobody/nothing")
    assert asked  # the hub was asked, last
    asked.clear()


# --- models --------------------------------------------------------------------------------------


def test_sizes_and_the_paper_s_where_none_are_given():
    model = new(sizes={**SIZES, "tie_word_embeddings": False, "output_dropout": 0}).model
    assert [tuple(layer.recurrent.weight.shape) for layer in model.model.layers] == [(48, 12)] * 2
    assert model.lm_head.weight.shape == (259, 12)
    assert model.config.output_dropout == 0
    assert model.config.layer_dropout == 0.3
    paper = scratch.configuration({}, scratch.byte_tokenizer())
    assert (paper.hidden_size, paper.embedding_size, paper.num_hidden_layers) == (1150, 100, 3)


def test_weights_come_from_the_seed_and_nothing_else_is_drawn():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = new(seed=1), new(seed=1), new(seed=2)
    assert torch.equal(torch.rand(3), expected)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, two.model.state_dict()[name])
    assert not torch.equal(one.model.lm_head.weight, other.model.lm_head.weight)
    assert set(one.new_weights) == {name for name, _ in one.model.named_parameters()}
    assert not one.model.training


def test_dropout_replaces_every_rate():
    config = new(dropout=0.2).model.config
    assert {config.embedding_dropout, config.weight_dropout, config.output_dropout} == {0.2}


def test_a_new_classifier():
    found = new(task="classification", labels=3)
    ids = found.tokenizer("hello", return_tensors="pt")["input_ids"]
    assert found.model(ids).logits.shape == (1, 3)


def test_it_is_saved_and_loaded_as_any_model(tmp_path):
    found = new()
    save_model(make_trainable(found.model, "full"), tmp_path, found.tokenizer)
    ids = found.tokenizer("hello", return_tensors="pt")["input_ids"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert torch.allclose(plain(ids).logits, found.model(ids).logits)
    assert torch.allclose(load_model(tmp_path).model(ids).logits, found.model(ids).logits)
    text = "".join(random.Random(0).choices("aé名 \n", k=40))
    assert words(text)["input_ids"] == found.tokenizer(text)["input_ids"]
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == words.pad_token_id


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"width": 3}, "model.sizes.width: no such size; choose among embedding_size"),
        ({"vocab_size": 3}, "model.sizes.vocab_size: no such size"),
        ({"hidden_size": 3.5}, "model.sizes.hidden_size 3.5: must be a whole number"),
        ({"hidden_size": True}, "must be a whole number"),
        ({"hidden_size": 0}, "hidden_size 0: must be at least 1"),
        ({"tie_word_embeddings": 1}, "must be true or false"),
        ({"output_dropout": True}, "must be a number"),
        ({"output_dropout": 1.0}, "output_dropout 1.0: must be at least 0 and below 1"),
    ],
)
def test_sizes_that_cannot_be(sizes, said):
    assert said in refused(sizes=sizes)


def test_a_saved_model_has_its_own(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    for options in ({"sizes": {"hidden_size": 3}}, {"tokenizer": "bytes"}):
        with pytest.raises(UserError, match="a saved one has its own"):
            load_model(folder, **options)
