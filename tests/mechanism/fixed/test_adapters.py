"""Which adapters are understood, how they are grouped, and that groups compute the same."""

import peft
import pytest
import torch
from torch import nn

from tests.mechanism.fixed.small import adapted, bare
from uedp.errors import UserError
from uedp.mechanism.fixed.adapters import (
    Group,
    _side_by_side,
    find_adapters,
    fused,
    group_adapters,
)

IDS = torch.arange(12)[None]


def with_lora(**options) -> nn.Module:
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, **options)
    return peft.get_peft_model(bare("gpt2"), config)


OTHERS = {
    "dropout": {"lora_dropout": 0.1},
    "magnitudes": {"use_dora": True},
    "a bias": {"lora_bias": True},
    "biases of the model": {"bias": "all"},
    "a layer that is saved as a whole": {"modules_to_save": ["ln_f"]},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_adapters_of_another_kind_are_not_understood(options):
    assert find_adapters(with_lora(**options)) is None


def test_plain_adapters_are_understood():
    adapters = find_adapters(with_lora(use_rslora=True, lora_alpha=6))
    assert len(adapters) == 4
    assert {adapter.scale for adapter in adapters} == {3.0}
    assert all(a.weight.shape == (len(a.up), a.down.shape[1]) for a in adapters)
    assert find_adapters(bare("llama")) is None


def groups_of(model: nn.Module) -> list[Group]:
    return group_adapters(
        model, find_adapters(model), torch.float32, lambda: model(input_ids=IDS, use_cache=False)
    )


@pytest.mark.parametrize(
    ("kind", "sizes"), [("llama", [3, 1, 2, 1]), ("gpt2", [1, 1, 1, 1])], ids=["llama", "gpt2"]
)
def test_layers_that_read_the_same_are_one_group(kind, sizes):
    assert [len(group.members) for group in groups_of(adapted(kind))] == sizes * 2


@pytest.mark.parametrize("rank", [3, 4, 17])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_groups_compute_what_the_adapters_do(kind, rank):
    model = adapted(kind, rank=rank)
    expected = model(input_ids=IDS, use_cache=False).logits
    groups = groups_of(model)
    for group in groups:
        group.refresh()
        assert group.down.shape[0] % 8 == group.up.shape[1] % 8 == 0
    with fused(groups, torch.zeros((), requires_grad=True)):
        found = model(input_ids=IDS, use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, expected)


def test_a_layer_that_is_used_twice_is_refused():
    model = adapted()
    layers = model.get_base_model().model.layers
    layers[1] = layers[0]
    with pytest.raises(UserError, match="not used once"):
        groups_of(model)


def test_another_order_than_before_is_noticed():
    model = adapted()
    groups = groups_of(model)
    first, second = groups[0].members[:2]
    x = torch.randn(1, 5, first.down.shape[1])
    with fused(groups, torch.zeros((), requires_grad=True)):
        first.module(x)
        with pytest.raises(UserError, match="another tensor"):
            second.module(x.clone())


def test_columns_that_lie_side_by_side_are_not_copied():
    whole = torch.randn(5, 9)
    parts = [whole[:, :4], whole[:, 4:6], whole[:, 6:]]
    assert _side_by_side(parts).data_ptr() == whole.data_ptr()
    for some in ([parts[1], parts[0], parts[2]], parts[:2], [part.clone() for part in parts]):
        assert torch.equal(_side_by_side(some), torch.cat(some, 1))
