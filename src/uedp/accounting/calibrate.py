"""Calibration: noise, rounds or entity share for a target epsilon.

Every search brackets the answer, narrows the bracket, and returns the end at which the target was
computed to hold, so that rounding can only cost utility, never privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from uedp.accounting.pld import max_rounds
from uedp.accounting.profile import MAX_NOISE, PrivacyEvent, Profile
from uedp.accounting.proven import (
    MAX_ROUNDS,
    Events,
    RotationProfile,
    UserLevelProfile,
    check_delta,
    epsilon,
)
from uedp.errors import UserError

_PRECISION = 2e-4  # relative, of the noise or the share


def noise_for(
    target: float,
    delta: float,
    rounds: int,
    profile: Callable[[float], PrivacyEvent],
    beside: Events = (),
) -> float:
    """The least noise (to 0.02%) whose rounds, with other events beside them, meet the target.

    Guarantees:
      - `epsilon(profile(noise), rounds, delta, *beside) <= target` for the noise returned
    """
    _check(target, delta, rounds)

    def spent(noise: float) -> float:
        return epsilon(profile(noise), rounds, delta, *beside)

    low, high = 0.0, 1.0
    while (at_high := spent(high)) > target:
        low, high = high, high * 2
        if high > MAX_NOISE:
            raise UserError(
                f"epsilon {target:g} at delta {delta:g}: no noise reaches it; raise one of them"
            )
    if low == 0.0:
        low = high / 2
        while (at_low := spent(low)) <= target:
            high, at_high = low, at_low
            low /= 2
            if low < 1e-3:
                return high  # less noise counts as none
    else:
        at_low = spent(low)
    # Near a straight line in logarithms: false position, with the Illinois rule against one
    # end getting stuck.
    weight_low = weight_high = 1.0
    while high - low > _PRECISION * high:
        left = weight_low * (np.log(min(at_low, 1e6)) - np.log(target))
        right = weight_high * (np.log(max(at_high, 1e-12)) - np.log(target))
        share = left / (left - right)
        # stay off the ends, or the bracket would shrink from one side only
        middle = low * (high / low) ** float(np.clip(share, 0.02, 0.98))
        value = spent(middle)
        if value <= target:
            high, at_high, weight_high = middle, value, 1.0
            weight_low /= 2
        else:
            low, at_low, weight_low = middle, value, 1.0
            weight_high /= 2
    return high


def rounds_for(target: float, delta: float, profile: PrivacyEvent) -> int:
    """The most rounds that meet the target; 0 if not even one does.

    Guarantees:
      - that many rounds meet the target; one more does not, or is more than ten million, or more
        than this delta can be computed for
    """
    _check(target, delta)
    if epsilon(profile, 1, delta) > target:
        return 0
    low, high = 1, min(MAX_ROUNDS, max_rounds(delta)) + 1
    while high - low > 1:
        middle = min(2 * low, (low + high) // 2)  # few rounds compose faster
        if epsilon(profile, middle, delta) <= target:
            low = middle
        else:
            high = middle
    return low


def share_for(
    target: float, delta: float, rounds: int, profile: Callable[[float], PrivacyEvent]
) -> float:
    """The largest entity share (to 0.02% or 2e-6, at most 2) whose rounds meet the target.

    Guarantees:
      - the share returned meets the target; if even a share of 0 does not, this is an error
    """
    _check(target, delta, rounds)
    if epsilon(profile(2.0), rounds, delta) <= target:
        return 2.0
    if epsilon(profile(0.0), rounds, delta) > target:
        raise UserError(
            f"epsilon {target:g}: this noise is too small even for a user alone; raise it"
        )
    low, high = 0.0, 2.0
    while high - low > _PRECISION * max(high, 0.01):
        middle = (low + high) / 2
        if epsilon(profile(middle), rounds, delta) <= target:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Calibration:
    """A plan of rotation whose epsilon meets a target."""

    profile: Profile
    noise: float
    rounds: int
    entity_share: float
    epsilon: float


def rotation_profile(
    noise: float,
    user_rate: float,
    entity_share: float,
    entity_rate: float = 1.0,
    extended_rate: float = 1.0,
) -> Profile:
    """The profile of rotation; with an entity share of 0, that of user-level DP."""
    if entity_share == 0:
        return UserLevelProfile(noise, user_rate)
    return RotationProfile(
        noise, user_rate, entity_share, entity_rate=entity_rate, extended_rate=extended_rate
    )


def calibrate_rotation(
    target: float,
    delta: float,
    user_rate: float,
    *,
    noise: float | None = None,
    rounds: int | None = None,
    entity_share: float | None = None,
    entity_rate: float = 1.0,
    extended_rate: float = 1.0,
) -> Calibration:
    """Solve for the noise, the rounds or the entity share, whichever is left out.

    Guarantees:
      - the epsilon of the plan returned is at most the target
    """

    def profile(noise: float, share: float) -> Profile:
        return rotation_profile(noise, user_rate, share, entity_rate, extended_rate)

    if noise is None and rounds is not None and entity_share is not None:
        share = entity_share
        noise = noise_for(target, delta, rounds, lambda value: profile(value, share))
    elif rounds is None and noise is not None and entity_share is not None:
        rounds = rounds_for(target, delta, profile(noise, entity_share))
        if rounds == 0:
            raise UserError(f"noise {noise:g}: a single round exceeds the target; raise it")
    elif entity_share is None and noise is not None and rounds is not None:
        level = noise
        entity_share = share_for(target, delta, rounds, lambda value: profile(level, value))
    else:
        missing = {"noise": noise, "rounds": rounds, "entity share": entity_share}
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise UserError(
            "leave out exactly one of `noise=...`, `rounds=...` and `entity_share=...`; "
            f"left out: {names or 'none'}"
        )
    solved = profile(noise, entity_share)
    return Calibration(solved, noise, rounds, entity_share, epsilon(solved, rounds, delta))


def _check(target: float, delta: float, rounds: int = 1) -> None:
    check_delta(delta)
    if rounds < 1:
        raise UserError(f"rounds {rounds}: must be at least 1")
    if not target > 0 or not np.isfinite(target):
        raise UserError(f"epsilon {target}: must be above 0")
    if delta == 0:
        raise UserError("delta 0: Gaussian noise has no epsilon at delta 0; choose a delta above 0")
