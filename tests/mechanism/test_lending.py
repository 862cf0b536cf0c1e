"""Lending: the guarantees of every rule, and the rule in use against a plain reading."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.lending_suite import build, incidences, run_suite
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.lending import check_lending_rule, lend, random_order

# --- rules ---------------------------------------------------------------------------------------


def lend_to_one_holder(incidence: Incidence, key: int) -> np.ndarray:
    """A rule of one's own: each entity goes to its holder of smallest hash."""
    priority = random_order(np.arange(incidence.users), key)
    usable = np.ones(incidence.sentences, dtype=bool)
    for entity in range(incidence.entities):
        holders = incidence.holders[entity]
        borrower = holders[np.argmin(priority[holders])] if len(holders) else -1
        sentences = incidence.entity_sentences[entity]
        usable[sentences[incidence.sentence_user[sentences] != borrower]] = False
    return usable


class LendsToTheDrawn:
    """Broken: looks ahead in the generator to see which holders are drawn, and lends to those."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def draw(self) -> None:
        self.rng.random(6)

    def __call__(self, incidence: Incidence, key: int) -> np.ndarray:
        state = self.rng.bit_generator.state
        drawn = self.rng.random(incidence.users) < 0.5
        self.rng.bit_generator.state = state
        return lend(incidence, key) & drawn[incidence.sentence_user]


class Remembers:
    """Broken: what was lent before decides what is lent now."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, incidence: Incidence, key: int) -> np.ndarray:
        self.calls += 1
        return lend(incidence, key + self.calls)


def lend_to_everybody(incidence: Incidence, key: int) -> np.ndarray:
    """Broken: an entity moves the updates of all its holders."""
    return np.ones(incidence.sentences, dtype=bool)


def write_into_the_incidence(incidence: Incidence, key: int) -> np.ndarray:
    usable = lend(incidence, key)
    incidence.sentence_entities.values.flags.writeable = True
    incidence.sentence_entities.values[:] = 0
    return usable


@pytest.mark.parametrize("rule", [lend, lend_to_one_holder])
def test_rule_keeps_its_guarantees(rule):
    run_suite(lambda: rule)


def test_rule_that_sees_who_is_drawn_fails():
    with pytest.raises(UserError, match="never on who was drawn"):
        run_suite(LendsToTheDrawn)


def test_rule_with_a_memory_fails():
    with pytest.raises(UserError, match="the incidence and the key alone"):
        run_suite(Remembers)


def test_rule_that_lends_an_entity_twice_fails():
    with pytest.raises(UserError, match=r"lends entity \d+ to users \d+ and \d+ at once"):
        run_suite(lambda: lend_to_everybody)


def test_rule_that_changes_the_incidence_fails():
    incidence = build([0, 1], [(0, 0), (1, 1)], 2, 2)
    with pytest.raises(UserError, match="may only read it"):
        check_lending_rule(write_into_the_incidence, incidence, [1])


@pytest.mark.parametrize("result", [np.zeros(3, dtype=bool), np.zeros(2)])
def test_rule_must_give_one_flag_per_sentence(result):
    incidence = build([0, 1], [(0, 0)], 2, 1)
    with pytest.raises(UserError, match="one bool per sentence"):
        check_lending_rule(lambda *_: result, incidence, [1])


# --- the rule in use -----------------------------------------------------------------------------


def plainly_lent(incidence: Incidence, key: int) -> dict[int, int]:
    """Who has each entity, when sentences take theirs one after the other."""
    order = random_order(np.arange(incidence.sentences), key)
    lent: dict[int, int] = {}
    for sentence in sorted(range(incidence.sentences), key=lambda s: int(order[s])):
        user = int(incidence.sentence_user[sentence])
        entities = incidence.sentence_entities[sentence].tolist()
        if all(lent.get(entity, user) == user for entity in entities):
            lent.update(dict.fromkeys(entities, user))
    return lent


@settings(max_examples=300, deadline=None)
@given(incidences(), st.integers(0, 2**63))
def test_no_sentence_is_left_out_in_vain(incidence, key):
    usable = lend(incidence, key)
    borrower = {
        entity: incidence.sentence_user[sentence]
        for sentence in np.flatnonzero(usable).tolist()
        for entity in incidence.sentence_entities[sentence].tolist()
    }
    for sentence in np.flatnonzero(~usable).tolist():
        user = incidence.sentence_user[sentence]
        entities = incidence.sentence_entities[sentence].tolist()
        assert any(borrower.get(entity, user) != user for entity in entities)


def test_a_sentence_that_is_out_takes_nothing_on_its_way():
    """In order: 0 (user 1) has f; 1 (user 0) has e, f; 2 (user 1) has e; 3 (user 0) has e.

    Sentence 1 is out, so e is user 1's: 3 must not get it because 1, of the same user, wanted it.
    """
    mentions = [(0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]
    incidence = build([1, 0, 1, 0], mentions, 2, 2)
    for key in range(100):
        lent = plainly_lent(incidence, key)
        for sentence, usable in enumerate(lend(incidence, key).tolist()):
            entities = incidence.sentence_entities[sentence].tolist()
            user = incidence.sentence_user[sentence]
            assert usable == all(lent[entity] == user for entity in entities)


def test_lend_leaves_cached_flags_alone(monkeypatch):
    """Also where `extended` would give the same array every time."""
    incidence = build([0, 0], [(0, 0)], 1, 1)
    flags = incidence.extended
    monkeypatch.setattr(Incidence, "extended", flags)
    assert lend(incidence, 1).tolist() == [True, True]
    assert flags.tolist() == [False, True]
