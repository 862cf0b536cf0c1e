"""UeDP-Alg as published: the paper's setting refuted, and worlds on the incidence of a corpus."""

import json
from dataclasses import replace

import numpy as np
import pytest

from research.audit_uedp_alg import (
    USER_RATE,
    main,
    most_held,
    uedp_alg_cases,
    user_beside,
    world_on,
)
from tests.audit.plans import mechanism
from uedp.accounting.proven import UedpAlgProfile, epsilon
from uedp.audit.mechanism import Case, Replicas, projected_sums
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence

FAST = {"seed": 0, "attacks": ["likelihood"], "fit_curve": False}


def of_target(found, target: str) -> Case:
    (one,) = (case for case in found if case.claim.target == target)
    return one


def conll_like(holders: int) -> Incidence:
    """946 users, most with a sentence of their own; an entity in the sentences of so many.

    As in the news, it rarely stands alone: its sentences mention some of 40 others.
    """
    rng = np.random.default_rng(0)
    owners, mentions = list(range(946)), []
    for user in rng.permutation(946)[:holders].tolist():
        others = rng.choice(np.arange(1, 41), size=int(rng.integers(5)), replace=False)
        mentions += [(len(owners), entity) for entity in (0, *others.tolist())]
        owners.append(user)
    rows, entities = np.array(mentions).T
    return Incidence.build(np.array(owners), rows, entities, 946, 41)


# --- cases ---------------------------------------------------------------------------------------


def test_by_default_the_paper():
    found = uedp_alg_cases()
    alg = of_target(found, "user and entity").claim
    assert (alg.profile.noise, alg.profile.user_rate) == (2.0, USER_RATE)
    assert (alg.profile.users, alg.profile.holders) == (946, 112)
    assert alg.published == pytest.approx(0.52, abs=0.005)
    assert {case.claim.method for case in uedp_alg_cases(released_code=True)} == {
        "uedp-alg, released code"
    }


def test_a_target_is_met():
    found = of_target(uedp_alg_cases(epsilon=4.0, rounds=5, user_rate=0.2), "user and entity")
    assert found.claim.profile.user_rate == 0.2
    assert epsilon(found.claim.profile, 5, 1e-5) == pytest.approx(4.0, rel=0.01)


def test_on_an_incidence_counts_are_its_own():
    incidence = conll_like(30)
    found = uedp_alg_cases(incidence)
    assert [case.claim.profile.holders for case in found] == [0, 30, 30]
    assert all(case.worlds[0].incidence is incidence for case in found)
    # 30 of 976 sentences mention an entity: the paper's accountant makes that a smaller rate
    assert found[0].claim.published < 0.3
    (_, named, _) = uedp_alg_cases(incidence, entity=3)
    assert named.claim.profile.holders == len(incidence.holders[3]) < 30


def test_an_entity_that_everyone_mentions_is_attacked_too():
    incidence = Incidence.build(np.array([0, 1]), np.array([0, 1]), np.array([0, 0]), 2, 1)
    found = uedp_alg_cases(incidence, user_rate=0.5)
    assert [(case.claim.target, case.claim.profile.holders) for case in found] == [
        ("user", 0),
        ("entity", 2),
        ("user and entity", 2),
    ]


# --- what was published is refuted ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "runs"), [pytest.param(112, 4000, marks=pytest.mark.slow), (945, 200)]
)
def test_the_published_epsilon_is_refuted(holders, runs):
    case = of_target(uedp_alg_cases(holders=holders), "user and entity")
    found = case.audit(runs=runs, **FAST)
    assert found.published == pytest.approx(0.52, abs=0.01)
    assert found.method == "uedp-alg"
    assert found.refutes_published
    assert not found.refutes_proven


def test_it_is_refuted_on_an_incidence():
    """The claim is the paper's, not the lower one its accountant gives for so few mentions."""
    case = of_target(uedp_alg_cases(conll_like(112)), "user and entity")
    case = replace(case, claim=replace(case.claim, published=0.52))
    found = case.audit(runs=1500, **FAST)
    assert found.refutes_published
    assert not found.refutes_proven
    assert found.parameters["holders"] == 112


