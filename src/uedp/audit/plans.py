"""The plans to audit: that of a config or a run, or what training makes of some settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uedp.accounting.calibrate import noise_for
from uedp.audit.mechanism import cases
from uedp.audit.sensitivity import Sensitivity, measurable, measure
from uedp.audit.verdict import MechanismAudit, with_noise
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.methods import method_named, method_names
from uedp.progress import SILENT, Progress
from uedp.training.choose import choose
from uedp.training.config import load_config, parse_config
from uedp.training.plan import Plan, build_plan
from uedp.training.run_dir import CONFIG

_FEWEST_DRAWN = 6  # users in a round: fewer is not planned


def auditable_methods() -> list[str]:
    """The methods with a guarantee."""
    return [name for name in method_names() if method_named(name).profile_type is not None]


def read_plan(path: Path, changes: Sequence[str] = ()) -> tuple[Plan, Incidence]:
    """The plan of a config file, or of a run directory, and the incidence it is for."""
    config = load_config(path / CONFIG if path.is_dir() else path, changes)
    if config.model.continued and config.privacy.noise is None:
        raise UserError(
            f"{path}: trains on from another run, which its epsilon counts; to audit its rounds, "
            "set privacy.noise to that of its certificate"
        )
    _, incidence = Corpus(config.data.train).for_rounds()
    return build_plan(choose(config, incidence).config, incidence), incidence


def plan_of(
    method: str,
    incidence: Incidence | None = None,
    *,
    epsilon: float | None = None,
    noise: float | None = None,
    rounds: int = 50,
    **privacy: Any,
) -> Plan:
    """What training would make of these settings; those left out have a config's defaults.

    Args:
        incidence: The corpus; by default as many users as are needed, a tenth of whom mention the
            same entity.
        epsilon: The target that the noise is calibrated to, unless `noise` is given.
    """
    if epsilon is not None and noise is not None:
        raise UserError("`epsilon=...` and `noise=...`: give one of them")

    def build(multiplier: float) -> Plan:
        fields = {"method": method, "noise": multiplier, "rounds": rounds, **privacy}
        data, model = {"train": "-"}, {"name": "-"}
        config = parse_config({"privacy": fields, "data": data, "model": model}, "audit")
        if incidence is not None:
            return build_plan(config, incidence)
        users = int(np.ceil(_FEWEST_DRAWN / config.privacy.user_rate))
        holders = np.arange(users // 10)
        stand_in = Incidence.build(np.arange(users), holders, np.zeros_like(holders), users, 1)
        return build_plan(config, stand_in)

    if noise is not None:
        return build(noise)
    plan = build(1.0)
    assert plan.profile is not None  # noise was accepted
    profile, delta = plan.profile, plan.config.privacy.delta
    target = 8.0 if epsilon is None else epsilon
    return build(noise_for(target, delta, rounds, lambda z: with_noise(profile, z)))


def audit_plans(
    plans: Sequence[Plan],
    incidence: Incidence | None = None,
    *,
    runs: int | None = None,
    quick: bool = False,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress = SILENT,
) -> tuple[list[MechanismAudit], list[Sensitivity]]:
    """Attack every claim of some plans, and measure how far rounds of the training code move.

    Args:
        incidence: A corpus to measure rounds on, beside the stress corpus.
        runs: Of each attack; by default as many as fit in a second (`quick`) or twenty.
        confidence: Of each bound; also one minus the chance that any of them is a false alarm.
    """
    attacks = [case for plan in plans for case in cases(plan)]
    bounded = [plan for plan in plans if measurable(plan)]
    places = [(plan, place) for plan in bounded for place in dict.fromkeys((None, incidence))]
    among = len(attacks) + len(places)
    if not among:
        raise UserError(
            f"{plans[0].method.name}: its rounds cannot be measured, and no worlds are registered "
            "for its profile; register some with `worst_case_worlds`"
        )
    audits = [
        case.audit(
            runs=case.runs_in(1.0 if quick else 20.0) if runs is None else runs,
            seed=None if seed is None else seed + number,
            confidence=confidence,
            among=among,
            fit_curve=not quick,
            progress=progress,
        )
        for number, case in enumerate(attacks)
    ]
    rounds, chance = 4 if quick else 12, (1 - confidence) / among
    measured = [
        measure(plan, place, seed=seed, rounds=rounds, chance=chance, progress=progress)
        for plan, place in places
    ]
    return audits, measured
