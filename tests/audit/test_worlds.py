"""Worlds are pairs the adjacency allows, and their laws those of the mechanism's own sums."""

import numpy as np
import pytest

from tests.audit.plans import mechanism
from uedp.accounting.divergence import ShiftedGaussian
from uedp.accounting.proven import (
    MissedProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
)
from uedp.audit.mechanism import Copies, sums_of
from uedp.audit.worlds import (
    Law,
    attainable,
    beside,
    crowd,
    most_held,
    on_incidence,
    strongest,
    worlds,
)
from uedp.errors import UserError
from uedp.incidence import Incidence

ROTATION = RotationProfile(1.0, 0.3, 0.3)
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
    (MissedProfile(RotationProfile(1.0, 0.3, 0.4, 0.7, 0.8), 1, 2, 0.4), "missed mention"),
    (MissedProfile(ROTATION, 2, 3, 0.3), "missed mention"),
    (MissedProfile(RotationProfile(1.0, 0.3, 0.9), 1, 4, 0.9), "missed mention"),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "user and entity"),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "user"),
    (UedpAlgProfile(2.0, 0.3, 8, 5), "entity"),
]


def sums(found, copies: Copies, seed: int = 5):
    """A round of a mechanism, before noise."""
    rounds = found.draw(found.plan.seeded(seed), copies.incidence)
    return sums_of(copies, rounds(0, np.random.default_rng(seed), seed), found.clips.update)


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
    ],
)
def test_the_law_is_that_of_the_mechanisms_sum(profile, kind, limits):
    """Guarantee of World: every sum is one the law has, as often as it says."""
    runs = 20_000
    attacked = mechanism(profile, **limits)
    for world in worlds(profile, kind, limits.get("sentences_per_user")):
        found = sums(attacked, Copies.of(world, runs, runs))
        for law, some in ((world.emptied, found[:runs]), (world.full, found[runs:])):
            assert sum(law.chances) == pytest.approx(1)
            apart = np.abs(some[:, None] - np.array(law.values))
            assert apart.min(axis=1).max() < 1e-6
            seen = np.bincount(apart.argmin(axis=1), minlength=len(law.values)) / runs
            chances = np.array(law.chances)
            assert np.all(np.abs(seen - chances) < 5 * np.sqrt(chances / runs) + 2e-4)


def test_an_entity_stands_in_sentences_enough_to_turn_an_update_around():
    """Were their clips not divided by how many they are, and beside other entities too."""
    for world in [*worlds(ROTATION, "user and entity"), crowd(ROTATION, 10)]:
        incidence = world.incidence
        for holder in incidence.holders[0]:
            own = np.intersect1d(incidence.entity_sentences[0], incidence.user_sentences[holder])
            assert len(own) * ROTATION.entity_share >= 2
            assert set(incidence.sentence_entities.take(own).counts.tolist()) == {1, 2}


def test_a_user_has_more_sentences_than_are_selected():
    world = worlds(ROTATION, "user", 5)[0]
    assert len(world.incidence.user_sentences[0]) > 5


