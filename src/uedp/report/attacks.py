"""Results of audits as rows of a page: what attacks really reached, beside what is proven.

The files come from anybody: nothing is taken for granted, and a value of another kind is absent.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uedp.accounting.plan_digest import plan_digest
from uedp.audit import one_run
from uedp.audit.bounds import GuessCounts
from uedp.audit.worlds import TARGETS
from uedp.errors import UserError
from uedp.report.run_record import AuditFile, RunRecord

JOINT_CONFIDENCE = 0.95
_KINDS = {"user": "one user", "entity": "one entity"}
_OTHER_PLAN = "of another plan"
_MOST = 10**12  # of counts in a file; no audit makes as many guesses

Bound = Callable[[float], float]
"""A lower bound on epsilon with the confidence given."""


@dataclass(frozen=True)
class Attack:
    """An attack on rounds; `reason` says why it tells nothing of the run's guarantee, if it does.

    If there is none, epsilon is at least `lower`.
    """

    what: str
    how: str
    bound: Bound | None  # None: the file has no counts to compute it from
    proven: float | None
    refutes: bool
    reason: str | None
    published: float | None = None
    lower: float = 0.0


@dataclass(frozen=True)
class Attacks:
    """The results of audits that are shown with a run.

    Guarantees:
      - if the attacked rounds have some epsilon, any `lower` of `own` exceeds it with a probability
        of `1 - JOINT_CONFIDENCE` at most, however many there are
      - `own` are attacks on the plan in the run's ledger and config, and on what its epsilon covers
    """

    own: Sequence[Attack] = ()
    others: Sequence[Attack] = ()
    broken: Sequence[str] = ()  # rules that rounds of the run's plan broke

    @property
    def strongest(self) -> Attack | None:
        return max(self.own, key=lambda one: one.lower, default=None)


def attacks(record: RunRecord) -> Attacks:
    """All lower bounds in the audits of a run, those on its own plan at a joint confidence."""
    found: list[Attack] = []
    broken: list[str] = []
    for audit in record.audits:
        if audit.kind == "mechanism":
            found += _of_mechanism(record, audit)
            broken += _broken(record, audit)
        elif audit.kind == "training":
            found += _of_training(record, audit)
    used = [(one, one.bound) for one in found if one.reason is None and one.bound is not None]
    level = 1 - (1 - JOINT_CONFIDENCE) / max(len(used), 1)  # Bonferroni
    return Attacks(
        tuple(replace(one, lower=bound(level)) for one, bound in used),
        tuple(
            replace(one, reason=one.reason or "without the counts of its guesses")
            for one in found
            if one.reason is not None or one.bound is None
        ),
        tuple(broken),
    )


def alarms(found: Attacks) -> list[str]:
    """What audits of this run's plan say against it, in words."""
    return [
        *(
            f"{one.what}: an attack did better than what is proven allows"
            for one in (*found.own, *found.others)
            if one.refutes and one.reason != _OTHER_PLAN
        ),
        *found.broken,
    ]


def _of_mechanism(record: RunRecord, audit: AuditFile) -> Iterator[Attack]:
    own = _digest(record)
    for one in audit.content["audits"]:
        if not isinstance(one, dict):
            continue
        alarm, runs, pair = one.get("alarm"), _number(one.get("runs")), one.get("pair")
        same = own is not None and one.get("plan") == own
        yield Attack(
            what=f"{one.get('method')}, {pair}",
            how=f"attack on the mechanism, {runs:,.0f} runs" if runs else "attack on the mechanism",
            bound=_threshold(one),
            proven=_number(one.get("proven")),
            published=_number(one.get("published")),
            refutes=isinstance(alarm, dict) and alarm.get("raised") is True,
            reason=_reason(same, pair in TARGETS, "of another guarantee"),
        )


def _broken(record: RunRecord, audit: AuditFile) -> Iterator[str]:
    """The rules that rounds of the run's plan broke, as an audit of its code measured them."""
    own, measured = _digest(record), audit.content.get("measured")
    for one in measured if isinstance(measured, list) else []:
        if isinstance(one, dict) and own is not None and one.get("plan") == own:
            broken = one.get("broken")
            yield from (str(rule) for rule in broken) if isinstance(broken, list) else ()


