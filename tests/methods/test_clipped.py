import numpy as np
import pytest
import torch

from tests.methods.rounds import CPU, flat, gpt2, method_on, plan, projected, sentence_gradient
from tests.models import tiny
from tests.training import worlds
from uedp.mechanism.lending import lend
from uedp.mechanism.packing import SHARED_ROWS
from uedp.mechanism.sampling import draw, draw_whole
from uedp.methods.randomness import Randomness
from uedp.methods.rotation import LendingSchedule
from uedp.models.load import load_model
from uedp.training.build import build_method
from uedp.training.plan import build_plan
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
            usable = LendingSchedule(lend, worlds.incidence(), 1).usable(3, key)
            who = draw(worlds.incidence(), output.sampling, generator, key, usable)
        else:
            who = draw_whole(worlds.incidence(), output.sampling, generator, key)
    task, model = NextWord(worlds.texts(), tiny.tokenizer(), 32), gpt2()
    share = 0.5 - 0.5 * output.clips.margin if method == "rotation" else 2.0
    total = torch.zeros(1)
    crowding = dict(zip(who.sentences.values.tolist(), who.crowding.tolist(), strict=True))
    for place in range(len(who.users)):
        update = torch.zeros(1)
        for sentence in who.sentences[place]:
            clip = share * 0.8 / crowding[sentence]
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