@pytest.mark.parametrize("incidence", [None, conll_like(112)])
def test_the_papers_noise_hides_a_single_user_and_its_codes_does_not(incidence):
    lemma, code = (
        of_target(uedp_alg_cases(incidence, released_code=released), "user").audit(runs=300, **FAST)
        for released in (False, True)
    )
    assert not lemma.refutes_published
    assert not lemma.refutes_proven
    assert code.refutes_published
    assert code.proven is None
    assert code.attainable is None
    assert code.method == "uedp-alg, released code"
    if incidence is None:
        assert code.parameters["noise"] == pytest.approx(2 / 41_431, rel=1e-3)


# --- on the incidence of a corpus ----------------------------------------------------------------


def sums(found, replicas: Replicas, seed: int = 5):
    """A round of a mechanism, before noise."""
    rounds = found.draws(found.plan.seeded(seed), replicas.incidence)
    return projected_sums(
        replicas, rounds(0, np.random.default_rng(seed), seed), found.clips.update
    )


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
    world = world_on(incidence, 0.3, entity, kind)
    attacked = user_beside(incidence, entity)
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
    world = world_on(incidence, 0.3, most_held(incidence), kind)
    found = sums(mechanism(UedpAlgProfile(2.0, 0.3, 25, 10)), Replicas.of(world, runs, runs))
    for law, some in ((world.emptied, found[:runs]), (world.full, found[runs:])):
        assert sum(law.probabilities) == pytest.approx(1)
        assert set(np.unique(some).tolist()) <= set(law.values)
        below = np.array([np.mean(some <= value) for value in law.values])
        assert np.abs(below - np.cumsum(law.probabilities)).max() < 0.08
    assert world.full.values[-1] - world.emptied.values[0] >= (1 if kind == "user" else 10)


def test_the_entity_wins_over_however_much_else_a_holder_has():
    """A holder with 4,000 sentences beside the one that mentions the entity."""
    owners = np.array([0] * 4001 + [1])
    incidence = Incidence.build(owners, np.array([0]), np.array([0]), 2, 1)
    world = world_on(incidence, 1.0, 0, "entity")
    assert dict(zip(world.emptied.values, world.emptied.probabilities, strict=True)) == {-1.0: 1.0}
    assert world.full.values == (-1.0, 1.0)
    assert world.full.probabilities == pytest.approx((0.5, 0.5), abs=0.12)  # the entity's own coin


def test_whom_to_attack_beside_an_entity():
    """Not a holder, if it can be; of the others, one with a sentence that is always used."""
    owners, rows = np.array([0, 1, 1, 2]), np.array([0, 1, 3])
    incidence = Incidence.build(owners, rows, np.array([0, 1, 1]), 3, 2)
    assert user_beside(incidence, 0) == 1  # 2 has no sentence without entities
    assert user_beside(incidence, 1) == 0  # the only one who does not mention it
    everyone = Incidence.build(np.array([0, 1, 1]), np.array([0, 1]), np.array([0, 0]), 2, 1)
    assert user_beside(everyone, 0) == 1
    world = world_on(everyone, 0.5, 0)
    assert world.empties.all()
    assert world.name == "1 other holders in the corpus"


def test_a_corpus_without_entities_is_refused():
    none = np.zeros(0, dtype=int)
    with pytest.raises(UserError, match="no entities"):
        most_held(Incidence.build(np.array([0, 1]), none, none, 2, 0))


# --- command -------------------------------------------------------------------------------------


def test_the_released_code_refutes_what_was_published(tmp_path, capsys):
    """300 users, 40 of whom mention an entity: its small noise needs many users."""
    rng = np.random.default_rng(0)
    owners = np.concatenate([np.arange(300), rng.choice(300, 40, replace=False)])
    Incidence.build(owners, np.arange(300, 340), np.zeros(40, int), 300, 1).save(tmp_path / FOLDER)
    line = ["--corpus", str(tmp_path), "--released-code", "--quick", "--seed", "3"]
    main([*line, "--runs", "200", "--rounds", "20", "--out", str(tmp_path / "found.json")])
    told = capsys.readouterr().out
    assert "no finite epsilon" in told
    assert "uedp-alg, released code, user and entity: the published epsilon" in told
    assert "not a privacy guarantee" in told
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one["pair"] for one in found["audits"]] == ["user", "entity", "user and entity"] * 2
    assert "40 other holders in the corpus" in found["audits"][2]["threshold"]["attack"]
