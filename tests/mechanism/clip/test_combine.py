"""Layers computed together, in the cheapest way."""

import torch
from torch import nn

from uedp.mechanism.clip import Engine, MatrixWeight, Record, combine
from uedp.mechanism.clip.layout import Layout


def test_the_cheapest_way_follows_the_sizes():
    def way(users: int, each: int, tokens: int, width: int, out: int) -> str:
        layout = Layout.of([user for user in range(users) for _ in range(each)])
        inputs = torch.zeros(users * each, tokens, width)
        record = Record(inputs, torch.zeros(users * each, tokens, out))
        return combine._cheapest(
            [MatrixWeight(nn.Parameter(torch.zeros(out, width)), record)], layout
        )

    assert way(2, 4, 24, 768, 768) == "grams"
    assert way(2, 40, 60, 256, 256) == "by user"
    assert way(2, 4, 24, 768, 8) == "explicit"


def contributions(widths: list[tuple[int, int]], sentences: int = 3) -> list[MatrixWeight]:
    """A weight matrix each, of layers that read inputs of their own."""
    return [
        MatrixWeight(
            nn.Parameter(torch.zeros(out, width)),
            Record(torch.randn(sentences, 4, width), torch.randn(sentences, 4, out)),
        )
        for width, out in widths
    ]


def test_similar_layers_are_stacked_and_give_their_own_sums():
    parts = contributions([(200, 180)] * 3 + [(200, 190)])
    rules = combine.combined(parts, Layout.of([0, 0, 1]))
    stacks = [len(rule.inputs) for rule in rules if isinstance(rule, combine.MatrixProducts)]
    assert sorted(stacks) == [1, 3]
    weights = torch.tensor([0.5, 1.0, 2.0])
    sums = {p: g for rule in rules[:-1] for p, g in rule.weighted(weights).items()}
    for parameter, record, _ in parts:
        expected = torch.einsum("s,sto,sti->oi", weights, record.grads, record.inputs)
        torch.testing.assert_close(sums[parameter], expected, rtol=1e-4, atol=1e-4)


def test_layers_that_read_one_input_share_a_rule():
    one, other = contributions([(200, 180), (200, 190)])
    other = other._replace(record=Record(one.record.inputs, other.record.grads))
    rules = combine.combined([one, other], Layout.of([0, 0, 1]))
    assert [len(rule.weights) for rule in rules[:-1]] == [2]


def test_the_allowance_for_rounding_does_not_depend_on_how_layers_are_stacked(monkeypatch):
    """Stacks depend on the size of the batch: who else was drawn must not move a clip factor."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(200, 200, bias=False) for _ in range(3)])
    x = torch.randn(6, 40, 200)

    def losses(order):
        some = x[list(order)]
        # the second layer has a gradient at one token only, as a classifier's last block has
        outputs = [layer(some * (2 + place)) for place, layer in enumerate(layers)]
        parts = [outputs[0].sum(1), outputs[1][:, 0], outputs[2].sum(1)]
        return sum(part.square().sum(1) for part in parts)

    allowances = []
    for size in (1 << 40, 0):  # all in one stack, each by itself
        monkeypatch.setitem(combine._STACK, "cpu", size)
        monkeypatch.setitem(combine._SMALL, "cpu", size)
        clipped = Engine(layers).clipped_sum(losses, [0, 0, 1, 1, 2, 2], torch.ones(6), 1.0)
        allowances.append(clipped.allowances)
    stacked, single = allowances
    assert torch.allclose(stacked.norms, single.norms, rtol=1e-7, atol=0)
    assert torch.allclose(stacked.squares, single.squares, rtol=1e-7, atol=0)
