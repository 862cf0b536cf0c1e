"""A guarantee as a bound on attackers: how often the best of them is right.

The attacker sees the model, knows all other texts, and decides between two corpora: with the
protected texts, and with these texts emptied. What is said here holds for any attack whatever.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.ledger import PlannedRun
from uedp.accounting.pld import BothDirections
from uedp.accounting.profile import PrivacyEvent, profile_from_record, profile_type
from uedp.accounting.proven import Events, Guarantee, guarantee
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

FALSE_ALARMS = (0.01, 0.05)  # rates at which the power of an attack is stated
_RELEASE = fields(VocabularyRelease)
_WORDS = {"noise": "vocabulary_noise", "threshold": "vocabulary_threshold"}  # on a certificate
_LEAST_DELTA = 1e-6  # the privacy profile is followed down to here
_POINTS = 240  # epsilons of the privacy profile at which bounds are tried; each one holds


@dataclass(frozen=True)
class Strength:
    """What a guarantee says of attackers, as upper bounds.

    `success` is the share of right guesses where both corpora are equally likely, and `power` the
    share of members that are recognised, by the share of others that are taken for members. They
    follow from the whole privacy profile where it is known, else from epsilon and delta alone,
    which says less.
    """

    epsilon: float
    delta: float
    success: float
    power: Mapping[float, float]

    @property
    def factor(self) -> float:
        """How many times as likely anything is with the texts as without, up to delta."""
        return math.exp(min(self.epsilon, 700.0))


def success_bound(epsilon: float, delta: float) -> float:
    """The largest probability of telling two equally likely neighbouring corpora apart.

    Guarantees:
      - `(e^epsilon + delta) / (1 + e^epsilon)`, attained by some (epsilon, delta)-private mechanism
    """
    inverse = math.exp(-epsilon)
    return min(1.0, (1 + delta * inverse) / (1 + inverse))


def from_pair(epsilon: float, delta: float) -> Strength:
    """The bounds that one epsilon with its delta gives.

    Guarantees:
      - attained: some (epsilon, delta)-private mechanism lets an attacker reach each of them
    """
    power = {
        rate: min(
            1.0,
            math.exp(min(epsilon, 700.0)) * rate + delta,
            1 - math.exp(-epsilon) * (1 - rate - delta),
        )
        for rate in FALSE_ALARMS
    }
    return Strength(epsilon, delta, success_bound(epsilon, delta), power)


def from_guarantee(composed: Guarantee, delta: float) -> Strength:
    """The bounds of all epsilons together, each with its own delta.

    Guarantees:
      - none is below what an attacker can reach against the pair that the accountant composed
      - none is above what epsilon and delta give alone
    """
    epsilon = composed.epsilon(delta)
    if math.isinf(epsilon):
        return Strength(epsilon, delta, 1.0, dict.fromkeys(FALSE_ALARMS, 1.0))
    alone = from_pair(epsilon, delta)
    epsilons = np.linspace(0.0, np.clip(composed.epsilon(_LEAST_DELTA), 0.1, MAX_EPSILON), _POINTS)
    full, emptied = (
        np.max([[both[side].delta(e) for e in epsilons] for both in _distinct(composed)], axis=0)
        for side in (0, 1)
    )
    power = {
        # to find who is in while few others are suspected, or who is not
        rate: min(
            most,
            max(
                _power(rate, epsilons, full, emptied),
                _power(rate, epsilons, emptied, full),
            ),
        )
        for rate, most in alone.power.items()
    }
    success = min(alone.success, (1 + composed.delta(0.0)) / 2)
    return Strength(epsilon, delta, success, power)


def _distinct(composed: Guarantee) -> list[BothDirections]:
    """The losses of all units, each once."""
    return list({id(both): both for both in composed.losses.values()}.values())


def _power(rate: float, epsilons: Floats, mine: Floats, opposite: Floats) -> float:
    """The most members that are found at a rate of false alarms, by the best of the epsilons."""
    factors = np.exp(epsilons)
    over, under = factors * rate + mine, 1 - (1 - rate - opposite) / factors
    return min(1.0, float(over.min()), float(under.min()))


# --- of a run ------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _strength(events: Events, delta: float) -> Strength:
    return from_guarantee(guarantee(events), delta)


def strength_of(planned: PlannedRun, delta: float | None = None) -> Strength | None:
    """What is proven of the model: the planned rounds of a run, and all that is charged beside."""
    if planned.profile is None or planned.exposed is not None:
        return None
    events = ((planned.profile, planned.rounds), *planned.beside)
    return _finite(_strength(events, planned.delta if delta is None else delta))


def strength_for_user(planned: PlannedRun) -> Strength | None:
    """The same for a user without an entity."""
    if planned.profile is None or planned.exposed is not None:
        return None
    events = (event for run in planned.model_runs for event in run.events_user_alone)
    return _finite(_strength(tuple(events), planned.delta))


def strength_if_missed(planned: PlannedRun, users: int, sentences: int | None) -> Strength | None:
    """The same for an entity that was missed in `sentences` of each of so many users."""
    if planned.profile is None or planned.exposed is not None:
        return None
    missed = (run.events_missed(users, sentences) for run in planned.model_runs)
    events: list[tuple[PrivacyEvent, int]] = []
    for own in missed:
        if own is None:
            return None
        events += own
    return _finite(_strength(tuple(events), planned.delta))


def strength_as_certified(
    method: str, parameters: Mapping[str, float | int | bool | None], rounds: int, claimed: Strength
) -> Strength:
    """What is proven of the rounds that a certificate describes, by its parameters.

    `claimed` are the bounds of the epsilon and the delta that it states: they are all there is if
    the parameters give another epsilon, or none.
    """
    known = {field.name for field in fields(profile_type(method))}
    values = {name: value for name, value in parameters.items() if name in known}
    words = {field.name: parameters.get(_WORDS.get(field.name, field.name)) for field in _RELEASE}
    try:
        profile = profile_from_record({"method": method, **values})
        release = None if words["noise"] is None else VocabularyRelease(**words)  # type: ignore[arg-type]
        events: Events = ((profile, rounds), *(() if release is None else ((release, 1),)))
        whole = _strength(events, claimed.delta)
    except (UserError, ValueError, TypeError):
        return claimed
    return whole if math.isclose(whole.epsilon, claimed.epsilon, rel_tol=1e-6) else claimed


def epsilon_spent(planned: PlannedRun, rounds: int, points: int = 10) -> dict[int, float]:
    """Epsilon after some of the rounds, up to as many as were spent, with what came before them."""
    if planned.profile is None or planned.exposed is not None or rounds < 1:
        return {}
    counts = np.unique(np.round(np.geomspace(1, rounds, points)).astype(int)).tolist()
    return {
        count: _epsilon(((planned.profile, count), *planned.beside), planned.delta)
        for count in counts
    }


@lru_cache(maxsize=4096)
def _epsilon(events: Events, delta: float) -> float:
    return guarantee(events).epsilon(delta)


def _finite(strength: Strength) -> Strength | None:
    return strength if math.isfinite(strength.epsilon) else None
