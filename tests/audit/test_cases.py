"""What is audited: every method with the pairs it protects, and the paper's setting refuted."""

from dataclasses import replace

import numpy as np
import pytest

from uedp.accounting.proven import MissedProfile, epsilon
from uedp.audit.cases import METHODS, PAPER_RATE, Case, Setting, alg_cases, cases
from uedp.errors import UserError
from uedp.incidence import Incidence

PAPER = Setting()
FAST = {"seed": 0, "attacks": ["likelihood"], "fit_curve": False}


def of_pair(found, pair: str) -> Case:
    (one,) = (case for case in found if case.pair == pair)
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


# --- what there is to audit ----------------------------------------------------------------------


def test_every_method_with_its_pairs():
    found = cases(METHODS, Setting(rounds=5, noise=3.0), released_code=True)
    both = ("user", "entity", "user and entity")
    assert [(case.method, case.pair) for case in found] == [
        *(("rotation", pair) for pair in (*both, "missed mention")),
        ("user-level", "user"),
        *(("uedp-alg", pair) for pair in both),
        *(("uedp-alg, released code", pair) for pair in both),
    ]
    for case in found:
        assert (case.rounds, case.delta) == (5, 1e-5)
        assert (case.published is None) == ("alg" not in case.method)
    crowd = of_pair(found[:4], "user and entity").against[-1]
    assert len(crowd.incidence.holders[0]) == 10


def test_a_target_is_met_by_every_method():
    setting = Setting(rounds=5, epsilon=4.0, entity_share=0.5, user_rate=0.2)
    for case in cases(METHODS, setting):
        assert case.profile.user_rate == 0.2
        if case.pair == "user and entity" or case.method == "user-level":
            assert epsilon(case.profile, 5, 1e-5) == pytest.approx(4.0, rel=0.01)
        if isinstance(case.profile, MissedProfile):
            assert case.profile.rotation.entity_share == case.profile.sentence_share == 0.5


def test_noise_may_be_given():
    assert {case.profile.noise for case in cases(METHODS, Setting(noise=3.0))} == {3.0}


def test_by_default_the_paper_and_epsilon_8():
    found = cases(METHODS, PAPER)
    alg = of_pair(found[-3:], "user and entity")
    assert (alg.profile.noise, alg.profile.user_rate) == (2.0, PAPER_RATE)
    assert (alg.profile.users, alg.profile.holders) == (946, 112)
    assert alg.published == pytest.approx(0.52, abs=0.005)
    assert epsilon(found[0].profile, 50, 1e-5) == pytest.approx(8, rel=0.01)


def test_on_an_incidence_counts_are_its_own():
    incidence = conll_like(30)
    found = list(alg_cases(PAPER, incidence))
    assert [case.profile.holders for case in found] == [0, 30, 30]
    assert all(case.against[0].incidence is incidence for case in found)
    # 30 of 976 sentences mention an entity: the paper's accountant makes that a smaller rate
    assert found[0].published < 0.3
    (named, *_) = list(alg_cases(PAPER, incidence, entity=3))[1:]
    assert named.profile.holders == len(incidence.holders[3]) < 30


def test_an_entity_that_everyone_mentions_is_attacked_too():
    incidence = Incidence.build(np.array([0, 1]), np.array([0, 1]), np.array([0, 0]), 2, 1)
    found = list(alg_cases(Setting(user_rate=0.5), incidence))
    assert [(case.pair, case.profile.holders) for case in found] == [
        ("user", 0),
        ("entity", 2),
        ("user and entity", 2),
    ]


def test_more_seconds_are_more_runs_and_larger_worlds_fewer():
    found = cases(["rotation", "uedp-alg"], PAPER)
    small, large = found[0], found[-1]
    assert small.runs_in(1) < small.runs_in(10)
    assert small.runs_in(1) > 20 * large.runs_in(1)
    assert (large.runs_in(1e-9), small.runs_in(1e9)) == (300, 1_000_000)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"epsilon": 1.0, "noise": 1.0}, "leave one of them out"),
        ({"rounds": 0}, "rounds 0"),
        ({"delta": 0.0}, "delta 0.0"),
        ({"delta": 1.0}, "delta 1.0"),
        ({"user_rate": 0.0}, "user rate 0.0"),
        ({"user_rate": 1.5}, "user rate 1.5"),
        ({"entity_share": 0.0}, "entity share 0.0"),
        ({"entity_share": 2.5}, "entity share 2.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, why):
    with pytest.raises(UserError, match=why):
        Setting(**wrong)


def test_a_method_that_is_none_is_refused():
    with pytest.raises(UserError, match="method 'rotate': must be one of rotation"):
        cases(["rotate"], PAPER)
    with pytest.raises(UserError, match="audit that method too"):
        cases(["rotation"], PAPER, conll_like(3))
    with pytest.raises(UserError, match="audit that method too"):
        cases(["rotation"], PAPER, released_code=True)


# --- what was published is refuted ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "runs"), [pytest.param(112, 4000, marks=pytest.mark.slow), (945, 200)]
)
def test_the_published_epsilon_is_refuted(holders, runs):
    case = of_pair(alg_cases(PAPER, holders=holders), "user and entity")
    found = case.audit(runs=runs, **FAST)
    assert found.published == pytest.approx(0.52, abs=0.01)
    assert found.method == "uedp-alg"
    assert found.refutes_published
    assert not found.refutes_proven


def test_it_is_refuted_on_an_incidence():
    """The claim is the paper's, not the lower one its accountant gives for so few mentions."""
    case = of_pair(alg_cases(PAPER, conll_like(112)), "user and entity")
    found = replace(case, published=0.52).audit(runs=1500, **FAST)
    assert found.refutes_published
    assert not found.refutes_proven
    assert found.parameters["holders"] == 112


@pytest.mark.parametrize("incidence", [None, conll_like(112)])
def test_the_papers_noise_hides_a_single_user_and_its_codes_does_not(incidence):
    lemma, code = (
        of_pair(alg_cases(PAPER, incidence, released_code=released), "user").audit(runs=300, **FAST)
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
