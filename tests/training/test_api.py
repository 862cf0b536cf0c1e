"""Training in one call, what is done with a finished run, and the loop of docs/engine.md."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import uedp
from tests.models import tiny
from tests.training import worlds
from uedp.accounting import certificate
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.models.load import LoadedModel, load_model
from uedp.sample.generate import sample_sentences
from uedp.training import api
from uedp.training.config import load_config, parse_config

DOCS = Path(__file__).parents[2] / "docs"
MODEL = {
    "name": "awd-lstm",
    "tokenizer": "bytes",
    "sizes": {"embedding_size": 8, "num_hidden_layers": 1},
    "dropout": 0.0,
    "max_tokens": 24,
}
PRIVACY = {"rounds": 3, "user_rate": 0.5}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Some people of the sample, and others."""
    folder = tmp_path_factory.mktemp("corpora")
    every = list(sample_sentences(1, 50))
    for name, wanted in (("train", True), ("held-out", False)):
        chosen = (s for s in every if (int(s.user[1:]) < 40) == wanted)
        uedp.detect(chosen, folder / name, uedp.Detection(("labels",)))
    return folder


def train(corpora, out, **options):
    ready = {"model": MODEL, "epsilon": 8, "privacy": PRIVACY, "out": out}
    return uedp.train(corpora / "train", **ready | options)


@pytest.fixture(scope="module")
def run(corpora, tmp_path_factory):
    """A finished run."""
    return train(
        corpora,
        tmp_path_factory.mktemp("runs") / "run",
        evaluate=corpora / "held-out",
        optimiser={"rate": 0.03},
        data={"evaluate_sentences": 60},
    )


# --- train ---------------------------------------------------------------------------------------


def test_train_returns_model_certificate_and_measures(run):
    assert run.finished
    assert run.after.keys() == run.before.keys()
    assert run.after["perplexity"] != run.before["perplexity"]
    assert run.certificate.epsilon == pytest.approx(8, rel=0.01)
    assert run.certificate.epsilon <= 8
    assert certificate.verify(run.folder) == run.certificate
    ids = run.tokenizer("hello", return_tensors="pt")["input_ids"]
    saved = load_model(run.folder).model
    assert torch.allclose(run.model(ids).logits, saved(ids).logits, atol=1e-6)


def test_train_writes_the_resolved_config(run, corpora):
    config = load_config(run.folder / "config.yaml")
    assert config.privacy.rounds == 3
    assert config.optimiser.rate == 0.03
    assert config.model.sizes == MODEL["sizes"]
    assert config.data.train == corpora / "train"
    assert isinstance(config, uedp.Config)


def test_train_takes_an_open_corpus(corpora, tmp_path):
    said = []
    outcome = uedp.train(
        uedp.Corpus(corpora / "train"),
        MODEL,
        out=tmp_path / "run",
        evaluate=uedp.Corpus(corpora / "held-out"),
        privacy={**PRIVACY, "method": "noiseless"},
        say=said.append,
    )
    assert outcome.certificate is None
    assert "no privacy guarantee" in said[0]
    assert outcome.after["perplexity"] < outcome.before["perplexity"]


def test_train_takes_a_model_folder(corpora, tmp_path):
    folder = worlds.model(tmp_path, "gpt2")
    outcome = train(corpora, tmp_path / "run", model=folder)
    assert (outcome.folder / "adapter").is_dir()  # the default
    assert outcome.after == {}


def test_resuming_a_finished_run_does_nothing(run, corpora):
    with pytest.raises(UserError, match="add `resume=True`"):
        uedp.train(corpora / "train", MODEL, 8, run.folder)
    ledger = (run.folder / "ledger.jsonl").read_bytes()
    again = train(
        corpora,
        run.folder,
        evaluate=corpora / "held-out",
        optimiser={"rate": 0.03},
        data={"evaluate_sentences": 60},
        resume=True,
    )
    assert again.after == run.after
    assert (run.folder / "ledger.jsonl").read_bytes() == ledger


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 0}, "train: privacy.epsilon 0: Input should be greater than 0"),
        ({"epsilon": None}, "train: privacy: give either epsilon or noise"),
        ({"privacy": {"epsilon": 4}}, "privacy.epsilon: given twice"),
        ({"privcy": {}}, "train: privcy: no such field"),
        ({"optimiser": {"speed": 3}}, "train: optimiser.speed: no such field"),
        ({"model": {**MODEL, "train": "lora"}}, "nothing to adapt; train it `full`"),
        ({"model": "./nowhere"}, "no such folder or file"),
        ({"data": {"train": "other"}}, "data.train: given twice"),
    ],
)
def test_invalid_arguments_are_refused_without_a_trace(corpora, tmp_path, options, said):
    with pytest.raises(UserError) as caught:
        train(corpora, tmp_path / "run", **options)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- preview -------------------------------------------------------------------------------------


