"""How far rounds move: what is right is within what is allowed, and comes as far as it may."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.audit import plans
from tests.training import worlds
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
)
from uedp.audit import sensitivity
from uedp.audit.sensitivity import measure, relative_noise, stress_incidence
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import UNATTENDED, Method, clipped, rotation
from uedp.methods.base import _METHODS
from uedp.methods.randomness import Randomness
from uedp.methods.user_level import UserLevel

ROTATION = RotationProfile(1.0, 0.3, 0.3)
SMALL = {"seed": 0, "rounds": 3, "scanned": 60, "chance": 1e-6}


@pytest.mark.parametrize(
    ("profile", "privacy"),
    [
        (ROTATION, {}),
        (RotationProfile(0.5, 0.3, 1.5, entity_rate=0.5, extended_rate=0.8), {"update_clip": 0.1}),
        (ROTATION, {"sentences_per_user": 5, "sentences_per_entity": 2}),
        (RotationProfile(2.0, 1.0, 0.3, extended_rate=0.0), {}),
        (FairSharesProfile(1.0, 0.3, 0.4, extended_rate=0.8), {"sentences_per_user": 3}),
        (UserLevelProfile(1.0, 0.3), {"sentences_per_user": 7}),
        pytest.param(RotationProfile(1.0, 0.002, 0.3), {}, marks=pytest.mark.slow),
    ],
)
def test_what_is_right_moves_as_far_as_it_may_and_no_farther(profile, privacy):
    plan = plans.plan(profile, **privacy)
    found = measure(plan, **SMALL)
    assert found.broken == []
    assert found.rounds == 3
    for name, shift in found.shifts.items():
        assert shift.found <= shift.allowed + 1e-4, name
        assert shift.found >= 0.6 * shift.allowed, name  # or nothing was attacked
    pairs = (
        ["user"] if isinstance(profile, UserLevelProfile) else ["user", "entity", "user and entity"]
    )
    assert list(found.shifts) == pairs
    assert found.shifts["user"].allowed == 1


def test_it_is_the_round_that_training_plays(monkeypatch):
    """Guarantee of measure: every part of it is called, in pieces where a user is large."""
    called = set()
    for module, name in (
        (rotation, "draw"),
        (rotation.Rotation, "lending_rule"),
        (clipped, "release"),
        (Randomness, "of_round"),
    ):
        original = getattr(module, name)

        def spy(*arguments, _original=original, _name=name, **options):
            called.add(_name)
            return _original(*arguments, **options)

        monkeypatch.setattr(module, name, spy)
    measure(plans.plan(ROTATION), **SMALL)
    assert called == {"draw", "lending_rule", "release", "of_round"}


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"clips": {"share": 0.6}}, "emptying an entity moved"),
        ({"clips": {"update": 2.0}}, "emptying a user moved"),
    ],
)
def test_rounds_with_wider_clips_than_are_claimed_are_reported(wrong, rule, monkeypatch):
    """Guarantee of measure: the method is built from a plan that its claims do not describe."""
    build = sensitivity.build_method

    def other(plan, *arguments):
        return build(replace(plan, clips=replace(plan.clips, **wrong["clips"])), *arguments)

    monkeypatch.setattr(sensitivity, "build_method", other)
    assert any(rule in line for line in measure(plans.plan(ROTATION), **SMALL).broken)


def test_a_corpus_of_its_own():
    plan = plans.plan(ROTATION)
    found = measure(plan, worlds.incidence(), **SMALL)
    assert (found.on, found.broken) == ("the corpus", [])
    none = np.zeros(0, dtype=int)
    bare = Incidence.build(np.repeat(np.arange(20), 2), none, none, 20, 0)
    assert measure(plan, bare, **SMALL).broken == []


def test_the_same_seed_measures_the_same():
    one, other = (measure(plans.plan(ROTATION), **SMALL) for _ in range(2))
    assert one.shifts == other.shifts


def test_a_stress_corpus_has_all_that_makes_a_round_difficult():
    incidence = stress_incidence(0.3, 0.3, per_user=40)
    own = incidence.user_sentences.counts
    assert own.max() > 40
    assert own.min() == 1
    assert incidence.sentence_entities.counts.max() > 1
    assert incidence.extended.any()
    assert incidence.holders.counts.max() >= 12
    pairs = [
        (user, entity)
        for entity in range(incidence.entities)
        for user in incidence.sentence_user[incidence.entity_sentences[entity]].tolist()
    ]
    assert max(pairs.count(pair) for pair in set(pairs)) * 0.3 >= 2
    assert 0.01 * stress_incidence(0.3, 0.01).users >= 6


def test_noise_is_measured_as_it_is_added(monkeypatch):
    """A chance of one in a million that noise as planned is taken for less."""
    plan = plans.plan(ROTATION, update_clip=0.1)
    size, wrong = relative_noise(plan)
    assert size == pytest.approx(1, abs=0.02)
    assert wrong > 1e-6
    silent = plans.plan(RotationProfile(0.0, 0.3, 0.3))
    assert relative_noise(silent) == (1.0, 1.0)
    chances = [relative_noise(plan)[1] for _ in range(20)]
    assert stats.kstest(chances, "uniform").pvalue > 1e-6


class OwnMethod(Method):
    """Adds noise to gradients, and does not say who takes part in a round."""

    name = "own"
    profile_type = UserLevelProfile
    noises_gradients = True
    clip = 1.0

    def __init__(self, settings, *arguments):
        super().__init__(settings, *arguments)
        clips = replace(settings.clips, update=self.clip * settings.clips.update)
        self._inner = UserLevel(replace(settings, clips=clips), *arguments)
        self.parameters = self._inner.parameters

    @classmethod
    def profile(cls, privacy, incidence, noise):
        return UserLevelProfile(noise, privacy.user_rate)

    def round(self, number, attempt=UNATTENDED):
        return self._inner.round(number, attempt)


@pytest.mark.parametrize(("clip", "broken"), [(1.0, False), (2.0, True)])
def test_any_method_that_noises_gradients_is_measured(clip, broken, monkeypatch):
    """Without its draws: nobody may move a round by more than a clip, whoever was drawn."""
    monkeypatch.setitem(_METHODS, "own", OwnMethod)
    monkeypatch.setattr(OwnMethod, "clip", clip)
    plan = plans.plan(UserLevelProfile(1.0, 0.6), method="own")
    result = measure(plan, **SMALL)
    assert any("emptying a user moved" in line for line in result.broken) == broken
    assert bool(result.broken) == broken
    assert list(result.shifts) == ["user"]


def test_only_what_is_proven_by_shifts_is_measured():
    with pytest.raises(UserError, match="does not bound the shift of single rounds"):
        measure(plans.plan(UedpAlgProfile(2.0, 0.3, 20, 1)), **SMALL)
