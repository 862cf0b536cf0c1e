"""Clip rules by layer type: the page on adding one is executed and compared with the oracle."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.mechanism.clip.test_engine import agree
from uedp.errors import UserError
from uedp.mechanism.clip import ClipRule, Engine, SentenceGradients, clip_rule, registry
from uedp.mechanism.clip.registry import find_rule, trainable_layers

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-layer.md"


@pytest.fixture(scope="module")
def page() -> dict:
    """The names that the page's code defines, as a user's own file would."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    names = {"__name__": "my_layers"}
    exec("\n".join(blocks), names)
    return names


@pytest.fixture(autouse=True)
def registrations_undone(monkeypatch, page):
    monkeypatch.setattr(registry, "_BY_TYPE", dict(registry._BY_TYPE))
    monkeypatch.setattr(registry, "_BY_PREDICATE", list(registry._BY_PREDICATE))


def stacked(page: dict, groups: int, width: int) -> nn.Module:
    """The page's layers between others of the package."""
    return nn.Sequential(
        nn.Linear(3, groups * width),
        page["Scale"](groups * width),
        page["BlockLinear"](groups, width),
        nn.Tanh(),
        page["BlockLinear"](1, groups * width),
        nn.Linear(groups * width, 2, bias=False),
    )


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    tokens=st.integers(1, 6),
    clips=st.tuples(st.sampled_from([0.01, 0.5, 50.0]), st.sampled_from([0.02, 1.0, 90.0])),
    seed=st.integers(0, 2**16),
)
def test_rules_of_the_page_are_the_oracles(page, owners, sizes, tokens, clips, seed):
    torch.manual_seed(seed)
    model = stacked(page, *sizes)
    x = torch.randn(len(owners), tokens, 3, dtype=torch.float64)
    o = torch.randn(len(owners), tokens, 2, dtype=torch.float64)
    o *= torch.rand(len(owners), tokens, 1) > 0.3  # padding: no gradient comes back

    def losses(net: nn.Module, order: list[int]) -> Tensor:
        dtype = net[0].weight.dtype
        return (net(x[order].to(dtype)) * o[order].to(dtype)).sum((1, 2))

    agree(model, losses, owners, *clips)


def test_rules_of_the_page_pass_the_trial(page):
    torch.manual_seed(0)
    model, x = stacked(page, 2, 4), torch.randn(4, 5, 3)
    Engine(model).check(lambda order: model(x[list(order)]).square().sum((1, 2)), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_user_adds_more_than_its_clip_through_the_pages_rule(page, dtype):
    """Tokens that nearly cancel: the norm is small, its rounding is not."""
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        layer = page["BlockLinear"](3, 16).to(dtype)
        x, o = torch.randn(3, 8, 48) * 1e3, torch.randn(3, 8, 48)
        x = torch.cat([x, x * (1 + 1e-6 * torch.randn_like(x))], 1).to(dtype)
        o = torch.cat([o, -o], 1).to(dtype)

        def losses(order, layer=layer, x=x, o=o):
            return (layer(x[list(order)]) * o[list(order)]).sum((1, 2))

        clipped = Engine(layer).clipped_sum(losses, [0, 0, 0], torch.full((3,), 1e-3), 1e-3)
        worst = max(worst, float(clipped.gradients[layer.weight].double().norm()) / 1e-3)
    assert worst <= 1 + 1e-6


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_a_layer_without_a_rule_is_refused_by_name_until_it_has_one():
    model = nn.Sequential(nn.Linear(3, 3), Unknown())
    with pytest.raises(UserError, match=r"layer 1 \(Unknown\) is trainable but has no clip rule"):
        Engine(model)

    @clip_rule(Unknown)
    def rule(layer, record):
        record = record.unpacked()
        yield SentenceGradients(layer.weight, (record.inputs * record.grads).sum(1).float())

    x = torch.randn(4, 2, 3)
    Engine(model).check(lambda order: model(x[list(order)]).square().sum((1, 2)), 4)


def test_a_wrong_rule_is_refused_by_the_trial():
    class Doubled(Unknown):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x * self.weight

    @clip_rule(Doubled)
    class ForgetsTheFactor(ClipRule):
        def __init__(self, layer, record):
            record = record.unpacked()
            self.weight, self.gradients = layer.weight, (record.inputs * record.grads).sum(1)

        def add_products(self, grams):
            grams.squares.add_(self.gradients.square().sum(1))

        def weighted(self, weights):
            return {self.weight: weights @ self.gradients}

    model, x = Doubled(), torch.randn(4, 2, 3)
    with pytest.raises(UserError, match="gradient of weight is not what its layer's rule gives"):
        Engine(model).check(lambda order: model(x[list(order)]).square().sum((1, 2)), 4)


def test_a_subclass_that_computes_something_else_does_not_inherit_a_rule():
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) ** 2

    assert find_rule(Same(2, 2)) is find_rule(nn.Linear(2, 2))
    assert find_rule(Other(2, 2)) is None


def test_a_rule_does_not_replace_another_but_may_be_run_again():
    class Layer(Unknown):
        pass

    def first(layer, record): ...
    def second(layer, record): ...

    clip_rule(Layer)(first)
    clip_rule(Layer)(first)
    with pytest.raises(ValueError, match=r"Layer has a clip rule already: .*first"):
        clip_rule(Layer)(second)
    with pytest.raises(ValueError, match="Linear has a clip rule already"):
        clip_rule(nn.Linear)(second)


def test_a_predicate_serves_layers_without_a_common_class():
    class Marked(Unknown):
        by_predicate = True

    def rule(layer, record): ...

    clip_rule(lambda layer: getattr(layer, "by_predicate", False))(rule)
    assert find_rule(Marked()).rule is rule
    assert [layer.registered.rule for layer in trainable_layers(Marked()).values()] == [rule]


class Conv1D(nn.Module):
    """Bears the name of GPT-2's layer and computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.nf = 3
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)


def test_a_layer_that_only_bears_the_name_is_refused():
    with pytest.raises(UserError, match="has no clip rule"):
        trainable_layers(Conv1D())


def test_a_bias_may_train_where_its_weight_is_frozen():
    from transformers.pytorch_utils import Conv1D as Gpt2Layer

    model, x = nn.ModuleDict({"layer": Gpt2Layer(4, 3)}), torch.randn(4, 2, 3)
    model["layer"].weight.requires_grad_(False)
    Engine(model).check(lambda order: model["layer"](x[list(order)]).square().sum((1, 2)), 4)
