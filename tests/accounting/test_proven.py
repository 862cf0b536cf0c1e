"""The proven epsilon against other accountants, closed forms, the tables, and nonsense."""

import itertools
import math
import time

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from tests.accounting.worlds import Law, divergence
from uedp.accounting.pld import max_rounds, min_delta
from uedp.accounting.proven import (
    Guarantee,
    MissedProfile,
    Profile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
    guarantee,
)
from uedp.errors import UserError

DELTA = 1e-5


# --- against dp-accounting ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta"),
    [
        (0.05, 0.787, 200, 1e-5),
        (0.05, 2.841, 200, 1e-5),
        (0.01, 0.6, 1000, 1e-6),
        (0.2, 3.0, 500, 1e-8),
        (0.9, 5.0, 20, 1e-3),
        (0.5, 0.5, 1, 1e-5),
        (1.0, 10.0, 100, 1e-5),
        (0.002, 0.5, 5000, 1e-6),
    ],
)
def test_without_entities_it_is_dp_accountings(rate, noise, rounds, delta):
    """Not below their lower estimate, and within 0.1% of their upper one."""
    upper, lower = (
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=5e-4 / noise,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(rounds)
        .get_epsilon_for_delta(delta)
        for pessimistic in (True, False)
    )
    ours = epsilon(UserLevelProfile(noise, rate), rounds, delta)
    assert ours >= lower
    assert ours == pytest.approx(upper, rel=1e-3)
    assert epsilon(RotationProfile(noise, rate, entity_share=0.0), rounds, delta) == ours


@pytest.mark.parametrize("coin", [1.0, 0.5])
def test_the_mixture_is_dp_accountings(coin):
    """Theorem 1, once with their mixture of Gaussians and their average of two distributions."""
    q, z, s, rounds = 0.05, 1.5, 0.5, 100
    step = 5e-3
    alone = pld.from_mixture_gaussian_mechanism(
        z, [0, 1], [1 - q, q], value_discretization_interval=step
    )
    shifts, chances = [0, s, 1, 1 + s], np.outer([1 - q, q], [1 - coin, coin]).ravel()
    used = [(shift, p) for shift, p in zip(shifts, chances, strict=True) if p > 0]
    both = pld.from_mixture_gaussian_mechanism(
        z, *map(list, zip(*used, strict=True)), value_discretization_interval=step
    )
    theirs = alone.compute_mixture(both, 1 - q).self_compose(rounds)
    ours = guarantee([(RotationProfile(z, q, s, entity_rate=coin, reveal_draw=True), rounds)])
    for delta in (1e-3, 1e-5, 1e-7):
        assert max(side.epsilon(delta) for side in ours.losses["user and entity"]) == pytest.approx(
            theirs.get_epsilon_for_delta(delta), rel=2e-3
        )


def test_losses_are_readable_by_dp_accounting():
    result = guarantee([(RotationProfile(1.0, 0.05, 0.33), 50)])
    theirs = pld.PrivacyLossDistribution(
        *(
            pld_pmf.DensePLDPmf(
                step := one.losses[1] - one.losses[0],
                round(one.losses[0] / step),
                one.masses,
                one.infinite,
                True,
            )
            for one in result.losses["user and entity"]
        )
    )
    assert theirs.get_epsilon_for_delta(DELTA) == pytest.approx(result.epsilon(DELTA), rel=1e-6)


# --- against the closed form ----------------------------------------------------------------------


def gaussian_delta(eps: float, noise: float) -> float:
    """Balle and Wang (2018): the exact delta of one Gaussian of sensitivity 1."""
    return float(
        special.ndtr(0.5 / noise - eps * noise)
        - np.exp(eps + special.log_ndtr(-0.5 / noise - eps * noise))
    )


