"""Property tests that any lending rule can be run through."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from uedp.incidence import Incidence
from uedp.mechanism.lending import check_lending_rule


def build(owners, mentions, users, entities) -> Incidence:
    pairs = np.array(mentions, dtype=np.int64).reshape(-1, 2)
    return Incidence.build(np.array(owners), pairs[:, 0], pairs[:, 1], users, entities)


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


def run_suite(make_rule) -> None:
    """Check a rule's guarantees on random incidences; the first broken one is raised.

    `make_rule()` makes the rule anew for each incidence. A rule that holds the generator of the
    rounds has a method `draw()`, which draws the users of a round.
    """

    @settings(max_examples=200, deadline=None, database=None)
    @given(incidences(), st.lists(st.integers(0, 2**63), min_size=1, max_size=4, unique=True))
    def check(incidence, keys):
        rule = make_rule()
        check_lending_rule(rule, incidence, keys, getattr(rule, "draw", lambda: None))

    check()