def test_a_crowd_shares_one_entity():
    world = crowd(ROTATION, 10)
    assert len(world.incidence.holders[0]) == 10
    assert dict(zip(world.full.values, world.full.chances, strict=True)) == pytest.approx(
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
            assert len(set(incidence.sentence_user[beside].tolist())) == profile.holders
            assert beside.sum() == profile.holders * profile.per_user
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


def test_laws_add_and_mix():
    coin = Law.of((0.0, 0.5), (1.0, 0.5))
    assert coin.plus(coin) == Law((0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    assert Law.binomial(2, 0.5, 1.0).chances == pytest.approx((0.25, 0.5, 0.25))
    assert coin.mixed(Law.of((2.0, 1.0)), 0.2).chances == pytest.approx((0.4, 0.4, 0.2))
    assert Law.of((1.0, 0.0), (2.0, 1.0)) == Law((2.0,), (1.0,))


@pytest.mark.parametrize(
    ("profile", "kind", "why"),
    [
        (UserLevelProfile(1.0, 0.1), "entity", "promises nothing"),
        (UedpAlgProfile(1.0, 0.1, 3, 1), "missed mention", "promises nothing"),
        (MissedProfile(ROTATION, 1, 1, 0.2), "missed mention", "one sentence clip"),
    ],
)
def test_refusals(profile, kind, why):
    with pytest.raises(UserError, match=why):
        worlds(profile, kind)


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


def test_the_strongest_world_is_the_one_of_largest_epsilon():
    found = worlds(ROTATION, "user and entity")
    epsilons = [attainable(world, 1.0, 20, 1e-5) for world in found]
    assert len(set(epsilons)) == 3
    assert strongest(found, 1.0, 20, 1e-5) is found[int(np.argmax(epsilons))]


# --- on the incidence of a corpus ----------------------------------------------------------------


def some_incidence(seed: int = 0) -> Incidence:
    """25 users, 120 sentences, 12 entities, some far more common than others."""
    rng = np.random.default_rng(seed)
    owners = np.sort(rng.integers(25, size=120))
    owners[:25] = np.arange(25)
    row = rng.integers(120, size=150)
    entity = np.minimum(rng.geometric(0.3, size=150) - 1, 11)
    return Incidence.build(owners, row, entity, 25, 12)


KINDS = ("user", "entity", "user and entity")


@pytest.mark.parametrize("kind", KINDS)
def test_content_on_an_incidence_is_emptied_as_the_adjacency_says(kind):
    """Guarantee of World, and that nobody but the user and the holders has a gradient."""
    incidence = some_incidence()
    entity = most_held(incidence)
    world = on_incidence(incidence, 0.3, entity, kind)
    attacked = beside(incidence, entity)
    mentions = np.isin(np.arange(120), incidence.entity_sentences[entity])
    own = incidence.sentence_user == attacked
    assert attacked not in incidence.holders[entity]
    expected = {"user": own, "entity": mentions, "user and entity": own | mentions}[kind]
    assert world.empties.tolist() == expected.tolist()
    involved = set() if kind == "user" else set(incidence.holders[entity].tolist())
    involved |= set() if kind == "entity" else {attacked}
    assert set(incidence.sentence_user[world.gradients != 0].tolist()) == involved
    assert world.incidence is incidence
    assert world.name.startswith(f"{len(involved - {attacked})} other holders")


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_on_an_incidence_are_near_those_of_the_mechanism(kind):
    """They are averages over 300 draws of coins: off by 0.03 or so, and never far."""
    incidence, runs = some_incidence(), 4000
    world = on_incidence(incidence, 0.3, most_held(incidence), kind)
    found = sums(mechanism(UedpAlgProfile(2.0, 0.3, 25, 10)), Copies.of(world, runs, runs))
    for law, some in ((world.emptied, found[:runs]), (world.full, found[runs:])):
        assert sum(law.chances) == pytest.approx(1)
        assert set(np.unique(some).tolist()) <= set(law.values)
        below = np.array([np.mean(some <= value) for value in law.values])
        assert np.abs(below - np.cumsum(law.chances)).max() < 0.08
    assert world.full.values[-1] - world.emptied.values[0] >= (1 if kind == "user" else 10)


def test_the_entity_wins_over_however_much_else_a_holder_has():
    """A holder with 4,000 sentences beside the one that mentions the entity."""
    owners = np.array([0] * 4001 + [1])
    incidence = Incidence.build(owners, np.array([0]), np.array([0]), 2, 1)
    world = on_incidence(incidence, 1.0, 0, "entity")
    assert dict(zip(world.emptied.values, world.emptied.chances, strict=True)) == {-1.0: 1.0}
    assert world.full.values == (-1.0, 1.0)
    assert world.full.chances == pytest.approx((0.5, 0.5), abs=0.12)  # the entity's own coin


def test_whom_to_attack_beside_an_entity():
    """Not a holder, if it can be; of the others, one with a sentence that is always used."""
    owners, rows = np.array([0, 1, 1, 2]), np.array([0, 1, 3])
    incidence = Incidence.build(owners, rows, np.array([0, 1, 1]), 3, 2)
    assert beside(incidence, 0) == 1  # 2 has no sentence without entities
    assert beside(incidence, 1) == 0  # the only one who does not mention it
    everyone = Incidence.build(np.array([0, 1, 1]), np.array([0, 1]), np.array([0, 0]), 2, 1)
    assert beside(everyone, 0) == 1
    world = on_incidence(everyone, 0.5, 0)
    assert world.empties.all()
    assert world.name == "1 other holders in the corpus"


def test_a_corpus_without_entities_is_refused():
    none = np.zeros(0, dtype=int)
    with pytest.raises(UserError, match="no entities"):
        most_held(Incidence.build(np.array([0, 1]), none, none, 2, 0))
    with pytest.raises(UserError, match="promises nothing"):
        on_incidence(some_incidence(), 0.1, 0, "missed mention")
