"""Sentences by user, users in bins."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from uedp.mechanism.clip.layout import Layout


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_layouts_keep_users_whole(sizes, seed):
    owners = [user for user, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(owners)
    layout = Layout.of(owners)
    assert sorted(layout.order) == list(range(len(owners)))
    assert [owners[i] for i in layout.order] == [layout.users[place] for place in layout.owner]
    rows = torch.tensor(layout.owner)
    seen = [set(b.tolist()) for bucket in layout.buckets for b in bucket.split(rows)]
    assert sum(len(bin_) for bin_ in seen) == len(sizes)  # no user in two bins
    assert sum(bucket.bins * bucket.each for bucket in layout.buckets) == len(owners)


def test_small_users_share_bins():
    """As many matrix products as there are kinds of bins, not as users have sizes."""
    sizes = [1, 2, 3, 4, 5, 6, 7] * 8
    owners = [user for user, size in enumerate(sizes) for _ in range(size)]
    assert len(Layout.of(owners).buckets) <= 2
