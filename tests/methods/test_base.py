import numpy as np
import pytest
import torch

from tests.methods.rounds import (
    METHODS,
    PRIVATE,
    flat,
    gpt2,
    method_on,
    plan,
)
from tests.training import worlds
from uedp.models.trainable import make_trainable


def emptied(users=(), entities=()):
    """The texts without those of some users and those that mention some entities."""
    texts, incidence = worlds.texts(), worlds.incidence()
    for user in users:
        for sentence in incidence.user_sentences[user]:
            texts[sentence] = ""
    for entity in entities:
        for sentence in incidence.entity_sentences[entity]:
            texts[sentence] = ""
    return texts


@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_fresh_without_a_seed_and_repeated_with_one(method):
    """With dropout, whose masks PyTorch draws: they begin alike in every process."""
    model = gpt2(0.3).train()
    for seed, repeated in ((None, False), (1, True)):
        rounds = []
        for _ in range(2):
            torch.manual_seed(0)
            one = method_on(plan(method, privacy__seed=seed), model=model)
            rounds.append(flat(one.round(2).values))
        assert torch.equal(*rounds) == repeated


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("method", PRIVATE)
def test_the_noise_has_the_planned_deviation(method, seed):
    """All texts are empty, so that a round is noise and nothing else."""
    output = plan(method, privacy__noise=1.5, privacy__update_clip=0.4, privacy__seed=seed)
    gradient = method_on(output, [""] * 120).round(0)
    values = flat(gradient.values)
    if method == "uedp-alg":  # z (q_u |U| + 1) beta over q_u W_u (q_e W_e + q_s W_s)
        expected = 1.5 * (0.5 * 40 + 1) * 0.4 / (0.5 * 40 * (4 + 80))
    else:
        expected = 1.5 * 0.4 / (0.5 * 40)
    expected *= 1 + output.clips.margin
    assert gradient.deviation == pytest.approx(expected)
    assert float(values.std()) == pytest.approx(expected, rel=0.02)  # some 50,000 of them
    assert abs(float(values.mean())) < 0.03 * expected
    assert float((values == 0).float().mean()) < 0.001


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_without_users_still_adds_noise(method, monkeypatch):
    for module in ("sampling", "estimators"):
        monkeypatch.setattr(f"uedp.mechanism.{module}.draw_users", lambda *_: np.zeros(0, int))
    gradient = method_on(plan(method, privacy__noise=1.5)).round(0)
    assert gradient.stats.users == 0
    assert float(flat(gradient.values).std()) == pytest.approx(gradient.deviation, rel=0.02)


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_emptying_a_user_and_an_entity_moves_the_sum_within_the_bound(method):
    share = 0.3
    output = plan(method, privacy__noise=0.0, privacy__seed=2, privacy__entity_share=share)
    full, rounds = method_on(output), range(4)
    sums = [flat(full.round(n).values) * output.expected_users for n in rounds]

    def moved(**which):
        other = method_on(output, emptied(**which))
        return [
            float((flat(other.round(n).values) * output.expected_users - sums[n]).norm())
            for n in rounds
        ]

    user, entity, both = moved(users=[3]), moved(entities=[1]), moved(users=[3], entities=[1])
    assert max(user) <= 1 + 1e-4
    assert max(user) > 0.5  # some round drew it
    if method == "rotation":
        assert max(entity) <= share + 1e-4
        assert max(entity) > 0.5 * share
        assert max(both) <= 1 + share + 1e-4
    else:
        assert max(entity) > 1  # of entities that many mention, user-level protects nothing


def test_an_emptied_corpus_gives_a_zero_sum():
    for method in METHODS:
        output = plan(method, **({"privacy__noise": 0.0} if method in PRIVATE else {}))
        values = flat(method_on(output, [""] * 120).round(0).values)
        assert float(values.abs().max()) == 0, method


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_the_trained_ones_in_order(method):
    model = make_trainable(gpt2(), "last:1")
    one = method_on(plan(method), model=model)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(one.parameters) == len(trained)
    assert all(a is b for a, b in zip(one.parameters, trained, strict=True))
    values = one.round(0).values
    assert [v.shape for v in values] == [p.shape for p in trained]
    assert all(p.grad is None for p in model.parameters())
