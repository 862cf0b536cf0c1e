import pytest
import torch
import transformers

from tests.models import tiny
from tests.training.runs import (
    snapshot,
)
from uedp.training import engine as engine_module


@pytest.mark.parametrize(
    ("kind", "how"), [("gpt2", "full"), ("gpt2", "lora"), ("llama", "lora"), ("llama", "last:1")]
)
def test_transformers_loads_a_run_directory(kind, how, train, saved, tmp_path):
    outcome = train(model=saved(kind), model__train=how, privacy__rounds=2)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = torch.tensor([tokenizer("the day is")["input_ids"]])
    with torch.no_grad():
        expected = outcome.model(input_ids=ids).logits
        before = getattr(tiny, kind)()(input_ids=ids).logits
        assert torch.allclose(loaded(input_ids=ids).logits, expected, atol=1e-4)
    assert not torch.allclose(before, expected, atol=1e-2)
    assert loaded.config.use_cache  # off in training only
    assert loaded.config.pad_token_id == tokenizer.pad_token_id is not None
    assert (tmp_path / "run" / "adapter").is_dir() == (how == "lora")
    assert not outcome.model.training
    text = (tmp_path / "run" / "config.json").read_text()
    assert str(tmp_path) not in text


@pytest.mark.parametrize("method", ["rotation", "noiseless"])
def test_resuming_a_finished_run_does_nothing(method, train, saved, tmp_path, monkeypatch):
    first = train(privacy__method=method)
    before = snapshot(tmp_path / "run", tmp_path / "corpus")
    for forbidden in ("plan_run", "read_training_data", "save_model"):
        monkeypatch.setattr(engine_module, forbidden, lambda *_: pytest.fail("it was at work"))
    second = train(privacy__method=method, resume=True)
    assert snapshot(tmp_path / "run", tmp_path / "corpus") == before
    assert train.said == ["this run is finished; there is nothing to do"]
    assert second.finished
    assert second.certificate == first.certificate
    assert (second.before, second.after, second.rounds) == (first.before, first.after, 4)
    found = second.model.state_dict()
    assert all(torch.equal(found[n], t) for n, t in first.model.state_dict().items())