def gaussian_epsilon(delta: float, noise: float) -> float:
    if gaussian_delta(0.0, noise) <= delta:
        return 0.0
    return float(
        optimize.brentq(lambda e: gaussian_delta(e, noise) - delta, 0, 600, xtol=1e-13, rtol=1e-13)
    )


@pytest.mark.parametrize(
    ("noise", "rounds"),
    [
        (0.1, 1),
        (1.0, 1),
        (1.0, 100),
        (30.0, 1000),
        (1e4, 1),
        (130.0, 10**6),
        (1e3, 10**6),
        (1e5, 10**6),
    ],
)
def test_never_below_the_exact_gaussian(noise, rounds):
    """With every user drawn, T rounds are one Gaussian of noise z / sqrt(T).

    The smallest deltas that are accepted are where rounding would show first: up to a fifth of
    them is charged for it.
    """
    result = guarantee([(UserLevelProfile(noise, 1.0), rounds)])
    single = noise / math.sqrt(rounds)
    for delta in (1.2 * min_delta(rounds), 1e-7, 1e-5, 1e-3, 0.1):
        if delta < min_delta(rounds):
            continue
        exact = gaussian_epsilon(delta, single)
        ours = result.epsilon(delta)
        assert ours >= exact
        assert ours <= exact * (1.001 if delta > 20 * min_delta(rounds) else 1.01) + 1e-9
        if exact > 0:
            assert result.delta(exact) >= delta * (1 - 1e-9)


@pytest.mark.parametrize("rounds", [100, 10_000, 1_000_000])
def test_slack_covers_the_rounding_of_the_transform(rounds):
    """The slack is at least ten times what rounding takes from delta."""
    noise = 2 * math.sqrt(rounds)
    for side in guarantee([(UserLevelProfile(noise, 1.0), rounds)]).losses["user"]:
        lost = max(gaussian_delta(e, 2.0) - side.delta(e) + side.slack for e in np.linspace(0, 4))
        assert lost <= side.slack / 10


# --- the tables of docs/privacy.md ----------------------------------------------------------------

SIMPLE = [
    (8, 0.0, 0.787),
    (8, 0.1, 0.816),
    (8, 0.2, 0.880),
    (8, 0.33, 1.038),
    (8, 0.5, 1.337),
    (2, 0.0, 1.673),
    (2, 0.1, 1.884),
    (2, 0.2, 2.310),
    (2, 0.33, 3.057),
    (2, 0.5, 4.156),
    (1, 0.0, 2.841),
    (1, 0.1, 3.310),
    (1, 0.2, 4.177),
    (1, 0.33, 5.604),
    (1, 0.5, 7.664),
]
TIGHT = [
    (8, 0.1, 0.813),
    (8, 0.2, 0.870),
    (8, 0.33, 0.956),
    (8, 0.5, 1.039),
    (2, 0.1, 1.831),
    (2, 0.2, 1.998),
    (2, 0.33, 2.202),
    (2, 0.5, 2.448),
    (1, 0.1, 3.137),
    (1, 0.2, 3.432),
    (1, 0.33, 3.799),
    (1, 0.5, 4.262),
]


@pytest.mark.parametrize(
    ("target", "share", "noise", "reveal"),
    [(*row, True) for row in SIMPLE] + [(*row, False) for row in TIGHT],
)
def test_noise_tables(target, share, noise, reveal):
    def spent(z: float) -> float:
        return epsilon(RotationProfile(z, 0.05, share, reveal_draw=reveal), 200, DELTA)

    assert spent(0.99 * noise) >= target >= spent(1.01 * noise)


@pytest.mark.parametrize(
    ("holders", "low", "high"),
    [(0, 0.008, 0.0125), (10, 0.475, 0.485), (12, 0.535, 0.545), (112, 3.75, 3.95), (945, 53, 55)],
)
def test_the_papers_own_mechanism(holders, low, high):
    assert low <= epsilon(UedpAlgProfile(2.0, 50 / 946, 946, holders), 50, DELTA) <= high


