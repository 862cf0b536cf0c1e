from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.sentence import Sentence
from uedp.corpus.users import assign_users, held_out, random_groups
from uedp.errors import UserError


def test_sizes_follow_the_normal_law():
    sizes = np.bincount(random_groups(150_000, 15, 2, seed=1))[:-1]
    # 10,000 groups: the mean's standard error is .02, the deviation's .014; five of each
    assert sizes.mean() == pytest.approx(15, abs=0.1)
    # rounding to whole records adds a variance of 1/12
    assert sizes.std() == pytest.approx(np.sqrt(4 + 1 / 12), abs=0.07)


@given(st.integers(0, 500), st.floats(1, 30), st.floats(0, 10), st.integers(0, 3))
def test_every_record_has_one_user_without_gaps(count, mean, std, seed):
    users = random_groups(count, mean, std, seed)
    assert len(users) == count
    if count:
        assert set(users.tolist()) == set(range(users.max() + 1))
        assert np.array_equal(users, random_groups(count, mean, std, seed))


def test_groups_are_scattered_over_the_file():
    users = random_groups(3000, 15, 2, seed=0)
    neighbours = np.mean(users[1:] == users[:-1])
    assert neighbours < 0.03  # 14/3000 by chance; 14/15 if groups were consecutive


def test_seeds_differ():
    assert not np.array_equal(random_groups(300, seed=0), random_groups(300, seed=1))


def test_assign_names_the_groups():
    records = [Sentence("", "a"), Sentence("", "b")]
    assert [s.user for s in assign_users(records, np.array([1, 0]))] == [
        "group-000001",
        "group-000000",
    ]


@pytest.mark.parametrize(
    ("mean", "std"), [(0, 2), (nan, 2), (inf, 2), (15, nan), (15, inf), (15, -1)]
)
def test_nonsense_is_refused(mean, std):
    with pytest.raises(UserError, match="mean must be at least 1"):
        random_groups(10, mean, std)


def test_a_seed_below_zero_is_refused():
    with pytest.raises(UserError, match="`seed=-1`"):
        random_groups(10, seed=-1)


@pytest.mark.parametrize("extreme", [1e308, 1e300])
def test_extreme_sizes_are_cut_to_what_there_is(extreme):
    assert random_groups(10, extreme, extreme).max() < 10


@pytest.mark.parametrize("count", [1, 3])
def test_a_source_that_changed_is_refused(count):
    with pytest.raises(UserError, match="changed while users were formed"):
        list(assign_users([Sentence("", "a")] * count, np.zeros(2, dtype=np.int64)))


def test_about_the_share_is_held_out_whoever_else_is_there():
    """Guarantees of `held_out`."""
    names = [f"user {number}" for number in range(4000)]
    small, large = ({n for n in names if held_out(n, share)} for share in (0.1, 0.3))
    assert small < large
    assert len(small) == pytest.approx(400, abs=100)
    assert {n for n in names if held_out(n, 0.1, seed=1)} != small
    assert all(held_out(f" {name}\u200b", 0.1) for name in small)
