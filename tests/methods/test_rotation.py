from itertools import pairwise

import numpy as np
import pytest

from tests.training import worlds
from uedp.errors import UserError
from uedp.mechanism.lending import lend
from uedp.methods import rotation
from uedp.methods.rotation import lending_schedule


def test_a_rule_that_lends_an_entity_twice_is_refused_in_its_round():
    def everything(incidence, key):
        return np.ones(incidence.sentences, dtype=bool)

    with pytest.raises(UserError, match="at once; it must lend it to one"):
        lending_schedule(everything, worlds.incidence(), 1).at(0, 1)


def test_a_rule_that_is_no_function_of_the_key_is_refused_in_its_round():
    rng = np.random.default_rng(0)

    def moody(incidence, key):
        return lend(incidence, int(rng.integers(2**40)))

    with pytest.raises(UserError, match="another result when called again"):
        lending_schedule(moody, worlds.incidence(), 1).at(0, 1)


def test_lending_is_constant_for_a_period_and_depends_on_the_seed(monkeypatch):
    mentions, period = len(worlds.incidence().sentence_entities.values), 3
    monkeypatch.setattr(rotation, "_MENTIONS_PER_ROUND", mentions // (period - 1))
    one, other = (
        lending_schedule(lend, worlds.incidence(), 5),
        lending_schedule(lend, worlds.incidence(), 5),
    )
    assert one.at(0, 1) is one.at(period - 1, 2)
    seen = [one.at(number * period, number).copy() for number in range(6)]
    assert any((a != b).any() for a, b in pairwise(seen))
    for number in (5, 0, 3):
        assert (other.at(number * period, number) == seen[number]).all()


def test_a_period_goes_on_as_it_was_in_a_resumed_run(monkeypatch):
    mentions = len(worlds.incidence().sentence_entities.values)
    monkeypatch.setattr(rotation, "_MENTIONS_PER_ROUND", mentions // 2)  # periods of three rounds
    one, other = (lending_schedule(lend, worlds.incidence(), None) for _ in range(2))
    assert one.state() == {}
    usable = one.at(3, 11)
    assert other.restore({**one.state(), "more": 1}) == {"more": 1}
    assert (other.at(4, 12) == usable).all()  # the key of a later round changes nothing
    assert (other.at(6, 13) == lend(worlds.incidence(), 13)).all()


def test_without_a_seed_lending_is_redrawn():
    seen = {lending_schedule(lend, worlds.incidence(), None).at(0, k).tobytes() for k in range(20)}
    assert len(seen) > 1
