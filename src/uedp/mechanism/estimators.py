"""UeDP-Alg's sampling, its estimators f_E and f_E+, and the noise the paper adds to them.

`docs/privacy.md` section 2. What that noise proves is another matter: `uedp.accounting.proven`.
"""

from dataclasses import dataclass, replace

import numpy as np

from uedp.errors import UserError
from uedp.incidence import Incidence, Ints, Rows
from uedp.mechanism.sampling import Floats, Sampling, Uniforms, draw_users, grouped


@dataclass(frozen=True, eq=False)
class WeightedParticipants:
    """Users and sentences of a UeDP-Alg round; a sentence counts once per sampled entity in it."""

    users: Ints
    sentences: Rows
    weights: Floats


def draw_uedp_alg(
    incidence: Incidence,
    sampling: Sampling,
    rng: Uniforms,
    entity_weights: Floats,
    extended_weight: float = 1.0,
) -> WeightedParticipants:
    """A sentence is used if any of its entities was sampled.

    Its weight is the sum of the weights of the sampled entities it mentions; an extended
    sentence's is `extended_weight` if it was sampled.
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    own = incidence.user_sentences.take(users)
    mentions = incidence.sentence_entities.take(own.values)
    entities, which = np.unique(mentions.values, return_inverse=True)
    sampled = rng.random(len(entities)) < sampling.entity_rate
    value = np.where(sampled, entity_weights[entities], 0.0)
    weights: Floats = np.bincount(
        mentions.row_of_value(), value[which], minlength=len(mentions)
    ).astype(np.float64)
    extended = mentions.counts == 0
    weights[extended] = extended_weight * (rng.random(int(extended.sum())) < sampling.extended_rate)
    used = weights > 0
    rows = grouped(users, own.row_of_value()[used], own.values[used])
    return WeightedParticipants(users, rows, weights[used])


@dataclass(frozen=True, eq=False)
class Weights:
    """The weight of each user, each detected entity, and every extended entity.

    Guarantees:
      - every weight lies in 0..1
    """

    users: Floats
    entities: Floats
    extended: float
    extended_count: int

    @classmethod
    def of(cls, incidence: Incidence, user_cap: float = 1.0, entity_cap: float = 1.0) -> "Weights":
        """`min(n / cap, 1)`, with `n` the sentences of a user, or those that mention an entity.

        An extended entity is one sentence and weighs 1. (The paper's words, "the number of
        sensitive entities in S", read otherwise; its code has weight 1.) With caps of 1, all that
        have a sentence weigh 1.
        """
        for name, cap in (("user", user_cap), ("entity", entity_cap)):
            if not 0 < cap < float("inf"):
                raise UserError(f"{name} cap {cap}: must be above 0 and finite")
        return cls(
            np.minimum(incidence.user_sentences.counts / user_cap, 1.0),
            np.minimum(incidence.entity_sentences.counts / entity_cap, 1.0),
            1.0,
            int(incidence.extended.sum()),
        )


@dataclass(frozen=True, eq=False)
class Estimator:
    """f_E+, or f_E where the extended rate is 0: `sum_u w_u update_u / denominator`, plus noise.

    `noise` is the paper's `z`, `update_clip` its `beta`. The weights and `|U|` reveal something of
    the incidence, which is not protected; in the adjacency that is proven, they are fixed.

    Guarantees:
      - the denominator scales signal and noise alike: it does not change how private a round is
      - in units of `max(w_u) * update_clip` the noise is `z (q_u |U| + 1)`, whatever the weights
    """

    sampling: Sampling
    weights: Weights
    update_clip: float
    noise: float

    def __post_init__(self) -> None:
        if not 0 < self.update_clip < float("inf"):
            raise UserError(f"update_clip {self.update_clip}: must be above 0 and finite")
        if not 0 <= self.noise < float("inf"):
            raise UserError(f"noise {self.noise}: must not be negative, and finite")
        if not self.denominator > 0:
            raise UserError(
                f"no sentence can be sampled: rates {self.sampling.user_rate:g} of users, "
                f"{self.sampling.entity_rate:g} of {len(self.weights.entities)} entities, "
                f"{self.sampling.extended_rate:g} of {self.weights.extended_count} sentences "
                "without entities; raise a rate, or use f_e_plus"
            )

    def draw(self, incidence: Incidence, rng: Uniforms) -> WeightedParticipants:
        """The participants of a round, by this estimator's rates and weights."""
        weights = self.weights
        return draw_uedp_alg(incidence, self.sampling, rng, weights.entities, weights.extended)

    @property
    def denominator(self) -> float:
        """`q_u W_u (q_e W_e + q_s W_s)`."""
        rates, weights = self.sampling, self.weights
        entities = rates.entity_rate * float(weights.entities.sum())
        extended = rates.extended_rate * weights.extended * weights.extended_count
        return rates.user_rate * float(weights.users.sum()) * (entities + extended)

    @property
    def noise_in_updates(self) -> float:
        """The noise in units of the largest weighted update, `z (q_u |U| + 1)`."""
        return self.noise * (self.sampling.user_rate * len(self.weights.users) + 1)

    @property
    def deviation_of_sum(self) -> float:
        """Standard deviation of the noise, for the sum before it is divided."""
        return self.noise_in_updates * float(self.weights.users.max()) * self.update_clip

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, `sigma`, for the sum over the denominator."""
        return self.deviation_of_sum / self.denominator


def f_e_plus(sampling: Sampling, weights: Weights, update_clip: float, noise: float) -> Estimator:
    """Trains on sampled detected entities and on sampled sentences without any."""
    return Estimator(sampling, weights, update_clip, noise)


def f_e(sampling: Sampling, weights: Weights, update_clip: float, noise: float) -> Estimator:
    """Trains on detected entities only: f_E+ at an extended rate of 0."""
    return Estimator(replace(sampling, extended_rate=0.0), weights, update_clip, noise)
