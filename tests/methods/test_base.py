import contextlib
import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers

from tests.models import tiny
from tests.training import worlds
from uedp.errors import UserError
from uedp.mechanism.estimators import Weights, f_e, f_e_plus
from uedp.mechanism.lending import lend
from uedp.mechanism.local_update import shuffled
from uedp.mechanism.packing import SHARED_ROWS
from uedp.mechanism.sampling import draw, draw_whole
from uedp.methods import rotation
from uedp.methods.randomness import Randomness
from uedp.methods.rotation import LendingSchedule
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable
from uedp.training.build import build_method, refuse_mixing
from uedp.training.plan import build_plan
from uedp.training.tasks import Classification, NextWord

PRIVATE = ("rotation", "user-level", "uedp-alg")
METHODS = (*PRIVATE, "noiseless", "deidentified")
CPU = torch.device("cpu")


def plan(method: str = "rotation", **changes):
    config = worlds.config("model", privacy__method=method, **changes)
    return build_plan(config, worlds.incidence())


def gpt2(dropout: float = 0.0):
    return tiny.gpt2(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)


def made(found, texts=None, model=None):
    task = NextWord(worlds.texts() if texts is None else texts, tiny.tokenizer(), 32)
    return build_method(found, worlds.incidence(), model or gpt2(), task, contextlib.nullcontext)


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


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


# --- randomness ----------------------------------------------------------------------------------


def seen(randomness, number: int):
    """All that a round can draw."""
    with randomness.of_round(number, CPU) as (generator, key, noise):
        masks = torch.nn.functional.dropout(torch.ones(64)).tolist()
        sums = [torch.zeros(8)]
        noise.add_(sums, 1.0)
        return generator.random(4).tolist(), [key], masks, sums[0].tolist()


def differ(one, other) -> bool:
    return all(a != b for a, b in zip(one, other, strict=True))


def test_without_a_seed_rounds_share_no_randomness():
    found = plan()
    runs = []
    for _ in range(2):  # two processes, alike in all else
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        randomness = Randomness(found.config.privacy.seed)
        runs += [seen(randomness, 0), seen(randomness, 0), seen(randomness, 1)]
    for place, one in enumerate(runs):
        assert all(differ(one, other) for other in runs[:place])


def test_with_a_seed_a_round_depends_on_seed_and_number_only():
    found = plan(privacy__seed=5)
    torch.manual_seed(0)
    one = seen(Randomness(found.config.privacy.seed), 3)
    later = Randomness(found.config.privacy.seed)
    seen(later, 0)
    torch.manual_seed(1)
    assert seen(later, 3) == one
    assert differ(seen(later, 4), one)
    assert differ(seen(Randomness(6), 3), one)


@pytest.mark.parametrize("seed", [None, 1])
def test_the_callers_generators_are_left_unchanged(seed):
    before = torch.get_rng_state()
    seen(Randomness(seed), 0)
    with pytest.raises(ZeroDivisionError), Randomness(None).of_round(0, CPU):
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_the_noise_source_matches_the_certificate():
    for seed, name in ((None, "cipher"), (1, "fixed seed")):
        found = plan(privacy__seed=seed)
        with Randomness(found.config.privacy.seed).of_round(0, CPU) as (_, _, noise):
            assert found.setup().noise_source == noise.source == name


@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_fresh_without_a_seed_and_repeated_with_one(method):
    """With dropout, whose masks PyTorch draws: they begin alike in every process."""
    model = gpt2(0.3).train()
    for seed, repeated in ((None, False), (1, True)):
        rounds = []
        for _ in range(2):
            torch.manual_seed(0)
            one = made(plan(method, privacy__seed=seed), model=model)
            rounds.append(flat(one.round(2).values))
        assert torch.equal(*rounds) == repeated


# --- a round is what it should be ----------------------------------------------------------------


def sentence_gradient(model, task, sentence):
    loss = task.losses(model, np.array([sentence])).sum()
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    zeros = (torch.zeros_like(p) for p in parameters)
    return flat(z if g is None else g for g, z in zip(found, zeros, strict=True))


