"""Any model, any place it can be in, and what is said when it will not do."""

import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from tests.models import tiny
from uedp.errors import UserError
from uedp.models import load as module
from uedp.models.load import load_model


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[object]]:
    """Whoever asks the network fails the test, unless it says otherwise; the cache is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with tiny.no_network() as attempts:
        yield attempts
    assert not attempts


def ids(text: str = "the end of the line") -> torch.Tensor:
    return tiny.tokenizer()(text, return_tensors="pt")["input_ids"]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-5)


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        load_model(*arguments, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- where models are ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny.CAUSAL)
@pytest.mark.parametrize("as_text", [True, False])
def test_a_folder_gives_the_saved_model_and_its_tokenizer(tmp_path, kind, as_text):
    model = tiny.CAUSAL[kind]()
    folder = tiny.saved(tmp_path / "model", model)
    loaded = load_model(str(folder) if as_text else folder)
    assert close(loaded.model(ids()).logits, model(ids()).logits)
    assert loaded.tokenizer("the end")["input_ids"] == tiny.tokenizer()("the end")["input_ids"]
    assert loaded.max_tokens == 64
    assert loaded.new_weights == ()
    assert not loaded.model.training


def test_a_gguf_file_gives_its_model_and_tokenizer_ready_to_train_and_save(tmp_path):
    model = tiny.llama()
    tiny.write_gguf(tmp_path / "tiny.gguf", model)
    loaded = load_model(tmp_path / "tiny.gguf")
    assert close(loaded.model(ids()).logits, model(ids()).logits)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.max_tokens == 64
    assert all(type(m) is nn.Linear for n, m in loaded.model.named_modules() if "proj" in n)
    again = load_model(tiny.saved(tmp_path / "saved", loaded.model, loaded.tokenizer))
    assert close(again.model(ids()).logits, loaded.model(ids()).logits)


def test_a_gguf_tokenizer_knows_no_token_the_model_does_not(tmp_path):
    tiny.write_gguf(tmp_path / "tiny.gguf", tiny.llama())
    loaded = load_model(tmp_path / "tiny.gguf")
    assert len(loaded.tokenizer) == tiny.WORDS
    assert max(loaded.tokenizer("a <|endoftext|> b")["input_ids"]) < tiny.WORDS
    assert loaded.tokenizer("the<|end|>")["input_ids"] == [tiny.TOKENS.index("the"), 0]


def test_reading_prints_nothing(tmp_path, capfd):
    tiny.write_gguf(tmp_path / "tiny.gguf", tiny.llama())
    load_model(tmp_path / "tiny.gguf")
    load_model(tiny.saved(tmp_path / "model", tiny.bert("BertModel")), "classification", labels=3)
    assert capfd.readouterr() == ("", "")


def test_a_classifier_from_a_gguf_file_has_a_new_head(tmp_path):
    tiny.write_gguf(tmp_path / "tiny.gguf", tiny.llama())
    loaded = load_model(tmp_path / "tiny.gguf", "classification", labels=3)
    assert loaded.new_weights == ("score.weight",)
    assert loaded.model(ids()).logits.shape == (1, 3)


def test_a_cached_model_is_read_without_the_network(tmp_path):
    repository = tmp_path / "cache" / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    tiny.saved(repository / "snapshots" / ("0" * 40), tiny.gpt2())
    assert load_model("someone/tiny").max_tokens == 64


def test_a_cached_model_without_its_tokenizer_is_asked_for_again(tmp_path, asked):
    repository = tmp_path / "cache" / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    folder = tiny.saved(repository / "snapshots" / ("0" * 40), tiny.gpt2())
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert "the hub cannot be reached" in refused("someone/tiny")
    assert asked
    asked.clear()


def test_our_own_kinds_of_model_are_known(tmp_path):
    own = pytest.importorskip("uedp.models.awd_lstm")
    config = own.AwdLstmConfig(vocab_size=tiny.WORDS)
    folder = tiny.saved(tmp_path / "model", own.AwdLstmForCausalLM(config))
    loaded = load_model(folder, dropout=0.0)
    assert type(loaded.model) is own.AwdLstmForCausalLM
    rates = {n: v for n, v in loaded.model.config.to_dict().items() if n.endswith("_dropout")}
    assert rates
    assert set(rates.values()) == {0.0}


# --- what is made of them ------------------------------------------------------------------------


def test_padding_is_the_end_token_when_there_is_none(tmp_path):
    words = tiny.tokenizer(eos_token="<|end|>", padding_side="left")
    loaded = load_model(tiny.saved(tmp_path / "model", tiny.gpt2(), words))
    assert loaded.tokenizer.pad_token == "<|end|>"
    assert loaded.model.config.pad_token_id == loaded.model.generation_config.pad_token_id == 0
    assert len(loaded.tokenizer) == tiny.WORDS
    padded = loaded.tokenizer(["the", "the end"], padding=True)
    assert padded["attention_mask"][0][0] == 1
    assert padded["attention_mask"][0][-1] == 0


def test_padding_of_a_tokenizer_that_has_one_is_kept(tmp_path):
    words = tiny.tokenizer(eos_token="<|end|>", pad_token="Ġt")
    loaded = load_model(tiny.saved(tmp_path / "model", tiny.llama(), words))
    assert loaded.tokenizer.pad_token == "Ġt"
    assert loaded.model.config.pad_token_id == tiny.TOKENS.index("Ġt")


def test_padding_may_be_the_start_or_the_unknown_token(tmp_path):
    for role in ("bos_token", "unk_token"):
        words = tiny.tokenizer(**{role: "the"})
        loaded = load_model(tiny.saved(tmp_path / role, tiny.gpt2(), words))
        assert loaded.tokenizer.pad_token == "the"


def test_a_limit_is_the_smaller_of_the_models_and_the_tokenizers(tmp_path):
    words = tiny.tokenizer()
    words.eos_token, words.model_max_length = "<|end|>", 10
    assert load_model(tiny.saved(tmp_path / "model", tiny.gpt2(), words)).max_tokens == 10


def test_dropout_is_replaced_everywhere(tmp_path):
    gpt2 = tiny.saved(tmp_path / "gpt2", tiny.gpt2())
    bert = tiny.saved(tmp_path / "bert", tiny.bert(num_labels=3))
    for loaded, rate in (
        (load_model(gpt2), 0.1),
        (load_model(gpt2, dropout=0.0), 0.0),
        (load_model(gpt2, dropout=0.3), 0.3),
        (load_model(bert, "classification", dropout=0.3), 0.3),
    ):
        rates = {m.p for m in loaded.model.modules() if isinstance(m, nn.Dropout)}
        assert rates == {rate}
    still = load_model(tiny.saved(tmp_path / "opt", tiny.opt()), dropout=0.0).model.train()
    assert torch.equal(still(ids()).logits, still(ids()).logits)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_new_head_comes_from_the_seed_alone(tmp_path, kind):
    source = tiny.bert("BertModel") if kind == "bert" else tiny.gpt2()
    folder = tiny.saved(tmp_path / "model", source)
    before = torch.random.get_rng_state()
    one, same, other = (
        load_model(folder, "classification", labels=3, seed=seed).model(ids()).logits
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert torch.equal(before, torch.random.get_rng_state())
    loaded = load_model(folder, "classification", labels=3)
    assert all(name.startswith(("classifier.", "score.")) for name in loaded.new_weights)
    assert loaded.new_weights


def test_a_saved_head_is_kept_unless_another_number_of_labels_is_asked_for(tmp_path):
    model = tiny.bert(num_labels=3)
    folder = tiny.saved(tmp_path / "model", model)
    for labels in (None, 3):
        loaded = load_model(folder, "classification", labels=labels)
        assert loaded.new_weights == ()
        assert close(loaded.model(ids()).logits, model(ids()).logits)
    loaded = load_model(folder, "classification", labels=5)
    assert loaded.new_weights == ("classifier.bias", "classifier.weight")
    assert loaded.model(ids()).logits.shape == (1, 5)
    assert close(loaded.model.bert(ids())[0], model.bert(ids())[0])


def test_a_classifier_on_a_causal_model_is_indifferent_to_padding(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    loaded = load_model(folder, "classification", labels=3)
    alone = loaded.model(**loaded.tokenizer(["the"], return_tensors="pt")).logits
    texts = ["the", "the end of the line"]
    both = loaded.model(**loaded.tokenizer(texts, padding=True, return_tensors="pt")).logits
    assert torch.allclose(alone[0], both[0], atol=1e-5)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BertLMHeadModel", "BertForMaskedLM"])
def test_a_model_that_sees_both_ways_is_no_next_word_model(tmp_path, kind):
    folder = tiny.saved(tmp_path / "model", tiny.bert(kind))
    assert "sees the words it should predict" in refused(folder)


def test_the_same_model_made_causal_is_one(tmp_path):
    load_model(tiny.saved(tmp_path / "model", tiny.bert("BertLMHeadModel", is_decoder=True)))


def test_a_kind_of_model_that_cannot_do_the_task(tmp_path):
    config = transformers.T5Config(
        vocab_size=tiny.WORDS, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    folder = tiny.saved(tmp_path / "model", transformers.T5ForConditionalGeneration(config))
    assert "type 't5' is not a causal language model" in refused(folder)


def test_a_body_without_a_language_head(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.bert("BertModel"))
    assert "lacks weights (cls.predictions" in refused(folder)


def test_a_body_that_is_not_whole(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny.saved(tmp_path / "model", tiny.bert("BertModel"))
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    message = refused(folder, "classification", labels=3)
    assert "lacks weights (bert.encoder.layer.1.output.dense.weight)" in message


def test_a_classifier_needs_a_number_of_labels(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.bert("BertModel"))
    assert "no classification head; say how many labels" in refused(folder, "classification")


def test_a_tokenizer_of_another_model(tmp_path):
    words = tiny.tokenizer()
    words.add_tokens(["one more"])
    folder = tiny.saved(tmp_path / "model", tiny.gpt2(), words)
    assert f"{tiny.WORDS + 1} tokens, but the model knows {tiny.WORDS}" in refused(folder)


def test_a_tokenizer_without_any_token_to_pad_with(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2(), tiny.tokenizer(mask_token="the"))
    assert "no padding, end, start or unknown token" in refused(folder)


def test_folders_that_hold_no_model(tmp_path):
    assert "no config.json; name a folder with a saved model" in refused(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert f"name the file, {tmp_path / 'a.gguf'}" in refused(tmp_path)
    assert "cannot be loaded" in refused(tmp_path / "a.gguf")
    (tmp_path / "adapter_config.json").touch()
    assert "holds an adapter only" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing known"}')
    assert "cannot be loaded" in refused(tmp_path)
    assert "a file; name the folder" in refused(tmp_path / "config.json")


def test_a_folder_without_whole_weights(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    (folder / "model.safetensors").rename(tmp_path / "weights")
    assert "cannot be loaded: Error no file named model.safetensors" in refused(folder)
    (tmp_path / "weights").rename(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(b"cut short")
    assert "cannot be loaded" in refused(folder)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tiny.gpt2, "it has no tokenizer; put the tokenizer.json"),
        (tiny.bert, "it has no tokenizer; put the tokenizer.json"),
        (tiny.llama, "cannot be loaded: Couldn't instantiate the backend tokenizer"),
    ],
)
def test_a_folder_without_a_tokenizer(tmp_path, kind, said):
    """For some kinds of model, Transformers makes up an empty one."""
    folder = tiny.saved(tmp_path / "model", kind())
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert said in refused(folder, "classification", labels=2)


@pytest.mark.parametrize("name", ["./no", "/no/where", "a/b/c", "~/no/where", "model.gguf"])
def test_a_path_that_is_not_there_is_not_taken_for_a_name(name):
    assert "no such folder or file" in refused(name)
    assert "no such folder or file" in refused(Path("nowhere"))


def test_a_hub_that_cannot_be_reached(asked):
    message = refused("someone/something")
    assert "not in the local cache, and the hub cannot be reached" in message
    assert "`hf download someone/something`" in message
    assert asked
    asked.clear()
    assert "not a valid name on the hub" in refused("some thing?")


def test_a_name_the_hub_does_not_know(monkeypatch):
    import httpx2 as httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    def ask(*arguments: object, **options: object) -> None:
        answer = httpx.Response(404, request=httpx.Request("GET", "https://example.org"))
        raise RepositoryNotFoundError("404", response=answer)

    monkeypatch.setattr(HfApi, "model_info", ask)
    assert "the hub has no such model" in refused("someone/something")


def test_what_the_hub_has_is_fetched_by_name(monkeypatch, tmp_path):
    """The hub answers, the cache has nothing: Transformers is asked for the name itself."""
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    sources = []

    def read(request: object, source: str, local: bool) -> module.LoadedModel:
        sources.append((source, local))
        return module_read(request, str(folder), True)

    module_read = module._read
    monkeypatch.setattr("uedp.hf_hub.ask_hub", lambda name, said: None)
    monkeypatch.setattr(module, "_read", read)
    assert load_model("someone/tiny").max_tokens == 64
    assert sources == [("someone/tiny", False)]


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "theirs"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    assert "cannot be loaded" in refused(folder)
    assert not (tmp_path / "ran").exists()


class _Runs:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return (os.mkdir, (str(self._path),))


def _hostile(folder: Path, ran: Path) -> Path:
    """A model whose folder is full of code: whichever of it runs writes `ran`."""
    tiny.saved(folder, tiny.gpt2())
    code = f"open({str(ran)!r}, 'w')\nclass Model: pass\nclass Config: pass\nclass Words: pass\n"
    for name in ("code.py", "modeling_gpt2.py", "configuration_gpt2.py", "tokenization_gpt2.py"):
        (folder / name).write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    for file, entries in {
        "config.json": {
            "AutoConfig": "code.Config",
            "AutoModelForCausalLM": "code.Model",
            "AutoModelForSequenceClassification": "code.Model",
        },
        "tokenizer_config.json": {"AutoTokenizer": ["code.Words", "code.Words"]},
    }.items():
        values = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**values, "auto_map": entries}))
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save(_Runs(ran), folder / name)
    return folder


@pytest.mark.parametrize("task", ["next-word", "classification"])
def test_a_known_kind_of_model_is_read_without_the_code_beside_it(task, tmp_path):
    """`auto_map`, modules, saved arguments and optimisers: nothing of it is looked at."""
    folder = _hostile(tmp_path / "model", tmp_path / "ran")
    loaded = load_model(folder, task, labels=2 if task == "classification" else None)
    assert type(loaded.model).__module__.startswith("transformers.")
    assert type(loaded.tokenizer).__module__.startswith("transformers.")
    module.public_tokenizer(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_weights_that_are_a_pickle_run_nothing(form, name, tmp_path):
    ran = tmp_path / "ran"
    folder = _hostile(tmp_path / "model", ran)
    (folder / "model.safetensors").unlink()
    if form == "pickle":
        (folder / name).write_bytes(pickle.dumps({"weight": _Runs(ran)}))
    else:
        zipped = form == "zip"
        torch.save({"w": _Runs(ran)}, folder / name, _use_new_zipfile_serialization=zipped)
    assert "cannot be loaded" in refused(folder)
    assert not ran.exists()
    # had it been unpickled, it would have run
    with (folder / name).open("rb") as file:
        pickle.load(file) if form == "pickle" else torch.load(file, weights_only=False)
    assert ran.exists()


def test_an_adapter_that_is_a_pickle_is_not_even_opened(tmp_path):
    folder = tiny.saved(tmp_path / "model", tiny.gpt2())
    torch.save({"w": _Runs(tmp_path / "ran")}, folder / "adapter_model.bin")
    load_model(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "translation"}, "task 'translation': must be one of next-word, classification"),
        ({"labels": 3}, "labels 3 are for classification"),
        ({"task": "classification", "labels": 1}, "at least two classes"),
        ({"dropout": 1.0}, "dropout 1.0: must be in [0, 1)"),
    ],
)
def test_options_that_make_no_sense(options, said):
    assert re.search(re.escape(said), refused("gpt2", **options))
