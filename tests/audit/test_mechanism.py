"""The audit: it clears what is right, comes close to what is proven, and catches what is broken."""

import itertools
import json
import math
from contextlib import contextmanager
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.audit import plans
from tests.audit.plans import DELTA, audit, worlds
from uedp.accounting.proven import MissedProfile, RotationProfile, UedpAlgProfile, UserLevelProfile
from uedp.audit import mechanism as mechanism_module
from uedp.audit.mechanism import (
    Draw,
    Mechanism,
    Replicas,
    attack,
    noisy_sums,
    projected_sums,
)
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.clip import Engine
from uedp.mechanism.estimators import draw_uedp_alg
from uedp.mechanism.local_update import LocalUpdate, Steps, shuffled
from uedp.mechanism.noise import SeededNoise
from uedp.mechanism.release import release
from uedp.mechanism.sampling import Sampling, draw, draw_users

QUICK = {"fit_curve": False}
USER = UserLevelProfile(1.0, 0.5)


def a_round(mechanism, replicas, seed: int):
    """Who takes part in a round, by training's own code."""
    rounds = mechanism.draws(mechanism.plan.seeded(seed), replicas.incidence)
    return rounds(0, np.random.default_rng(seed), seed)


# --- the fast way is the real way ----------------------------------------------------------------


_BOUNDED = 1e-3  # the engine clips by upper bounds on norms, which are a little above them


class Silence:
    source = "fixed seed"

    def add_(self, sums, deviation):
        pass


def by_engine(replicas, draw, clips, multiplier, noise, layers: int = 1):
    """The noisy sum of each replica by the real `release`; a gradient is spread over the layers.

    A layer is a table with one weight per replica, which its own sentences look up, so that a sum
    per replica comes out of one sum. The adversary reads the outputs along the direction that the
    gradients have.
    """
    model = nn.ModuleList([nn.Embedding(replicas.count, 1) for _ in range(layers)])
    gradients = torch.from_numpy(replicas.gradients * clips.update / math.sqrt(layers)).float()

    each = replicas.incidence.sentences // replicas.count

    def losses(sentences):
        place = torch.from_numpy(np.asarray(sentences, dtype=np.int64) // each)
        weights = sum(layer(place[:, None])[:, 0, 0] for layer in model)
        return gradients[torch.from_numpy(np.asarray(sentences, dtype=np.int64))] * weights

    who = draw.participants
    lengths = np.ones(len(who.sentences.values), int)
    sums, _ = release(Engine(model), who, losses, lengths, clips, noise, multiplier, max_tokens=512)
    return torch.stack([table[:, 0] for table in sums]).sum(0) / math.sqrt(layers)


def random_replicas(profile, kind, seed: int) -> Replicas:
    """Gradients of all sizes, not only the adversary's."""
    rng = np.random.default_rng(seed)
    replicas = Replicas.of(worlds(profile, kind)[0], 20, 20)
    gradients = rng.normal(size=replicas.incidence.sentences) * 10 ** rng.uniform(
        -2, 3, replicas.incidence.sentences
    )
    return replace(replicas, gradients=gradients)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("profile", "kind"),
    [
        (UserLevelProfile(1.0, 0.6), "user"),
        (RotationProfile(1.0, 0.6, 0.3), "user and entity"),
        (MissedProfile(RotationProfile(1.0, 0.6, 0.3), 2, 3, 0.3), "missed mention"),
    ],
)
def test_arithmetic_equals_the_engine(profile, kind, layers, seed):
    """Guarantee of noisy_sums, on a round of 40 replicas with random gradients."""
    replicas, mechanism = random_replicas(profile, kind, seed), plans.mechanism(profile)
    drawn = a_round(mechanism, replicas, seed)
    ours = noisy_sums(replicas, drawn, mechanism.clips, 1.0, Silence())
    real = by_engine(replicas, drawn, mechanism.clips, 1.0, Silence(), layers)
    assert ours.abs().max() > 0.5
    assert torch.allclose(ours, real, atol=_BOUNDED)


