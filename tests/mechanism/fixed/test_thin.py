"""Gradients of thin matrices by sentence: plain PyTorch here, kernels on an accelerator."""

from itertools import pairwise

import pytest
import torch

from uedp.mechanism.fixed.thin import MOST, SentenceRows, ThinProduct, ThinTable

BOUNDS, COUNT = [0, 5, 45, 45, 90, 96, 98, 100], 5
USERS, USER_COUNT = [0, 2, 3, 5, 5, 5, 5, 5], 3
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def formed(shapes, dtype, device, poison=None) -> tuple[SentenceRows, torch.Tensor]:
    """As computed; and one by one, in float64."""
    torch.manual_seed(0)
    products, start = [], 0
    for place, (thin, wide) in enumerate(shapes):
        left = torch.randn(100, 24, device=device).to(dtype)[:, :thin]
        right = torch.randn(100, wide + 8, device=device).to(dtype)[:, :wide]
        if poison is not None:
            right[poison] = torch.inf
        products.append(ThinProduct(left, right, 1.0 + place, start))
        start += thin * wide
    bounds = torch.tensor(BOUNDS, dtype=torch.int32, device=device)
    table = ThinTable(shapes, torch.device(device))
    rows = table.formed(products, bounds, torch.tensor(COUNT, device=device))
    expected = torch.stack(
        [
            torch.cat(
                [
                    p.scale * (p.thin[a:b].double().t() @ p.wide[a:b].double()).flatten()
                    for p in products
                ]
            )
            for a, b in pairwise(BOUNDS[: COUNT + 1])
        ]
    )
    return rows, expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shapes", [[(8, 200), (16, 136)], [(5, 64), (1, 31), (MOST, 257)], [(2, 2100)]], ids=str
)
def test_rows_squares_and_sums_are_those_of_each_sentence(shapes, dtype, device):
    rows, expected = formed(shapes, dtype, device)
    users = torch.tensor(USERS, dtype=torch.int32, device=device)
    factors = torch.tensor([0.5, 1.0, 0.3, 0.0, 0.7, 9.0, 9.0], device=device)
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.cat(list(rows.rows), 1)[:COUNT].double(), expected, **close)
    torch.testing.assert_close(rows.squares[:COUNT], expected.square().sum(1), **close)
    assert not rows.squares[COUNT:].any()
    weighted = factors[:COUNT, None].double() * expected
    sums = torch.stack([weighted[0:2].sum(0), weighted[2:3].sum(0), weighted[3:5].sum(0)])
    found = rows.user_squares(users, torch.tensor(USER_COUNT, device=device), factors)
    torch.testing.assert_close(found[:USER_COUNT], sums.square().sum(1), **close)
    assert not found[USER_COUNT:].any()
    total = torch.full((expected.shape[1],), 7.0, device=device)
    rows.weighted_sum(factors, total)
    torch.testing.assert_close(total.double(), weighted.sum(0), **close)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sentence_that_is_left_out_may_be_anything(device):
    rows, _ = formed([(8, 40)], torch.float32, device, poison=50)  # in the fourth
    assert not bool(torch.isfinite(rows.squares).all())
    factors = torch.tensor([0.0, 0, 0, 0, 0, 0, 0], device=device)
    users = torch.tensor(USERS, dtype=torch.int32, device=device)
    assert not rows.user_squares(users, torch.tensor(USER_COUNT, device=device), factors).any()
    total = torch.ones(rows.rows[0].shape[1], device=device)
    rows.weighted_sum(factors, total)
    assert not total.any()
