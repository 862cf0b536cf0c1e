"""A private run whose frozen weights have four bits."""

import pytest
import torch
from safetensors.torch import load_file

from tests.training import worlds
from tests.training.runs import stopping_after
from uedp.accounting import certificate as certificates
from uedp.errors import UserError

pytest.importorskip("bitsandbytes")

CHANGES = {"model__train": "lora", "model__rank": 2, "model__quantize": "4bit"}


def test_a_run_learns_resumes_and_is_certified(train, saved, tmp_path):
    changes = CHANGES | {"privacy__seed": 1, "optimiser__rate": 0.02, "model": saved("llama")}
    whole = train("whole", **changes)
    assert whole.after["perplexity"] != whole.before["perplexity"]
    train("parts", progress=stopping_after(2), **changes)
    assert train("parts", resume=True, **changes).finished
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    train("secret", **CHANGES, model=saved("llama"))
    found = certificates.verify(tmp_path / "secret", corpus=tmp_path / "corpus")
    assert found.rounds_spent == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__train": "full"}, "train adapters"),
        ({"data__public": "text"}, r"learned from data\.public"),
    ],
)
def test_what_would_change_frozen_weights_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        worlds.config("gpt2", **CHANGES | changes)
