"""Sums over pairs of tokens, where they lie, are those of gradients formed one by one."""

import numpy as np
import pytest
import torch

from tests.mechanism.clip.test_records import check_against_the_oracle
from tests.models import tiny
from uedp.mechanism.clip import Engine, combine, records, runs
from uedp.mechanism.clip.runs import Bilinear, Pairs, Runs
from uedp.mechanism.packing import PackedLosses, SharedRows, cut_up

LENGTHS = np.array([5, 40, 1, 70, 3])
STARTS = np.array([0, 5, 45, 48, 120])  # with gaps, as at the end of rows
END = 125


@pytest.fixture
def stays_packed(monkeypatch):
    """Records stay packed, as where there are kernels: here by what the kernels must equal."""
    monkeypatch.setattr(records, "has_kernels", lambda values: True)
    monkeypatch.setattr(SharedRows, "of", lambda lengths, device=None: SharedRows.in_order(lengths))
    monkeypatch.setattr(combine, "FORMED", 0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_sum_is_the_oracles(kind, stays_packed, monkeypatch):
    used = []
    original = runs.add_pairs
    monkeypatch.setattr(
        "uedp.mechanism.clip.rules.add_pairs", lambda *a, **k: (used.append(1), original(*a, **k))
    )
    check_against_the_oracle(getattr(tiny, kind)())
    assert used


@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-6, 0.0])
def test_nothing_is_added_above_its_clip_whatever_cancels(apart, stays_packed):
    torch.manual_seed(0)
    layer = torch.nn.Linear(200, 200, bias=False)
    x, grads = torch.randn(20, 200), torch.randn(20, 200)
    x[1::2] = x[::2] + apart * torch.randn(10, 200)
    grads[1::2] = -grads[::2]

    def losses(order):
        out = (layer(x.view(2, 10, 200)) * grads.view(2, 10, 200)).sum((1, 2))
        rows = cut_up(np.array([0, 10]), np.array([10, 10]), 10, 20)
        where = np.array([0, 10]), np.array([10, 10])
        return PackedLosses(out, rows, rows, lambda: out, *where)

    clip = 1e-5
    found = Engine(layer).clipped_sum(losses, [0, 1], torch.full((2,), clip), clip)
    for place in range(2):  # each by itself: the other one's weight is zero
        bounds = torch.full((2,), clip)
        bounds[1 - place] = 0.0
        alone = Engine(layer).clipped_sum(losses, [0, 1], bounds, clip)
        assert float(alone.gradients[layer.weight].double().norm()) <= clip
    assert float(found.gradients[layer.weight].double().norm()) <= 2 * clip


def test_pairs_cover_every_pair_of_a_run_once():
    pairs = Pairs.of(np.array([0, 10]), np.array([7, 10]), 3, torch.device("cpu"))
    seen = np.zeros((7, 7), dtype=int)
    for a, b, end in pairs.blocks.tolist():
        for t in range(a, min(a + 3, end)):
            for s in range(b, min(b + 3, end)):
                seen[t, s] += 1
                seen[s, t] += a != b
    assert (seen == 1).all()
    assert pairs.run.tolist() == [0] * 6
    assert pairs.by_run(pairs.zeros() + 1).tolist() == [6, 0]