def test_both_ways_add_the_same_noise():
    profile = RotationProfile(1.7, 0.3, 0.3)
    replicas, mechanism = random_replicas(profile, "entity", 0), plans.mechanism(profile)
    drawn = a_round(mechanism, replicas, 0)
    outputs = [
        way(replicas, drawn, mechanism.clips, 1.7, SeededNoise(4))
        for way in (noisy_sums, by_engine)
    ]
    assert torch.allclose(*outputs, atol=_BOUNDED)


@pytest.mark.parametrize("seed", range(3))
def test_arithmetic_equals_local_updates(seed):
    """UeDP-Alg's round: one step on the weighted sum of gradients, clipped as a whole."""
    profile = UedpAlgProfile(2.0, 0.7, 6, 4)
    replicas = Replicas.of(worlds(profile, "user and entity")[0], 1, 0)
    rng = np.random.default_rng(seed)
    replicas = replace(replicas, gradients=rng.normal(size=replicas.incidence.sentences))
    found = draw_uedp_alg(replicas.incidence, Sampling(0.7, 0.5), rng, np.ones(7))
    bounds = np.full(len(found.weights), np.inf)
    ours = projected_sums(replicas, Draw(found, found.weights, bounds), 1.0)

    model = nn.Linear(1, 1, bias=False)
    ids = found.sentences.values
    real = LocalUpdate(
        model, lambda forward, batch: forward(batch["x"])[..., 0], Steps(1.0, 100, 1.0)
    ).weighted_sum(
        {"x": torch.from_numpy(replicas.gradients[ids]).float()[:, None]},
        shuffled(found.sentences, rng),
        torch.from_numpy(found.weights).float(),
        torch.ones(len(found.users)),
    )
    # an update goes against the gradient
    assert -real.updates[model.weight].item() == pytest.approx(ours[0], abs=_BOUNDED)