def test_an_entity_of_everybody_moves_everybody():
    """Two users, both drawn in all four rounds, both with a sentence that mentions it and nothing
    else: emptied, each moves by twice the clip, 4 in all, under noise of 3. That is a Gaussian
    mechanism of 4 / 3 a round, and its epsilon is known exactly.
    """
    mu = 4 / 3 * math.sqrt(4)
    proven = epsilon(UedpAlgProfile(1.0, 1.0, 2, 2), 4, DELTA)

    def spent(eps: float) -> float:
        return float(
            stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
        )

    assert spent(proven) <= DELTA
    assert (
        spent(epsilon(UedpAlgProfile(1.0, 1.0, 2, 1), 4, DELTA)) > DELTA
    )  # one of them is not enough


def test_many_holders_are_counted_upwards_in_groups():
    """More outcomes than are told apart: quick, a little above, never below."""
    exact = epsilon(UedpAlgProfile(2.0, 0.05, 4000, 3000), 50, DELTA)
    began = time.process_time()
    many = epsilon(UedpAlgProfile(2.0, 0.05, 4_000_000, 3_000_000), 50, DELTA)
    assert time.process_time() - began < 5
    # the same share of all users mention it; the mean shift agrees, its relative spread vanishes
    assert many == pytest.approx(exact, rel=0.15)


# --- one round, worlds that exist -----------------------------------------------------------------


@pytest.mark.parametrize(("q", "noise"), [(1e-3, 0.7473), (1e-3, 0.6), (0.01, 0.5), (0.3, 1.0)])
def test_one_round_is_not_below_its_worst_worlds(q, noise):
    """On a fine grid: a bound that is too low at one epsilon drags down all above it."""
    share = 0.33
    result = guarantee([(RotationProfile(noise, q, share), 1)])
    full_side, emptied_side = result.losses["user and entity"]
    both = np.array([(1 - q) ** 2, q * (1 - q), q * (1 - q), q**2])
    for rest, after in ((1 - share, 1.0), (-1.0, share - 1.0)):
        emptied = Law(np.array([0.0, rest]), np.array([1 - q, q]))
        full = Law(np.array([0.0, 1.0, after, 1.0 + after]), both)
        for eps in np.geomspace(q / 10, 3, 25):
            # the reference sums 4,000 cells, each rounded
            assert full_side.delta(eps) >= divergence(full, emptied, noise, eps) - 1e-11
            assert emptied_side.delta(eps) >= divergence(emptied, full, noise, eps) - 1e-11


# --- properties -----------------------------------------------------------------------------------

