"""The estimators against numbers worked out by hand, and against the accountants."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.lending_suite import build, incidences
from uedp.accounting.proven import UedpAlgProfile
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Estimator, Weights, draw_uedp_alg, f_e, f_e_plus
from uedp.mechanism.sampling import Sampling


def small() -> Incidence:
    """Three users of 3, 2 and 1 sentences; two entities in 3 and 1 sentences; three extended."""
    return build([0, 0, 0, 1, 1, 2], [(0, 0), (1, 0), (1, 1), (3, 0)], 3, 2)


RATES = Sampling(user_rate=0.5, entity_rate=0.25, extended_rate=0.75)


def test_weights_by_hand():
    weights = Weights.of(small(), user_cap=2, entity_cap=4)
    assert weights.users.tolist() == [1.0, 1.0, 0.5]
    assert weights.entities.tolist() == [0.75, 0.25]
    assert weights.extended == 1.0
    assert weights.extended_count == 3


def test_caps_of_one_weigh_all_alike():
    weights = Weights.of(small())
    assert weights.users.tolist() == [1.0, 1.0, 1.0]
    assert weights.entities.tolist() == [1.0, 1.0]


def test_estimators_by_hand():
    weights = replace(Weights.of(small(), user_cap=2, entity_cap=4), extended=0.2)
    plus = f_e_plus(RATES, weights, update_clip=0.1, noise=2.0)
    # .5 * 2.5 * (.25 * 1 + .75 * .6) = 1.25 * .7
    assert plus.denominator == pytest.approx(0.875)
    # 2 * (.5 * 3 + 1) * 1 * .1
    assert plus.deviation_of_sum == pytest.approx(0.5)
    assert plus.deviation == pytest.approx(0.5 / 0.875)
    only = f_e(RATES, weights, update_clip=0.1, noise=2.0)
    assert only.denominator == pytest.approx(1.25 * 0.25)
    assert only.deviation == pytest.approx(0.5 / 0.3125)


def test_the_released_code_on_the_papers_setting():
    """CoNLL: 50 of 946 users, 11,176 of 14,040 sensitive, all weights 1, z 2, beta .1."""
    weights = Weights(np.ones(946), np.ones(11176), 1.0, 14040 - 11176)
    estimator = f_e_plus(Sampling(50 / 946, 0.5, 1.0), weights, update_clip=0.1, noise=2.0)
    # 2 * 51 * .1 / (50 * (5588 + 2864))
    assert estimator.deviation == pytest.approx(10.2 / 422_600)
    # the code draws with `sigma^2` for a deviation
    assert estimator.deviation / estimator.deviation**2 == pytest.approx(41_431, rel=1e-4)


FEW = settings(max_examples=60, deadline=None)
caps = st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 3.7, 50.0])] * 2)
positive = st.sampled_from([0.05, 0.3, 1.0])


@FEW
@given(incidence=incidences(), caps=caps)
def test_weights_lie_between_0_and_1(incidence, caps):
    """Guarantee of Weights."""
    weights = Weights.of(incidence, *caps)
    for values in (weights.users, weights.entities, np.array([weights.extended])):
        assert ((values >= 0) & (values <= 1)).all()
    assert len(weights.users) == incidence.users
    assert len(weights.entities) == incidence.entities
    assert weights.extended_count <= incidence.sentences


@FEW
@given(incidence=incidences(), caps=caps, rates=st.tuples(positive, positive, positive))
def test_the_denominator_scales_signal_and_noise_alike(incidence, caps, rates):
    """Guarantee: the noise against one full update is the same for every entity weight and rate."""
    weights = Weights.of(incidence, *caps)
    estimators = [f_e_plus(Sampling(*rates), weights, update_clip=0.1, noise=2.0)]
    if weights.entities.sum() > 0:
        estimators.append(f_e(Sampling(*rates), weights, update_clip=0.1, noise=2.0))
    for estimator in estimators:
        signal = weights.users.max() * estimator.update_clip / estimator.denominator
        expected = 2.0 * (rates[0] * incidence.users + 1)
        assert estimator.deviation / signal == pytest.approx(expected)


@FEW
@given(
    incidence=incidences(),
    caps=caps,
    rates=st.tuples(positive, positive, positive),
    clip=st.sampled_from([1e-3, 0.1, 7.0]),
    noise=st.sampled_from([0.5, 2.0, 2.5]),
)
def test_the_accountants_assume_this_noise(incidence, caps, rates, clip, noise):
    """Guarantee: noise in units of the largest update, as `UedpAlgProfile` has it."""
    weights = Weights.of(incidence, *caps)
    estimator = f_e_plus(Sampling(*rates), weights, clip, noise)
    largest = weights.users.max() * clip
    for holders in {0, incidence.users - 1}:
        alg = UedpAlgProfile(noise, estimator.sampling.user_rate, incidence.users, holders)
        for case in alg.pairs()["user and entity"].pairs:
            assert case.noise == pytest.approx(estimator.deviation_of_sum / largest)
            assert case.noise == estimator.noise_in_updates
    # section 2 of docs/privacy.md: z (q_u |U| + 1) max(w_u) beta / d
    entity_weight = rates[1] * weights.entities.sum() + rates[2] * weights.extended_count
    denominator = rates[0] * weights.users.sum() * entity_weight
    numerator = noise * (rates[0] * incidence.users + 1) * largest
    assert estimator.deviation == pytest.approx(numerator / denominator)


def test_f_e_never_uses_a_sentence_without_entities():
    incidence = small()
    everything = Sampling(user_rate=1.0, entity_rate=1.0, extended_rate=1.0)
    weights = replace(Weights.of(incidence, entity_cap=4), extended=0.2)
    rng = np.random.default_rng(0)
    only = f_e(everything, weights, 0.1, 2.0).draw(incidence, rng)
    assert only.sentences.values.tolist() == [0, 1, 3]
    assert only.weights.tolist() == [0.75, 1.0, 0.75]  # sentence 1 mentions both entities
    plus = f_e_plus(everything, weights, 0.1, 2.0).draw(incidence, rng)
    assert plus.sentences.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert plus.weights.tolist() == pytest.approx([0.75, 1.0, 0.2, 0.75, 0.2, 0.2])


def without_entities() -> Weights:
    return Weights.of(build([0, 0], [], 1, 0))


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("user cap 0", lambda: Weights.of(small(), user_cap=0)),
        ("entity cap nan", lambda: Weights.of(small(), entity_cap=float("nan"))),
        ("entity cap inf", lambda: Weights.of(small(), entity_cap=float("inf"))),
        ("update_clip 0", lambda: f_e_plus(RATES, Weights.of(small()), 0.0, 2.0)),
        ("noise -1", lambda: f_e_plus(RATES, Weights.of(small()), 0.1, -1)),
        ("no sentence can be sampled", lambda: f_e(RATES, without_entities(), 0.1, 2.0)),
        ("no sentence", lambda: f_e_plus(Sampling(0.0), Weights.of(small()), 0.1, 2.0)),
        ("no sentence", lambda: Estimator(Sampling(0.5, 0.0, 0.0), Weights.of(small()), 0.1, 2.0)),
    ],
)
def test_refusals(words, bad):
    with pytest.raises(UserError, match=words):
        bad()


def test_alg_counts_a_sentence_once_per_sampled_entity():
    incidence = build([0, 0, 1], [(0, 0), (0, 1), (1, 1)], 2, 2)
    found = draw_uedp_alg(
        incidence,
        Sampling(1.0),
        np.random.default_rng(0),
        np.array([0.5, 0.25]),
        extended_weight=0.1,
    )
    weights = dict(zip(found.sentences.values.tolist(), found.weights.tolist(), strict=True))
    assert weights == {0: 0.75, 1: 0.25, 2: 0.1}