def parts(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    x, o = torch.randn(2, END, 48).to(device, dtype)
    hidden, out = torch.randn(END, 24).to(device, dtype), torch.randn(END, 9).to(device, dtype)
    ids, into = torch.randint(0, 9, (END,)).to(device), torch.randn(END, 24).to(device)
    return Bilinear(x, o), Bilinear(ids, into), Bilinear(hidden, out)


def sums(device, dtype):
    """Everything that the kernels compute, for sentences and for users."""
    linear, lookup, head = parts(dtype, device)
    where = Runs(STARTS, LENGTHS, END, torch.device(device))
    factors = where.spread(torch.tensor([0.5, 0.1, 0.7, 0.9, 0.2], device=device))
    found = []
    for pairs, weights in ((where.sentences, None), (where.users((2, 3)), factors)):
        total, masses = pairs.zeros(), pairs.zeros().float()
        for part in (linear, lookup, head):
            if weights is None:
                runs.add_pairs(total, part, pairs, masses=masses)
                found.append(pairs.by_run(masses))
            else:
                runs.add_pairs(total, part, pairs, weights)
            found.append(pairs.by_run(total.clone()))
        runs.add_overlap(total, lookup, head, pairs, weights)
        found.append(pairs.by_run(total))
    return [*found, runs.sentence_sums(linear.right, where)]


def test_sums_over_pairs_are_squared_norms_of_formed_gradients():
    linear, lookup, head = parts()
    where = Runs(STARTS, LENGTHS, END, torch.device("cpu"))
    factors = where.spread(torch.tensor([0.5, 0.1, 0.7, 0.9, 0.2]))

    def formed(start, end, weights):
        some = slice(start, end)
        scaled = weights[some, None].double()
        first = (linear.right[some] * scaled).double().t() @ linear.left[some].double()
        both = torch.zeros(9, 24, dtype=torch.float64)
        both.index_add_(0, lookup.left[some], lookup.right[some].double() * scaled)
        both += (head.right[some] * scaled).double().t() @ head.left[some].double()
        return first.square().sum() + both.square().sum()

    ends = STARTS + LENGTHS
    for pairs, weights, starts, stops in (
        (where.sentences, None, STARTS, ends),
        (where.users((2, 3)), factors, STARTS[[0, 2]], ends[[1, 4]]),
    ):
        total = pairs.zeros()
        for part in (linear, lookup, head):
            runs.add_pairs(total, part, pairs, weights)
        runs.add_overlap(total, lookup, head, pairs, weights)
        own = torch.ones(END) if weights is None else weights
        expected = torch.stack([formed(a, b, own) for a, b in zip(starts, stops, strict=True)])
        assert torch.allclose(pairs.by_run(total), expected, rtol=1e-5)


def test_sentences_out_of_order_do_not_stay_packed():
    out_of_order = Runs(np.array([5, 0]), np.array([2, 5]), 7, torch.device("cpu"))
    assert not out_of_order.in_order
    with pytest.raises(AssertionError):
        out_of_order.users((2,))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compute_the_same(dtype):
    for ours, expected in zip(sums("cuda", dtype), sums("cpu", dtype), strict=True):
        scale = float(expected.double().abs().max())
        assert torch.allclose(ours.cpu().double(), expected.double(), rtol=1e-4, atol=1e-5 * scale)


def test_a_text_that_is_not_finite_does_not_change_the_factors_of_others(stays_packed):
    """Its chunk is computed again, one sentence to a row: what is allowed for must be the same."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(40, 40, bias=False)
    x, grads = torch.randn(30, 40), torch.randn(30, 40)
    x[1::2], grads[1::2] = x[::2] + 0.06 * torch.randn(15, 40), -grads[::2]
    where = np.array([0, 10, 20]), np.array([10, 10, 10])

    def added(spoilt):
        def alone():
            out = (layer(x.view(3, 10, 40)) * grads.view(3, 10, 40)).sum((1, 2))
            return out * torch.tensor([1.0, 1.0, spoilt])

        def losses(order):
            rows = cut_up(*where, 10, 30)
            return PackedLosses(alone(), rows, rows, alone, *where)

        clips = torch.tensor([1e-2, 1e-2, 0.0])
        return Engine(layer).clipped_sum(losses, [0, 1, 2], clips, 1.0).gradients[layer.weight]

    whole, other = added(1.0), added(float("nan"))
    assert torch.allclose(whole, other, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


def test_features_must_lie_one_after_the_other():
    with pytest.raises(AssertionError):
        Bilinear(torch.ones(4, 6)[:, ::2], torch.ones(4, 3))
