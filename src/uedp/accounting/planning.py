"""Choose method, rates, rounds and share for a target epsilon: noise needed, signal left."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from uedp.accounting.calibrate import check_target, entity_level_profile, noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.profile import Profile
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UserLevelProfile,
    epsilon,
)
from uedp.errors import UserError
from uedp.incidence import Ints

FEW_USERS = 20  # drawn per round; with fewer, the noise is shared by too few
# The figure that ranks plans (`Supply.signal`, `run_signal`) has three parameters, and no guarantee
# rests on any. The first two are fitted to all trials, FIRST_STEPS to short runs
# (benchmarks/results/planner_order.json, demo_sweep.json).
ALIGNMENT = 0.2  # the cosine between a sentence's gradient and the mean
COVERAGE = 0.2  # the power of the share of sentences used: what is left out is not learned
FIRST_STEPS = 25  # rounds that a run loses on the way: more rounds beat more users in short runs


@dataclass(frozen=True)
class Option:
    """One way to run, and its cost. `merit` is the planner's figure (`run_signal`)."""

    user_rate: float
    rounds: int
    entity_share: float
    noise: float
    users_per_round: float
    merit: float
    extended_rate: float = 1.0
    method: str = RotationProfile.method

    @property
    def profile(self) -> Profile:
        return entity_level_profile(
            self.noise,
            self.user_rate,
            self.entity_share,
            extended_rate=self.extended_rate,
            method=self.method,
        )


def expected_square(total: Floats | Ints, squares: Floats | Ints) -> Floats:
    """The square of the length that a user's update is expected to have before it is clipped.

    Gradients have the cosine `ALIGNMENT` with the mean and are otherwise orthogonal. `total` sums
    the weights of the user's sentences, `squares` the squares of the weights.
    """
    expected: Floats = (1 - ALIGNMENT**2) * squares + ALIGNMENT**2 * total**2
    return expected


@dataclass(frozen=True)
class Supply:
    """The users of a corpus, and how many sentences each of some of them offers a round.

    `extended_per_user` counts those among them without an entity, if it is known; `sentences` all
    of the corpus, by default as many as are offered. `weights` and `squares` are sums over the
    sentences of a user, whose weights are 1 by default.
    """

    users: int
    sentences_per_user: Floats
    extended_per_user: Floats | None = None
    sentences: float | None = None
    weights: Floats | None = None
    squares: Floats | None = None

    @classmethod
    def of_weights(
        cls, users: int, owners: Ints, weights: Floats, sentences: float | None = None
    ) -> "Supply":
        """Of the weights of sentences, of which some may be 0, and the users they belong to."""

        def summed(values: Floats) -> Floats:
            return np.bincount(owners, values, minlength=users).astype(np.float64)

        counts = summed((weights > 0).astype(np.float64))
        return cls(users, counts, None, sentences, summed(weights), summed(weights**2))

    @classmethod
    def of_counts(cls, users: int | None, sentences: int | None, usable: float) -> "Supply":
        if users is None or sentences is None:
            raise UserError("a plan needs a corpus, or `users=...` and `sentences=...`")
        if users < 1 or sentences < 1 or not 0 <= usable <= 1:
            raise UserError("`users=...` and `sentences=...` must be above 0, `usable=...` in 0..1")
        return cls(users, np.array([sentences * usable / users]), sentences=sentences)

    def signal(self, share: float, extended_rate: float = 1.0, cap: int | None = None) -> float:
        """The sum over users of the part of their update that points where all users' do.

        A sentence's gradient, clipped to `share`, has the cosine `ALIGNMENT` with that direction,
        and is otherwise orthogonal to the others; a user's sum is clipped to 1. So a user's second
        sentence adds less than the first of another user. `cap` bounds the sentences of a user.
        Where a part of the corpus has to wait, less is learned from the rest (`COVERAGE`).
        """
        count = self.usable(extended_rate)
        covered = self._covered(count)
        count = count if cap is None else np.minimum(count, cap)
        total, square = count, count + np.maximum(count - 1, 0) * count * ALIGNMENT**2
        if self.weights is not None and self.squares is not None:
            total, square = self.weights, expected_square(self.weights, self.squares)
        signal = (share * ALIGNMENT * total / np.maximum(share * np.sqrt(square), 1.0)).mean()
        return self.users * float(signal) * float(covered**COVERAGE)

    def _covered(self, usable: Floats) -> float:
        """The part of the corpus that rounds can use at a time, of all users.

        Of weighted sentences, as many count as equal ones would be as uneven a sum.
        """
        if not self.sentences:
            return 1.0
        if self.weights is not None and self.squares is not None:
            even = self.weights.sum() ** 2 / max(float(self.squares.sum()), 1e-300)
            return min(1.0, float(even) / self.sentences)
        return min(1.0, self.users * float(usable.mean()) / self.sentences)

    def usable(self, extended_rate: float) -> Floats:
        """Expected sentences of each user, if those without an entity are used at this rate."""
        if extended_rate == 1:
            return self.sentences_per_user
        if self.extended_per_user is None:
            raise UserError(
                f"extended rate {extended_rate:g}: how many sentences have no entity is not "
                "known; give the corpus"
            )
        return self.sentences_per_user - (1 - extended_rate) * self.extended_per_user


def run_signal(rounds: int, user_rate: float, signal: float, noise: float) -> float:
    """The planner's figure for a run: its signal-to-noise ratio, less what its first steps lose.

    It orders plans on one corpus; its size means nothing by itself.
    """
    ratio = float(np.sqrt(rounds)) * user_rate * signal / noise
    return ratio * rounds / (rounds + FIRST_STEPS)


