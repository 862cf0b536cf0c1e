"""Worlds are pairs the adjacency allows, and their laws those of the mechanism's own sums."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.audit.plans import many_holders, mechanism, worlds
from uedp.accounting.divergence import ShiftedGaussian
from uedp.accounting.proven import (
    FairMissedProfile,
    FairSharesProfile,
    MissedProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
)
from uedp.audit.mechanism import Replicas, projected_sums
from uedp.audit.worlds import Distribution, Threat, attainable, threats, worst_case_worlds
from uedp.errors import UserError
from uedp.mechanism.sampling import Sampling

ROTATION = RotationProfile(1.0, 0.3, 0.3)
FAIR = FairSharesProfile(1.0, 0.3, 0.3)
CASES = [
    (UserLevelProfile(1.0, 0.3), "user"),
    (ROTATION, "user"),
    (ROTATION, "entity"),
    (ROTATION, "user and entity"),
    (RotationProfile(1.0, 0.3, 1.5), "user and entity"),
    (RotationProfile(1.0, 0.3, 0.4, entity_rate=0.5), "user and entity"),
    (RotationProfile(1.0, 0.3, 0.4, extended_rate=0.6), "user and entity"),
    (RotationProfile(1.0, 0.3, 0.4, entity_rate=0.5, extended_rate=0.8), "user and entity"),
    (RotationProfile(1.0, 0.3, 0.4, entity_rate=0.9, extended_rate=0.0), "user and entity"),
    (RotationProfile(1.0, 0.3, 0.4, entity_rate=0.5, extended_rate=0.8), "entity"),
    (
        MissedProfile(RotationProfile(1.0, 0.3, 0.4, 0.7, extended_rate=0.8), 1, 2, 0.4),
        "missed mention",
    ),
    (MissedProfile(ROTATION, 2, 3, 0.3), "missed mention"),
    (MissedProfile(RotationProfile(1.0, 0.3, 0.9), 1, 4, 0.9), "missed mention"),
    (FAIR, "user and entity"),
    (FairSharesProfile(1.0, 0.3, 1.0, extended_rate=0.6), "user and entity"),
    (
        FairMissedProfile(FairSharesProfile(1.0, 0.3, 0.4, extended_rate=0.7), 2, 0.8),
        "missed mention",
    ),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "user and entity"),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "user"),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "entity"),
]


def sums(found, replicas: Replicas, seed: int = 5):
    """A round of a mechanism, before noise."""
    rounds = found.draws(found.plan.seeded(seed), replicas.incidence)
    return projected_sums(
        replicas, rounds(0, np.random.default_rng(seed), seed), found.clips.update
    )


FAIR_AT = next(at for at, (profile, _) in enumerate(CASES) if profile == FAIR)
LIMITS = [
    {},
    {"sentences_per_user": 1},
    {"sentences_per_user": 5},
    {"sentences_per_entity": 2, "sentences_per_user": 30},
]


@pytest.mark.parametrize(
    ("profile", "kind", "limits"),
    [
        *((profile, kind, {}) for profile, kind in CASES),
        *((CASES[at][0], CASES[at][1], limit) for at in (0, 1, 3, 7) for limit in LIMITS[1:]),
        (*CASES[FAIR_AT], {"sentences_per_user": 5}),
        *((*CASES[at], {"extended_rate": 0.7, "entity_rate": 0.1}) for at in (-3, -2, -1)),
    ],
)
def test_the_distribution_is_that_of_the_mechanisms_sum(profile, kind, limits):
    """Guarantee of World: every sum is one the distribution has, as often as it says."""
    runs = 20_000
    attacked = mechanism(profile, **limits)
    for world in worlds(profile, kind, attacked.plan.sampling):
        found = sums(attacked, Replicas.of(world, runs, runs))
        for side, some in ((world.emptied, found[:runs]), (world.full, found[runs:])):
            assert sum(side.probabilities) == pytest.approx(1)
            apart = np.abs(some[:, None] - np.array(side.values))
            assert apart.min(axis=1).max() < 1e-6
            seen = np.bincount(apart.argmin(axis=1), minlength=len(side.values)) / runs
            chances = np.array(side.probabilities)
            assert np.all(np.abs(seen - chances) < 5 * np.sqrt(chances / runs) + 2e-4)


def test_an_entity_stands_in_sentences_enough_to_turn_an_update_around():
    """Were their clips not divided by how many they are, and beside other entities too."""
    for world in [*worlds(ROTATION, "user and entity"), many_holders(ROTATION, 10)]:
        incidence = world.incidence
        for holder in incidence.holders[0]:
            own = np.intersect1d(incidence.entity_sentences[0], incidence.user_sentences[holder])
            assert len(own) * ROTATION.entity_share >= 2
            assert set(incidence.sentence_entities.take(own).counts.tolist()) == {1, 2}


def test_a_user_has_more_sentences_than_are_selected():
    world = worlds(ROTATION, "user", Sampling(0.3, per_user=5))[0]
    assert len(world.incidence.user_sentences[0]) > 5


def test_a_crowd_shares_one_entity():
    world = many_holders(ROTATION, 10)
    assert len(world.incidence.holders[0]) == 10
    assert dict(zip(world.full.values, world.full.probabilities, strict=True)) == pytest.approx(
        {0.0: 0.49, 0.3: 0.21, 1.0: 0.21, 1.3: 0.09}
    )


@pytest.mark.parametrize(("profile", "kind"), CASES)
def test_what_is_emptied_is_what_the_adjacency_says(profile, kind):
    """Guarantee of World."""
    for world in worlds(profile, kind):
        incidence = world.incidence
        of_user = incidence.sentence_user == 0
        mentions = np.zeros(incidence.sentences, dtype=bool)
        mentions[incidence.entity_sentences[0]] = True
        expected = np.zeros_like(mentions)
        if kind != "entity":
            expected |= of_user
        if kind != "user":
            expected |= mentions
        if kind == "missed mention":
            beside = world.empties & ~expected
            users, each = 2, 2
            if isinstance(profile, MissedProfile):
                users, each = profile.holders, profile.per_user
            assert len(set(incidence.sentence_user[beside].tolist())) == users
            assert beside.sum() == users * each
            assert incidence.extended[beside].all()
        elif world.name.endswith("a sentence"):  # its own extended entity
            (sentence,) = np.flatnonzero(world.empties & ~expected)
            assert incidence.extended[sentence]
            assert not mentions.any()
        else:
            assert world.empties.tolist() == expected.tolist()


def test_the_loss_is_that_of_the_dominating_pair():
    (world,) = worlds(UserLevelProfile(1.3, 0.2), "user")
    at = np.linspace(-4, 5, 30)
    pair = ShiftedGaussian(1.3, (0.0, 1.0), (0.8, 0.2))
    assert world.loss(at, 1.3) == pytest.approx(pair.loss(at))


def test_distributions_add_and_mix():
    coin = Distribution.of((0.0, 0.5), (1.0, 0.5))
    assert coin.plus(coin) == Distribution((0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    assert Distribution.binomial(2, 0.5, 1.0).probabilities == pytest.approx((0.25, 0.5, 0.25))
    assert coin.mixed(Distribution.of((2.0, 1.0)), 0.2).probabilities == pytest.approx(
        (0.4, 0.4, 0.2)
    )
    assert Distribution.of((1.0, 0.0), (2.0, 1.0)) == Distribution((2.0,), (1.0,))


def test_shares_that_differ_are_refused():
    with pytest.raises(UserError, match="one sentence clip"):
        threats(MissedProfile(ROTATION, 1, 1, 0.2), Sampling(0.1))


@pytest.mark.parametrize(
    ("profile", "targets"),
    [
        (UserLevelProfile(1.0, 0.1), ["user"]),
        (ROTATION, ["user", "entity", "user and entity", "missed mention"]),
        (UedpAlgProfile(1.0, 0.1, 3, 1), ["user", "entity", "user and entity"]),
    ],
)
def test_only_what_is_protected_is_attacked(profile, targets):
    found = threats(profile, Sampling(0.1, 0.5))
    assert [one.target for one in found] == targets
    alone = found[0].profile
    assert alone == (
        UedpAlgProfile(1.0, 0.1, 3, 0) if isinstance(profile, UedpAlgProfile) else profile
    )


def test_worlds_are_registered_from_anywhere():
    @dataclass(frozen=True)
    class Own(UserLevelProfile):
        pass

    assert threats(Own(1.0, 0.1), Sampling(0.1)) == []

    @worst_case_worlds(Own)
    def build(profile, sampling):
        yield Threat("user", profile, worlds(UserLevelProfile(1.0, 0.1), "user"))

    (found,) = threats(Own(1.0, 0.1), Sampling(0.1))
    assert (found.target, found.profile) == ("user", Own(1.0, 0.1))


def test_what_worlds_can_attain():
    """User-level and Theorem 2 are tight; what is proven of UeDP-Alg nearly."""
    user = UserLevelProfile(1.0, 0.2)
    (world,) = worlds(user, "user")
    assert attainable(world, 1.0, 20, 1e-5) == pytest.approx(epsilon(user, 20, 1e-5), rel=0.005)
    rotation = RotationProfile(1.0, 0.2, 0.3)
    most = max(attainable(w, 1.0, 20, 1e-5) for w in worlds(rotation, "user and entity"))
    assert 0.95 < most / epsilon(rotation, 20, 1e-5) < 1.001
    (world,) = worlds(rotation, "user")
    assert attainable(world, 1.0, 20, 1e-5) < most
    paper = UedpAlgProfile(2.0, 50 / 946, 946, 112)
    (world,) = worlds(paper, "user and entity")
    found = attainable(world, 2.0 * 51, 50, 1e-5) / epsilon(paper, 50, 1e-5)
    assert 0.85 < found < 1.001


def test_which_world_is_worst_depends_on_what_else_a_holder_adds():
    epsilons = {attainable(world, 1.0, 20, 1e-5) for world in worlds(ROTATION, "user and entity")}
    assert len(epsilons) == 3