FEW = settings(max_examples=7, deadline=None)
noises = st.floats(0.4, 8)
rates = st.sampled_from([0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
shares = st.sampled_from([0.0, 0.05, 0.33, 0.5, 1.0, 2.0])
counts = st.integers(1, 200)
reveals = st.booleans()
# Two grids differ by what their steps add; no comparison is finer than that.
GRID = 1 + 2e-4


def at_most(smaller: float, larger: float) -> bool:
    return smaller <= larger * GRID + 1e-6


@FEW
@given(noise=noises, rate=rates, share=shares, rounds=counts, reveal=reveals, more=st.floats(1, 3))
def test_epsilon_falls_with_noise(noise, rate, share, rounds, reveal, more):
    def spent(z: float) -> float:
        return epsilon(RotationProfile(z, rate, share, reveal_draw=reveal), rounds, DELTA)

    assert at_most(spent(noise * more), spent(noise))


@FEW
@given(noise=noises, rate=rates, share=shares, rounds=counts, reveal=reveals, more=counts)
def test_epsilon_rises_with_rounds(noise, rate, share, rounds, reveal, more):
    profile = RotationProfile(noise, rate, share, reveal_draw=reveal)
    assert at_most(epsilon(profile, rounds, DELTA), epsilon(profile, rounds + more, DELTA))


@FEW
@given(noise=noises, rate=st.floats(0.005, 0.95), share=shares, rounds=counts, more=st.floats(1, 2))
def test_epsilon_rises_with_rate(noise, rate, share, rounds, more):
    """Of the simple bound. The tight one gains from hiding a draw, which is hardest at rate 1."""

    def spent(q: float) -> float:
        return epsilon(RotationProfile(noise, q, share, reveal_draw=True), rounds, DELTA)

    assert at_most(spent(rate), spent(min(rate * more, 1.0)))


@FEW
@given(noise=noises, rate=st.floats(0.005, 0.2), share=shares, rounds=counts)
def test_epsilon_rises_with_rate_hidden(noise, rate, share, rounds):
    low, high = (
        epsilon(RotationProfile(noise, q, share), rounds, DELTA) for q in (rate, 1.5 * rate)
    )
    assert at_most(low, high)


@FEW
@given(
    noise=noises, rate=rates, share=st.floats(0, 2), rounds=counts, reveal=reveals, more=st.data()
)
def test_epsilon_rises_with_share(noise, rate, share, rounds, reveal, more):
    larger = more.draw(st.floats(share, 2))

    def spent(s: float) -> float:
        return epsilon(RotationProfile(noise, rate, s, reveal_draw=reveal), rounds, DELTA)

    assert at_most(spent(share), spent(larger))


@settings(max_examples=5, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.floats(1, 3), rates, shares, st.integers(1, 50)), min_size=2, max_size=3
    ),
    seed=st.randoms(use_true_random=False),
)
def test_order_does_not_matter(parts, seed):
    rounds = [(RotationProfile(noise, rate, share), count) for noise, rate, share, count in parts]
    shuffled = list(rounds)
    seed.shuffle(shuffled)
    one, other = (guarantee(order).epsilon(DELTA) for order in (rounds, shuffled))
    assert one == other or one == pytest.approx(other, rel=1e-9)


@FEW
@given(noise=noises, rate=rates, share=shares, rounds=st.integers(2, 200), data=st.data())
def test_split_rounds_add_up(noise, rate, share, rounds, data):
    profile = RotationProfile(noise, rate, share)
    first = data.draw(st.integers(1, rounds - 1))
    split = guarantee([(profile, first), (profile, rounds - first)]).epsilon(DELTA)
    whole = epsilon(profile, rounds, DELTA)
    assert split == whole or split == pytest.approx(whole, rel=1e-6)


@FEW
@given(
    first=st.floats(0.8, 4),
    second=st.floats(0.8, 4),
    rate=rates,
    share=shares,
    count=st.integers(1, 50),
)
def test_unlike_rounds_lie_between_like_ones(first, second, rate, share, count):
    less, more = (RotationProfile(z, rate, share) for z in sorted((first, second)))
    mixed = guarantee([(less, count), (more, count)]).epsilon(DELTA)
    assert at_most(epsilon(more, 2 * count, DELTA), mixed)
    assert at_most(mixed, epsilon(less, 2 * count, DELTA))
    assert at_most(epsilon(less, count, DELTA), mixed)


def test_unlike_gaussian_rounds_are_one_gaussian():
    parts = [
        (UserLevelProfile(5.0, 1.0), 10),
        (UserLevelProfile(40.0, 1.0), 300),
        (UserLevelProfile(9.0, 1.0), 1),
    ]
    together = 1 / math.sqrt(sum(count / profile.noise**2 for profile, count in parts))
    exact = gaussian_epsilon(DELTA, together)
    assert exact <= guarantee(parts).epsilon(DELTA) <= exact * 1.002


@FEW
@given(noise=noises, rate=rates, share=shares, rounds=counts)
def test_user_alone_simple_and_tight_in_order(noise, rate, share, rounds):
    alone = epsilon(UserLevelProfile(noise, rate), rounds, DELTA)
    tight = epsilon(RotationProfile(noise, rate, share), rounds, DELTA)
    simple = epsilon(RotationProfile(noise, rate, share, reveal_draw=True), rounds, DELTA)
    assert at_most(alone, tight)
    assert at_most(tight, simple)