def test_replicas_are_apart_and_alike():
    """Guarantees of Replicas."""
    (world, *_) = worlds(RotationProfile(1.0, 0.3, 0.3), "user and entity")
    replicas, one = Replicas.of(world, 2, 3), world.incidence
    whole = replicas.incidence
    assert (whole.users, whole.sentences, whole.entities) == tuple(
        5 * n for n in (one.users, one.sentences, one.entities)
    )
    assert np.all(replicas.of_users(whole.sentence_user) == np.repeat(np.arange(5), one.sentences))
    for sentence, copy in enumerate(np.arange(whole.sentences) // one.sentences):
        same = sentence - copy * one.sentences
        shifted = one.sentence_entities[same] + copy * one.entities
        assert whole.sentence_entities[sentence].tolist() == shifted.tolist()
        emptied = copy < 2 and world.empties[same]
        assert replicas.gradients[sentence] == (0 if emptied else world.gradients[same])


# --- what is right is cleared --------------------------------------------------------------------


def test_secure_noise_is_audited_too():
    """Its noise cannot be repeated, so the confidence is such that no one sees a false alarm."""
    found = audit(USER, "user", 5, runs=4000, confidence=1 - 1e-5, **QUICK)
    assert found.noise_source == "cipher"
    assert not found.refutes_proven
    assert 0.2 * found.proven < found.gaussian.epsilon < found.proven


# --- what is broken is caught --------------------------------------------------------------------

SEEDS = pytest.mark.parametrize("seed", range(2))


def broken(profile, **parts) -> Mechanism:
    return replace(plans.mechanism(profile), **parts)


def caught(profile, kind, rounds, seed, mechanism, runs=3000, **options) -> bool:
    """Caught where it is broken, and not where it is not."""
    right = audit(profile, kind, rounds, runs=runs, seed=seed, **QUICK, **options)
    assert not right.refutes_proven
    options.setdefault("attacked", mechanism)
    return audit(profile, kind, rounds, runs=runs, seed=seed, **QUICK, **options).refutes_proven


@SEEDS
def test_noise_a_fifth_too_small_is_caught(seed):
    def weak(replicas, drawn, clips, multiplier, noise):
        return noisy_sums(replicas, drawn, clips, 0.8 * multiplier, noise)

    assert caught(USER, "user", 10, seed, broken(USER, release=weak))


def test_an_alarm_is_raised_with_more_confidence():
    def weak(replicas, drawn, clips, multiplier, noise):
        return noisy_sums(replicas, drawn, clips, 0.5 * multiplier, noise)

    one, many = (
        audit(
            USER,
            "user",
            10,
            runs=3000,
            seed=0,
            attacked=broken(USER, release=weak),
            among=n,
            **QUICK,
        )
        for n in (1, 50)
    )
    assert (one.alarm.confidence, many.alarm.confidence) == pytest.approx((0.975, 0.9995))
    assert one.alarm.raised
    assert many.alarm.raised
    assert one.threshold == many.threshold
    assert one.threshold.epsilon > one.alarm.threshold > many.alarm.threshold
    assert one.excess > one.alarm.excess > many.alarm.excess


@SEEDS
def test_noise_skipped_on_empty_rounds_is_caught(seed):
    def skipping(replicas, drawn, clips, multiplier, noise):
        noisy = noisy_sums(replicas, drawn, clips, multiplier, noise)
        drawn_in = np.bincount(
            replicas.of_users(drawn.participants.users), minlength=replicas.count
        ).astype(bool)
        bare = torch.from_numpy(projected_sums(replicas, drawn, clips.update)).float()
        return torch.where(torch.from_numpy(drawn_in), noisy, bare)

    profile = UserLevelProfile(0.8, 0.1)
    assert caught(profile, "user", 20, seed, broken(profile, release=skipping))


@SEEDS
@pytest.mark.parametrize("profile", [USER, RotationProfile(1.0, 0.5, 0.3)])
def test_a_user_clip_left_out_is_caught(profile, seed):
    def unclipped(replicas, drawn, clips, multiplier, noise):
        sums = torch.from_numpy(projected_sums(replicas, drawn, np.inf)).float()
        noise.add_([sums], multiplier * clips.update)
        return sums

    assert caught(profile, "user", 10, seed, broken(profile, release=unclipped), runs=1000)


@SEEDS
def test_lending_among_the_drawn_is_caught(seed):
    """Selection that looks at who was drawn: with many holders the entity is used every round."""
    profile = RotationProfile(1.0, 0.1, 0.5)

    def among_drawn(plan, incidence):
        def rounds(number, generator, key):
            users = draw_users(incidence.users, plan.sampling.user_rate, generator)
            is_drawn = np.zeros(incidence.users, dtype=bool)
            is_drawn[users] = True
            mentions = incidence.sentence_entities
            row = mentions.row_of_value()
            kept = is_drawn[incidence.sentence_user[row]]
            seen = Incidence.build(
                incidence.sentence_user,
                row[kept],
                mentions.values[kept],
                incidence.users,
                incidence.entities,
            )
            # the same users again, now that who else was drawn decides whom an entity is lent to
            who = draw(seen, plan.sampling, _Repeating(is_drawn), key)
            bounds = plan.clips.of_sentences(who.weights).double().numpy()
            return Draw(who, np.ones(len(bounds)), bounds)

        return rounds

    against = [plans.many_holders(profile, 30)]
    mechanism = broken(profile, draws=among_drawn)
    assert caught(profile, "user and entity", 20, seed, mechanism, runs=1500, against=against)


class _Repeating:
    """A generator that draws these users and lets every coin come up."""

    def __init__(self, drawn):
        self._next = np.where(drawn, 0.0, 1.0)

    def random(self, count):
        given, self._next = self._next, None
        return given if given is not None and len(given) == count else np.zeros(count)


@SEEDS
def test_noise_used_again_on_resume_is_caught(seed):
    class Resumed:
        """The second half of a run begins with the seed of the first."""

        source = "fixed seed"
        rounds = 0

        def add_(self, sums, deviation):
            SeededNoise(1000 + self.rounds % 5 + self.rounds // 10 * 10).add_(sums, deviation)
            self.rounds += 1

    profile = UserLevelProfile(1.5, 0.3)
    assert not audit(profile, "user", 10, runs=1000, seed=seed, **QUICK).refutes_proven
    noise = Resumed()

    def again(replicas, draw, clips, multiplier, _):
        return noisy_sums(replicas, draw, clips, multiplier, noise)

    attacked = broken(profile, release=again)
    found = audit(profile, "user", 10, runs=1000, seed=seed, attacked=attacked, **QUICK)
    assert found.refutes_proven
    assert "repeats" in found.threshold.attack


@SEEDS
def test_clipping_by_layer_is_caught(seed):
    """Two layers, gradients along their diagonal: each at its clip is longer than the clip."""

    def whole(replicas, drawn, clips, multiplier, noise):
        return by_engine(replicas, drawn, clips, multiplier, noise, layers=2)

    def by_layer(replicas, drawn, clips, multiplier, noise):
        half = replace(replicas, gradients=replicas.gradients / 2**0.5)
        layers = [by_engine(half, drawn, clips, multiplier, noise) for _ in range(2)]
        return sum(layers) / 2**0.5

    found = [
        audit(USER, "user", 4, runs=800, seed=seed, attacked=broken(USER, release=way), **QUICK)
        for way in (whole, by_layer)
    ]
    assert [one.refutes_proven for one in found] == [False, True]


# --- results -------------------------------------------------------------------------------------


def test_a_result_is_repeatable_and_can_be_saved():
    """Guarantee of audit."""
    twice = [audit(USER, "user", 5, DELTA, runs=500, seed=7) for _ in range(2)]
    assert twice[0] == twice[1]
    found = json.loads(json.dumps(asdict(twice[0]), allow_nan=False))
    assert found["method"] == "UserLevelProfile"
    assert found["parameters"] == {"noise": 1.0, "user_rate": 0.5}
    assert found["curve"]["epsilon"] <= found["proven"]
    assert (found["confidence"], found["seed"], found["noise_source"]) == (0.95, 7, "fixed seed")
    assert audit(USER, "user", 5, runs=500, seed=8, **QUICK).mu != twice[0].mu


def test_without_a_seed_noise_is_the_systems():
    assert audit(USER, "user", 2, runs=10, **QUICK).noise_source == "cipher"


def test_progress_counts_runs():
    class Listener:
        total = done = 0

        @contextmanager
        def stage(self, name, total, unit):
            self.name, self.total = name, total
            yield self

        def advance(self, items, position=None):
            self.done += items

        def note(self, text):
            pass

    listener = Listener()
    audit(
        RotationProfile(1.0, 0.5, 0.3),
        "entity",
        2,
        runs=100,
        seed=0,
        progress=listener,
        **QUICK,
    )
    assert listener.done == listener.total == 300
    assert listener.name == "RotationProfile, entity"


def test_runs_in_batches_are_as_many_as_asked_for(monkeypatch):
    """On either corpus, each run scored once, the emptied ones apart from the full ones."""
    monkeypatch.setattr(mechanism_module, "_AT_ONCE", 40)
    (world,) = worlds(UserLevelProfile(0.01, 1.0), "user")
    mechanism = plans.mechanism(UserLevelProfile(0.01, 1.0))
    (found,) = attack(mechanism, world, 1, 23, itertools.count(), ["likelihood"])
    assert len(found.guessed) == len(found.other) == 23
    assert found.guessed.min() > 100  # everyone is drawn and there is hardly any noise
    assert found.other.max() < -100


def test_too_few_runs_are_refused():
    with pytest.raises(UserError, match="runs 3"):
        audit(USER, "user", 2, runs=3, **QUICK)


def test_a_plan_without_a_guarantee_is_refused():
    plan = replace(plans.plan(USER), profile=None)
    with pytest.raises(UserError, match="no guarantee to audit"):
        Mechanism.of(plan)
