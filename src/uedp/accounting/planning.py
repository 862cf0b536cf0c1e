"""Choose rates, rounds and share for a target epsilon: noise needed, signal left (rotation)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UserLevelProfile, epsilon
from uedp.errors import UserError

FEW_USERS = 20  # drawn per round; with fewer, the noise is shared by too few
# The cosine between a sentence's gradient and the mean. It ranks plans, and no guarantee rests on
# it. Early in training it is larger (0.6 in the first rounds on the sample), later smaller.
ALIGNMENT = 0.4


@dataclass(frozen=True)
class Option:
    """One way to run, and its cost.

    `merit` is the signal-to-noise ratio of the whole run if all updates pointed the same way:
    `sqrt(rounds) * (expected sum of update norms per round) / noise`. It compares options on one
    corpus; its size means nothing by itself.
    """

    user_rate: float
    rounds: int
    entity_share: float
    noise: float
    users_per_round: float
    merit: float
    extended_rate: float = 1.0

    @property
    def profile(self) -> Profile:
        return _profile(self.user_rate, self.entity_share, self.extended_rate, self.noise)


@dataclass(frozen=True)
class Supply:
    """The users of a corpus, and how many sentences each of some of them offers a round.

    `extended_per_user` counts those among them without an entity, if it is known.
    """

    users: int
    sentences_per_user: Floats
    extended_per_user: Floats | None = None

    @classmethod
    def of_counts(cls, users: int | None, sentences: int | None, usable: float) -> "Supply":
        if users is None or sentences is None:
            raise UserError("a plan needs a corpus, or `users=...` and `sentences=...`")
        if users < 1 or sentences < 1 or not 0 <= usable <= 1:
            raise UserError("`users=...` and `sentences=...` must be above 0, `usable=...` in 0..1")
        return cls(users, np.array([sentences * usable / users]))

    def norms(self, share: float, extended_rate: float = 1.0) -> float:
        """The sum over users of the largest norm their update can have.

        Each usable sentence moves an update by `share` until the clipping norm is reached; of those
        without an entity the expected number counts.
        """
        usable = self._usable(extended_rate)
        return self.users * float(np.minimum(1.0, share * usable).mean())

    def signal(self, share: float, extended_rate: float = 1.0, cap: int | None = None) -> float:
        """The sum over users of the part of their update that points where all users' do.

        A sentence's gradient, clipped to `share`, has the cosine `ALIGNMENT` with that direction,
        and is otherwise orthogonal to the others; a user's sum is clipped to 1. So a user's second
        sentence adds less than the first of another user. `cap` bounds the sentences of a user.
        """
        count = self._usable(extended_rate)
        count = count if cap is None else np.minimum(count, cap)
        norm = share * np.sqrt(count + np.maximum(count - 1, 0) * count * ALIGNMENT**2)
        return self.users * float((share * ALIGNMENT * count / np.maximum(norm, 1.0)).mean())

    def _usable(self, extended_rate: float) -> Floats:
        """Expected sentences of each user, if those without an entity are used at this rate."""
        if extended_rate == 1:
            return self.sentences_per_user
        if self.extended_per_user is None:
            raise UserError(
                f"extended rate {extended_rate:g}: how many sentences have no entity is not "
                "known; give the corpus"
            )
        return self.sentences_per_user - (1 - extended_rate) * self.extended_per_user


def options(
    target: float,
    delta: float,
    supply: Supply,
    user_rates: Sequence[float],
    rounds: Sequence[int],
    shares: Sequence[float],
    extended_rates: Sequence[float] = (1.0,),
) -> Iterator[Option]:
    """Every combination, calibrated. Sort by `merit` to compare."""
    for rate, count, share, extended in product(user_rates, rounds, shares, extended_rates):
        profile = partial(_profile, rate, share, extended)
        noise = noise_for(target, delta, count, profile)
        merit = float(np.sqrt(count)) * rate * supply.norms(share, extended) / noise
        yield Option(rate, count, share, noise, rate * supply.users, merit, extended)


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
    """About the noise that rotation needs for a target, at any rate, number of rounds and share.

    The central limit, times what it lacks for users alone at a few rates. Within about 15% of the
    calibrated noise; it compares plans, and no guarantee may rest on it.
    """

    def __init__(self, target: float, delta: float) -> None:
        self._mean = _limit_mean(target, delta)
        exact = [
            noise_for(target, delta, _ANCHOR_ROUNDS, partial(UserLevelProfile, user_rate=rate))
            for rate in _ANCHOR_RATES
        ]
        limits = [_limit_noise(self._mean, _ANCHOR_ROUNDS, rate, 0.0) for rate in _ANCHOR_RATES]
        self._lacking = np.array(exact) / np.array(limits)

    def __call__(self, rounds: int, user_rate: float, share: float = 0.0) -> float:
        lacking = np.interp(np.log(user_rate), np.log(_ANCHOR_RATES), self._lacking)
        return float(lacking) * _limit_noise(self._mean, rounds, user_rate, share)


_ANCHOR_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_ANCHOR_ROUNDS = 100


def _limit_mean(target: float, delta: float) -> float:
    """The mean shift at which two Gaussians of deviation 1 are exactly this far apart."""

    def beyond(mean: float) -> float:
        ends = ndtr(np.array([mean / 2 - target / mean, -mean / 2 - target / mean]))
        return float(ends[0] - np.exp(min(target, 700.0)) * ends[1] - delta)

    return float(brentq(beyond, 1e-6, 1e3))


def _limit_noise(mean: float, rounds: int, rate: float, share: float) -> float:
    """The noise at which so many rounds come to this mean shift in the central limit.

    A round shifts by 1 if the user is drawn and by the share if the entity's borrower is.
    """
    shifts = np.array([0.0, 1.0, share, 1.0 + share])
    odds = np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])

    def excess(log_noise: float) -> float:
        products = np.exp(np.minimum(np.outer(shifts, shifts) * np.exp(-2 * log_noise), 600.0))
        moment = float(odds @ np.expm1(np.log(products)) @ odds)
        return float(np.log(rounds * max(moment, 1e-300)) / 2 - np.log(mean))

    return float(np.exp(brentq(excess, np.log(0.03), np.log(1e6))))


def _profile(rate: float, share: float, extended_rate: float, noise: float) -> Profile:
    return RotationProfile(noise, rate, share, extended_rate=extended_rate)
