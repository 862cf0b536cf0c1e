"""What the errors of a detection cost."""

from collections import Counter

import numpy as np
import pytest

from uedp.accounting.missed import missed_epsilon
from uedp.accounting.proven import RotationProfile
from uedp.audit import detection
from uedp.audit.detection import false_hit_costs, miss_costs
from uedp.entities.coverage import DetectionErrors
from uedp.incidence import Incidence
from uedp.mechanism.sampling import usable_share
from uedp.methods import PrivacySettings

PRIVACY = PrivacySettings(epsilon=8, rounds=20)


def incidence_of(users: int, mentions: list[tuple[int, int]], entities: int) -> Incidence:
    """One sentence per user."""
    sentence, entity = np.array(mentions, dtype=np.int64).reshape(-1, 2).T
    return Incidence.build(np.arange(users), sentence, entity, users, entities)


def test_the_usable_share_of_one_shared_entity():
    # ten users share an entity: in each lending one of them can use it
    shared = incidence_of(20, [(user, 0) for user in range(10)], 1)
    assert usable_share(shared) == pytest.approx(11 / 20)
    assert usable_share(incidence_of(5, [], 0)) == 1


def test_false_hits_cost_what_their_removal_brings_back():
    mentions = [(user, 0) for user in range(10)] + [(user, 1) for user in range(10, 15)]
    incidence = incidence_of(20, mentions, 2)
    false = [(user, 0, "person") for user in range(10)]
    costs = false_hit_costs(DetectionErrors(incidence, false=[*false, (10, 1, "org")]))
    assert costs["usable"] == pytest.approx(7 / 20)
    assert costs["usable_without"] == pytest.approx(17 / 20)
    assert costs["categories"]["person"] == {
        "false_hits": 10,
        "usable_lost": pytest.approx(9 / 20),
    }
    assert costs["categories"]["org"] == {"false_hits": 1, "usable_lost": pytest.approx(1 / 20)}


def test_without_false_hits_nothing_is_lost():
    incidence = incidence_of(4, [(0, 0), (1, 0)], 1)
    costs = false_hit_costs(DetectionErrors(incidence))
    assert costs["usable"] == costs["usable_without"] == 0.75
    assert costs["categories"] == {}


@pytest.fixture(scope="module")
def misses():
    missed = {
        ("person", "ann"): Counter(),
        ("person", "bob"): Counter({"u": 1}),
        ("person", "cy"): Counter({"u": 1, "v": 1, "w": 1}),
        ("org", "acme"): Counter({str(user): 1 for user in range(101)}),
        ("year", "1999"): Counter({"u": 3}),
    }
    errors = DetectionErrors(incidence_of(4, [], 0), frozenset({"person", "org"}), missed=missed)
    return miss_costs(errors, 8, PRIVACY)


def test_the_epsilon_of_each_marked_entity(misses):
    rows = misses["categories"]
    person = rows["person"]
    assert (person["entities"], person["found_everywhere"]) == (3, 1)
    assert (person["users_missed"], person["sentences_missed"]) == (3, 1)
    assert person["epsilon"]["p50"] > 8  # of bob
    # cy was missed in three users, rounded up to five: what a run would state for five
    at_most = person["epsilon"]["max"]
    noise = _noise(8)
    profile = RotationProfile(noise, PRIVACY.user_rate, PRIVACY.entity_share)
    assert at_most == missed_epsilon(profile, PRIVACY.rounds, PRIVACY.delta, 5, 1)
    assert at_most >= missed_epsilon(profile, PRIVACY.rounds, PRIVACY.delta, 3, 1)


def _noise(epsilon: float) -> float:
    from uedp.accounting.calibrate import noise_for

    return noise_for(
        epsilon,
        PRIVACY.delta,
        PRIVACY.rounds,
        lambda noise: RotationProfile(noise, PRIVACY.user_rate, PRIVACY.entity_share),
    )


def test_an_entity_that_is_never_missed_has_the_epsilon_of_the_run():
    errors = DetectionErrors(incidence_of(4, [], 0), missed={("person", "ann"): Counter()})
    row = miss_costs(errors, 8, PRIVACY)["categories"]["person"]
    assert 7.9 < row["epsilon"]["max"] <= 8


def test_too_many_misses_promise_nothing(misses):
    assert misses["categories"]["org"]["epsilon"]["p50"] is None
    assert misses["categories"]["all"]["epsilon"]["max"] is None


def test_rows_are_categories_and_unions(misses):
    rows = misses["categories"]
    assert set(rows) == {"person", "org", "year", "pii", "all", "protected"}
    assert (rows["all"]["entities"], rows["protected"]["entities"]) == (5, 4)


def test_counts_are_rounded_up_never_down():
    for count in range(1, 101):
        step = detection._rounded_up(count, detection.USERS)
        assert step is not None
        assert count <= step < 2.6 * count
    assert detection._rounded_up(101, detection.USERS) is None
    assert detection._rounded_up(6, detection.SENTENCES) is None  # all of them
