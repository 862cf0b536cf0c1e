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


def dense(world):
    """The same without users and entities that no sentence has, as a corpus never has them."""
    owners, pairs, _, _ = world
    users = {user: number for number, user in enumerate(dict.fromkeys(owners))}
    entities = {entity: number for number, entity in enumerate(dict.fromkeys(e for _, e in pairs))}
    kept = [(sentence, entities[entity]) for sentence, entity in pairs]
    return [users[user] for user in owners], kept, len(users), len(entities)


@given(worlds().map(dense))
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


@given(worlds().map(dense))
def test_every_array_is_read_only(world):
    """Guarantee of `Incidence`: no method or lending rule can change what is accounted for."""
    owners = np.array(world[0], dtype=np.int32)
    mentions = np.array(world[1], dtype=np.int64).reshape(-1, 2)
    incidence = Incidence.build(owners, mentions[:, 0], mentions[:, 1], *world[2:])
    with tempfile.TemporaryDirectory() as folder:
        incidence.save(Path(folder) / "incidence")
        loaded = Incidence.of(folder)
    for one in (incidence, loaded):
        tables = (one.sentence_entities, one.user_sentences, one.entity_sentences, one.holders)
        arrays = [a for table in tables for a in (table.offsets, table.values)]
        for array in (one.sentence_user, one.extended, *arrays, *(t[0] for t in tables if len(t))):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
    digest = incidence.digest
    owners[:] = 0  # the array it was built from is still the caller's
    assert Incidence.build(incidence.sentence_user, *mentions.T, *world[2:]).digest == digest


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
    with pytest.raises(UserError, match=r"counts.npy: missing or damaged"):
        Incidence.of(tmp_path)
    build([0], [(0, 0)], 1, 1).save(tmp_path / "incidence")
    path = tmp_path / "incidence" / "sentence_entities.values.npy"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=r"sentence_entities.values.npy"):
        Incidence.of(tmp_path)


def test_what_is_drawn_from_is_never_read(tmp_path):
    """Arrays that the digest does not cover could say that every user owns user 0's sentences."""
    incidence = build([0, 1, 2], [(0, 0), (1, 0)], 3, 1)
    incidence.save(tmp_path / "incidence")
    false = {"user_sentences": ([0, 1, 2, 3], [0, 0, 0]), "holders": ([0, 1], [2])}
    for name, (offsets, values) in false.items():
        np.save(tmp_path / "incidence" / f"{name}.offsets.npy", np.array(offsets))
        np.save(tmp_path / "incidence" / f"{name}.values.npy", np.array(values, dtype=np.int32))
    loaded = Incidence.of(tmp_path)
    assert loaded.digest == incidence.digest
    assert [loaded.user_sentences[user].tolist() for user in range(3)] == [[0], [1], [2]]
    assert loaded.holders[0].tolist() == [0, 1]


OFFSETS, VALUES = "sentence_entities.offsets", "sentence_entities.values"
REWRITTEN = {
    "a user beyond the last": ("sentence_user", np.array([0, 3, 2], np.int32)),
    "a negative user": ("sentence_user", np.array([0, -1, 2], np.int32)),
    "users of another type": ("sentence_user", np.array([0, 1, 2], np.int64)),
    "users of another order of bytes": ("sentence_user", np.array([0, 1, 2], ">i4")),
    "users in two dimensions": ("sentence_user", np.array([[0, 1, 2]], np.int32)),
    "fewer users": ("sentence_user", np.array([0, 1, 1], np.int32)),
    "fewer sentences": ("sentence_user", np.array([0, 1], np.int32)),
    "an entity beyond the last": (VALUES, np.array([0, 1, 9], np.int32)),
    "an entity twice": (VALUES, np.array([0, 0, 1], np.int32)),
    "a row out of order": (VALUES, np.array([1, 0, 1], np.int32)),
    "an entity without a mention": (VALUES, np.array([0, 2, 0], np.int32)),
    "values of another type": (VALUES, np.array([0.0, 1.0, 1.0])),
    "offsets that go back": (OFFSETS, np.array([0, 3, 2, 3])),
    "offsets that do not begin": (OFFSETS, np.array([1, 2, 3, 3])),
    "offsets beyond the end": (OFFSETS, np.array([0, 2, 3, 2**40])),
    "offsets of nothing": (OFFSETS, np.array([], np.int64)),
    "counts of too many": ("counts", np.array([2**40, 2**40])),
    "counts below none": ("counts", np.array([-1, 2])),
    "counts of another user": ("counts", np.array([2, 2])),
    "no counts": ("counts", np.array([], np.int64)),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_arrays_that_are_no_incidence_are_refused(case, tmp_path):
    build([0, 1, 2], [(0, 0), (0, 1), (1, 1)], 3, 2).save(tmp_path / "incidence")
    assert Incidence.of(tmp_path).entities == 2
    name, array = REWRITTEN[case]
    np.save(tmp_path / "incidence" / f"{name}.npy", array)
    with pytest.raises(UserError, match=r"\.npy: .*build the corpus again") as refused:
        Incidence.of(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }",
        b"{" * 5000,
        b"(((((1,",
        b"{'descr': 7}",
    ],
)
def test_a_hostile_header_is_refused(header, tmp_path):
    build([0], [], 1, 0).save(tmp_path / "incidence")
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    (tmp_path / "incidence" / "sentence_user.npy").write_bytes(data)
    with pytest.raises(UserError, match=r"sentence_user.npy"):
        Incidence.of(tmp_path)


def test_ids_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"mention_entity must lie in 0\.\.1"):
        build([0], [(0, 2)], 1, 2)
    with pytest.raises(ValueError, match="sentence_user"):
        build([3], [], 1, 0)
