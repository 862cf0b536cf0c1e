"""The full audit of the mechanism: how close attacks come to the proven epsilon, and a refutation
of the published one.

    python benchmarks/audit.py CORPUS [--out benchmarks/results]

CORPUS is a folder of `uedp detect` on CoNLL's training file with human marks (reader conll,
detector labels); only its incidence is read. Takes about an hour on one core. It may be
interrupted: simulations are kept in --scratch and results in OUT/audit_mechanism.json, and the next
start resumes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from research.audit_uedp_alg import USER_RATE, uedp_alg_cases, world_on
from uedp.accounting.proven import UedpAlgProfile
from uedp.accounting.statement import rounded
from uedp.audit.bounds import Scores
from uedp.audit.mechanism import Case, attack, cases
from uedp.audit.plans import plan_of
from uedp.audit.verdict import MechanismAudit, judge
from uedp.audit.worlds import World, attainable
from uedp.incidence import Incidence
from uedp.report.audit_plots import mechanism_bounds

CHUNK = 3_000_000  # sentences
MILLION = 1_000_000
REPETITIONS = 200
TARGETS = (2.0, 8.0)


def planned(incidence: Incidence) -> Iterable[tuple[str, Case, int]]:
    """Name, case and runs of every audit."""
    millions = {
        ("user-level", 2.0): 4,
        ("user-level", 8.0): 30,
        ("rotation", 2.0): 4,
        ("rotation", 8.0): 24,
    }
    for target in TARGETS:
        for case in product_cases(target):
            claim = case.claim
            whole = claim.target == ("user" if claim.method == "user-level" else "user and entity")
            runs = millions[claim.method, target] * MILLION if whole else 200_000
            yield name(case, f"epsilon {target:g}"), replace(case, worlds=[strongest(case)]), runs
    for released in (False, True):
        for case in uedp_alg_cases(incidence, released_code=released):
            profile = case.claim.profile
            assert isinstance(profile, UedpAlgProfile)
            runs = {"user": 1_000, "entity": 20_000, "user and entity": 40_000}[case.claim.target]
            held = f" ({profile.holders} holders)" if profile.holders else ""
            yield name(case, f"CoNLL{held}"), case, 1_000 if released else runs
    *_, case = uedp_alg_cases(holders=945)
    yield name(case, "an entity of all 946"), case, 4_000


def product_cases(epsilon: float) -> list[Case]:
    plans = (plan_of(method, epsilon=epsilon) for method in ("rotation", "user-level"))
    return [case for plan in plans for case in cases(plan)]


def name(case: Case, what: str) -> str:
    return f"{case.claim.method}, {case.claim.target}, {what}"


def strongest(case: Case) -> World:
    """The world of largest epsilon, to spend all runs on."""
    noise, claim = case.mechanism.multiplier, case.claim
    return max(case.worlds, key=lambda world: attainable(world, noise, claim.rounds, claim.delta))


def repeated() -> Iterable[tuple[str, Case, int]]:
    """The cases that are audited repeatedly, with fewer runs."""
    for target in TARGETS:
        for case in product_cases(target):
            runs = 1_000 if case.claim.method == "rotation" else 4_000
            yield name(case, f"epsilon {target:g}"), case, runs
    for case in uedp_alg_cases():
        yield name(case, "as large as CoNLL"), case, 200


def cost(case: Case, runs: int) -> float:
    """The slow ones last."""
    return runs / case.runs_in(20.0)


def simulated(key: str, case: Case, runs: int, scratch: Path) -> list[Scores]:
    """The scores of an audit in chunks; a stored chunk is not simulated again."""
    found = []
    for world in case.worlds:
        parts, chunk = [], max(1_000, CHUNK // world.incidence.sentences)
        for number, start in enumerate(range(0, runs, chunk)):
            size = min(chunk, runs - start)
            path = scratch / f"{key}, {world.name}, {number}, {size}.npz"
            if not path.exists():
                began = time.monotonic()
                rng = np.random.default_rng([number, size, *key.encode()])
                mechanism = case.mechanism.seeded(int(rng.integers(2**62)))
                names = ("likelihood",)
                (one,) = attack(mechanism, world, case.claim.rounds, size, count(), names)
                save(path, partial(np.savez, guessed=one.guessed, other=one.other))
                print(
                    f"  {start + size:,} of {runs:,}: {time.monotonic() - began:.0f} s", flush=True
                )
            with np.load(path) as saved:
                parts.append((saved["guessed"], saved["other"]))
        guessed, other = (np.concatenate(side) for side in zip(*parts, strict=True))
        found.append(Scores(f"likelihood in the world {world.name!r}", guessed, other))
    return found


def save(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file atomically."""
    part = path.with_name(f"part of {path.name}")
    write(part)
    part.replace(path)


