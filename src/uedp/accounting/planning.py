"""Which rates, rounds and share to choose for a target epsilon: noise needed, signal left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, epsilon
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.sampling import Sampling, select

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
    extended_rate: float = 1.0

    @property
    def profile(self) -> Profile:
        return RotationProfile(
            self.noise, self.user_rate, self.entity_share, extended_rate=self.extended_rate
        )


@dataclass(frozen=True)
class Supply:
    """What a round has to work with: users, and how many sentences each of some could give.

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

    @classmethod
    def of_incidence(cls, incidence: Incidence, draws: int = 4) -> "Supply":
        """Each user's sentences all of whose entities are lent to it, averaged over lendings."""
        everyone, no_limit = np.arange(incidence.users), Sampling(1.0, per_entity=None)
        usable = np.zeros(incidence.users)
        for key in range(draws):
            place, _, _ = select(incidence, everyone, no_limit, key)
            usable += np.bincount(place, minlength=incidence.users)
        extended = np.bincount(
            np.asarray(incidence.sentence_user)[incidence.extended], minlength=incidence.users
        )
        return cls(incidence.users, usable / draws, extended.astype(np.float64))

    def norms(self, share: float, extended_rate: float = 1.0) -> float:
        """The sum over users of the largest norm their update can have.

        Each usable sentence moves an update by `share` until the clip is full; of those without an
        entity the expected number counts.
        """
        usable = self.sentences_per_user
        if extended_rate < 1:
            if self.extended_per_user is None:
                raise UserError(
                    f"extended rate {extended_rate:g}: how many sentences have no entity is not "
                    "known; give the corpus"
                )
            usable = usable - (1 - extended_rate) * self.extended_per_user
        return self.users * float(np.minimum(1.0, share * usable).mean())


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
        profile = partial(_rotation, rate, share, extended)
        noise = noise_for(target, delta, count, profile)
        merit = float(np.sqrt(count)) * rate * supply.norms(share, extended) / noise
        yield Option(rate, count, share, noise, rate * supply.users, merit, extended)


def _rotation(rate: float, share: float, extended_rate: float, noise: float) -> Profile:
    return RotationProfile(noise, rate, share, extended_rate=extended_rate)


def curves(option: Option, delta: float, points: int = 12) -> dict[str, list[tuple[int, float]]]:
    """Epsilon against rounds at an option's noise, for users alone and for users with entities."""
    counts = np.unique(np.round(np.geomspace(1, 2 * option.rounds, points)).astype(int))
    profiles: dict[str, Profile] = {
        "user and entity (rotation)": option.profile,
        "user without entity": option.profile.user_alone(),
    }
    return {
        name: [(int(n), epsilon(profile, int(n), delta)) for n in counts]
        for name, profile in profiles.items()
    }