def _of_training(record: RunRecord, audit: AuditFile) -> Iterator[Attack]:
    content = audit.content
    method, delta, proven = (content.get(name) for name in ("method", "delta", "proven"))
    own = _digest(record, with_precision=True)
    same = own is not None and content.get("plan") == own
    for one in content["findings"]:
        if not isinstance(one, dict):
            continue
        counts = [_count(one.get(name)) for name in ("canaries", "guesses", "correct")]
        alarm, limit = _number(one.get("alarm")), _number(proven)
        covered = _number(one.get("claim")) is not None
        planted, guesses, correct = counts
        made = ""
        if None not in counts:
            made = f": {planted:,} planted, {correct:,} of {guesses:,} guesses right"
        yield Attack(
            what=f"{method}, {_KINDS.get(str(one.get('kind')), one.get('kind'))}",
            how=f"attack on a training run by {one.get('score')}{made}",
            bound=_guesses(planted, guesses, correct, _number(delta)),
            proven=limit if covered else None,
            # a bound may have been held against another epsilon than the one that is proven
            refutes=covered and alarm is not None and limit is not None and alarm > limit,
            reason=_reason(same, covered, "not covered"),
        )


def _reason(same_plan: bool, covered: bool, otherwise: str) -> str | None:
    return _OTHER_PLAN if not same_plan else None if covered else otherwise


def _digest(record: RunRecord, with_precision: bool = False) -> str | None:
    """The digest of a run's plan, by its ledger and its config, as audits record it."""
    plan, config = record.planned, record.config or {}
    privacy, options = config.get("privacy"), config.get("method_options") or {}
    if plan is None or plan.profile is None:
        return None
    if not isinstance(privacy, Mapping) or not isinstance(options, Mapping):
        return None
    precision = plan.setup.precision if with_precision else None
    return plan_digest(plan.profile, plan.rounds, plan.delta, privacy, options, precision)


def _threshold(audit: Mapping[str, Any]) -> Bound | None:
    """The bound of a threshold, again from its counts."""
    threshold, delta = audit.get("threshold"), _number(audit.get("delta"))
    values = threshold.get("counts") if isinstance(threshold, dict) else None
    if not isinstance(values, dict) or delta is None:
        return None
    right, right_of, wrong, wrong_of = (
        _count(values.get(name)) for name in ("right", "right_of", "wrong", "wrong_of")
    )
    if right is None or right_of is None or wrong is None or wrong_of is None:
        return None
    if not (right <= right_of and wrong <= wrong_of and right_of and wrong_of):
        return None
    counts = GuessCounts(right, right_of, wrong, wrong_of)
    return lambda confidence: counts.epsilon(delta, confidence)


def _guesses(
    canaries: int | None, guesses: int | None, correct: int | None, delta: float | None
) -> Bound | None:
    """The bound of guesses of canaries, again from their numbers."""
    if canaries is None or guesses is None or correct is None or delta is None:
        return None
    try:
        one_run.p_value(canaries, guesses, correct, 0.0, delta)
    except UserError:
        return None
    return lambda confidence: one_run.lower_bound(canaries, guesses, correct, delta, confidence)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST else None


# --- extraction ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extracted:
    """How well planted secrets, or names, could be read out of a model."""

    run: str
    kind: str
    method: str
    epsilon: float | None
    groups: Sequence[tuple[str, Mapping[str, float | None]]]
    by_chance: float | None


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
    return Extracted(
        run=str(one.get("run", "")).rstrip("/").rsplit("/", 1)[-1],
        kind=str(one.get("kind")),
        method=str(one.get("method")),
        epsilon=_number(one.get("epsilon")),
        groups=[
            (str(name), {"mean_exposure": _part(group, "mean_exposure")} | _shares(group))
            for name, group in (groups.items() if isinstance(groups, dict) else ())
        ],
        by_chance=_number(summary.get("exposure_by_chance")),
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
