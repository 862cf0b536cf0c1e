import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.digest import TextDigest, text_digest

sentences = st.lists(
    st.tuples(st.integers(0, 9), st.text(max_size=5), st.none() | st.text(max_size=3)), max_size=8
)


def digest(rows, batch=1 << 16):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return text_digest(*columns, batch=batch)


@given(sentences, st.integers(1, 9))
def test_batches_do_not_matter(rows, batch):
    assert digest(rows, batch) == digest(rows)


@given(sentences, sentences)
def test_other_sentences_have_another_digest(one, other):
    assert (digest(one) == digest(other)) == (one == other)


def test_where_one_text_ends_and_the_next_begins_matters():
    rows = [(0, "ab", None), (1, "c", None)]
    others = [
        [(0, "a", None), (1, "bc", None)],  # the same letters
        [(1, "ab", None), (0, "c", None)],
        [(0, "c", None), (1, "ab", None)],
        [(0, "ab", ""), (1, "c", None)],
        [(0, "ab", None), (1, "c", "")],
        rows[:1],
    ]
    assert len({digest(each) for each in (rows, *others)}) == 7


def test_the_type_of_the_users_does_not_matter():
    texts, labels = ["a", "b"], [None, "x"]
    assert text_digest(np.array([0, 1], np.int32), texts, labels) == digest(
        [(0, "a", None), (1, "b", "x")]
    )


def test_half_a_pair_has_a_digest_too():
    assert digest([(0, "\ud800", None)]) != digest([(0, "\ud801", None)])


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        text_digest([0], ["a", "b"], [None, None])
    with pytest.raises(ValueError, match="differ in length"):
        TextDigest().update([0], ["a"], [])