@FEW
@given(noise=noises, rate=rates, share=shares, rounds=counts, reveal=reveals)
def test_both_directions_count(noise, rate, share, rounds, reveal):
    result = guarantee([(RotationProfile(noise, rate, share, reveal_draw=reveal), rounds)])
    sides = [side.epsilon(DELTA) for both in result.losses.values() for side in both]
    assert result.epsilon(DELTA) == max(sides)
    swapped = {name: (emptied, full) for name, (full, emptied) in result.losses.items()}
    assert Guarantee(swapped, rounds).epsilon(DELTA) == max(sides)
    assert all(result.delta(1.0) >= side.delta(1.0) for both in swapped.values() for side in both)


@FEW
@given(
    noise=noises,
    rate=rates,
    share=shares,
    rounds=counts,
    coin=st.floats(0, 1),
    reveal=st.booleans(),
)
def test_a_coin_never_hurts(noise, rate, share, rounds, coin, reveal):
    def spent(e: float) -> float:
        profile = RotationProfile(
            noise, rate, share, entity_rate=e, extended_rate=0.0, reveal_draw=reveal
        )
        return epsilon(profile, rounds, DELTA)

    assert at_most(spent(coin), spent(1.0))


def test_a_coin_on_entities_buys_nothing_while_sentences_have_none():
    """Section 5: the larger of the two counts."""
    with_coin = RotationProfile(1.0, 0.1, 0.4, entity_rate=0.5, reveal_draw=True)
    assert epsilon(with_coin, 100, DELTA) == epsilon(
        RotationProfile(1.0, 0.1, 0.4, reveal_draw=True), 100, DELTA
    )


# --- missed mentions ------------------------------------------------------------------------------


@settings(max_examples=3, deadline=None)
@given(
    noise=st.floats(1, 8),
    rate=st.sampled_from([0.05, 0.5]),
    share=st.sampled_from([0.1, 0.33, 1.0]),
    coin=st.floats(0, 1),
)
def test_missed_mentions_only_cost(noise, rate, share, coin):
    base = RotationProfile(noise, rate, share, entity_rate=coin)
    plain = RotationProfile(noise, rate, share, entity_rate=coin, extended_rate=0.0)

    def spent(holders: int, per_user: int) -> float:
        return epsilon(MissedProfile(base, holders, per_user, share), 50, DELTA)

    assert at_most(epsilon(plain, 50, DELTA), spent(0, 1))
    ladder = [spent(holders, 1) for holders in (0, 1, 2, 7)]
    assert all(at_most(*pair) for pair in itertools.pairwise(ladder))
    ladder = [spent(2, per_user) for per_user in (0, 1, 2, 30)]
    assert all(at_most(*pair) for pair in itertools.pairwise(ladder))


def test_no_missed_sentence_is_theorem_one():
    base = RotationProfile(1.0, 0.05, 0.33, reveal_draw=True)
    assert epsilon(MissedProfile(base, 0, 1, 0.33), 200, DELTA) == pytest.approx(
        epsilon(base, 200, DELTA), rel=1e-6
    )
    assert epsilon(MissedProfile(base, 3, 0, 0.33), 200, DELTA) == pytest.approx(
        epsilon(base, 200, DELTA), rel=1e-3
    )


