"""Drawing, lending, selection and coins against a plain reading of section 5."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism import sampling as module
from uedp.mechanism.sampling import Sampling, draw, draw_alg, lend, select


@st.composite
def incidences(draw_from):
    users, entities = draw_from(st.integers(1, 6)), draw_from(st.integers(1, 5))
    owners = draw_from(st.lists(st.integers(0, users - 1), min_size=1, max_size=14))
    mentions = [
        (sentence, entity)
        for sentence in range(len(owners))
        for entity in draw_from(st.sets(st.integers(0, entities - 1), max_size=3))
    ]
    return build(owners, mentions, users, entities)


def build(owners, mentions, users, entities) -> Incidence:
    pairs = np.array(mentions, dtype=np.int64).reshape(-1, 2)
    return Incidence.build(np.array(owners), pairs[:, 0], pairs[:, 1], users, entities)


def plainly_lent(incidence: Incidence, key: int) -> dict[int, int]:
    """Who has each entity, when sentences take theirs one after the other."""
    order = module._hash(np.arange(incidence.sentences), key)
    lent: dict[int, int] = {}
    for sentence in sorted(range(incidence.sentences), key=lambda s: int(order[s])):
        user = int(incidence.sentence_user[sentence])
        entities = incidence.sentence_entities[sentence].tolist()
        if all(lent.get(entity, user) == user for entity in entities):
            lent.update(dict.fromkeys(entities, user))
    return lent


def plainly(incidence: Incidence, user: int, sampling: Sampling, key: int) -> list[int]:
    """What section 5 says is selected for a user, one sentence after the other."""
    borrowers = plainly_lent(incidence, key)
    order = module._hash(np.arange(incidence.sentences), key ^ module._SELECTION)
    taken: Counter[int] = Counter()
    chosen: list[int] = []
    for sentence in sorted(incidence.user_sentences[user].tolist(), key=lambda s: int(order[s])):
        entities = incidence.sentence_entities[sentence].tolist()
        lent = all(borrowers.get(entity) == user for entity in entities)
        limit = sampling.per_entity
        if not lent or (limit is not None and any(taken[e] >= limit for e in entities)):
            continue
        if sampling.per_user is not None and len(chosen) >= sampling.per_user:
            break
        taken.update(entities)
        chosen.append(sentence)
    return sorted(chosen)


samplings = st.builds(
    Sampling,
    user_rate=st.just(0.5),
    per_entity=st.sampled_from([1, 2, 3, None]),
    per_user=st.sampled_from([None, 1, 2, 5]),
)


@settings(max_examples=300, deadline=None)
@given(incidences(), samplings, st.integers(0, 2**63))
def test_selection_is_the_plain_one(incidence, sampling, key):
    users = np.arange(incidence.users)
    place, sentences, mentions = select(incidence, users, sampling, key)
    for user in users.tolist():
        assert sorted(sentences[place == user].tolist()) == plainly(incidence, user, sampling, key)
    assert [mentions[i].tolist() for i in range(len(mentions))] == [
        incidence.sentence_entities[s].tolist() for s in sentences.tolist()
    ]


@given(incidences(), samplings, st.integers(0, 2**63), st.data())
def test_selection_does_not_look_at_who_else_was_drawn(incidence, sampling, key, data):
    everyone = np.arange(incidence.users)
    some = np.array(sorted(data.draw(st.sets(st.sampled_from(everyone.tolist()), min_size=1))))
    place_all, sentences_all, _ = select(incidence, everyone, sampling, key)
    place_some, sentences_some, _ = select(incidence, some, sampling, key)
    for position, user in enumerate(some.tolist()):
        alone = sentences_some[place_some == position]
        assert set(alone.tolist()) == set(sentences_all[place_all == user].tolist())


@settings(max_examples=300, deadline=None)
@given(incidences(), st.integers(0, 2**63))
def test_an_entity_is_lent_to_one_user_and_no_sentence_is_left_out_in_vain(incidence, key):
    usable, borrower = lend(incidence, key), {}
    for sentence in np.flatnonzero(usable).tolist():
        for entity in incidence.sentence_entities[sentence].tolist():
            user = incidence.sentence_user[sentence]
            assert borrower.setdefault(entity, user) == user
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


@given(incidences(), st.integers(0, 2**63))
def test_lending_of_another_key_may_be_used(incidence, key):
    everyone, sampling = np.arange(incidence.users), Sampling(1.0, per_entity=None)
    found = select(incidence, everyone, sampling, key, lend(incidence, key + 1))[1]
    assert set(found.tolist()) == set(np.flatnonzero(lend(incidence, key + 1)).tolist())


@given(incidences(), samplings, st.integers(0, 2**32))
def test_participants_are_a_table_of_drawn_users(incidence, sampling, seed):
    found = draw(incidence, sampling, np.random.default_rng(seed), seed)
    assert len(found.sentences) == len(found.users)
    assert len(found.crowding) == len(found.sentences.values)
    for position, user in enumerate(found.users.tolist()):
        assert set(incidence.sentence_user[found.sentences[position]]) <= {user}


def test_crowding_counts_the_most_frequent_entity():
    incidence = build([0, 0, 0, 0], [(0, 0), (1, 0), (1, 1), (2, 0)], 1, 2)
    found = draw(incidence, Sampling(1.0, per_entity=None), np.random.default_rng(0), 1)
    crowding = dict(zip(found.sentences.values.tolist(), found.crowding.tolist(), strict=True))
    assert crowding == {0: 3, 1: 3, 2: 3, 3: 1}


def test_nobody_drawn_is_an_ordinary_round():
    incidence = build([0, 1], [(0, 0)], 2, 1)
    found = draw(incidence, Sampling(0.0), np.random.default_rng(0), 1)
    assert len(found.users) == 0
    assert len(found.sentences) == 0


def test_coins_come_after_selection():
    """With the coin of one entity down, its sentences leave and nothing takes their place."""
    owners = [0] * 6
    mentions = [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (4, 1)]
    incidence = build(owners, mentions, 1, 2)
    for seed in range(200):
        chosen = set(select(incidence, np.array([0]), Sampling(1.0), seed)[1].tolist())
        tossed = draw(
            incidence, Sampling(1.0, entity_rate=0.5), np.random.default_rng(seed), seed
        ).sentences.values.tolist()
        assert set(tossed) <= chosen
        down = {e for s in chosen - set(tossed) for e in incidence.sentence_entities[s].tolist()}
        assert len(down) or set(tossed) == chosen
        for sentence in tossed:  # a sentence stays only if all its coins came up
            alone = {
                e
                for s in chosen - set(tossed)
                if len(incidence.sentence_entities[s]) == 1
                for e in incidence.sentence_entities[s].tolist()
            }
            assert not alone & set(incidence.sentence_entities[sentence].tolist())


def rate(successes: int, trials: int, expected: float, off: float) -> None:
    """The right law passes (false alarm 6e-7, five deviations), a law off by a third fails."""
    deviation = np.sqrt(expected * (1 - expected) / trials)
    assert abs(successes / trials - expected) < 5 * deviation
    assert abs(off - expected) > 10 * deviation  # so the wrong law is five deviations outside


@pytest.mark.parametrize("holders", [1, 2, 7])
def test_an_entity_is_active_with_the_same_probability_however_many_hold_it(holders):
    """Probability `q_u q_e`, whatever the number of holders."""
    incidence = build(range(holders), [(s, 0) for s in range(holders)], holders, 1)
    sampling = Sampling(0.4, entity_rate=0.7)
    rng = np.random.default_rng(holders)
    trials = 20_000
    active = sum(
        len(draw(incidence, sampling, rng, key).sentences.values) > 0 for key in range(trials)
    )
    rate(active, trials, 0.4 * 0.7, off=0.4 * 0.7 * 4 / 3)


def test_every_sentence_has_its_turn():
    # sentence 0 mentions two entities, and three other users' sentences one of them: it is usable
    # if it comes first of all four
    owners = [0, 1, 2, 3]
    mentions = [(0, 0), (0, 1), (1, 0), (2, 0), (3, 1)]
    incidence = build(owners, mentions, 4, 2)
    trials = 20_000
    usable = sum(bool(lend(incidence, key)[0]) for key in range(trials))
    rate(usable, trials, 1 / 4, off=1 / 6)  # 1/6: if the entities were lent independently


def test_extended_sentences_are_always_available_and_flip_their_own_coin():
    incidence = build([0, 0, 0], [(0, 0)], 1, 1)
    rng = np.random.default_rng(5)
    sampling = Sampling(1.0, entity_rate=1.0, extended_rate=0.3)
    seen = Counter(
        sentence
        for key in range(20_000)
        for sentence in draw(incidence, sampling, rng, key).sentences.values.tolist()
    )
    assert seen[0] == 20_000
    for sentence in (1, 2):
        rate(seen[sentence], 20_000, 0.3, off=0.2)


def test_alg_counts_a_sentence_once_per_sampled_entity():
    incidence = build([0, 0, 1], [(0, 0), (0, 1), (1, 1)], 2, 2)
    found = draw_alg(
        incidence,
        Sampling(1.0),
        np.random.default_rng(0),
        np.array([0.5, 0.25]),
        extended_weight=0.1,
    )
    weights = dict(zip(found.sentences.values.tolist(), found.weights.tolist(), strict=True))
    assert weights == {0: 0.75, 1: 0.25, 2: 0.1}


def test_alg_admits_a_sentence_by_any_entity():
    incidence = build([0], [(0, 0), (0, 1)], 1, 2)
    rng = np.random.default_rng(1)
    trials = 20_000
    used = sum(
        len(draw_alg(incidence, Sampling(1.0, entity_rate=0.5), rng, np.ones(2)).weights) > 0
        for _ in range(trials)
    )
    rate(used, trials, 0.75, off=0.5)


@pytest.mark.parametrize("bad", [{"user_rate": 1.5}, {"user_rate": 0.1, "per_entity": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        Sampling(**bad)
