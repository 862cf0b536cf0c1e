import logging

import pytest
import torch

from tests.methods.rounds import CPU, flat, gpt2, method_on, plan, projected, sentence_gradient
from tests.models import tiny
from tests.training import worlds
from uedp.mechanism.estimators import Weights, f_e, f_e_plus
from uedp.mechanism.local_update import shuffled
from uedp.methods.randomness import Randomness
from uedp.training.tasks import NextWord


@pytest.mark.parametrize("estimator", ["f_E", "f_E+"])
@pytest.mark.parametrize("literal", [False, True])
def test_a_uedp_alg_round_matches_a_sum_by_hand(estimator, literal):
    output = plan(
        "uedp-alg",
        privacy__noise=0.0,
        privacy__seed=1,
        privacy__user_rate=0.2,
        privacy__entity_rate=0.6,
        privacy__update_clip=0.3,
        method_options__estimator=estimator,
        method_options__local_rate=0.05,
        method_options__local_batch=1,
        method_options__user_cap=6,
        method_options__literal_line=literal,
    )
    gradient = method_on(output).round(2)
    weights = Weights.of(worlds.incidence(), 6, 1)
    expected = (f_e if estimator == "f_E" else f_e_plus)(output.sampling, weights, 0.3, 0.0)
    with Randomness(output.config.privacy.seed).of_round(2, CPU) as (generator, _, _):
        who = expected.draw(worlds.incidence(), generator)
        orders = shuffled(who.sentences, generator)
    task, total = NextWord(worlds.texts(), tiny.tokenizer(), 32), torch.zeros(1)
    for user, order in zip(who.users, orders, strict=True):
        model = gpt2()
        start = flat(model.parameters())
        for place in order:
            step = sentence_gradient(model, task, who.sentences.values[place])
            # as printed, every step is taken from the start: only the last one is left
            origin = start if literal else flat(model.parameters())
            moved = origin - 0.05 * float(who.weights[place]) * step
            torch.nn.utils.vector_to_parameters(moved, model.parameters())
        total = total + weights.users[user] * projected(flat(model.parameters()) - start, 0.3)
    # W_u is 40 times a half; 4 names, 80 sentences without one
    denominator = 0.2 * 20 * (0.6 * 4 + (80 if estimator == "f_E+" else 0))
    assert expected.denominator == pytest.approx(denominator)
    assert torch.allclose(flat(gradient.values), -total / denominator, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_uedp_alg_trains_users_in_parallel(kind, caplog):
    """Causal models are handed no mask, which could not be batched."""
    model = getattr(tiny, kind)().train()
    model.config.pad_token_id, model.config.use_cache = None, False
    one = method_on(plan("uedp-alg"), model=model)
    with caplog.at_level(logging.WARNING):
        one.round(0)
    assert one._local.batched
    assert not caplog.records
