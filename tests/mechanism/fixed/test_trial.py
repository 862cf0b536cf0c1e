"""Passes that compute something else than the engine are noticed before they are used."""

import pytest
import torch

from tests.mechanism.fixed.small import LONGEST, TOKENS, adapted, padded_losses, rows, some
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.fixed.trial import refuse_difference, refuse_other_norms


def compared(model, spoil=lambda one: None, refuse=refuse_difference) -> None:
    one, batch = FixedPass(model, TOKENS, LONGEST), some([4, 9, 16, 30], [0, 0, 1, 1])
    spoil(one)
    texts = rows(batch)

    def of_engine(order):
        return padded_losses(model, [texts[i] for i in order])

    refuse(one, Engine(model), of_engine, batch)


@pytest.mark.parametrize("refuse", [refuse_difference, refuse_other_norms])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_passes_that_agree_are_accepted_and_weights_stay(kind, refuse):
    model = adapted(kind)
    with torch.no_grad():  # as adapters begin
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    compared(model, refuse=refuse)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def spoil_weight(one):
    one._groups[0].weight.mul_(4)


def spoil_scale(one):
    """Seen only where second matrices are not zero."""
    one._groups[0].refresh = lambda: None
    one._groups[0].up.zero_()


def spoil_places(one):
    one._places = one._places.flip(0)


def spoil_clips(one):
    real = one._inputs.fill
    one._inputs.fill = lambda batch, update: real(batch, 10 * update)


@pytest.mark.parametrize("spoil", [spoil_weight, spoil_scale, spoil_places, spoil_clips])
def test_passes_that_differ_are_refused(spoil):
    with pytest.raises(UserError, match="engine"):
        compared(adapted(), spoil)


def sensitive(one, sentences, factor=7.0):
    """Passes whose rounding multiplies the gradients of some sentences, and their norms."""
    real = one.clipped_sum

    def computed(batch, update):
        result = real(batch, update)
        result.sentence_norms[sentences] *= factor
        return result

    one.clipped_sum = computed


@pytest.mark.parametrize("sentences", [[0], [1], [3]])
def test_a_sentence_whose_gradient_hangs_on_rounding_is_accepted_in_half_precision(sentences):
    def spoil(one):
        sensitive(one, sentences)

    compared(adapted(), spoil, refuse_other_norms)
    with pytest.raises(UserError, match="norms"):
        compared(adapted(), spoil)


@pytest.mark.parametrize(("sentences", "factor"), [([0, 2], 7.0), ([0, 1, 2, 3], 0.4)])
def test_most_norms_must_be_alike_in_half_precision(sentences, factor):
    with pytest.raises(UserError, match="norms"):
        compared(adapted(), lambda one: sensitive(one, sentences, factor), refuse_other_norms)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_refused_in_half_precision(factor):
    with pytest.raises(UserError, match="norms"):
        compared(adapted(), lambda one: sensitive(one, [0], factor), refuse_other_norms)
