"""A pass that was recorded for a model as it was must not be used for another one in silence."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tests.mechanism.fixed.small import (
    LONGEST,
    TOKENS,
    UPDATE_CLIP,
    WORDS,
    adapted,
    agrees,
    randomised,
    some,
)
from uedp.errors import UserError
from uedp.mechanism.fixed import fixed_pass as module
from uedp.mechanism.fixed.adapters import find_adapters
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.models.trainable import make_trainable


def first_adapter(model: nn.Module) -> nn.Module:
    return find_adapters(model)[0].module


def write_frozen(model):
    with torch.no_grad():
        first_adapter(model).base_layer.weight.mul_(1.5)


def replace_frozen(model):
    base = first_adapter(model).base_layer
    base.weight = nn.Parameter(2 * base.weight.detach(), requires_grad=False)


def replace_data(model):
    norm = model.get_base_model().model.norm
    norm.weight.data = 2 * norm.weight.data


def replace_trained(model):
    up = first_adapter(model).lora_B["default"]
    up.weight = nn.Parameter(torch.ones_like(up.weight))


def freeze(model):
    first_adapter(model).lora_A["default"].weight.requires_grad_(False)


def train_more(model):
    model.get_base_model().model.norm.weight.requires_grad_(True)


def second_adapter(model):
    model.add_adapter("other", model.peft_config["default"])
    model.set_adapter("other")


def rescale(model):
    first_adapter(model).scaling["default"] *= 2


CHANGES = {
    "a frozen weight is written to": write_frozen,
    "a frozen weight is replaced": replace_frozen,
    "the data of a frozen weight is replaced": replace_data,
    "a trained weight is replaced": replace_trained,
    "an adapter is frozen": freeze,
    "another weight is trained": train_more,
    "adapters are merged": lambda model: model.merge_adapter(),
    "adapters are disabled": lambda model: model.base_model.disable_adapter_layers(),
    "another adapter is active": second_adapter,
    "an adapter is scaled": rescale,
    "the model is moved": lambda model: model.to(torch.float64),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_that_was_changed_is_not_computed_as_it_was(change):
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST)
    assert one.is_current()
    change(model)
    assert not one.is_current()
    with pytest.raises(RuntimeError, match="was changed"):
        one.refresh()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["lora", "lora-b"])
def test_training_is_no_change(how, dtype):
    model = adapted(how=how)
    one = FixedPass(model, TOKENS, LONGEST, dtype)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(2):
        model(input_ids=torch.arange(8)[None]).logits.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        model.eval()
        model(input_ids=torch.arange(8)[None])
        model.train()
        one.refresh()
        one.clipped_sum(some(), UPDATE_CLIP)
    assert one.is_current()


def test_two_passes_of_one_model_do_not_disturb_each_other():
    model = adapted()
    first, second = FixedPass(model, TOKENS, LONGEST), FixedPass(model, 2 * TOKENS, LONGEST)
    randomised(model, 7)
    for one in (first, second, first):
        agrees(one, model, some())


@pytest.mark.parametrize("mode", ["autocast", "eval", "threads"])
def test_the_state_of_the_process_does_not_matter(mode):
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST)
    if mode == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = one.clipped_sum(some(), UPDATE_CLIP).total.clone()
    elif mode == "eval":
        model.eval()
        found = one.clipped_sum(some(), UPDATE_CLIP).total.clone()
        assert not any(part.training for part in model.modules())
    else:
        others = [adapted() for _ in range(2)]
        passes = [FixedPass(other, 64, LONGEST) for other in others]
        batch = some([9, 30, 3], [0, 1, 2])

        def work(other: FixedPass) -> None:
            for _ in range(8):
                other.clipped_sum(batch, UPDATE_CLIP)

        threads = [threading.Thread(target=work, args=(other,)) for other in passes]
        for thread in threads:
            thread.start()
        found = [one.clipped_sum(some(), UPDATE_CLIP).total.clone() for _ in range(8)]
        for thread in threads:
            thread.join()
        assert all(torch.equal(found[0], again) for again in found)
        found = found[0]
    assert torch.equal(found, one.clipped_sum(some(), UPDATE_CLIP).total)


def test_a_pass_that_fails_leaves_the_model_as_it_was(monkeypatch):
    model = adapted()
    one = FixedPass(model, TOKENS, LONGEST, torch.bfloat16)
    before = {name: (p.dtype, p.data_ptr()) for name, p in model.named_parameters()}
    expected = model(input_ids=torch.arange(9)[None]).logits

    def fail(*_):
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(module, "token_losses", fail)
        with pytest.raises(torch.OutOfMemoryError):
            one.clipped_sum(some(), UPDATE_CLIP)
    assert {name: (p.dtype, p.data_ptr()) for name, p in model.named_parameters()} == before
    assert not any("forward" in part.__dict__ for part in model.modules())
    assert torch.equal(model(input_ids=torch.arange(9)[None]).logits, expected)
    agrees(one, model, some(), 0.03)


def test_the_memory_of_a_pass_goes_with_it():
    one = FixedPass(adapted(), TOKENS, LONGEST)
    one.clipped_sum(some(), UPDATE_CLIP)
    gone = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert gone() is None
    finally:
        gc.enable()


def test_a_forward_that_was_set_by_hand_stays():
    model = adapted()
    layer = first_adapter(model)
    own = layer.forward = type(layer).forward.__get__(layer)
    FixedPass(model, TOKENS, LONGEST).clipped_sum(some(), UPDATE_CLIP)
    assert layer.__dict__["forward"] is own


def test_a_sentence_that_is_too_long_is_refused():
    one = FixedPass(adapted(), TOKENS, LONGEST)
    assert one.fits(np.array([LONGEST, 3]))
    assert not one.fits(np.array([LONGEST + 1, 3]))
    assert not one.fits(np.full(TOKENS, 1))
    assert not one.fits(np.full(8, LONGEST))
    with pytest.raises(ValueError, match="fit"):
        one.clipped_sum(some([LONGEST + 1], [0]), UPDATE_CLIP)


def test_more_positions_than_a_model_has_are_refused():
    with pytest.raises(UserError, match="64 positions"):
        FixedPass(adapted("gpt2"), TOKENS, 65)


def test_a_model_that_reads_across_sentences_is_refused():
    """Its attention is its own, and without a mask it reads the whole row."""
    config = transformers.GPTJConfig(
        vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=64, rotary_dim=8,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = make_trainable(transformers.GPTJForCausalLM(config), "lora", rank=4)
    with pytest.raises(UserError, match="beside it"):
        FixedPass(model.train(), TOKENS, LONGEST)


def test_a_weight_of_two_adapters_is_refused():
    model = adapted()
    first, second = (find_adapters(model)[place].module for place in (0, 7))
    second.lora_A["default"].weight = first.lora_A["default"].weight
    assert find_adapters(model) is None


def test_a_linear_layer_of_another_kind_is_refused():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = adapted()
    first_adapter(model).base_layer.__class__ = Doubled
    assert find_adapters(model) is None


def test_a_checkpointed_model_agrees_or_is_refused():
    model = adapted()
    model.gradient_checkpointing_enable()
    try:
        one = FixedPass(model, TOKENS, LONGEST)
    except (UserError, RuntimeError):
        return
    agrees(one, model, some())


def test_a_model_in_which_a_sentence_changes_with_its_place_in_the_row_is_refused():
    model = adapted()

    def by_place(module, arguments, output):
        return output * (1 + 1e-6 * torch.arange(output.shape[1])[None, :, None])

    model.get_input_embeddings().register_forward_hook(by_place)
    with pytest.raises(UserError, match="beside it"):
        FixedPass(model.train(), TOKENS, LONGEST)
