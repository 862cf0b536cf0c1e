"""What may decide whether a client's update arrives, and what its order of arrival may change."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from uedp.accounting.divergence import RevealedMixture, ShiftedGaussian, sampled_gaussian
from uedp.accounting.pld import compose, discretise
from uedp.distributed.federation import Answer, FederatedRounds, Federation, Order
from uedp.errors import UserError
from uedp.incidence import Incidence, Rows
from uedp.mechanism.processes import PartialSum
from uedp.methods import method_named

NO_ONE = np.zeros(0, dtype=np.int64)


def epsilon_of(pair, rounds: int) -> float:
    full, emptied = (compose([(side, rounds)]) for side in discretise(pair))
    return max(full.epsilon(1e-5), emptied.epsilon(1e-5))


def test_answers_that_depend_on_who_else_was_drawn_are_not_covered():
    """A server that takes the first so many answers: one more drawn user displaces another's.

    So the sum shows on both sides that the user was drawn, and hides no update behind the draw.
    """
    noise, rate, rounds = 1.672, 0.05, 200
    claimed = epsilon_of(sampled_gaussian(noise, rate), rounds)
    displaced = ShiftedGaussian(noise, (1.0,), (1.0,))
    absent = ShiftedGaussian(noise, (0.0,), (1.0,))
    shown = RevealedMixture((1 - rate, rate), (absent, displaced))
    assert claimed == pytest.approx(2, abs=0.01)
    assert epsilon_of(shown, rounds) > 4 * claimed


def rounds_of(answers) -> FederatedRounds:
    nobody = np.zeros(0, dtype=np.int64)
    empty = Incidence.build(nobody, nobody, nobody, 0, 0)
    transport = SimpleNamespace(exchange=lambda orders: iter(answers))
    rounds = FederatedRounds(Federation(empty, (), NO_ONE, NO_ONE, NO_ONE), transport)
    clips = SimpleNamespace(update=1.0)
    rounds._method = SimpleNamespace(settings=SimpleNamespace(clips=clips))
    rounds._drawn = len(answers)
    return rounds


def test_the_order_of_arrival_changes_nothing():
    """Long texts take long: by its order a sum of float32 would tell of them in its last digits."""
    generator = torch.Generator().manual_seed(0)
    answers = [
        (f"client-{n}", Answer("nonce", np.array([0]), torch.randn(1, 50, generator=generator)))
        for n in range(200)
    ]
    sums = []
    for order in (answers, answers[::-1], answers[100:] + answers[:100]):
        rounds = rounds_of(order)
        rows = Rows(np.array([0, 0]), NO_ONE)
        rounds._asked = {
            name: Order("nonce", torch.zeros(50), np.array([0]), rows, np.zeros(0), b"")
            for name, _ in answers
        }
        own = PartialSum(torch.zeros(50), np.zeros(0, dtype=bool), np.zeros(0))
        sums.append(rounds.add_up(own).total)
        assert rounds.received.users == 200
    for one, other in itertools.combinations(sums, 2):
        assert torch.equal(one, other)


def test_a_run_on_another_incidence_than_the_clients_is_refused():
    method, model = object.__new__(method_named("user-level")), torch.nn.Linear(1, 1)
    other = SimpleNamespace(digest="another")
    assembly = SimpleNamespace(method=method, model=model, incidence=other)
    with pytest.raises(UserError, match="not the incidence that clients registered"):
        rounds_of([]).watch(assembly)
