"""Property tests that any sharing rule can be run through."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.lending_suite import incidences
from uedp.mechanism.fair import Sharing, check_sharing_rule

sharings = st.builds(
    Sharing,
    entity_share=st.sampled_from([0.1, 0.4, 1.0, 2.0]),
    per_user=st.sampled_from([None, 1, 2, 5]),
)


def run_suite(make_rule) -> None:
    """Check a rule's guarantees on random incidences; the first broken one is raised.

    `make_rule()` makes the rule anew for each incidence. A rule that holds the generator of the
    rounds has a method `draw()`, which draws the users of a round.
    """

    @settings(max_examples=200, deadline=None, database=None)
    @given(
        incidences(),
        sharings,
        st.lists(st.integers(0, 2**63), min_size=1, max_size=4, unique=True),
    )
    def check(incidence, sharing, keys):
        rule = make_rule()
        check_sharing_rule(rule, incidence, sharing, keys, getattr(rule, "draw", lambda: None))

    check()
