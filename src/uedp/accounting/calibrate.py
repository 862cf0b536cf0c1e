"""Calibration: noise, rounds or entity share for a target epsilon.

Every search brackets the answer, narrows the bracket, and returns the end at which the target was
computed to hold, so that rounding can only cost utility, never privacy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from uedp.accounting.pld import max_rounds
from uedp.accounting.profile import MAX_NOISE, PrivacyEvent, Profile
from uedp.accounting.proven import (
    MAX_ROUNDS,
    Events,
    FairSharesProfile,
    RotationProfile,
    UserLevelProfile,
    check_delta,
    epsilon,
)
from uedp.errors import UserError

_PRECISION = 2e-4  # relative, of the noise or the share
_LEAST_NOISE = 1e-3  # not searched below


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
    check_target(target, delta, rounds)

    def spent(noise: float) -> float:
        return epsilon(profile(noise), rounds, delta, *beside)

    tried = [_Tried(1.0, spent(1.0), target)]
    upwards = not tried[0].meets
    while tried[-1].meets is not upwards:
        factor = _leap(tried, slope=1.0 if upwards else 2.0, most=4.0 if upwards else 2.0)
        noise = tried[-1].value * factor ** (1 if upwards else -1)
        if noise > MAX_NOISE:
            raise UserError(
                f"epsilon {target:g} at delta {delta:g}: no noise reaches it; raise one of them"
            )
        if noise < _LEAST_NOISE:
            return tried[-1].value  # less noise counts as none
        tried.append(_Tried(noise, spent(noise), target))
    return _narrow(spent, tried, lambda noise: _PRECISION * noise, np.log, np.exp)


def rounds_for(target: float, delta: float, profile: PrivacyEvent) -> int:
    """The most rounds that meet the target; 0 if not even one does.

    Guarantees:
      - that many rounds meet the target; one more does not, or is more than ten million, or more
        than this delta can be computed for
    """
    check_target(target, delta)

    def spent(rounds: float) -> float:
        return epsilon(profile, int(rounds), delta)

    tried = [_Tried(1, spent(1), target)]
    if not tried[0].meets:
        return 0
    most = min(MAX_ROUNDS, max_rounds(delta))
    while tried[-1].meets:
        if tried[-1].value == most:
            return most
        rounds = np.ceil(tried[-1].value * _leap(tried, slope=0.5, most=64.0))
        rounds = min(int(rounds), most)
        tried.append(_Tried(rounds, spent(rounds), target))
    return int(_narrow(spent, tried, lambda _: 1.0, np.log, np.exp, whole=True))


def share_for(
    target: float, delta: float, rounds: int, profile: Callable[[float], PrivacyEvent]
) -> float:
    """The largest entity share (to 0.02% or 2e-6, at most 2) whose rounds meet the target.

    Epsilon, an upper bound, is uneven by up to 0.2%: a slightly larger share may meet it again.

    Guarantees:
      - the share returned meets the target; if even a share of 0 does not, this is an error
    """
    check_target(target, delta, rounds)

    def spent(share: float) -> float:
        return epsilon(profile(share), rounds, delta)

    largest = _Tried(2.0, spent(2.0), target)
    if largest.meets:
        return largest.value
    none = _Tried(0.0, spent(0.0), target)
    if not none.meets:
        raise UserError(
            f"epsilon {target:g}: this noise is too small even for a user alone; raise it"
        )
    return _narrow(spent, [none, largest], lambda share: _PRECISION * max(share, 0.01))


@dataclass(frozen=True)
class _Tried:
    """A value that was tried, and what it costs."""

    value: float
    epsilon: float
    target: float

    @property
    def meets(self) -> bool:
        return self.epsilon <= self.target

    @property
    def excess(self) -> float:
        """How far beyond the target, in logarithms."""
        if self.epsilon == 0:
            return -np.inf
        return float(np.log(self.epsilon) - np.log(self.target))


def _leap(tried: Sequence[_Tried], slope: float, most: float) -> float:
    """The factor by which a value must change to pass the target, a little more than estimated.

    `slope` is that of epsilon in logarithms, as long as only one value was tried.
    """
    last = tried[-1]
    if len(tried) > 1 and np.isfinite(rise := last.excess - tried[-2].excess):
        slope = float(np.clip(abs(rise / np.log(last.value / tried[-2].value)), 0.25, 8.0))
    return float(np.exp(min(1.1 * abs(last.excess) / slope + 0.02, np.log(most))))


def _narrow(
    spent: Callable[[float], float],
    tried: list[_Tried],
    precision: Callable[[float], float],
    scale: Callable[[float], float] = float,
    unscale: Callable[[float], float] = float,
    whole: bool = False,
) -> float:
    """The value nearest to the target that meets it; values on both sides of it were tried.

    On the given scale the logarithm of epsilon should be nearly straight. Of whole numbers the
    next one does not meet the target.
    """
    meets = next(one for one in reversed(tried) if one.meets)
    fails = next(one for one in reversed(tried) if not one.meets)
    widths = [np.inf] * 3
    while abs(fails.value - meets.value) > precision(meets.value):
        low, high = scale(meets.value), scale(fails.value)
        stuck = abs(high - low) > widths[-3] / 2  # after three steps
        widths.append(abs(high - low))
        middle = (low + high) / 2 if stuck else _interpolated(meets, fails, tried, scale)
        estimate = float(unscale(middle))
        towards = 1 if fails.value > meets.value else -1
        near = precision(meets.value) * (1.0 if whole else 0.9)
        # the estimate is likely good: try just before it, and once it is reached, just behind
        if abs(estimate - meets.value) < near:
            value = meets.value + towards * near
        else:
            value = estimate - towards * near / 8
        if whole:
            value = float(np.clip(round(value), meets.value + 1, fails.value - 1))
        tried.append(_Tried(value, spent(value), meets.target))
        if tried[-1].meets:
            meets = tried[-1]
        else:
            fails = tried[-1]
    return meets.value


def _interpolated(
    meets: _Tried, fails: _Tried, tried: Sequence[_Tried], scale: Callable[[float], float]
) -> float:
    """Where epsilon likely is the target: by inverse quadratic interpolation, or on a line."""
    low, high = scale(meets.value), scale(fails.value)
    if not np.isfinite(meets.excess - fails.excess):
        return (low + high) / 2
    line = low + (high - low) * meets.excess / (meets.excess - fails.excess)
    third = next((one for one in reversed(tried) if one not in (meets, fails)), meets)
    x = np.array([low, high, scale(third.value)])
    y = np.array([meets.excess, fails.excess, third.excess])
    if len(set(y)) < 3 or not np.isfinite(y).all():
        return line
    other, another = np.roll(y, 1), np.roll(y, 2)
    curve = float(x @ (other * another / ((other - y) * (another - y))))
    return curve if min(low, high) < curve < max(low, high) else line


@dataclass(frozen=True)
class Calibration:
    """A plan of a method that protects entities whose epsilon meets a target."""

    profile: Profile
    noise: float
    rounds: int
    entity_share: float
    epsilon: float


def entity_level_profile(
    noise: float,
    user_rate: float,
    entity_share: float,
    entity_rate: float = 1.0,
    extended_rate: float = 1.0,
    method: str = RotationProfile.method,
) -> Profile:
    """The profile of rotation or fair shares; with an entity share of 0, that of user-level DP."""
    if entity_share == 0:
        return UserLevelProfile(noise, user_rate)
    if method == FairSharesProfile.method:
        if entity_rate < 1:
            raise UserError(
                f"entity rate {entity_rate:g}: {method} uses every entity in every round; leave "
                "out `entity_rate=...`"
            )
        return FairSharesProfile(noise, user_rate, entity_share, extended_rate=extended_rate)
    if method != RotationProfile.method:
        raise UserError(
            f"method {method!r}: choose {RotationProfile.method} or {FairSharesProfile.method}"
        )
    return RotationProfile(
        noise, user_rate, entity_share, entity_rate=entity_rate, extended_rate=extended_rate
    )


def calibrate_entity_level(
    target: float,
    delta: float,
    user_rate: float,
    *,
    noise: float | None = None,
    rounds: int | None = None,
    entity_share: float | None = None,
    entity_rate: float = 1.0,
    extended_rate: float = 1.0,
    method: str = RotationProfile.method,
) -> Calibration:
    """Solve for the noise, the rounds or the entity share, whichever is left out.

    Guarantees:
      - the epsilon of the plan returned is at most the target
    """

    def profile(noise: float, share: float) -> Profile:
        return entity_level_profile(noise, user_rate, share, entity_rate, extended_rate, method)

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


def check_target(target: float, delta: float, rounds: int = 1) -> None:
    check_delta(delta)
    if rounds < 1:
        raise UserError(f"rounds {rounds}: must be at least 1")
    if not target > 0 or not np.isfinite(target):
        raise UserError(f"epsilon {target}: must be above 0")
    if delta == 0:
        raise UserError("delta 0: Gaussian noise has no epsilon at delta 0; choose a delta above 0")
