"""The one-run bound on mechanisms whose epsilon is known: it holds, and comes close."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from uedp.audit.bounds import gaussian_epsilon
from uedp.audit.one_run import Cuts, choose_cuts, lower_bound, p_value, prove
from uedp.errors import UserError


def false_alarms_allowed(trials: int, rate: float) -> int:
    """More than this many false alarms would come by chance once in a thousand times."""
    return int(stats.binom.ppf(0.999, trials, rate))


def right_of(epsilon: float) -> float:
    return float(np.exp(epsilon) / (1 + np.exp(epsilon)))


def randomised_response(
    rng: np.random.Generator, canaries: int, epsilon: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Coins, and scores that tell each of them with just this epsilon."""
    inside = rng.random(canaries) < 0.5
    told = np.where(rng.random(canaries) < right_of(epsilon), inside, ~inside)
    return told.astype(float), inside


# --- the theorem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", [1, 7, 30])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_without_delta_it_is_the_chance_of_randomised_response(
    guesses: int, epsilon: float
) -> None:
    for correct in range(guesses + 1):
        exact = stats.binom.sf(correct - 1, guesses, right_of(epsilon))
        assert p_value(40, guesses, correct, epsilon, 0.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.02, 0.3])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("guesses", [1, 5, 8, 30, 50])
def test_a_number_of_guesses_that_was_chosen_is_never_worth_more(
    guesses: int, epsilon: float, delta: float
) -> None:
    """Not below the theorem's formula, written out term by term, for every number of guesses."""
    canaries = 50

    def reached(count: int) -> float:
        return stats.binom.sf(count - 1, guesses, right_of(epsilon))

    for correct in range(guesses + 1):
        gains = [(reached(correct - i) - reached(correct)) / i for i in range(1, canaries + 1)]
        theorem = min(reached(correct) + 2 * canaries * delta * max(gains), 1.0)
        found = p_value(canaries, guesses, correct, epsilon, delta)
        assert found >= theorem - 1e-12
        assert found <= reached(correct) + canaries * delta + 1e-12  # and costs little


@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.1])
@pytest.mark.parametrize("epsilon", [0.2, 1.5])
def test_no_mechanism_with_a_delta_does_better(epsilon: float, delta: float) -> None:
    """Guarantee of p_value, exactly: randomised response that gives away, with chance delta, every
    coin on its own, or all at once."""
    canaries = guesses = 40
    right = right_of(epsilon)
    alone = delta + (1 - delta) * right
    for correct in range(1, guesses + 1):
        bound = p_value(canaries, guesses, correct, epsilon, delta)
        by_chance = stats.binom.sf(correct - 1, guesses, right)
        assert stats.binom.sf(correct - 1, guesses, alone) <= bound + 1e-12
        assert delta + (1 - delta) * by_chance <= bound + 1e-12


