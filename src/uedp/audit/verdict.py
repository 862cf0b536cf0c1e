"""From scores to a verdict: lower bounds, beside what is proven and what was published."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import FairMissedProfile, Guarantee, MissedProfile, guarantee
from uedp.accounting.published import NOT_A_GUARANTEE
from uedp.audit.bounds import (
    Curve,
    GuessCounts,
    Merit,
    Point,
    Scores,
    Trial,
    gaussian_epsilon,
    gaussian_mu,
    largest_noise,
    threshold_epsilon,
)
from uedp.audit.sensitivity import Sensitivity
from uedp.audit.worlds import Target, World, attainable

Guessed = Literal["full", "emptied"]


@dataclass(frozen=True)
class Claim:
    """What is claimed of some rounds of a method, for one target."""

    method: str
    target: Target
    profile: PrivacyEvent
    rounds: int
    delta: float
    published: float | None = None
    plan: str | None = None  # its digest


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon, and the attack that gave it.

    `counts` are None in results of earlier releases.
    """

    epsilon: float
    attack: str
    guessed: Guessed
    right: float
    wrong: float
    counts: GuessCounts | None = None


@dataclass(frozen=True)
class Alarm:
    """Whether the proven epsilon was refuted, at a confidence shared among many audits."""

    confidence: float
    threshold: float
    excess: float | None
    raised: bool


@dataclass(frozen=True)
class MechanismAudit:
    """The result of an attack on the mechanism. Each bound holds with `confidence` on its own.

    `threshold` assumes nothing. `gaussian` assumes that the trade-off between the attack's errors
    is that of a Gaussian, `curve` that it is the one proven, for some other noise; both carry what
    was observed over to the delta asked for. `excess` above 0 refutes the proven epsilon: the
    attack guessed better than its whole curve allows. `attainable` is the epsilon of the worlds
    attacked, computed: above it lies slack of the proof or of the worlds, below it the price of
    too few runs. An epsilon of None is absent, or not finite.

    `directions` has the bounds of those who guess the full corpus only, and the emptied one only.
    `alarm` repeats the two tests that assume nothing with more confidence.
    """

    method: str
    pair: str
    parameters: dict[str, Any]
    rounds: int
    delta: float
    confidence: float
    runs: int
    seed: int | None
    noise_source: str
    proven: float | None
    published: float | None
    attainable: float | None
    threshold: Bound
    gaussian: Bound
    mu: float
    curve: Bound | None
    excess: float | None
    directions: dict[str, dict[str, Bound]]
    alarm: Alarm
    plan: str | None = None  # the digest of the plan that was attacked, if it was one

    @property
    def name(self) -> str:
        return f"{self.method}, {self.pair}"

    @property
    def refutes_proven(self) -> bool:
        """Whether a test contradicts the proof; each raises a false alarm at `1 - confidence`."""
        beaten = self.proven is not None and self.threshold.epsilon > self.proven
        return beaten or (self.excess is not None and self.excess > 0)

    @property
    def refutes_published(self) -> bool:
        return self.published is not None and self.threshold.epsilon > self.published

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "MechanismAudit":
        """From what was saved."""
        return TypeAdapter(cls).validate_python(saved)


def conclusion(audits: Sequence[MechanismAudit], measured: Sequence[Sensitivity] = ()) -> list[str]:
    """The verdict on some audits, in words. They share one chance of a false alarm."""
    lines = [f"ALARM: {one.method}: {rule}" for one in measured for rule in one.broken]
    lines += [
        f"ALARM: {one.name}: the attack does better than the proven epsilon {one.proven:.4g} allows"
        for one in audits
        if one.alarm.raised
    ]
    if not lines:
        lines = [
            f"{one.name}: a bound exceeds the proven epsilon, but not with the confidence of an "
            "alarm; run again with more runs"
            for one in audits
            if one.refutes_proven
        ] or ["no lower bound exceeds the proven epsilon"]
    for one in audits:
        if one.proven is not None and one.gaussian.epsilon > one.proven and not one.alarm.raised:
            lines.append(
                f"{one.name}: the Gaussian fit exceeds the proven epsilon; it assumes a shape "
                "that the mechanism need not have"
            )
    for one in audits:
        if one.refutes_published:
            lines.append(
                f"{one.name}: the published epsilon {one.published:.2f} is refuted; it is at "
                f"least {math.floor(100 * one.threshold.epsilon) / 100:.2f}"
            )
    return lines


