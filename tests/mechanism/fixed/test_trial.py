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