def options(
    target: float,
    delta: float,
    supply: Supply,
    user_rates: Sequence[float],
    rounds: Sequence[int],
    shares: Sequence[float],
    extended_rates: Sequence[float] = (1.0,),
) -> Iterator[Option]:
    """Every combination under rotation, calibrated. Sort by `merit` to compare."""
    for rate, count, share, extended in product(user_rates, rounds, shares, extended_rates):
        profile = partial(
            RotationProfile, user_rate=rate, entity_share=share, extended_rate=extended
        )
        noise = noise_for(target, delta, count, profile)
        merit = run_signal(count, rate, supply.signal(share, extended), noise)
        yield Option(rate, count, share, noise, rate * supply.users, merit, extended)


Offer = Callable[[float], Supply]
"""What a method can use of a corpus, by entity share."""


def best_options(
    target: float,
    delta: float,
    offers: Mapping[str, Offer],
    user_rates: Sequence[float],
    rounds: Sequence[int],
    shares: Sequence[float],
    count: int,
) -> Iterator[Option]:
    """The options of most merit, calibrated, in the order of a rough noise.

    Sort by `merit` to compare: calibrating may exchange neighbours.
    """
    for method, rate, number, share in product(offers, user_rates, rounds, shares):
        check_target(target, delta, number)
        entity_level_profile(1.0, rate, share, method=method)  # refuses rates and shares
    rough = RoughNoise(target, delta)
    tried = []
    for (method, offer), share in product(offers.items(), shares):
        supply, divided = offer(share), method == FairSharesProfile.method
        signal = supply.signal(share)
        for rate, number in product(user_rates, rounds):
            noise = rough(number, rate, share, divided)
            merit = run_signal(number, rate, signal, noise)
            tried.append(
                Option(rate, number, share, noise, rate * supply.users, merit, method=method)
            )
    for option in sorted(tried, key=lambda option: -option.merit)[:count]:

        def profile(noise: float, option: Option = option) -> Profile:
            return replace(option, noise=noise).profile

        noise = noise_for(target, delta, option.rounds, profile)
        yield replace(option, noise=noise, merit=option.merit * option.noise / noise)


def curves(
    profile: Profile, rounds: int, delta: float, points: int = 12
) -> dict[str, list[tuple[int, float]]]:
    """Epsilon against rounds, up to twice as many, for users alone and for users with entities."""
    counts = np.unique(np.round(np.geomspace(1, 2 * rounds, points)).astype(int))
    both = {f"user and entity ({profile.method})": profile, "user alone": profile.user_alone()}
    return {
        name: [(int(count), epsilon(one, int(count), delta)) for count in counts]
        for name, one in both.items()
    }


class RoughNoise:
    """About the noise that a target needs, at any rate, number of rounds and share.

    The central limit, times what it lacks for users alone at a few rates. Within about 15% of the
    calibrated noise; it compares plans, and no guarantee may rest on it. A share that is divided
    has several holders at once, of which two equal ones are about the worst.
    """

    def __init__(self, target: float, delta: float) -> None:
        self._mean = _limit_mean(target, delta)
        exact = [
            noise_for(target, delta, _ANCHOR_ROUNDS, partial(UserLevelProfile, user_rate=rate))
            for rate in _ANCHOR_RATES
        ]
        limits = [_limit_noise(self._mean, _ANCHOR_ROUNDS, rate, 0.0) for rate in _ANCHOR_RATES]
        self._lacking = np.array(exact) / np.array(limits)

    def __call__(
        self, rounds: int, user_rate: float, share: float = 0.0, divided: bool = False
    ) -> float:
        lacking = np.interp(np.log(user_rate), np.log(_ANCHOR_RATES), self._lacking)
        return float(lacking) * _limit_noise(self._mean, rounds, user_rate, share, divided)


_ANCHOR_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_ANCHOR_ROUNDS = 100


def _limit_mean(target: float, delta: float) -> float:
    """The mean shift at which two Gaussians of deviation 1 are exactly this far apart."""

    def beyond(mean: float) -> float:
        ends = ndtr(np.array([mean / 2 - target / mean, -mean / 2 - target / mean]))
        return float(ends[0] - np.exp(min(target, 700.0)) * ends[1] - delta)

    return float(brentq(beyond, 1e-6, 1e3))


def _limit_noise(
    mean: float, rounds: int, rate: float, share: float, divided: bool = False
) -> float:
    """The noise at which so many rounds come to this mean shift in the central limit.

    A round shifts by 1 if the user is drawn and by its part of the share if a holder is; who of
    them is drawn is known of all but one.
    """
    holders = 2 if divided else 1
    part = share / holders
    shifts = np.array([0.0, 1.0, part, 1.0 + part])
    odds = np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])
    known = binom.pmf(np.arange(holders), holders - 1, rate)

    def excess(log_noise: float) -> float:
        moment = 0.0
        for drawn, chance in enumerate(known):
            moved = shifts + drawn * part
            products = np.minimum(np.outer(moved, moved) * np.exp(-2 * log_noise), 600.0)
            moment += float(chance * (odds @ np.expm1(products) @ odds))
        return float(np.log(rounds * max(moment, 1e-300)) / 2 - np.log(mean))

    return float(np.exp(brentq(excess, np.log(0.03), np.log(1e6))))
