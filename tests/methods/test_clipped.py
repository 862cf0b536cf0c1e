from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

from tests.methods.rounds import CPU, flat, gpt2, method_on, plan, projected, sentence_gradient
from tests.models import tiny
from tests.training import worlds
from uedp.errors import UserError
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.lending import lend
from uedp.mechanism.packing import SHARED_ROWS
from uedp.mechanism.sampling import draw, draw_whole
from uedp.methods import clipped
from uedp.methods.randomness import Randomness
from uedp.methods.rotation import lending_schedule
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable
from uedp.training.build import build_method
from uedp.training.plan import build_plan
from uedp.training.provenance import Provenance
from uedp.training.tasks import NextWord


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_a_clipped_round_matches_a_sum_by_hand(method):
    output = plan(
        method,
        privacy__noise=0.0,
        privacy__seed=1,
        privacy__entity_share=0.5,
        privacy__update_clip=0.8,
        privacy__user_rate=0.2,
        privacy__extended_rate=0.7,
    )
    method_ = method_on(output)
    gradient = method_.round(3)
    with Randomness(output.config.privacy.seed).of_round(3, CPU) as (generator, key, _):
        if method == "rotation":
            usable = lending_schedule(lend, worlds.incidence(), 1).at(3, key)
            who = draw(worlds.incidence(), output.sampling, generator, key, usable)
        else:
            who = draw_whole(worlds.incidence(), output.sampling, generator, key)
    task, model = NextWord(worlds.texts(), tiny.tokenizer(), 32), gpt2()
    share = 0.5 - 0.5 * output.clips.margin if method == "rotation" else 2.0
    total = torch.zeros(1)
    weights = dict(zip(who.sentences.values.tolist(), who.weights.tolist(), strict=True))
    for place in range(len(who.users)):
        update = torch.zeros(1)
        for sentence in who.sentences[place]:
            clip = share * 0.8 * weights[sentence]
            update = update + projected(sentence_gradient(model, task, sentence), clip)
        total = total + projected(update, 0.8)
    assert len(who.sentences.values)
    expected = total / (0.2 * 40)  # clip factors divide by upper bounds of norms
    assert float((flat(gradient.values) - expected).norm()) <= 3e-3 * float(expected.norm())
    assert gradient.deviation == 0
    assert gradient.stats.users == len(who.users)


def test_recomputed_losses_use_the_same_precision(monkeypatch, tmp_path):
    """Else a text that is not finite would move everybody in its chunk by a common rounding."""
    seen = []

    class Asked(torch.autocast):
        def __enter__(self):
            seen.append("in")
            return super().__enter__()

    config = worlds.config("m")
    material = worlds.training_data(tmp_path / "corpus")
    loaded = load_model(worlds.model(tmp_path, "llama"))
    task = NextWord(material.train.texts, loaded.tokenizer, 32)
    method = build_method(
        build_plan(config, material.incidence),
        material.incidence,
        loaded.model,
        task,
        lambda: Asked("cpu", torch.bfloat16),
    )
    assert method.packing == SHARED_ROWS
    output = method._losses(np.arange(4))
    seen.clear()
    output.recompute()
    assert seen == ["in"]


def method_in_passes(tmp_path, monkeypatch, spoil=lambda one: None, precision="float32"):
    """A method whose rounds are computed in passes of one shape, as on an accelerator."""

    def on_cpu(model, tokens, longest, dtype):
        one = FixedPass(model, 1024, longest, dtype)
        one.tried = dtype
        spoil(one)
        return one

    monkeypatch.setattr(clipped, "fixed_pass", on_cpu)
    config = worlds.config("m", privacy__seed=1, privacy__noise=0.0)
    material = worlds.training_data(tmp_path / "corpus")
    loaded = load_model(worlds.model(tmp_path, "llama"))
    model = make_trainable(loaded.model, "lora", rank=4)
    task = NextWord(material.train.texts, loaded.tokenizer, 32)
    plan = build_plan(config, material.incidence, Provenance(precision=precision))
    half = partial(torch.autocast, "cpu", torch.bfloat16)
    autocast = nullcontext if precision == "float32" else half
    return build_method(plan, material.incidence, model, task, autocast)


def test_rounds_in_passes_of_one_shape_are_the_engines(tmp_path, monkeypatch):
    method = method_in_passes(tmp_path, monkeypatch)
    assert method._fixed is not None
    used = []
    real = method._fixed.one.clipped_sum
    monkeypatch.setattr(
        method._fixed.one, "clipped_sum", lambda *given: used.append(1) or real(*given)
    )
    found = flat(method.round(2).values)
    assert used
    method._fixed = None
    expected = flat(method.round(2).values)
    assert float((found - expected).norm()) <= 2e-3 * float(expected.norm())


def test_passes_that_differ_from_the_engine_are_not_used(tmp_path, monkeypatch, caplog):
    method = method_in_passes(tmp_path, monkeypatch, lambda one: one._groups[0].weight.mul_(4.0))
    assert method._fixed is None
    assert "not computed in passes of one shape" in caplog.text
    method.round(1)


def test_passes_in_half_precision_are_tried_in_float32_first(tmp_path, monkeypatch):
    tried = []

    def note(one):
        tried.append(one.tried)

    method = method_in_passes(tmp_path, monkeypatch, note, "bfloat16-fixed")
    assert tried == [torch.float32, torch.bfloat16]
    assert method._fixed.one.tried == torch.bfloat16


def test_a_pass_that_is_wrong_in_float32_is_refused_with_the_reason(tmp_path, monkeypatch):
    def spoil(one):
        if one.tried == torch.float32:
            one._groups[0].weight.mul_(1.2)

    with pytest.raises(UserError, match=r"bfloat16-fixed.*engine.*set it to float32"):
        method_in_passes(tmp_path, monkeypatch, spoil, "bfloat16-fixed")


def test_passes_are_built_anew_for_a_model_that_was_changed(tmp_path, monkeypatch):
    method = method_in_passes(tmp_path, monkeypatch)
    before = method._fixed
    method.round(1)
    assert method._fixed is before
    with torch.no_grad():
        method.model.get_input_embeddings().weight.mul_(2)
    found = flat(method.round(2).values)
    assert method._fixed is not before
    method._fixed = None
    expected = flat(method.round(2).values)
    assert float((found - expected).norm()) <= 2e-3 * float(expected.norm())
