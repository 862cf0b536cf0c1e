"""From scores to a verdict: lower bounds, beside what is proven and what was published."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import Guarantee, MissedProfile, guarantee
from uedp.accounting.published import NOT_A_GUARANTEE
from uedp.audit.bounds import (
    Curve,
    Point,
    Scores,
    Trial,
    gaussian_epsilon,
    gaussian_mu,
    largest_noise,
    threshold_epsilon,
)
from uedp.audit.sensitivity import Sensitivity
from uedp.audit.worlds import Kind, World, attainable

Guessed = Literal["full", "emptied"]


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon, and the attack that gave it."""

    epsilon: float
    attack: str
    guessed: Guessed
    right: float
    wrong: float


@dataclass(frozen=True)
class Alarm:
    """Whether what is proven was refuted, with a confidence that holds for many audits at once."""

    confidence: float
    threshold: float
    excess: float | None
    raised: bool


@dataclass(frozen=True)
class MechanismAudit:
    """What an attack on the mechanism found. Each bound holds with `confidence` on its own.

    `threshold` assumes nothing. `gaussian` assumes that the trade-off between the attack's errors
    is that of a Gaussian, `curve` that it is the one proven, for some other noise; both carry what
    was seen over to the delta asked for. `excess` above 0 refutes the proven epsilon: the attack
    guessed better than its whole curve allows. `attainable` is the epsilon of the worlds attacked,
    computed: what lies between it and `proven` is slack of the proof or of the worlds, what lies
    below it is for want of runs. An epsilon of None is none, or beyond all bounds.

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

    @property
    def largest(self) -> float:
        bounds = [self.threshold, self.gaussian, *([self.curve] if self.curve else [])]
        return max(bound.epsilon for bound in bounds)

    @property
    def refutes_proven(self) -> bool:
        """Whether what is proven was seen to be wrong; a false alarm has `1 - confidence` each."""
        beaten = self.proven is not None and self.threshold.epsilon > self.proven
        return beaten or (self.excess is not None and self.excess > 0)

    @property
    def refutes_published(self) -> bool:
        return self.published is not None and self.threshold.epsilon > self.published

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "MechanismAudit":
        """What was saved, as an object again."""
        bounds = {
            name: saved[name] and Bound(**saved[name])
            for name in ("threshold", "gaussian", "curve")
        }
        directions = {
            guessed: {name: Bound(**bound) for name, bound in each.items()}
            for guessed, each in saved["directions"].items()
        }
        rest = {"directions": directions, "alarm": Alarm(**saved["alarm"])}
        return cls(**{**saved, **bounds, **rest})


def conclusion(audits: Sequence[MechanismAudit], measured: Sequence[Sensitivity] = ()) -> list[str]:
    """What some audits come to, in words. They share one chance of a false alarm."""
    lines = [f"ALARM: {one.method}: {rule}" for one in measured for rule in one.broken]
    lines += [
        f"ALARM: {_named(one)}: the attack does better than the proven epsilon "
        f"{one.proven:.4g} allows"
        for one in audits
        if one.alarm.raised
    ]
    if not lines:
        above = [one for one in audits if one.refutes_proven]
        lines = [
            f"{_named(one)}: a bound exceeds the proven epsilon, but not with the confidence of an "
            "alarm; run again with more runs"
            for one in above
        ] or ["no lower bound exceeds the proven epsilon"]
    for one in audits:
        if one.proven is not None and one.gaussian.epsilon > one.proven and not one.alarm.raised:
            lines.append(
                f"{_named(one)}: the Gaussian fit exceeds the proven epsilon; it assumes a shape "
                "that the mechanism need not have"
            )
    for one in audits:
        if one.refutes_published:
            lines.append(
                f"{_named(one)}: the published epsilon {one.published:.2f} is refuted; it is at "
                f"least {math.floor(100 * one.threshold.epsilon) / 100:.2f}"
            )
    return lines


def document(
    audits: Sequence[MechanismAudit], measured: Sequence[Sensitivity] = ()
) -> dict[str, Any]:
    """Audits and what they come to, to be saved as JSON. Holds counts of the corpus audited."""
    broken = any(not one.holds for one in measured)
    return {
        "alarm": broken or any(one.alarm.raised for one in audits),
        "verdict": conclusion(audits, measured),
        "published": NOT_A_GUARANTEE,
        "measured": [asdict(one) for one in measured],
        "audits": [asdict(one) for one in audits],
    }


def _named(audit: MechanismAudit) -> str:
    return f"{audit.method}, {audit.pair}"


def judge(
    scores: Sequence[Scores],
    profile: PrivacyEvent,
    pair: Kind,
    rounds: int,
    delta: float,
    *,
    confidence: float = 0.95,
    among: int = 1,
    published: float | None = None,
    against: Sequence[World] = (),
    multiplier: float = 0.0,
    seed: int | None = None,
    noise_source: str = "cipher",
) -> MechanismAudit:
    """What scores say of a profile. With the worlds they are `against`, also what is attainable
    there at noise `multiplier`, and the bound from the proven curve."""
    trial = Trial(scores, confidence)
    proven = guarantee([(profile, rounds)])
    epsilon = proven.epsilon(delta)
    finite = math.isfinite(epsilon)
    allowed = Curve.of(proven) if finite else None
    threshold, gaussian, mu = _either(trial, delta)
    attained = 0.0
    if finite and against:
        attained = max(attainable(world, multiplier, rounds, delta) for world in against)
    return MechanismAudit(
        method=type(profile).__name__,
        pair=pair,
        parameters=asdict(profile),  # type: ignore[call-overload]
        rounds=rounds,
        delta=delta,
        confidence=confidence,
        runs=len(scores[0].guessed),
        seed=seed,
        noise_source=noise_source,
        proven=epsilon if finite else None,
        published=published,
        attainable=attained if finite and against and math.isfinite(attained) else None,
        threshold=threshold,
        gaussian=gaussian,
        mu=mu,
        curve=_fitted(trial, profile, rounds, delta) if finite and against else None,
        excess=_excess(trial, allowed),
        directions=_directions(trial, delta),
        alarm=_alarm(scores, 1 - (1 - confidence) / (2 * among), epsilon, allowed, delta),
    )


def _directions(trial: Trial, delta: float) -> dict[str, dict[str, Bound]]:
    found: dict[str, dict[str, Bound]] = {}
    sides: tuple[Guessed, ...] = ("full", "emptied")
    for guessed in sides:
        threshold, gaussian, _ = _either(trial, delta, guessed)
        found[guessed] = {"threshold": threshold, "gaussian": gaussian}
    return found


def _either(trial: Trial, delta: float, only: Guessed | None = None) -> tuple[Bound, Bound, float]:
    """The bounds by a threshold and by a Gaussian fit, and its mu; of one direction or the best."""

    def allowed(full: bool) -> bool:
        return only is None or full == (only == "full")

    def cut(right: Floats, wrong: Floats, full: bool) -> Floats:
        return threshold_epsilon(right, wrong, delta) if allowed(full) else np.full(1, -1.0)

    def fit(right: Floats, wrong: Floats, full: bool) -> Floats:
        return gaussian_mu(right, wrong) if allowed(full) else np.full(1, -1.0)

    at, near = trial.test(cut), trial.test(fit)
    mu = float(gaussian_mu(*_rates(near))[0])
    threshold = float(threshold_epsilon(*_rates(at), delta)[0])
    return _bound(threshold, at), _bound(gaussian_epsilon(mu, delta), near), mu


def _excess(trial: Trial, allowed: Curve | None) -> float | None:
    if allowed is None:
        return None
    tested = trial.test(allowed.excess)
    return float(allowed.excess(*_rates(tested), tested.full)[0])


def _alarm(
    scores: Sequence[Scores],
    confidence: float,
    proven: float,
    allowed: Curve | None,
    delta: float,
) -> Alarm:
    strict = Trial(scores, confidence)
    at = strict.test(lambda right, wrong, _: threshold_epsilon(right, wrong, delta))
    threshold = min(float(threshold_epsilon(*_rates(at), delta)[0]), MAX_EPSILON)
    excess = _excess(strict, allowed)
    return Alarm(confidence, threshold, excess, threshold > proven or (excess or 0.0) > 0)


def _fitted(trial: Trial, profile: PrivacyEvent, rounds: int, delta: float) -> Bound:
    @cache
    def with_noise(z: float) -> Guarantee:
        return guarantee([(_with_noise(profile, z), rounds)])

    largest, point = largest_noise(trial, cache(lambda z: Curve.of(with_noise(z))), profile.noise)
    return _bound(with_noise(largest).epsilon(delta) if largest < math.inf else 0.0, point)


def _bound(epsilon: float, point: Point) -> Bound:
    guessed: Guessed = "full" if point.full else "emptied"
    return Bound(min(epsilon, MAX_EPSILON), point.attack, guessed, point.right, point.wrong)


def _rates(point: Point) -> tuple[Floats, Floats]:
    return np.array([point.right]), np.array([point.wrong])


def _with_noise(profile: PrivacyEvent, noise: float) -> PrivacyEvent:
    if isinstance(profile, MissedProfile):
        return replace(profile, rotation=replace(profile.rotation, noise=noise))
    return replace(profile, noise=noise)  # type: ignore[type-var]
