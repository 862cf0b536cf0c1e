"""Bounds on attackers, compared with exact trade-offs, with the accountant, and with attacks."""

import math
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from tests.accounting.plans import planned
from tests.accounting.runs import ENTITIES, SHAPE, make_run
from uedp.accounting import attacker
from uedp.accounting.attacker import FALSE_ALARMS, Strength
from uedp.accounting.certificate import issue
from uedp.accounting.chain import read_chain
from uedp.accounting.growth import PastRun
from uedp.accounting.ledger import RUN_LEDGER, RunLedger, planned_run
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
    guarantee,
)
from uedp.accounting.vocabulary import VocabularyRelease

DELTA = 1e-5
PROFILES = (
    RotationProfile(0.8, 0.05, 0.3),
    FairSharesProfile(1.0, 0.05, 0.3),
    UserLevelProfile(0.7, 0.02),
    UedpAlgProfile(2.0, 0.05, 946, 12),
)


def plan(profile, rounds=30, **options):
    return planned("run", SHAPE.digest, profile, rounds, shape=SHAPE, **options)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.5, 5.0, 40.0])
def test_a_single_gaussian_has_its_exact_trade_off(noise):
    """Everybody takes part in one round: the attacker tells N(0) from N(1) at this noise."""
    found = attacker.from_guarantee(guarantee([(UserLevelProfile(noise, 1.0), 1)]), DELTA)
    exact = norm.cdf(0.5 / noise)
    assert exact <= found.success <= exact + 1e-3
    for rate in FALSE_ALARMS:
        exact = norm.cdf(norm.ppf(rate) + 1 / noise)
        assert exact <= found.power[rate] <= exact + 2e-3


@pytest.mark.parametrize(("value", "delta"), product([0.0, 0.1, 1.0, 8.0], [0.0, 1e-5, 0.05]))
def test_epsilon_and_delta_alone_allow_just_this_much(value, delta):
    """The best test against any pair of laws on three outcomes, by linear programming."""
    found = attacker.from_pair(value, delta)
    for rate, power in found.power.items():
        assert power == pytest.approx(_most_power(value, delta, rate), abs=1e-7)
    # the area between the powers of all rates: both errors weigh the same
    rates = np.linspace(0, 1, 2001)
    best = max((_closed_form(value, delta, a) + 1 - a) / 2 for a in rates)
    assert best <= found.success + 1e-12
    assert found.success == pytest.approx(best, abs=1e-3)


def _closed_form(value, delta, rate):
    return min(1, math.exp(value) * rate + delta, 1 - math.exp(-value) * (1 - rate - delta))


def _most_power(value, delta, rate):
    """Over all pairs (rate, power) that (epsilon, delta) allows in all four directions."""
    e = math.exp(value)
    # unknowns: alpha, power; both guesses and both complements obey the definition
    upper = [
        ([-e, 1], delta),  # power <= e alpha + delta
        ([1, -e], delta),
        ([-1, e], e + delta - 1),  # 1 - alpha <= e (1 - power) + delta
        ([e, -1], e + delta - 1),
    ]
    rows, limits = zip(*upper, strict=True)
    result = linprog([0, -1], rows, limits, bounds=[(0, rate), (0, 1)])
    return -result.fun


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.method)
def test_bounds_follow_from_the_accountant_at_every_epsilon(profile):
    composed = guarantee([(profile, 30)])
    found = attacker.from_guarantee(composed, DELTA)
    assert found.epsilon == epsilon(profile, 30, DELTA)
    assert found.success == (1 + composed.delta(0.0)) / 2
    alone = attacker.from_pair(found.epsilon, DELTA)
    assert found.success < alone.success
    for rate in FALSE_ALARMS:
        # each epsilon is a bound on its own: the best of many can be no better than all
        sides = [side for both in composed.losses.values() for side in both]
        fine = np.linspace(0, found.epsilon, 4001)
        each = [np.min([math.exp(e) * rate + side.delta(e) for e in fine[::40]]) for side in sides]
        assert found.power[rate] <= alone.power[rate]
        assert found.power[rate] <= max(each) + 2e-3
        assert found.power[rate] >= rate


def test_an_attack_stays_below_the_bounds():
    """The likelihood ratio test, the best there is, on the law that the proof composes."""
    noise, rate, rounds, trials = 0.6, 0.1, 10, 40_000
    found = attacker.strength_of(plan(UserLevelProfile(noise, rate), rounds))
    rng = np.random.default_rng(7)

    def scores(member):
        drawn = rng.random((trials, rounds)) < rate * member
        seen = drawn + noise * rng.normal(size=(trials, rounds))
        ratio = 1 - rate + rate * np.exp((2 * seen - 1) / (2 * noise**2))
        return np.log(ratio).sum(axis=1)

    inside, outside = scores(True), scores(False)
    success = ((inside > 0).mean() + (outside <= 0).mean()) / 2
    error = 4 / math.sqrt(trials)
    assert found.success - 0.02 < success < found.success + error
    for alarms in FALSE_ALARMS:
        power = (inside > np.quantile(outside, 1 - alarms)).mean()
        assert found.power[alarms] - 0.03 < power < found.power[alarms] + error


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.method)
def test_the_user_alone_is_never_worse_off_and_a_missed_mention_never_better(profile):
    whole = attacker.strength_of(plan(profile))
    alone = attacker.strength_for_user(plan(profile))
    assert alone.success <= whole.success
    missed = attacker.strength_if_missed(plan(profile), 1, 1)
    if profile.missed(1, 1) is None:
        assert missed is None
    else:
        assert missed.epsilon >= whole.epsilon
        assert missed.success >= whole.success


