"""The LSTM's steps against plain autograd and against PyTorch's own LSTM."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from uedp.models.recurrence import recurrence, stepwise


class Tap:
    """Records what a hook on the recurrent layer would."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def __call__(self, states: Tensor) -> Tensor:
        self.states = states.detach()
        zeros = states.new_zeros(()).expand(*states.shape[:2], self.outputs)
        self.zeros = zeros.detach().requires_grad_()
        return self.zeros


def world(
    sentences: int, tokens: int, units: int, seed: int, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, weight, and a direction in which to differentiate."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((sentences, tokens, 4 * units), (4 * units, units), (sentences, tokens, units))
    gates, weight, direction = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes
    )
    return gates.requires_grad_(), weight.requires_grad_(), direction


sizes = st.integers(1, 7)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, st.integers(0, 10**6))
def test_values_and_gradients_are_those_of_the_plain_steps(sentences, tokens, units, seed):
    gates, weight, direction = world(sentences, tokens, units, seed)
    plain = stepwise(gates, weight)
    expected = torch.autograd.grad((plain * direction).sum(), [gates, weight])
    tap = Tap(4 * units)
    found = recurrence(gates, weight, tap)
    torch.testing.assert_close(found, plain)
    grads = torch.autograd.grad((found * direction).sum(), [gates, weight, tap.zeros])
    torch.testing.assert_close(grads[:2], expected)
    # what was tapped is what the weight's gradient is made of
    torch.testing.assert_close(torch.einsum("bto,bti->oi", grads[2], tap.states), expected[1])
    with torch.no_grad():
        torch.testing.assert_close(recurrence(gates, weight, tap), plain)


def test_it_is_pytorchs_lstm():
    torch.manual_seed(0)
    theirs = nn.LSTM(5, 6, batch_first=True).double()
    x = torch.randn(3, 9, 5, dtype=torch.float64)
    gates = nn.functional.linear(x, theirs.weight_ih_l0, theirs.bias_ih_l0 + theirs.bias_hh_l0)
    torch.testing.assert_close(recurrence(gates, theirs.weight_hh_l0, Tap(24)), theirs(x)[0])


@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(2, 7), sizes, st.data())
def test_a_state_depends_on_no_later_token_and_no_other_sentence(sentences, tokens, units, data):
    gates, weight, _ = world(sentences, tokens, units, 0)
    found = recurrence(gates, weight, Tap(4 * units))
    sentence = data.draw(st.integers(0, sentences - 1))
    token = data.draw(st.integers(0, tokens - 1))
    (grad,) = torch.autograd.grad(found[sentence, token].sum(), gates)
    inside = torch.zeros_like(grad, dtype=torch.bool)
    inside[sentence, : token + 1] = True
    assert (grad[~inside] == 0).all()
    assert (grad[sentence, token] != 0).any()


def test_the_way_back_can_be_gone_twice():
    gates, weight, direction = world(2, 5, 3, 0)
    found = (recurrence(gates, weight, Tap(12)) * direction).sum()
    first = torch.autograd.grad(found, [gates, weight], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found, [gates, weight]), first, rtol=0, atol=0)


def test_transforms_of_torch_func_work():
    gates, weight, direction = world(3, 4, 2, 0)
    weights = torch.stack([weight.detach(), 2 * weight.detach()])

    def loss(w: Tensor) -> Tensor:
        return (recurrence(gates.detach(), w, Tap(8)) * direction).sum()

    found = torch.func.vmap(torch.func.grad(loss))(weights)
    for row, w in zip(found, weights, strict=True):
        w = w.clone().requires_grad_()
        torch.testing.assert_close(row, torch.autograd.grad(loss(w), w)[0])


def test_under_autocast_states_are_halves_and_the_weights_gradient_is_not():
    gates, weight, direction = (value.detach().float() for value in world(4, 6, 5, 0))
    weight.mul_(0.3).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        half = recurrence(gates.bfloat16(), weight, Tap(20))
        (found,) = torch.autograd.grad((half * direction).sum(), weight)
    (full,) = torch.autograd.grad((stepwise(gates, weight) * direction).sum(), weight)
    assert half.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert float((found - full).norm() / full.norm()) < 0.03


@pytest.mark.gpu
def test_fused_steps():
    gates, weight, direction = world(5, 7, 6, 0, "cuda")
    plain = stepwise(gates, weight)
    expected = torch.autograd.grad((plain * direction).sum(), [gates, weight])
    tap = Tap(24)
    found = recurrence(gates, weight, tap)
    torch.testing.assert_close(found, plain)
    grads = torch.autograd.grad((found * direction).sum(), [gates, weight, tap.zeros])
    torch.testing.assert_close(grads[:2], expected)
    torch.testing.assert_close(torch.einsum("bto,bti->oi", grads[2], tap.states), expected[1])
