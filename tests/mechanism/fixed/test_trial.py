"""Passes that compute something else than the engine are noticed before they are used."""

import pytest
import torch

from tests.mechanism.fixed.small import LONGEST, TOKENS, adapted, padded_losses, rows, some
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.fixed.trial import refuse_difference


def compared(model, spoil=lambda one: None, half=False) -> None:
    one, batch = FixedPass(model, TOKENS, LONGEST), some([4, 9, 16, 30], [0, 0, 1, 1])
    spoil(one)
    texts = rows(batch)

    def of_engine(order):
        return padded_losses(model, [texts[i] for i in order])

    def halved(order):
        with torch.autocast("cpu", torch.bfloat16):
            return of_engine(order)

    refuse_difference(one, Engine(model), of_engine, batch, halved if half else None)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_passes_that_agree_are_accepted_and_weights_stay(kind):
    model = adapted(kind)
    with torch.no_grad():  # as adapters begin
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    compared(model)
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


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spoil", [spoil_weight, spoil_scale, spoil_places, spoil_clips])
def test_passes_that_differ_are_refused(spoil, half):
    with pytest.raises(UserError, match="engine"):
        compared(adapted(), spoil, half=half)


def sensitive(one, sentences):
    """Passes whose rounding multiplies the gradients of some sentences, and their norms."""
    real = one.clipped_sum

    def computed(batch, update):
        result = real(batch, update)
        if len(batch.lengths) == 4:
            result.sentence_norms[sentences] *= 7
        return result

    one.clipped_sum = computed


def test_a_sentence_whose_gradient_hangs_on_rounding_is_left_out_in_half_precision_only():
    compared(adapted(), lambda one: sensitive(one, [0]), half=True)
    with pytest.raises(UserError, match="norms"):
        compared(adapted(), lambda one: sensitive(one, [0]))


def test_most_sentences_must_agree_in_half_precision():
    with pytest.raises(UserError, match="norms"):
        compared(adapted(), lambda one: sensitive(one, [0, 2]), half=True)


@pytest.mark.parametrize("left_out", [[0], [1], [3]])
def test_the_other_sentences_are_compared_in_full(left_out):
    def spoil(one):
        sensitive(one, left_out)
        spoil_places(one)

    with pytest.raises(UserError, match="engine"):
        compared(adapted(), spoil, half=True)