def test_a_private_vocabulary_counts():
    words = VocabularyRelease(3.0, 200.0, 64, 16)
    profile = PROFILES[0]
    without, with_ = (
        attacker.strength_of(plan(profile, vocabulary=vocabulary)) for vocabulary in (None, words)
    )
    assert with_.epsilon > without.epsilon
    assert with_.success > without.success


@pytest.mark.parametrize(
    "no_guarantee",
    [
        plan(RotationProfile(0.0, 0.05, 0.3)),
        plan(RotationProfile(1.0, 0.05, 0.3), noise_source="fixed seed"),
        plan(RotationProfile(0.01, 1.0, 0.3), rounds=1000),
    ],
)
def test_nothing_is_said_where_nothing_is_proven(no_guarantee):
    assert attacker.strength_of(no_guarantee) is None
    assert attacker.strength_for_user(no_guarantee) is None
    assert attacker.strength_if_missed(no_guarantee, 1, 1) is None


def test_epsilon_spent_grows_to_the_planned_one():
    planned_run = plan(PROFILES[0], 50)
    spent = attacker.epsilon_spent(planned_run, 50)
    assert next(iter(spent)) == 1
    assert list(spent)[-1] == 50
    assert list(spent.values()) == sorted(spent.values())
    assert spent[50] == epsilon(PROFILES[0], 50, DELTA)
    assert attacker.epsilon_spent(planned_run, 0) == {}
    assert isinstance(attacker.strength_of(planned_run), Strength)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.method)
def test_a_certificate_is_enough_to_tell(tmp_path, profile):
    """Its parameters give the same bounds as the plan; if they do not fit, its epsilon counts."""
    run = make_run(tmp_path / "run", profile, rounds=3, spent=3)
    plan_ = planned_run(run / RUN_LEDGER, read_chain(run / RUN_LEDGER)[0])
    whole = attacker.strength_of(plan_)
    claimed = attacker.from_pair(whole.epsilon, plan_.delta)
    parameters = {**asdict(profile), "rounding_margin": 0.1}
    found = attacker.strength_as_certified(profile.method, parameters, 3, claimed)
    assert found == whole
    smaller = attacker.from_pair(whole.epsilon / 2, plan_.delta)
    assert attacker.strength_as_certified(profile.method, parameters, 3, smaller) == smaller
    assert attacker.strength_as_certified(profile.method, {}, 3, claimed) == claimed


def test_the_vocabulary_of_a_certificate_counts():
    words, profile = VocabularyRelease(3.0, 200.0, 64, 16), PROFILES[0]
    whole = attacker.strength_of(plan(profile, vocabulary=words))
    parameters = {
        **asdict(profile),
        "vocabulary_noise": 3.0,
        "vocabulary_threshold": 200.0,
        "words_per_user": 64,
        "words_per_sentence": 16,
    }
    claimed = attacker.from_pair(whole.epsilon, DELTA)
    assert attacker.strength_as_certified("rotation", parameters, 30, claimed) == whole


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.method)
def test_runs_that_the_model_went_through_are_counted(profile):
    """The odds of a model that was trained on are those of all its rounds."""
    own, digest = plan(profile, 20), SHAPE.digest
    before = PastRun("before", profile, 30, digest, own.setup.texts, sentences_per_user=2)
    model, whole = plan(profile, 20, earlier=(before,)), plan(profile, 50)
    assert attacker.strength_of(model).epsilon == pytest.approx(
        epsilon(profile, 20, DELTA, *model.beside), rel=1e-9
    )
    for found in (attacker.strength_of, attacker.strength_for_user):
        assert found(model).success == pytest.approx(found(whole).success, rel=1e-3)
        assert found(model).success > found(own).success
    spent = attacker.epsilon_spent(model, 20)
    assert spent[20] == pytest.approx(attacker.epsilon_spent(whole, 50)[50], rel=1e-3)
    if profile.missed(1, 1) is not None:
        assert attacker.strength_if_missed(model, 1, 1).epsilon == pytest.approx(
            attacker.strength_if_missed(whole, 1, 1).epsilon, rel=1e-3
        )


def test_runs_that_the_model_trained_on_from_count(tmp_path):
    """Every figure is that of the certificate, or follows from it; not of the last rounds alone."""
    profile, setup = RotationProfile(1.0, 0.05, 0.3), {"texts": "t", "entities": ENTITIES}
    setup["vocabulary_origin"] = "differentially private"
    words = VocabularyRelease(3.0, 200.0, 64, 16)
    first = PastRun("first", replace(profile, noise=0.9), 20, SHAPE.digest, "t", words)
    continued = plan(profile, 30, earlier=(first,), **setup)
    with RunLedger.open(tmp_path, continued) as ledger:
        ledger.spend(30)
    certificate = issue(tmp_path)
    alone = attacker.strength_of(plan(profile, 30, **setup))
    whole = attacker.strength_of(continued)
    assert whole.epsilon == certificate.epsilon > 1.2 * alone.epsilon
    assert whole.success > alone.success
    assert attacker.strength_for_user(continued).epsilon == certificate.epsilon_user_alone
    for row in certificate.missed_mentions:
        missed = attacker.strength_if_missed(continued, row.users, row.sentences_per_user)
        assert missed.epsilon == pytest.approx(row.epsilon, rel=1e-9)
    spent = attacker.epsilon_spent(continued, 30)
    assert spent[30] == certificate.epsilon
    assert min(spent.values()) >= epsilon(first.profile, 20, DELTA)