def audited(key: str, case: Case, runs: int, scratch: Path) -> dict[str, Any]:
    scores = simulated(key, case, runs, scratch)
    found = judge(
        scores,
        case.claim,
        worlds=case.worlds,
        multiplier=case.mechanism.multiplier,
        noise_source="fixed seed",
    )
    return asdict(found)


def repeat(case: Case, runs: int, among: int) -> dict[str, Any]:
    """`REPETITIONS` seeded audits of one case; `among` audits share a false-alarm rate of 5%."""
    found = [
        case.audit(runs=runs, seed=seed, among=among, fit_curve=False, attacks=["likelihood"])
        for seed in range(REPETITIONS)
    ]
    ratios = [one.threshold.epsilon / one.proven for one in found if one.proven]
    return {
        "repetitions": len(found),
        "runs": runs,
        "confidence": found[0].confidence,
        "proven": found[0].proven,
        "threshold_above_proven": sum(ratio > 1 for ratio in ratios),
        "excess_above_0": sum((one.excess or 0.0) > 0 for one in found),
        "by_chance_once_in_1000": int(stats.binom.ppf(0.999, len(found), 0.05)),
        "alarm_confidence": found[0].alarm.confidence,
        "alarms": sum(one.alarm.raised for one in found),
        "largest_threshold_of_proven": max(ratios),
        "largest_gaussian_of_proven": max(o.gaussian.epsilon / o.proven for o in found if o.proven),
        "largest_excess": max(one.excess or 0.0 for one in found),
    }


def breaking(incidence: Incidence, claim: float) -> dict[str, Any]:
    """Entities of CoNLL for which the claim is false: those in whose worlds more is attainable."""
    counts = incidence.holders.counts
    noise = uedp_alg_cases(incidence)[0].mechanism.multiplier
    rows = []
    for entity in np.flatnonzero(counts >= 10):
        world = world_on(incidence, USER_RATE, int(entity))
        rows.append((int(counts[entity]), attainable(world, noise, 50, 1e-5)))
    broken = [holders for holders, epsilon in rows if epsilon > claim]
    return {
        "claim": claim,
        "entities": incidence.entities,
        "looked_at": len(rows),
        "with_holders_from": 10,
        "claim_is_false_for": len(broken),
        "fewest_holders_of_these": min(broken),
        "largest": max(epsilon for _, epsilon in rows),
    }


