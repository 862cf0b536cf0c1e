"""Drawn users are divided among processes, each whole and once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uedp.incidence import Rows
from uedp.mechanism.processes import divide
from uedp.mechanism.sampling import Participants


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=5), max_size=12),
    st.integers(1, 5),
)
def test_every_user_is_in_one_part_and_parts_are_balanced(sizes, processes):
    counts = [len(own) for own in sizes]
    lengths = np.array([size for own in sizes for size in own], dtype=np.int64)
    ids = np.arange(len(lengths)) * 3
    rows = Rows(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), ids)
    drawn = Participants(np.arange(len(sizes)) + 7, rows, np.linspace(0.1, 1, len(lengths)))
    places = divide(drawn, lengths, processes)
    assert len(places) == processes
    assert sorted(np.concatenate(places).tolist()) == list(range(len(sizes)))
    parts = [drawn.part(own) for own in places]
    weight_of = dict(zip(ids.tolist(), drawn.weights.tolist(), strict=True))
    for own, part in zip(places, parts, strict=True):
        assert own.tolist() == sorted(own.tolist())
        assert part.users.tolist() == drawn.users[own].tolist()
        for row, place in enumerate(own):
            assert part.sentences[row].tolist() == drawn.sentences[place].tolist()
        expected = [weight_of[sentence] for sentence in part.sentences.values.tolist()]
        assert part.weights.tolist() == expected
    tokens = [sum(sum(sizes[place]) for place in own) for own in places]
    assert max(tokens) - min(tokens) <= max((sum(own) for own in sizes), default=0)
