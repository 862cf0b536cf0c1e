import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.errors import UserError
from uedp.incidence import Incidence, Rows


@st.composite
def worlds(draw):
    """(owner of each sentence, mentions as (sentence, entity), users, entities)."""
    users, entities = draw(st.integers(1, 6)), draw(st.integers(0, 6))
    owners = draw(st.lists(st.integers(0, users - 1), max_size=12))
    pairs = []
    if owners and entities:
        pair = st.tuples(st.integers(0, len(owners) - 1), st.integers(0, entities - 1))
        pairs = draw(st.lists(pair, max_size=30))
    return owners, pairs, users, entities


def build(owners, pairs, users, entities):
    mentions = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Incidence.build(
        np.array(owners, dtype=np.int32), mentions[:, 0], mentions[:, 1], users, entities
    )


@given(worlds())
def test_agrees_with_plain_sets(world):
    owners, pairs, users, entities = world
    incidence = build(*world)
    assert (incidence.users, incidence.sentences, incidence.entities) == (
        users,
        len(owners),
        entities,
    )
    for sentence in range(len(owners)):
        mentioned = sorted({e for s, e in pairs if s == sentence})
        assert incidence.sentence_entities[sentence].tolist() == mentioned
        assert incidence.extended[sentence] == (not mentioned)
    for user in range(users):
        assert incidence.user_sentences[user].tolist() == [
            s for s, owner in enumerate(owners) if owner == user
        ]
    for entity in range(entities):
        where = sorted({s for s, e in pairs if e == entity})
        assert incidence.entity_sentences[entity].tolist() == where
        assert incidence.holders[entity].tolist() == sorted({owners[s] for s in where})


@given(worlds(), st.randoms(use_true_random=False))
def test_order_and_repeats_of_mentions_do_not_matter(world, random):
    owners, pairs, users, entities = world
    shuffled = [*pairs, *pairs[:3]]
    random.shuffle(shuffled)
    assert build(owners, shuffled, users, entities).digest == build(*world).digest


@given(worlds())
def test_save_and_load(world):
    incidence = build(*world)
    with tempfile.TemporaryDirectory() as folder:
        incidence.save(Path(folder) / "incidence")
        loaded = Incidence.of(folder)
    assert loaded.digest == incidence.digest
    for name in ("user_sentences", "entity_sentences", "holders"):
        before, after = getattr(incidence, name), getattr(loaded, name)
        assert np.array_equal(before.offsets, after.offsets)
        assert np.array_equal(before.values, after.values)


def test_digest_sees_every_change():
    base = build([0, 1], [(0, 0)], 2, 2)
    others = [
        build([1, 1], [(0, 0)], 2, 2),
        build([0, 1], [(1, 0)], 2, 2),
        build([0, 1], [(0, 1)], 2, 2),
        build([0, 1], [(0, 0)], 3, 2),
        build([0, 1], [(0, 0)], 2, 3),
    ]
    assert len({i.digest for i in (base, *others)}) == 6


@given(st.lists(st.lists(st.integers(0, 7)), min_size=1, max_size=6), st.data())
def test_take_rows(rows, data):
    offsets = np.cumsum([0, *map(len, rows)])
    table = Rows(offsets, np.array([v for row in rows for v in row], dtype=np.int32))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    taken = table.take(np.array(chosen, dtype=np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [rows[i] for i in chosen]
    assert taken.row_of_value().tolist() == [n for n, i in enumerate(chosen) for _ in rows[i]]


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"sentence_user.npy: missing or damaged"):
        Incidence.of(tmp_path)
    build([0], [], 1, 0).save(tmp_path / "incidence")
    path = tmp_path / "incidence" / "holders.values.npy"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=r"holders.values.npy"):
        Incidence.of(tmp_path)


def test_ids_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"mention_entity must lie in 0\.\.1"):
        build([0], [(0, 2)], 1, 2)
    with pytest.raises(ValueError, match="sentence_user"):
        build([3], [], 1, 0)
