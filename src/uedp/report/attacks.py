"""Results of audits as rows of a page: what attacks really reached, beside what is proven.

The files come from anybody: nothing is taken for granted, and a value of another kind is absent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from uedp.accounting.statement import rounded
from uedp.report.run_record import AuditFile, RunRecord

_KINDS = {"user": "one user", "entity": "one entity"}


@dataclass(frozen=True)
class Attack:
    """One attack on a guarantee, and the epsilon that it shows to be spent at least.

    `of_this_plan` says whether it was made on the plan of the run that it is shown with.
    """

    what: str
    how: str
    lower: float | None
    proven: float | None
    published: float | None
    confidence: float | None
    refutes: bool
    of_this_plan: bool


@dataclass(frozen=True)
class Extracted:
    """How well planted secrets, or names, could be read out of a model."""

    run: str
    kind: str
    method: str
    epsilon: float | None
    candidates: int | None
    groups: Sequence[tuple[str, Mapping[str, float | None]]]
    by_chance: float | None
    area: float | None


def attacks(record: RunRecord) -> list[Attack]:
    """All lower bounds in the audits of a run."""
    found: list[Attack] = []
    for audit in record.audits:
        if audit.kind == "mechanism":
            found += _of_mechanism(record, audit)
        elif audit.kind == "training":
            found += _of_training(record, audit)
    return found


def strongest(found: Sequence[Attack]) -> Attack | None:
    """The attack on the run's own plan that reached most."""
    own = [one for one in found if one.of_this_plan and one.lower is not None]
    return max(own, key=lambda one: one.lower or 0.0, default=None)


def alarms(record: RunRecord) -> list[str]:
    """What audits of this run's plan say against it, in words."""
    lines = [
        f"{one.what}: an attack reached epsilon {rounded(one.lower, 3, down=True)}, more than is "
        "proven"
        for one in attacks(record)
        if one.refutes and one.of_this_plan and one.lower is not None
    ]
    for audit in record.audits:
        measured = audit.content.get("measured")
        for one in measured if isinstance(measured, list) else []:
            if isinstance(one, dict) and one.get("method") == record.method:
                broken = one.get("broken")
                lines += [str(rule) for rule in broken] if isinstance(broken, list) else []
    return lines


def _of_mechanism(record: RunRecord, audit: AuditFile) -> Iterator[Attack]:
    for one in audit.content["audits"]:
        if not isinstance(one, dict):
            continue
        alarm, parameters = one.get("alarm"), one.get("parameters")
        runs = _number(one.get("runs"))
        yield Attack(
            what=f"{one.get('method')}, {one.get('pair')}",
            how=f"attack on the mechanism, {runs:,.0f} runs" if runs else "attack on the mechanism",
            lower=_part(one.get("threshold"), "epsilon"),
            proven=_number(one.get("proven")),
            published=_number(one.get("published")),
            confidence=_number(one.get("confidence")),
            refutes=isinstance(alarm, dict) and alarm.get("raised") is True,
            of_this_plan=_same_plan(
                record, one.get("method"), one.get("rounds"), _part(parameters, "noise")
            )
            and _same_parameters(record, parameters),
        )


def _of_training(record: RunRecord, audit: AuditFile) -> Iterator[Attack]:
    content = audit.content
    method = content.get("method")
    same = _same_plan(record, method, content.get("rounds"), _number(content.get("noise")))
    for one in content["findings"]:
        if not isinstance(one, dict):
            continue
        canaries, correct = _number(one.get("canaries")), _number(one.get("correct"))
        guesses, claim = _number(one.get("guesses")), _number(one.get("claim"))
        alarm = _number(one.get("alarm"))
        counts = ""
        if canaries and guesses is not None and correct is not None:
            counts = f": {canaries:,.0f} planted, {correct:,.0f} of {guesses:,.0f} guesses right"
        yield Attack(
            what=f"{method}, {_KINDS.get(str(one.get('kind')), one.get('kind'))}",
            how=f"attack on a training run by {one.get('score')}{counts}",
            lower=_number(one.get("epsilon")),
            proven=claim,
            published=None,
            confidence=_number(content.get("confidence")),
            refutes=alarm is not None and claim is not None and alarm > claim,
            of_this_plan=same and claim is not None,
        )


def _same_plan(record: RunRecord, method: Any, rounds: Any, noise: float | None) -> bool:
    """Whether an audit attacked the plan of a run: same method, rounds and noise."""
    plan = record.planned
    if plan is None or plan.profile is None or noise is None:
        return False
    same = plan.method == method and plan.rounds == rounds
    return same and math.isclose(plan.profile.noise, noise, rel_tol=1e-6)


def _same_parameters(record: RunRecord, parameters: Any) -> bool:
    """Whether the profile that was attacked agrees with the run's, in all that both have."""
    if record.planned is None or record.planned.profile is None or not isinstance(parameters, dict):
        return False
    own = asdict(record.planned.profile)
    both = [(own[name], _number(parameters[name])) for name in parameters if name in own]
    numbers = [(mine, value) for mine, value in both if _number(mine) is not None]
    return all(
        value is not None and math.isclose(mine, value, rel_tol=1e-6) for mine, value in numbers
    )


# --- extraction ----------------------------------------------------------------------------------

SHARES = ("ranked_first", "extracted", "in_beams")


def extractions(record: RunRecord) -> list[Extracted]:
    """What attempts at extraction found; every run of a file, for they are meant to be compared."""
    found = []
    for audit in record.audits:
        if audit.kind == "extraction":
            found += [_extracted(one) for one in audit.content["runs"]]
    return found


def _extracted(one: Mapping[str, Any]) -> Extracted:
    summary = one["summary"]
    groups = summary.get("groups")
    membership = summary.get("membership")
    candidates = _number(summary.get("candidates"))
    return Extracted(
        run=str(one.get("run", "")).rstrip("/").rsplit("/", 1)[-1],
        kind=str(one.get("kind")),
        method=str(one.get("method")),
        epsilon=_number(one.get("epsilon")),
        candidates=None if candidates is None else int(candidates),
        groups=[
            (str(name), {"mean_exposure": _part(group, "mean_exposure")} | _shares(group))
            for name, group in (groups.items() if isinstance(groups, dict) else ())
        ],
        by_chance=_number(summary.get("exposure_by_chance")),
        area=_part(membership, "area"),
    )


def _shares(group: Any) -> dict[str, float | None]:
    values = group if isinstance(group, dict) else {}
    return {name: _part(values.get(name), "share") for name in SHARES}


def _part(values: Any, name: str) -> float | None:
    return _number(values.get(name)) if isinstance(values, dict) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
