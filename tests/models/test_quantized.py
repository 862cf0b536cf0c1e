"""Frozen weights of four bits: the layers round like ordinary ones, and are saved as such."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.models import tiny
from tests.models.test_trainable import OWNERS, losses, shaken
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.reference import clipped_sum
from uedp.models.load import load_model
from uedp.models.quantized import QuantizedLinear, quantize_blocks
from uedp.models.trainable import make_trainable, save_model, trained_names

pytest.importorskip("bitsandbytes")


@pytest.fixture
def folder(tmp_path):
    return tiny.saved(tmp_path / "llama", tiny.llama())


def adapted(folder):
    loaded = load_model(folder, quantize=True)
    return shaken(make_trainable(loaded.model, "lora", rank=2)), loaded.tokenizer


def quantized_layers(model):
    return [module for module in model.modules() if isinstance(module, QuantizedLinear)]


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_computes_what_one_with_its_weight_does(bias):
    torch.manual_seed(0)
    original = nn.Linear(96, 40, bias=bias)
    layer, plain = QuantizedLinear(original), copy.deepcopy(original)
    plain.weight.data = layer.weight
    x = torch.randn(7, 5, 96, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    plain(other).square().sum().backward()
    assert torch.allclose(layer(x), plain(other), rtol=1e-6, atol=1e-6)
    assert torch.allclose(x.grad, other.grad, rtol=1e-5, atol=1e-5)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == []


def test_four_bits_stand_for_nearly_the_same_weight():
    torch.manual_seed(0)
    original = nn.Linear(512, 256).requires_grad_(False)
    weight = QuantizedLinear(original).weight
    error = float((weight - original.weight).norm() / original.weight.norm())
    assert 0.02 < error < 0.1  # the weights are uniform: 16 levels over the range of a block
    shuffled = original.weight.flatten()[torch.randperm(weight.numel())].view_as(weight)
    assert float((weight - shuffled).norm() / original.weight.norm()) > 1


def test_a_weight_takes_five_bits_at_most():
    layer = QuantizedLinear(nn.Linear(512, 256, bias=False))
    assert sum(b.numel() * b.element_size() for b in layer.buffers()) * 8 <= 5 * 512 * 256


def test_only_linear_layers_of_blocks_are_quantized(folder):
    model = load_model(folder, quantize=True).model
    names = {
        name.rpartition(".")[2]
        for name, m in model.named_modules()
        if m in set(quantized_layers(model))
    }
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_engine_clips_its_adapters_exactly(folder):
    model, _ = adapted(folder)
    assert all(".lora_" in name for name in trained_names(model))
    exact = copy.deepcopy(model).double()
    clips = [0.5, 0.1, 0.2, 9.0, 0.3]
    expected, norms = clipped_sum(exact, lambda i: losses(exact, [i])[0], OWNERS, clips, 0.4)
    found = Engine(model).clipped_sum(
        lambda order: losses(model, list(order)), OWNERS, torch.tensor(clips), 0.4
    )
    assert torch.allclose(found.sentence_norms.double(), norms, rtol=1e-4)
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter, wanted in zip(trained, expected, strict=True):
        # factors divide by upper bounds of the norms
        assert torch.allclose(found.gradients[parameter].double(), wanted, rtol=2e-3, atol=1e-5)


def test_it_is_saved_as_an_ordinary_model_that_computes_the_same(folder, tmp_path):
    model, tokenizer = adapted(folder)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
    save_model(model, tmp_path / "out", tokenizer)
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert not [name for name in saved if name.endswith((".packed", ".scales", ".code"))]
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    again = load_model(tmp_path / "out").model
    with torch.no_grad():
        assert torch.allclose(again(input_ids=ids).logits, before, atol=1e-5)
        original = load_model(folder).model(input_ids=ids).logits
    assert float((before - original).abs().max()) > 1e-3


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(UserError, match="GPT2LMHeadModel has no linear layers to quantize"):
        quantize_blocks(tiny.gpt2(), "model 'gpt2'")


def test_the_missing_library_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"install `uedp\[quantize\]`"):
        load_model(folder, quantize=True)