def document(
    audits: Sequence[MechanismAudit], measured: Sequence[Sensitivity] = ()
) -> dict[str, Any]:
    """Audits and their verdict, to be saved as JSON."""
    return {
        "alarm": any(one.broken for one in measured) or any(one.alarm.raised for one in audits),
        "verdict": conclusion(audits, measured),
        "published": NOT_A_GUARANTEE,
        "measured": [asdict(one) for one in measured],
        "audits": [asdict(one) for one in audits],
    }


def judge(
    scores: Sequence[Scores],
    claim: Claim,
    *,
    confidence: float = 0.95,
    among: int = 1,
    worlds: Sequence[World] = (),
    multiplier: float = 0.0,
    seed: int | None = None,
    noise_source: str = "cipher",
) -> MechanismAudit:
    """Hold scores against a claim.

    With the `worlds` that were attacked, also what is attainable there at noise `multiplier`, and
    the bound from the proven curve. `among` is how many audits share one chance of a false alarm.
    """
    profile, rounds, delta = claim.profile, claim.rounds, claim.delta
    trial = Trial(scores, confidence)
    proven = guarantee([(profile, rounds)])
    epsilon = proven.epsilon(delta)
    finite = math.isfinite(epsilon)
    allowed = Curve.of(proven) if finite else None
    threshold, gaussian, mu = _best(trial, delta)
    attained = math.inf
    if finite and worlds:
        attained = max(attainable(world, multiplier, rounds, delta) for world in worlds)
    sides: tuple[Guessed, ...] = ("full", "emptied")
    directions = {side: _best(trial, delta, side) for side in sides}
    return MechanismAudit(
        method=claim.method,
        pair=claim.target,
        parameters=asdict(profile),  # type: ignore[call-overload]
        rounds=rounds,
        delta=delta,
        confidence=confidence,
        runs=len(scores[0].guessed),
        seed=seed,
        noise_source=noise_source,
        proven=epsilon if finite else None,
        published=claim.published,
        attainable=attained if math.isfinite(attained) else None,
        threshold=threshold,
        gaussian=gaussian,
        mu=mu,
        curve=_fitted(trial, profile, rounds, delta) if finite and worlds else None,
        excess=_excess(trial, allowed),
        directions={
            side: {"threshold": cut, "gaussian": fit} for side, (cut, fit, _) in directions.items()
        },
        alarm=_alarm(Trial(scores, 1 - (1 - confidence) / (2 * among)), epsilon, allowed, delta),
        plan=claim.plan,
    )


def _best(trial: Trial, delta: float, only: Guessed | None = None) -> tuple[Bound, Bound, float]:
    """The bounds by a threshold and by a Gaussian fit, and its mu; of one direction or the best."""

    def of_side(merit: Callable[[Floats, Floats], Floats]) -> Merit:
        sides = (True, False) if only is None else (only == "full",)
        return lambda right, wrong, full: merit(right, wrong) if full in sides else np.full(1, -1.0)

    cut, fit = of_side(partial(threshold_epsilon, delta=delta)), of_side(gaussian_mu)
    at, near = trial.test(cut), trial.test(fit)
    mu = near.merit(fit)
    return _bound(at.merit(cut), at), _bound(gaussian_epsilon(mu, delta), near), mu


def _excess(trial: Trial, allowed: Curve | None) -> float | None:
    return None if allowed is None else trial.test(allowed.excess).merit(allowed.excess)


def _alarm(trial: Trial, proven: float, allowed: Curve | None, delta: float) -> Alarm:
    threshold, _, _ = _best(trial, delta)
    excess = _excess(trial, allowed)
    raised = threshold.epsilon > proven or (excess or 0.0) > 0
    return Alarm(trial.confidence, threshold.epsilon, excess, raised)


def _fitted(trial: Trial, profile: PrivacyEvent, rounds: int, delta: float) -> Bound:
    @cache
    def guarantee_at(noise: float) -> Guarantee:
        return guarantee([(with_noise(profile, noise), rounds)])

    largest, point = largest_noise(trial, cache(lambda z: Curve.of(guarantee_at(z))), profile.noise)
    return _bound(guarantee_at(largest).epsilon(delta) if largest < math.inf else 0.0, point)


def _bound(epsilon: float, point: Point) -> Bound:
    guessed: Guessed = "full" if point.full else "emptied"
    rates, counts = (point.right, point.wrong), point.counts
    return Bound(min(epsilon, MAX_EPSILON), point.attack, guessed, *rates, counts)


def with_noise(profile: PrivacyEvent, noise: float) -> PrivacyEvent:
    if isinstance(profile, MissedProfile):
        return replace(profile, rotation=replace(profile.rotation, noise=noise))
    if isinstance(profile, FairMissedProfile):
        return replace(profile, fair=replace(profile.fair, noise=noise))
    return replace(profile, noise=noise)  # type: ignore[type-var]
