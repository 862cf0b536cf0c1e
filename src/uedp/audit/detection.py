"""What the errors of a detection cost: false hits cost usable text, misses cost epsilon.

Both are measured where people marked the entities (`entities.coverage`).
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from uedp.accounting.calibrate import noise_for
from uedp.accounting.missed import missed_epsilon
from uedp.accounting.profile import Profile
from uedp.accounting.proven import epsilon as proven_epsilon
from uedp.entities.coverage import DetectionErrors, with_unions
from uedp.mechanism.sampling import usable_share
from uedp.methods import PrivacySettings, method_named

EPSILON = 8.0
# Numbers of users and of sentences are rounded up to these, so that few epsilons are computed and
# none is too small. Beyond the last, the epsilon is not computed: it would promise nothing.
USERS = (1, 2, 5, 10, 20, 50, 100)
SENTENCES = (1, 2, 5)  # beyond: all sentences of a user
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def false_hit_costs(errors: DetectionErrors) -> dict[str, Any]:
    """The usable share as detected and without false hits; by category, what its own take away."""
    usable = usable_share(errors.incidence)
    counts = Counter(category for _, _, category in errors.false)
    return {
        "usable": usable,
        "usable_without": usable_share(errors.without_false_hits()) if counts else usable,
        "categories": {
            category: {
                "false_hits": count,
                "usable_lost": usable_share(errors.without_false_hits(category)) - usable,
            }
            for category, count in sorted(counts.items())
        },
    }


def miss_costs(
    errors: DetectionErrors, epsilon: float = EPSILON, privacy: PrivacySettings | None = None
) -> dict[str, Any]:
    """The epsilon of the marked entities in a run, given where each was missed (Theorem 3).

    Args:
        epsilon: of an entity that was never missed
        privacy: the other settings of the run; by default those of `PrivacySettings`

    An entity is what marks with one canonical form name. By category: how many there are, how many
    were found in all sentences, in how many users the others were missed, and epsilon for the
    median entity, for 90% and 99% of them, and for all. None: no finite epsilon.
    """
    settings = privacy or PrivacySettings(epsilon=epsilon)
    method, delta, rounds = method_named(settings.method), settings.delta, settings.rounds

    profile_with = partial(method.profile, settings, errors.incidence)
    profile = profile_with(noise_for(epsilon, delta, rounds, profile_with))
    known = {(0, 0): proven_epsilon(profile, rounds, delta)}
    spent = partial(
        _epsilon_of, known, profile, rounds, delta, per_user=settings.sentences_per_user
    )
    groups: dict[str, list[Counter[str]]] = {}
    for (category, _), missed in errors.missed.items():
        for name in with_unions(category, errors.protected):
            groups.setdefault(name, []).append(missed)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "method": settings.method,
        "rounds": rounds,
        "user_rate": settings.user_rate,
        "entity_share": settings.entity_share,
        "categories": {
            name: _summary(group, [spent(missed) for missed in group])
            for name, group in sorted(groups.items())
        },
    }


def _epsilon_of(
    known: dict[tuple[int, int], float],
    profile: Profile,
    rounds: int,
    delta: float,
    missed: Counter[str],
    per_user: int | None,
) -> float:
    """The epsilon of an entity that was missed in so many sentences of each of these users."""
    users = _rounded_up(len(missed), (0, *USERS))
    sentences = _rounded_up(max(missed.values(), default=0), (0, *SENTENCES))
    if users is None:
        return float("inf")
    key = users, -1 if sentences is None else sentences
    if key not in known:
        known[key] = missed_epsilon(profile, rounds, delta, users, sentences, per_user)
    return known[key]


def _rounded_up(count: int, steps: Iterable[int]) -> int | None:
    return next((step for step in steps if step >= count), None)


def _summary(entities: list[Counter[str]], epsilons: list[float]) -> dict[str, Any]:
    ordered = np.sort(epsilons)
    places = np.ceil(np.array(list(QUANTILES.values())) * len(ordered)).astype(int) - 1
    at = [float(ordered[max(place, 0)]) for place in places]
    return {
        "entities": len(entities),
        "found_everywhere": sum(not missed for missed in entities),
        "users_missed": max(len(missed) for missed in entities),
        "sentences_missed": max(max(missed.values(), default=0) for missed in entities),
        "epsilon": {
            name: value if np.isfinite(value) else None
            for name, value in zip(QUANTILES, at, strict=True)
        },
    }
