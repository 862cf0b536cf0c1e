"""Which rates, rounds and share to choose for a target epsilon: noise needed, signal left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.proven import Profile, Rotation, UserLevel, epsilon
from uedp.incidence import Incidence
from uedp.mechanism.draw import Sampling, select

FEW_USERS = 20  # drawn per round; with fewer, the noise is shared by too few


@dataclass(frozen=True)
class Option:
    """One way to run, and what it costs.

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


@dataclass(frozen=True)
class Supply:
    """What a round has to work with: users, and how many sentences each of some could give."""

    users: int
    sentences_per_user: Floats

    @classmethod
    def of_counts(cls, users: int, sentences: int, usable: float) -> "Supply":
        return cls(users, np.array([sentences * usable / users]))

    @classmethod
    def of_incidence(cls, incidence: Incidence, draws: int = 4) -> "Supply":
        """Each user's sentences all of whose entities are lent to it, averaged over lendings."""
        everyone, no_limit = np.arange(incidence.users), Sampling(1.0, per_entity=None)
        usable = np.zeros(incidence.users)
        for key in range(draws):
            place, _, _ = select(incidence, everyone, no_limit, key)
            usable += np.bincount(place, minlength=incidence.users)
        return cls(incidence.users, usable / draws)

    def norms(self, share: float) -> float:
        """The sum over users of the largest norm their update can have."""
        return self.users * float(np.minimum(1.0, share * self.sentences_per_user).mean())


def options(
    target: float,
    delta: float,
    supply: Supply,
    user_rates: Sequence[float],
    rounds: Sequence[int],
    shares: Sequence[float],
) -> Iterator[Option]:
    """Every combination, calibrated. Sort by `merit` to compare."""
    for rate, count, share in product(user_rates, rounds, shares):

        def rotation(noise: float, rate: float = rate, share: float = share) -> Profile:
            return Rotation(noise, rate, share)

        noise = noise_for(target, delta, count, rotation)
        merit = float(np.sqrt(count)) * rate * supply.norms(share) / noise
        yield Option(rate, count, share, noise, rate * supply.users, merit)


def curves(option: Option, delta: float, points: int = 12) -> dict[str, list[tuple[int, float]]]:
    """Epsilon against rounds at an option's noise, for users alone and for users with entities."""
    counts = np.unique(np.round(np.geomspace(1, 2 * option.rounds, points)).astype(int))
    profiles: dict[str, Profile] = {
        "user and entity (rotation)": Rotation(option.noise, option.user_rate, option.entity_share),
        "user alone": UserLevel(option.noise, option.user_rate),
    }
    return {
        name: [(int(n), epsilon(profile, int(n), delta)) for n in counts]
        for name, profile in profiles.items()
    }
