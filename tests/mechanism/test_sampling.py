"""Drawing, selection and coins against a plain reading of section 5."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.lending_suite import build, incidences
from tests.mechanism.test_lending import plainly_lent
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.lending import lend
from uedp.mechanism.sampling import Sampling, draw, select, selection_order


def plainly(incidence: Incidence, user: int, sampling: Sampling, key: int) -> list[int]:
    """What section 5 says is selected for a user, one sentence after the other."""
    borrowers = plainly_lent(incidence, key)
    order = selection_order(np.arange(incidence.sentences), key)
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


@given(incidences(), st.integers(0, 2**63))
def test_lending_of_another_key_may_be_used(incidence, key):
    everyone, sampling = np.arange(incidence.users), Sampling(1.0, per_entity=None)
    found = select(incidence, everyone, sampling, key, lend(incidence, key + 1))[1]
    assert set(found.tolist()) == set(np.flatnonzero(lend(incidence, key + 1)).tolist())


@given(incidences(), samplings, st.integers(0, 2**32))
def test_participants_are_a_table_of_drawn_users(incidence, sampling, seed):
    found = draw(incidence, sampling, np.random.default_rng(seed), seed)
    assert len(found.sentences) == len(found.users)
    assert len(found.weights) == len(found.sentences.values)
    for position, user in enumerate(found.users.tolist()):
        assert set(incidence.sentence_user[found.sentences[position]]) <= {user}


def test_sentences_divide_the_share_of_their_most_frequent_entity():
    incidence = build([0, 0, 0, 0], [(0, 0), (1, 0), (1, 1), (2, 0)], 1, 2)
    found = draw(incidence, Sampling(1.0, per_entity=None), np.random.default_rng(0), 1)
    weights = dict(zip(found.sentences.values.tolist(), found.weights.tolist(), strict=True))
    third = pytest.approx(1 / 3, abs=1e-9)
    assert weights == {0: third, 1: third, 2: third, 3: 1}


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


@pytest.mark.parametrize("bad", [{"user_rate": 1.5}, {"user_rate": 0.1, "per_entity": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        Sampling(**bad)