# --- the bound -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("canaries", [60, 500])
def test_the_bound_exceeds_the_truth_no_more_often_than_it_says(
    epsilon: float, canaries: int
) -> None:
    """Guarantee of lower_bound, over every outcome of randomised response, and not by being 0."""
    correct = np.arange(canaries + 1)
    likely = stats.binom.pmf(correct, canaries, right_of(epsilon))
    some = np.flatnonzero(likely > 1e-9)
    bounds = np.array([lower_bound(canaries, canaries, int(c), 0.0) for c in some])
    missed = likely[some][bounds > epsilon].sum()
    assert missed <= 0.05
    # with few canaries even all of them right prove less than a large epsilon
    assert missed > 0.05 / 20 or lower_bound(canaries, canaries, canaries, 0.0) < epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_bound_is_near_the_truth_for_many_canaries(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    scores, inside = randomised_response(rng, 50_000, epsilon)
    found = prove(Cuts(0.5, 0.5), scores, inside, 0.0)
    assert found.guesses == 50_000
    assert 0.9 * epsilon < found.epsilon < epsilon


def test_the_bound_rises_with_correct_guesses_and_falls_with_doubt() -> None:
    """Guarantee of lower_bound: monotone."""
    for delta in (0.0, 1e-4):
        bounds = [lower_bound(100, 80, correct, delta) for correct in range(40, 81)]
        assert all(np.diff(bounds) >= 0)
        assert bounds[0] == 0
        assert bounds[-1] > 2
    assert lower_bound(100, 80, 75, 1e-4) > lower_bound(100, 80, 75, 1e-2)
    assert lower_bound(100, 80, 75, 0.0, 0.9) > lower_bound(100, 80, 75, 0.0, 0.99)
    assert lower_bound(1000, 800, 750, 0.0) > lower_bound(100, 80, 75, 0.0)
    assert lower_bound(20, 20, 20, 0.0) == pytest.approx(
        -np.log(0.05 ** (-1 / 20) - 1), abs=1e-3
    )  # all right: the largest q with q^20 = .05


def test_exactly_so_many_heads_are_no_likelier_than_a_half() -> None:
    """The lemma behind it: fair coins or better, and not all of them heads."""
    for coins in (1, 2, 3, 5, 20, 300):
        for right in np.linspace(0.5, 1, 101):
            assert np.max(stats.binom.pmf(np.arange(coins), coins, right)) <= 0.5 + 1e-12


# --- from scores to guesses ----------------------------------------------------------------------


def test_choosing_costs_no_confidence() -> None:
    """Guarantee of prove: 300 audits of randomised response, scores with noise of their own."""
    rng, exceeded, total, epsilon = np.random.default_rng(2), 0, 0.0, 1.0
    for _ in range(300):
        told, inside = randomised_response(rng, 150, epsilon)
        scores = told + rng.normal(0, 0.05, 150)
        how = choose_cuts(scores[:30], inside[:30], 120)
        found = prove(how, scores[30:], inside[30:], 1e-5).epsilon
        exceeded += found > epsilon
        total += found
    assert exceeded <= false_alarms_allowed(300, 0.05)
    assert total / 300 > 0.4


def test_choosing_by_who_was_right_would_cost_it() -> None:
    """The control: the best of all numbers of guesses, seen on the canaries it is tested on."""
    rng, refuted = np.random.default_rng(3), 0.0
    numbers = np.arange(5, 301)
    for _ in range(100):
        correct = np.cumsum(rng.random(300) < right_of(0.2))[4:]
        refuted += float(np.min(stats.binom.sf(correct - 1, numbers, right_of(0.2))) <= 0.05)
    assert refuted > false_alarms_allowed(100, 0.05)


@pytest.mark.parametrize(("mu", "least"), [(20.0, 3.9), (3.0, 2.0), (1.5, 0.5)])
def test_a_gaussian_mechanism_is_bounded_from_below(mu: float, least: float) -> None:
    """Abstaining pays where scores overlap: 250 canaries, 50 shown."""
    rng, bounds = np.random.default_rng(4), []
    for _ in range(30):
        inside = rng.random(250) < 0.5
        scores = mu * inside + rng.normal(size=250)
        how = choose_cuts(scores[:50], inside[:50], 200)
        bounds.append(prove(how, scores[50:], inside[50:], 1e-5).epsilon)
    assert np.mean(bounds) > least
    assert max(bounds) < gaussian_epsilon(mu, 1e-5)


def test_all_right_and_nothing_known() -> None:
    inside = np.array([True, False] * 40)
    sure = prove(choose_cuts(inside * 1.0, inside, 80), inside * 1.0, inside, 1e-5)
    assert (sure.canaries, sure.guesses, sure.correct) == (80, 80, 80)
    flat = np.zeros(80)
    nothing = prove(choose_cuts(flat, inside, 80), flat, inside, 1e-5)
    assert nothing.epsilon == 0


def test_guesses_are_never_both() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        count = int(rng.integers(2, 30))
        scores, inside = rng.integers(0, 4, count).astype(float), rng.random(count) < 0.5
        how = choose_cuts(scores, inside, 50)
        assert how.low <= how.high
        found = prove(how, scores, inside, 1e-5)
        assert found.correct <= found.guesses <= found.canaries == count


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: p_value(10, 11, 3, 1.0, 0.0), "3 correct of 11 guesses of 10 canaries"),
        (lambda: p_value(10, 5, 6, 1.0, 0.0), "6 correct of 5"),
        (lambda: p_value(10, 5, 5, -1.0, 0.0), "epsilon -1"),
        (lambda: p_value(10, 5, 5, 1.0, 2.0), "delta 2"),
        (lambda: lower_bound(10, 5, 5, 0.0, 1.0), "confidence 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()
