"""Sentences that share rows are clipped as if each had a row of its own."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism import packing
from uedp.mechanism.clip import Engine, combine
from uedp.mechanism.clip.reference import clipped_sum
from uedp.mechanism.packing import SHARED_ROWS, PackedLosses, cut_up
from uedp.models.trainable import make_trainable
from uedp.training.tasks import NextWord

TEXTS = ["the cat sat", "", "a", "the other theory was longer by far", "on and on and on", "the"]
OWNERS = [2, 0, 1, 0, 2, 0]
CLIPS = torch.tensor([0.3, 1.0, 0.2, 0.5, 0.4, 9.0])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("train", ["full", "lora"])
@pytest.mark.parametrize("way", ["as it costs least", "explicit", "in pieces"])
def test_the_sum_is_the_oracles(kind, train, way, monkeypatch):
    if way != "as it costs least":
        monkeypatch.setattr(combine, "_cheapest", lambda *_: "explicit")
    if way == "in pieces":
        monkeypatch.setattr(packing, "piece_width", lambda _: 3)
    check_against_the_oracle(
        make_trainable(getattr(tiny, kind)(), train, rank=2, alpha=4.0, seed=0)
    )


def check_against_the_oracle(model):
    task = NextWord(TEXTS, tiny.tokenizer(), 32)
    model.eval()
    expected, norms = clipped_sum(
        model,
        lambda place: task.losses(model, np.array([place]))[0],
        OWNERS,
        CLIPS.tolist(),
        0.6,
    )
    assert task.packing_for(model) == SHARED_ROWS
    engine = Engine(model)
    found = engine.clipped_sum(
        lambda order: task.losses(model, np.array(order), SHARED_ROWS), OWNERS, CLIPS, 0.6
    )
    assert torch.allclose(found.sentence_norms.double(), norms, rtol=1e-4, atol=1e-6)
    for parameter, sum_ in zip(engine.parameters, expected, strict=True):
        ours = found.gradients.get(parameter, torch.zeros_like(parameter))
        assert torch.allclose(ours, sum_, atol=2e-4)  # factors divide by upper bounds


@pytest.mark.parametrize("pieces", [False, True])
def test_a_sentence_that_is_not_finite_contributes_nothing(pieces, monkeypatch):
    if pieces:
        monkeypatch.setattr(combine, "_cheapest", lambda *_: "explicit")
        monkeypatch.setattr(packing, "piece_width", lambda _: 3)
    model = tiny.llama()

    def summed(texts, spoilt):
        own = NextWord(texts, tiny.tokenizer(), 32)

        def losses(order):
            found = own.losses(model, np.array(order), SHARED_ROWS)
            scale = torch.tensor([math.nan if place in spoilt else 1.0 for place in order])
            return replace(
                found, losses=found.losses * scale, recompute=lambda: found.recompute() * scale
            )

        return Engine(model).clipped_sum(losses, OWNERS, CLIPS, 0.6).gradients

    without = summed([*TEXTS[:3], "", *TEXTS[4:]], ())
    for parameter, sum_ in summed(TEXTS, (3,)).items():
        assert torch.allclose(sum_, without[parameter], atol=1e-5)


def test_a_layer_that_does_not_see_every_token_is_refused_by_name():
    layer = torch.nn.Linear(3, 3)
    inputs = torch.ones(2, 4, 3)

    def losses(order):
        out = layer(inputs[:, :2]).sum((1, 2))  # half of each row
        rows = cut_up(np.array([0, 4]), np.array([4, 4]), 4, 8)
        return PackedLosses(out, rows, rows, lambda: out, np.array([0, 4]), np.array([4, 4]))

    with pytest.raises(UserError, match="cannot share rows"):
        Engine(layer).clipped_sum(losses, [0, 1], torch.ones(2), 1.0)
