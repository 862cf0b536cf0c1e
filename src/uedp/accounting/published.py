"""The paper's numbers, as the paper obtained them. None of them is a privacy guarantee.

Lai et al. (2022) do not state which sampling rate they hand to the moments accountant of Abadi et
al. (2016). The rates below reproduce every epsilon the paper prints; `docs/privacy.md` section 3
says why a rate of `q_u q_e` is not valid for this mechanism. Nothing here may enter a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from uedp.errors import UserError

NOT_A_GUARANTEE = "published accounting of the paper; not a privacy guarantee"
ORDERS = np.arange(1, 65)


class PublishedMethod(StrEnum):
    f_e_plus = "f_e_plus"
    f_e = "f_e"
    user = "user"


@dataclass(frozen=True)
class PublishedSetting:
    """The inputs of the paper's accountant. `sensitive` and `sentences` matter to f_E+ only."""

    users: int
    users_per_round: int
    entity_rate: float = 1.0
    sensitive: int = 1
    sentences: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.users_per_round <= self.users:
            raise UserError(
                f"users per round {self.users_per_round}: must lie in 1..{self.users}, the users"
            )
        if not 0 <= self.entity_rate <= 1:
            raise UserError(f"entity rate {self.entity_rate}: must lie in 0..1")
        if not 0 < self.sensitive <= self.sentences:
            raise UserError(
                f"sensitive sentences {self.sensitive}: must be between 1 and the "
                f"{self.sentences} sentences"
            )

    def rate(self, method: PublishedMethod) -> float:
        """The sampling rate that the paper's epsilons imply for a method."""
        user_rate = self.users_per_round / self.users
        if method is PublishedMethod.user:
            return user_rate
        if method is PublishedMethod.f_e:
            return user_rate * self.entity_rate
        return user_rate * self.entity_rate * self.sensitive / self.sentences


def epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
    """The moments accountant's epsilon for a sampled Gaussian, cut at order 64 as in the paper.

    The cut is why no epsilon can fall below `ln(1/delta) / 64`.
    """
    if not noise > 0:
        raise UserError(f"noise {noise}: must be above 0")
    if rounds < 1:
        raise UserError(f"rounds {rounds}: must be at least 1")
    if not 0 < delta < 1:
        raise UserError(f"delta {delta}: must lie between 0 and 1")
    moments = np.array([_log_moment(int(order), rate, noise) for order in ORDERS])
    return float(np.min((rounds * moments - np.log(delta)) / ORDERS))


def curve(rate: float, noise: float, rounds: Sequence[int], delta: float) -> list[float]:
    """Epsilon after each of the given numbers of rounds."""
    return [epsilon(rate, noise, count, delta) for count in rounds]


def _log_moment(order: int, rate: float, noise: float) -> float:
    """`ln E[(mixture / plain)^order]` under the mixture, by the binomial theorem."""
    if rate == 0:
        return 0.0
    k = np.arange(order + 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        stay = np.where(k == order + 1, 0.0, (order + 1 - k) * np.log1p(-rate))
    binomial = special.gammaln(order + 2) - special.gammaln(k + 1) - special.gammaln(order + 2 - k)
    terms = binomial + stay + k * np.log(rate) + k * (k - 1) / (2 * noise**2)
    return float(special.logsumexp(terms))
