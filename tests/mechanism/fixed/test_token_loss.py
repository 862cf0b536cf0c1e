"""Cross entropy that writes its gradient over the logits is the ordinary one."""

import pytest
import torch
from torch import nn

from tests.models import tiny
from uedp.mechanism.fixed import token_loss
from uedp.mechanism.fixed.token_loss import IGNORED, token_losses


def both(tokens=150, words=37, last=None):
    """Losses and gradients of an output head, ours and PyTorch's, in float64 for the latter."""
    torch.manual_seed(0)
    hidden, head = torch.randn(tokens, 8), nn.Linear(8, words)
    labels = torch.randint(0, words, (tokens,))
    labels[::7] = IGNORED
    weights, found = torch.rand(tokens), []
    for dtype in (torch.float32, torch.float64):
        inputs = hidden.to(dtype).requires_grad_()
        logits = nn.functional.linear(inputs, head.weight.to(dtype), head.bias.to(dtype))
        logits = logits if last is None else last(logits)
        if dtype == torch.float32:
            losses = token_losses(logits, labels)
        else:
            losses = nn.functional.cross_entropy(
                logits, labels, ignore_index=IGNORED, reduction="none"
            )
        (grads,) = torch.autograd.grad((losses * weights.to(dtype)).sum(), inputs)
        found.append((losses.detach(), grads))
    return found


@pytest.mark.parametrize("last", [None, torch.tanh])
def test_values_and_gradients_are_pytorchs(last):
    (ours, our_grads), (theirs, their_grads) = both(last=last)
    assert torch.allclose(ours.double(), theirs, rtol=1e-5, atol=1e-6)
    assert torch.allclose(our_grads.double(), their_grads, rtol=1e-4, atol=1e-6)


def test_logits_that_another_gradient_needs_are_left_alone(monkeypatch):
    used = []
    monkeypatch.setattr(token_loss._ByRows, "apply", lambda *_: used.append(1) or torch.zeros(1))
    product = torch.randn(4, 3, requires_grad=True) @ torch.randn(3, 5)
    token_losses(torch.tanh(product), torch.zeros(4, dtype=torch.long))
    assert not used
    token_losses(product, torch.zeros(4, dtype=torch.long))
    assert used


def test_a_second_backward_pass_is_refused():
    logits = torch.randn(4, 3, requires_grad=True) @ torch.randn(3, 5)
    losses = token_losses(logits, torch.zeros(4, dtype=torch.long))
    losses.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        losses.sum().backward()


def test_without_gradients_logits_stay():
    logits, labels = torch.randn(70, 5), torch.full((70,), 3)
    labels[2] = IGNORED
    kept = logits.clone()
    losses = token_losses(logits, labels)
    expected = nn.functional.cross_entropy(kept, labels, ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(losses, expected)
    assert torch.equal(logits, kept)


def test_a_token_that_predicts_nothing_has_no_gradient_whatever_its_logits():
    inputs = torch.randn(4, 3)
    inputs[1] = torch.nan
    inputs.requires_grad_()
    labels = torch.tensor([0, IGNORED, 1, 1])
    losses = token_losses(inputs @ torch.randn(3, 2), labels)
    (grad,) = torch.autograd.grad(losses.sum(), inputs)
    assert not grad[1].any()
    assert bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_heads_of_transformers_are_products(kind):
    model = getattr(tiny, kind)()
    logits = model(input_ids=torch.ones(2, 5, dtype=torch.long)).logits
    assert token_loss._is_product(logits.flatten(0, 1))