def test_a_preview_leaves_no_trace(corpora, run):
    before = sorted(p.stat().st_mtime_ns for p in (corpora / "train").rglob("*"))
    config = load_config(run.folder / "config.yaml")
    found = api.preview(config)
    assert found.plan.epsilon <= 8
    assert found.parameters == sum(p.numel() for p in run.model.parameters())
    assert "differentially private" in found.plan.statement
    assert sorted(p.stat().st_mtime_ns for p in (corpora / "train").rglob("*")) == before


@pytest.mark.parametrize("source", ["public", "corpus", "private"])
def test_a_run_with_words_of_its_own_can_be_previewed(source, corpora, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("the day is good")
    sizes = {"hidden_size": 8, "embedding_size": 8, "num_hidden_layers": 1}
    sections = {
        "privacy": {"epsilon": 8, "user_rate": 0.5, "rounds": 2, "delta": 1e-3},
        "data": {"train": corpora / "train"},
        "model": {"name": "awd-lstm", "sizes": sizes},
        "vocabulary": {"source": source, "path": str(words)},
    }
    preview = api.preview(parse_config(sections))
    assert preview.plan.private == (source != "corpus")
    if source == "public":
        trained = uedp.train(
            corpora / "train",
            {"name": "awd-lstm", "sizes": sizes},
            8,
            tmp_path / "run",
            privacy={"user_rate": 0.5, "rounds": 2, "delta": 1e-3},
            vocabulary=sections["vocabulary"],
        )
        assert preview.parameters == sum(p.numel() for p in trained.model.parameters())
    assert sorted(p.name for p in tmp_path.iterdir()) in (["words.txt"], ["run", "words.txt"])


def test_a_preview_refuses_a_model_that_cannot_be_clipped(run, monkeypatch):
    broken = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    monkeypatch.setattr(
        "uedp.training.build.load_model", lambda *_, **__: LoadedModel(broken, tiny.tokenizer(), 8)
    )
    with pytest.raises(UserError, match=r"layer 1 \(BatchNorm1d\) mixes sentences"):
        api.preview(load_config(run.folder / "config.yaml"))


# --- evaluate and generate -----------------------------------------------------------------------


def test_evaluate_repeats_the_measures_of_training(run, corpora):
    found = api.evaluate(str(run.folder))
    assert found == pytest.approx(run.after, rel=1e-5)
    every = api.evaluate(run.folder, corpora / "held-out")
    assert every["tokens"] > found["tokens"]


def test_a_classifier_is_evaluated_and_cannot_generate(corpora, tmp_path):
    every = list(sample_sentences(2, 30))
    uedp.detect(every, tmp_path / "labelled", uedp.Detection(("labels",)))
    uedp.detect(list(sample_sentences(3, 30)), tmp_path / "others", uedp.Detection(("labels",)))
    outcome = uedp.train(
        tmp_path / "labelled",
        MODEL,
        8,
        tmp_path / "run",
        evaluate=tmp_path / "others",
        privacy=PRIVACY,
        task={"kind": "classification"},
    )
    assert api.evaluate(tmp_path / "run") == pytest.approx(outcome.after, rel=1e-5)
    with pytest.raises(UserError, match="cannot generate text"):
        api.generate(tmp_path / "run", "hello")


def test_any_model_generates_texts(run, tmp_path):
    """For a look at a model before it is trained."""
    shutil.copytree(run.folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.yaml"))
    texts = api.generate(tmp_path / "model", "Hi", tokens=5, count=2, seed=4)
    assert texts == api.generate(run.folder, "Hi", tokens=5, count=2, seed=4)
    with pytest.raises(UserError, match="not a run directory"):
        api.generate(tmp_path, "Hi")


def test_generated_texts_start_with_the_prompt(run):
    texts = api.generate(run.folder, "Hi <eos>", tokens=5, count=3, seed=4)
    assert len(texts) == 3
    assert all(text.startswith("Hi <eos>") for text in texts)
    assert texts == api.generate(run.folder, "Hi <eos>", tokens=5, count=3, seed=4)
    assert texts != api.generate(run.folder, "Hi <eos>", tokens=5, count=3, seed=5)
    likeliest = api.generate(run.folder, "", tokens=5, count=2, temperature=0)
    assert likeliest[0] == likeliest[1]
    assert likeliest == api.generate(run.folder, "", tokens=5, count=2, temperature=0)


def test_several_prompts_are_continued_in_order(run):
    prompts = ["Hi", "", "Hello there", "Hi"]
    texts = api.generate(str(run.folder), prompts, tokens=4, count=2, seed=4)
    assert len(texts) == 8
    assert all(text.startswith(prompts[i // 2]) for i, text in enumerate(texts))
    likeliest = api.generate(run.folder, prompts, tokens=4, temperature=0)
    for prompt, text in zip(prompts, likeliest, strict=True):
        assert [text] == api.generate(run.folder, prompt, tokens=4, temperature=0)
    with pytest.raises(UserError, match="number of prompts must be at least 1"):
        api.generate(run.folder, [])


def test_temperature_controls_sampling(run):
    # the run's noise is secret: its best two tokens may be as near as 1e-5
    cold = set(api.generate(run.folder, "", tokens=3, count=20, temperature=1e-9, seed=1))
    warm = set(api.generate(run.folder, "", tokens=3, count=20, temperature=2.0, seed=1))
    assert cold == set(api.generate(run.folder, "", tokens=3, temperature=0))
    assert len(warm) > 10


def test_generation_leaves_the_callers_generators_unchanged(run):
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    api.generate(run.folder, "", tokens=2, seed=3)
    assert torch.equal(torch.rand(2), expected)


def test_impossible_evaluation_and_generation_are_refused(run, corpora, tmp_path):
    def refused(call, *arguments, **options):
        with pytest.raises(UserError) as caught:
            call(*arguments, **options)
        return str(caught.value)

    assert "not a run" in refused(api.evaluate, tmp_path)
    (tmp_path / "config.yaml").write_text((run.folder / "config.yaml").read_text())
    assert "not finished" in refused(api.evaluate, tmp_path)
    assert "too many for the model" in refused(api.generate, run.folder, "x", tokens=2000)
    assert "at least 1" in refused(api.generate, run.folder, "x", count=0)
    assert "negative" in refused(api.generate, run.folder, "x", temperature=-1.0)
    bare = train(corpora, tmp_path / "bare", privacy={**PRIVACY, "rounds": 1})
    assert "names no corpus" in refused(api.evaluate, bare.folder)


# --- the pages -----------------------------------------------------------------------------------


def test_the_loop_of_the_engine_page_runs(corpora, tmp_path, monkeypatch, capsys):
    text = (DOCS / "engine.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").symlink_to(corpora / "train")
    exec(compile(code, "guide", "exec"), {})
    issued = certificate.verify(tmp_path / "my-run")
    assert capsys.readouterr().out.strip().endswith(issued.statement)
    assert issued.rounds_spent == 10
    assert issued.epsilon <= 8
    assert issued.run in {e.run for e in CorpusLedger(tmp_path / "corpus").entries()}
    assert issued.files
    assert json.loads((tmp_path / "my-run" / "certificate.json").read_text())["private"]


def test_configs_in_the_documentation_are_valid(tmp_path):
    text = (DOCS / "training.md").read_text()
    whole, part, words = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "whole.yaml").write_text(whole)
    assert load_config(tmp_path / "whole.yaml").privacy.epsilon == 8
    (tmp_path / "part.yaml").write_text(whole.replace(whole[whole.index("model:") :], part))
    model = load_config(tmp_path / "part.yaml").model
    assert model.sizes == {
        "hidden_size": 1150,
        "embedding_size": 100,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
    }
    (tmp_path / "words.yaml").write_text(
        whole.replace(whole[whole.index("model:") :], "model: {name: awd-lstm}\n" + words)
    )
    assert load_config(tmp_path / "words.yaml").vocabulary.source == "public"
    load_config(DOCS / "demo-offline.yaml")


def test_no_network_is_used(corpora, tmp_path):
    with tiny.no_network() as attempts:
        train(corpora, tmp_path / "run", privacy={**PRIVACY, "rounds": 1})
    assert not attempts