# Theorems 1 and 2 and section 3 as they were before missed sentences were counted by Theorem 3
UNCHANGED = [
    (RotationProfile(0.5836614437399936, 0.02, 0.3), 100, 7.997917883505529),
    (RotationProfile(1.514, 0.1, 0.4), 200, 7.999725263261328),
    (RotationProfile(2.626, 0.2, 0.4), 200, 8.000380715282144),
    (RotationProfile(1.0, 0.05, 0.5, reveal_draw=True), 200, 12.005952611033548),
    (RotationProfile(0.956, 0.05, 0.33, 0.5), 200, 7.9942420109892405),
    (RotationProfile(0.8, 0.3, 1.5), 20, 38.17201758471112),
    (UserLevelProfile(0.787, 0.05), 200, 7.997604460392),
    (UedpAlgProfile(2.0, 50 / 946, 946, 12), 50, 0.5420549182826635),
]


@pytest.mark.parametrize(("profile", "rounds", "known"), UNCHANGED)
def test_what_was_right_stays(profile, rounds, known):
    """But for what another grid adds."""
    assert epsilon(profile, rounds, DELTA) == pytest.approx(known, rel=2e-5)


# --- extremes: an answer or a refusal, never a wrong number, a warning or a hang ------------------

INFINITE = math.inf
EXTREMES: dict[str, tuple[Profile, int, float, float, float]] = {
    # name: (profile, rounds, delta, least and most that is right)
    "rate 0": (RotationProfile(1.0, 0.0, 0.3), 100, DELTA, 0, 0),
    "rate 0, delta 0": (RotationProfile(1.0, 0.0, 0.3), 100, 0.0, 0, 0),
    "rate 0, no noise": (UserLevelProfile(0.0, 0.0), 100, 0.0, 0, 0),
    "rate 1": (RotationProfile(10.0, 1.0, 0.3), 100, DELTA, 5.9, 6.2),
    "rate next to 1": (RotationProfile(10.0, 1 - 1e-16, 0.3), 100, DELTA, 5.9, 6.2),
    "rate 1e-300": (RotationProfile(1.0, 1e-300, 0.3), 100, DELTA, 0, 1e-9),
    "noise 0": (RotationProfile(0.0, 0.1, 0.3), 1, DELTA, INFINITE, INFINITE),
    "noise 1e-300": (RotationProfile(1e-300, 0.1, 0.3), 1, DELTA, INFINITE, INFINITE),
    "noise 1e-3": (RotationProfile(1e-3, 0.1, 0.3), 1, DELTA, INFINITE, INFINITE),
    "noise 1e-3, hardly ever drawn": (RotationProfile(1e-3, 1e-7, 0.3), 1, 1e-5, 0, 1e-3),
    "noise 1e-3, a million rounds": (UserLevelProfile(1e-3, 0.1), 10**6, DELTA, INFINITE, INFINITE),
    "noise 1e7": (RotationProfile(1e7, 0.1, 0.3), 100, DELTA, 0, 1e-5),
    "a million rounds": (RotationProfile(100.0, 0.01, 0.3), 10**6, DELTA, 0.42, 0.46),
    "a million rounds, little noise": (
        RotationProfile(0.5, 0.5, 0.3),
        10**6,
        DELTA,
        INFINITE,
        INFINITE,
    ),
    "a million rounds, rarely drawn": (UserLevelProfile(0.05, 1e-9), 10**6, 1e-2, 0, 1e-6),
    "a hundred thousand, rarely": (UserLevelProfile(0.6, 1e-4), 10**5, 1e-6, 0.95, 0.97),
    "ten million rounds": (UserLevelProfile(1e4, 1.0), 10**7, DELTA, 1.199, 1.2),
    "no rounds": (RotationProfile(0.0, 0.1, 0.3), 0, 0.0, 0, 0),
    "delta 0": (RotationProfile(1.0, 0.1, 0.3), 100, 0.0, INFINITE, INFINITE),
    "delta next to 1": (RotationProfile(1.0, 0.1, 0.3), 100, 1 - 1e-9, 0, 0),
    "share 2": (RotationProfile(1.0, 0.1, 2.0), 10, DELTA, 5, 20),
    "share 0": (RotationProfile(1.0, 0.1, 0.0), 10, DELTA, 2.85, 2.86),
    "share 1e-300": (RotationProfile(1.0, 0.1, 1e-300), 10, DELTA, 2.85, 2.86),
    "no holders, all drawn": (UedpAlgProfile(1.0, 1.0, 1, 0), 10, DELTA, 5, 20),
    "a billion holders": (UedpAlgProfile(1.0, 0.1, 10**9, 10**9 - 1), 10, DELTA, 30, 300),
    "missed everywhere, no one drawn": (
        MissedProfile(RotationProfile(1.0, 0.0, 0.3), 5, 1, 0.3),
        9,
        DELTA,
        0,
        0,
    ),
    "missed, much noise": (
        MissedProfile(RotationProfile(1e3, 0.1, 0.3), 5, 1, 0.3),
        10,
        DELTA,
        1e-4,
        0.02,
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(name):
    profile, rounds, delta, least, most = EXTREMES[name]
    began = time.process_time()
    assert least <= epsilon(profile, rounds, delta) <= most
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("delta 1e-300", lambda: epsilon(UserLevelProfile(1.0, 0.1), 100, 1e-300)),
        ("delta 1e-09", lambda: epsilon(UserLevelProfile(1.0, 0.1), 10**6, 1e-9)),
        ("delta -1", lambda: epsilon(UserLevelProfile(1.0, 0.1), 1, -1)),
        ("delta 1", lambda: epsilon(UserLevelProfile(1.0, 0.1), 1, 1)),
        ("delta nan", lambda: epsilon(UserLevelProfile(1.0, 0.1), 1, math.nan)),
        ("rounds -1", lambda: epsilon(UserLevelProfile(1.0, 0.1), -1, DELTA)),
        ("rounds -1", lambda: epsilon(UserLevelProfile(1.0, 0.0), -1, DELTA)),
        ("noise -1", lambda: UserLevelProfile(-1, 0.1)),
        ("noise inf", lambda: UserLevelProfile(math.inf, 0.1)),
        ("noise nan", lambda: RotationProfile(math.nan, 0.1, 0.3)),
        ("noise 1e\\+200", lambda: RotationProfile(1e200, 0.1, 0.3)),
        ("user rate 1.1", lambda: UserLevelProfile(1.0, 1.1)),
        ("user rate nan", lambda: UserLevelProfile(1.0, math.nan)),
        ("entity rate -0.1", lambda: RotationProfile(1.0, 0.1, 0.3, entity_rate=-0.1)),
        ("extended rate 2", lambda: RotationProfile(1.0, 0.1, 0.3, extended_rate=2)),
        ("entity share 2.1", lambda: RotationProfile(1.0, 0.1, 2.1)),
        ("entity share nan", lambda: RotationProfile(1.0, 0.1, math.nan)),
        ("holders 11", lambda: UedpAlgProfile(1.0, 0.1, 10, 11)),
        ("missed in -1", lambda: MissedProfile(RotationProfile(1.0, 0.1, 0.3), -1, 1, 0.3)),
        ("share 3", lambda: MissedProfile(RotationProfile(1.0, 0.1, 0.3), 1, 1, 3)),
        (
            "different things",
            lambda: guarantee(
                [(UserLevelProfile(1.0, 0.1), 1), (RotationProfile(1.0, 0.1, 0.3), 1)]
            ),
        ),
    ],
)
def test_nonsense_is_refused_by_name(words, bad):
    with pytest.raises(UserError, match=words):
        bad()


def test_what_is_refused_for_rounding_names_a_delta_that_is_not():
    for rounds in (1, 1000, 10**6):
        with pytest.raises(UserError, match="choose at least") as refused:
            epsilon(UserLevelProfile(50.0, 0.1), rounds, 1e-14)
        least = float(str(refused.value).rsplit(" ", 1)[1])
        assert rounds <= max_rounds(least)
        assert epsilon(UserLevelProfile(50.0, 0.1), rounds, least) > 0