def projected(vector, bound: float):
    return vector * min(1.0, bound / max(float(vector.norm()), 1e-30))


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_a_clipped_round_matches_a_sum_by_hand(method):
    found = plan(
        method,
        privacy__noise=0.0,
        privacy__seed=1,
        privacy__entity_share=0.5,
        privacy__update_clip=0.8,
        privacy__user_rate=0.2,
        privacy__extended_rate=0.7,
    )
    method_ = made(found)
    gradient = method_.round(3)
    with Randomness(found.config.privacy.seed).of_round(3, CPU) as (generator, key, _):
        if method == "rotation":
            usable = LendingSchedule(lend, worlds.incidence(), 1).usable(3)
            who = draw(worlds.incidence(), found.sampling, generator, key, usable)
        else:
            who = draw_whole(worlds.incidence(), found.sampling, generator, key)
    task, model = NextWord(worlds.texts(), tiny.tokenizer(), 32), gpt2()
    share = 0.5 - 0.5 * found.clips.margin if method == "rotation" else 2.0
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


def test_lending_is_constant_for_a_period_and_depends_on_the_seed(monkeypatch):
    mentions, period = len(worlds.incidence().sentence_entities.values), 3
    monkeypatch.setattr(rotation, "_MENTIONS_PER_ROUND", mentions // (period - 1))
    one, other = (
        LendingSchedule(lend, worlds.incidence(), 5),
        LendingSchedule(lend, worlds.incidence(), 5),
    )
    assert one.usable(0) is one.usable(period - 1)
    seen = [one.usable(number * period).copy() for number in range(6)]
    assert any((a != b).any() for a, b in pairwise(seen))
    for number in (5, 0, 3):
        assert (other.usable(number * period) == seen[number]).all()


def test_without_a_seed_lending_is_redrawn():
    seen = {LendingSchedule(lend, worlds.incidence(), None).usable(0).tobytes() for _ in range(20)}
    assert len(seen) > 1


@pytest.mark.parametrize("estimator", ["f_E", "f_E+"])
@pytest.mark.parametrize("literal", [False, True])
def test_a_uedp_alg_round_matches_a_sum_by_hand(estimator, literal):
    found = plan(
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
    gradient = made(found).round(2)
    weights = Weights.of(worlds.incidence(), 6, 1)
    expected = (f_e if estimator == "f_E" else f_e_plus)(found.sampling, weights, 0.3, 0.0)
    with Randomness(found.config.privacy.seed).of_round(2, CPU) as (generator, _, _):
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


@pytest.mark.parametrize("room", [None, 40])
def test_a_noiseless_round_matches_a_mean_by_hand(room):
    found = plan("noiseless", privacy__seed=1, privacy__user_rate=0.2, run__tokens_at_once=room)
    gradient = made(found).round(2)
    with Randomness(found.config.privacy.seed).of_round(2, CPU) as (generator, key, _):
        who = draw_whole(worlds.incidence(), found.sampling, generator, key)
    task, model = NextWord(worlds.texts(), tiny.tokenizer(), 32), gpt2()
    each = [sentence_gradient(model, task, s) for s in who.sentences.values]
    assert torch.allclose(flat(gradient.values), torch.stack(each).mean(0), atol=1e-4, rtol=1e-3)
    assert gradient.stats.sentences == len(each)


# --- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("method", PRIVATE)
def test_the_noise_has_the_planned_deviation(method, seed):
    """All texts are empty, so that a round is noise and nothing else."""
    found = plan(method, privacy__noise=1.5, privacy__update_clip=0.4, privacy__seed=seed)
    gradient = made(found, [""] * 120).round(0)
    values = flat(gradient.values)
    if method == "uedp-alg":  # z (q_u |U| + 1) beta over q_u W_u (q_e W_e + q_s W_s)
        expected = 1.5 * (0.5 * 40 + 1) * 0.4 / (0.5 * 40 * (4 + 80))
    else:
        expected = 1.5 * 0.4 / (0.5 * 40)
    expected *= 1 + found.clips.margin
    assert gradient.deviation == pytest.approx(expected)
    assert float(values.std()) == pytest.approx(expected, rel=0.02)  # some 50,000 of them
    assert abs(float(values.mean())) < 0.03 * expected
    assert float((values == 0).float().mean()) < 0.001


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_without_users_still_adds_noise(method, monkeypatch):
    for module in ("sampling", "estimators"):
        monkeypatch.setattr(f"uedp.mechanism.{module}.draw_users", lambda *_: np.zeros(0, int))
    gradient = made(plan(method, privacy__noise=1.5)).round(0)
    assert gradient.stats.users == 0
    assert float(flat(gradient.values).std()) == pytest.approx(gradient.deviation, rel=0.02)


# --- what one user and one entity can do ---------------------------------------------------------


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_emptying_a_user_and_an_entity_moves_the_sum_within_the_bound(method):
    share = 0.3
    found = plan(method, privacy__noise=0.0, privacy__seed=2, privacy__entity_share=share)
    full, rounds = made(found), range(4)
    sums = [flat(full.round(n).values) * found.expected_users for n in rounds]

    def moved(**which):
        other = made(found, emptied(**which))
        return [
            float((flat(other.round(n).values) * found.expected_users - sums[n]).norm())
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
        found = plan(method, **({"privacy__noise": 0.0} if method in PRIVATE else {}))
        values = flat(made(found, [""] * 120).round(0).values)
        assert float(values.abs().max()) == 0, method


# --- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_uedp_alg_trains_users_in_parallel(kind, caplog):
    """Causal models are handed no mask, which could not be batched."""
    model = getattr(tiny, kind)().train()
    model.config.pad_token_id, model.config.use_cache = None, False
    one = made(plan("uedp-alg"), model=model)
    with caplog.at_level(logging.WARNING):
        one.round(0)
    assert one._local.batched
    assert not caplog.records


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_the_trained_ones_in_order(method):
    model = make_trainable(gpt2(), "last:1")
    one = made(plan(method), model=model)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(one.parameters) == len(trained)
    assert all(a is b for a, b in zip(one.parameters, trained, strict=True))
    values = one.round(0).values
    assert [v.shape for v in values] == [p.shape for p in trained]
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_mixes_sentences_is_refused():
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gpt2()

        def forward(self, input_ids):
            found = self.inner(input_ids=input_ids)
            found.logits = found.logits - found.logits.mean(0, keepdim=True)
            return found

    texts = [f"{number} and so on" for number in range(120)]
    with pytest.raises(UserError, match="changes with the sentences beside it"):
        made(plan(), texts, model=Mixing())


def test_a_model_that_depends_on_row_width_is_refused():
    """The sentences it is tried with differ in length."""

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gpt2()

        def forward(self, input_ids):
            found = self.inner(input_ids=input_ids)
            found.logits = found.logits * (1 + 0.1 * input_ids.shape[1])
            return found

    texts = worlds.texts()[:60] + [text + " and more" for text in worlds.texts()[60:]]
    with pytest.raises(UserError, match="changes with the sentences beside it"):
        made(plan(), texts, model=Padded())


def test_a_model_that_attends_to_padding_is_refused():
    config = transformers.FNetConfig(
        vocab_size=tiny.WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2
    )
    torch.manual_seed(0)
    model = transformers.FNetForSequenceClassification(config)
    texts = [10 * "a" * (1 + place // 4) for place in range(12)]
    words = tiny.tokenizer(pad_token="<|end|>")
    task = Classification(texts, ["x", "y"] * 6, ["x", "y"], words, 60)
    with pytest.raises(UserError, match="FNetForSequenceClassification mixes"):
        refuse_mixing(model, task)
    refuse_mixing(tiny.bert(), task)


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
    found = method._losses(np.arange(4))
    seen.clear()
    found.recompute()
    assert seen == ["in"]