# --- text ----------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    def cell(value: float | None, proven: float | None) -> str:
        """Rounded down, as bounds must be that hold from below."""
        if value is None:
            return "-"
        share = f" ({rounded(value / proven, 2, down=True)})" if proven else ""
        return rounded(value, 3, down=True) + share

    lines = [
        "Lower bounds on epsilon at delta 1e-5 after 50 rounds, each with 95% confidence; in",
        "brackets, what part of the proven epsilon it is.",
        "threshold: assumes nothing. Gaussian, curve: assume the shape of the trade-off.",
        "full, emptied: the threshold bound of those who guess that corpus only.",
        "attainable: the epsilon of the world attacked, computed.",
        "published: published accounting of the paper; not a privacy guarantee.",
        "",
        f"{'':62}{'runs':>11}{'threshold':>15}{'full':>8}{'emptied':>8}"
        f"{'Gaussian':>15}{'curve':>15}{'attainable':>15}{'proven':>9}{'published':>10}",
    ]
    for key, saved in results["audits"].items():
        one = MechanismAudit.of(saved)
        sides = [one.directions[side]["threshold"].epsilon for side in ("full", "emptied")]
        curve = one.curve.epsilon if one.curve else None
        bounds = (one.gaussian.epsilon, curve, one.attainable)
        lines.append(
            f"{key:62}{one.runs:>11,}{cell(one.threshold.epsilon, one.proven):>15}"
            + "".join(f"{cell(side, None):>8}" for side in sides)
            + "".join(f"{cell(bound, one.proven):>15}" for bound in bounds)
            + f"{f'{one.proven:.3g}' if one.proven else '-':>9}{cell(one.published, None):>10}"
        )
    lines += [
        "",
        f"{REPETITIONS} seeded audits each. Above: threshold bounds above the proven epsilon;",
        "excess: guesses that beat the proven curve. Each has a chance of at most 5%, so that more",
        "than `allowed` come once in a thousand times. Alarms: either of them, at a level where",
        "any alarm at all in all these audits together has a chance of at most 5%.",
        "",
        f"{'':62}{'runs':>11}{'above':>7}{'excess':>8}{'allowed':>9}{'alarms':>8}"
        f"{'largest threshold':>19}{'Gaussian of proven':>20}",
    ]
    for key, one in results["repetitions"].items():
        lines.append(
            f"{key:62}{one['runs']:>11,}{one['threshold_above_proven']:>7}{one['excess_above_0']:>8}"
            f"{one['by_chance_once_in_1000']:>9}{one['alarms']:>8}"
            f"{one['largest_threshold_of_proven']:>19.3f}{one['largest_gaussian_of_proven']:>20.3f}"
        )
    if "entities" in results:
        found = results["entities"]
        lines += [
            "",
            f"Entities of CoNLL with at least {found['with_holders_from']} holders: "
            f"{found['looked_at']} of {found['entities']:,}; the published {found['claim']:.2f} is "
            f"false for {found['claim_is_false_for']} of them, the rarest of which "
            f"{found['fewest_holders_of_these']} users mention (computed, without simulation).",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument(
        "--scratch", type=Path, default=Path(tempfile.gettempdir()) / "uedp-audit-scores"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.scratch.mkdir(parents=True, exist_ok=True)
    incidence = Incidence.of(options.corpus)
    path = options.out / "audit_mechanism.json"
    results: dict[str, Any] = {"corpus": {}, "audits": {}, "repetitions": {}}
    if path.exists():
        results = json.loads(path.read_text())
    results["corpus"] = {
        "users": incidence.users,
        "sentences": incidence.sentences,
        "sensitive": incidence.sentences - int(incidence.extended.sum()),
        "entities": incidence.entities,
        "most_holders": int(incidence.holders.counts.max()),
    }

    def keep(section: str, key: str, compute: Callable[[], dict[str, Any]]) -> None:
        if key not in results[section]:
            print(f"{section}: {key}", flush=True)
            began = time.monotonic()
            results[section][key] = compute()
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
            text = json.dumps(results, indent=2, allow_nan=False) + "\n"
            save(path, lambda at: at.write_text(text))

    plan, again = list(planned(incidence)), list(repeated())
    for key, case, runs in sorted(plan, key=lambda one: cost(one[1], one[2])):
        keep("audits", key, partial(audited, key, case, runs, options.scratch))
    for key, case, runs in sorted(again, key=lambda one: cost(one[1], one[2])):
        keep("repetitions", key, partial(repeat, case, runs, REPETITIONS * len(again)))
    for section, rows in (("audits", plan), ("repetitions", again)):
        results[section] = {key: results[section][key] for key, _, _ in rows}
    if "entities" not in results:
        claim = next(a["published"] for a in results["audits"].values() if a["published"])
        results["entities"] = breaking(incidence, claim)
    save(path, lambda at: at.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n"))
    text = table(results)
    (options.out / "audit_mechanism.txt").write_text(text)
    audits = {key: MechanismAudit.of(saved) for key, saved in results["audits"].items()}
    mechanism_bounds(audits, options.out / "audit_mechanism.png")
    print(text)


if __name__ == "__main__":
    main()
