"""Rates of draws, lending and coins; each test would fail for a rate off by a third."""

from collections import Counter

import numpy as np
import pytest

from tests.mechanism.lending_suite import build
from tests.statistical.rates import check_rate
from uedp.mechanism.estimators import draw_uedp_alg
from uedp.mechanism.lending import lend
from uedp.mechanism.sampling import Sampling, draw


@pytest.mark.parametrize("holders", [1, 2, 7])
def test_an_entity_is_active_with_the_same_probability_however_many_hold_it(holders):
    """Probability `q_u q_e`, whatever the number of holders."""
    incidence = build(range(holders), [(s, 0) for s in range(holders)], holders, 1)
    sampling = Sampling(0.4, entity_rate=0.7)
    rng = np.random.default_rng(holders)
    trials = 3_000
    active = sum(
        len(draw(incidence, sampling, rng, key).sentences.values) > 0 for key in range(trials)
    )
    check_rate(active, trials, 0.4 * 0.7, off=0.4 * 0.7 * 4 / 3)


def test_every_sentence_has_its_turn():
    # sentence 0 mentions two entities, and three other users' sentences one of them: it is usable
    # if it comes first of all four
    owners = [0, 1, 2, 3]
    mentions = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 1)]
    incidence = build(owners, mentions, 4, 2)
    trials = 3_000
    usable = sum(bool(lend(incidence, key)[0]) for key in range(trials))
    check_rate(usable, trials, 1 / 4, off=1 / 6)  # 1/6: if the entities were lent independently


def test_extended_sentences_are_always_available_and_flip_their_own_coin():
    incidence = build([0, 0, 0], [(0, 0)], 1, 1)
    rng = np.random.default_rng(5)
    sampling = Sampling(1.0, entity_rate=1.0, extended_rate=0.3)
    seen = Counter(
        sentence
        for key in range(3_000)
        for sentence in draw(incidence, sampling, rng, key).sentences.values.tolist()
    )
    assert seen[0] == 3_000
    for sentence in (1, 2):
        check_rate(seen[sentence], 3_000, 0.3, off=0.2)


def test_alg_admits_a_sentence_by_any_entity():
    incidence = build([0], [(0, 0), (0, 1)], 1, 2)
    rng = np.random.default_rng(1)
    trials = 3_000
    used = sum(
        len(draw_uedp_alg(incidence, Sampling(1.0, entity_rate=0.5), rng, np.ones(2)).weights) > 0
        for _ in range(trials)
    )
    check_rate(used, trials, 0.75, off=0.5)
