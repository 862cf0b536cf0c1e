"""Calibration: time, against dp-accounting and an earlier release; the error of a million rounds.

    python benchmarks/accounting.py [--only PART] [--evaluations N] [--before DIR] [--out DIR]

**Against dp-accounting.** Both search for the smallest noise (to 0.02%) that keeps 200 rounds
within epsilon 8, by the same theorem: the holder's draw revealed (Theorem 1), for which
dp-accounting has the distributions. The plain side discretises each case with dp-accounting's
default step, mixes, composes and bisects. With `--evaluations N` only N of its evaluations are
timed, and their mean is multiplied by the number that the search needs. Targets: at least 20 times
faster; 100,000 rounds in under 10 s and 2 GB on two cores.

**Small user rates.** The noise for every setting of a grid, each from scratch: seconds of one core.
With `--before DIR`, the `src` folder of an earlier release, that release calibrates those of 1,000
rounds. Target: at most 3 s each. Then what else the planner and the commands compute.

**A million rounds.** The epsilon at a calibrated noise, and the exact one, by inverting the Laplace
transform of the composed loss (Zhu, Dong and Wang 2022), which needs no grid: of user-level rounds
from their densities, of rotation from Theorem 2's pair at eight times as many losses. Target: not
below, and at most 2% above. In each round some world attains the theorem at each epsilon, but not
one world at all epsilons; the last column compares with the worse of its two worlds in all rounds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize, special

from uedp.accounting import calibrate, missed, planning
from uedp.accounting import pld as pld_module
from uedp.accounting.divergence import Floats
from uedp.accounting.pld import discretise
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UserLevelProfile, epsilon
from uedp.errors import UserError

TARGET, DELTA, RATE, SHARE, ROUNDS = 8.0, 1e-5, 0.05, 0.33, 200
MANY = 100_000
PRECISION = 2e-4
LEAST_RATIO, MOST_SECONDS, MOST_BYTES = 20.0, 10.0, 2e9

RATES = (0.0005, 0.001, 0.002, 0.005, 0.01)
TARGETS = ((1.0, 1e-8), (8.0, 1e-5))  # epsilon, delta
METHODS = {  # share, and the coin of entities and sentences
    "user-level": (0.0, 1.0),
    "rotation, share 0.1": (0.1, 1.0),
    "rotation, share 0.3": (0.3, 1.0),
    "rotation, share 1": (1.0, 1.0),
    "rotation, share 0.3, coin 0.5": (0.3, 0.5),
}
LONGEST = 3.0  # seconds of a calibration
MILLION = 1_000_000
MILLIONS = (  # rate, share, epsilon, delta
    *((rate, share, 2.0, 1e-6) for rate in (1e-4, *RATES) for share in (0.0, 0.3)),
    (0.001, 0.1, 2.0, 1e-6),
    (0.001, 1.0, 2.0, 1e-6),
    (0.0005, 0.3, 8.0, 1e-5),
    (0.0005, 0.3, 1.0, 1e-8),
    (0.01, 0.3, 8.0, 1e-8),
    (0.01, 0.0, 1.0, 1e-8),
)
LARGEST_ERROR = 0.02
FARTHEST = 200.0  # order of a saddle point
PARTS = ("dp_accounting", "small_rates", "other_work", "million_rounds")


def plain_epsilon(noise: float) -> float:
    """Theorem 1 on dp-accounting: two mixtures of Gaussians, averaged, composed."""
    alone = pld.from_mixture_gaussian_mechanism(noise, [0, 1], [1 - RATE, RATE])
    both = pld.from_mixture_gaussian_mechanism(noise, [SHARE, 1 + SHARE], [1 - RATE, RATE])
    mixed = alone.compute_mixture(both, 1 - RATE)
    return float(mixed.self_compose(ROUNDS).get_epsilon_for_delta(DELTA))


def plain_search(spent: Callable[[float], float]) -> float:
    """Doubling, then bisection."""
    low, high = 0.5, 1.0
    while spent(high) > TARGET:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if spent(middle) <= TARGET:
            high = middle
        else:
            low = middle
    return high


def ours(rounds: int, reveal_draw: bool) -> dict[str, float]:
    """One calibration in this process: evaluations, time and peak memory."""
    evaluations = 0

    def counted(profile: RotationProfile, rounds: int, delta: float) -> float:
        nonlocal evaluations
        evaluations += 1
        return epsilon(profile, rounds, delta)

    calibrate.epsilon = counted  # type: ignore[assignment]
    began = time.process_time()
    noise = calibrate.noise_for(
        TARGET, DELTA, rounds, lambda z: RotationProfile(z, RATE, SHARE, reveal_draw=reveal_draw)
    )
    return {
        "noise": noise,
        "seconds": time.process_time() - began,
        "evaluations": evaluations,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def plain(evaluations: int | None) -> dict[str, float]:
    began = time.process_time()
    if evaluations is None:
        noises: list[float] = []

        def spent(noise: float) -> float:
            noises.append(noise)
            return plain_epsilon(noise)

        noise = plain_search(spent)
        return {
            "noise": noise,
            "seconds": time.process_time() - began,
            "evaluations": len(noises),
        }
    tried: list[float] = []

    def quick(noise: float) -> float:
        tried.append(noise)
        return epsilon(RotationProfile(noise, RATE, SHARE, reveal_draw=True), ROUNDS, DELTA)

    noise = plain_search(quick)  # only for the number of evaluations and their noise
    began = time.process_time()
    for z in tried[-evaluations:]:
        plain_epsilon(z)
    mean = (time.process_time() - began) / min(evaluations, len(tried))
    return {"noise": noise, "seconds": mean * len(tried), "evaluations": len(tried)}


def profile_of(noise: float, user_rate: float, share: float, coin: float = 1.0) -> Profile:
    if share == 0:
        return UserLevelProfile(noise, user_rate)
    return RotationProfile(noise, user_rate, share, coin, coin)


def small_rates(every_round: bool) -> Iterator[dict[str, Any]]:
    """Noise and seconds of every setting, or of those of 1,000 rounds."""
    for rate, (method, (share, coin)), (target, delta) in product(RATES, METHODS.items(), TARGETS):
        if coin < 1 and target == 1:
            continue
        for rounds in (100, 1000, 10_000) if every_round else (1000,):
            discretise.cache_clear()
            began = time.process_time()
            noise = calibrate.noise_for(
                target, delta, rounds, partial(profile_of, user_rate=rate, share=share, coin=coin)
            )
            yield {
                "method": method,
                "user_rate": rate,
                "rounds": rounds,
                "epsilon": target,
                "delta": delta,
                "noise": noise,
                "seconds": time.process_time() - began,
            }


def million(noises: Sequence[float]) -> Iterator[dict[str, Any]]:
    """The epsilon of a million rounds at these noises, and its seconds; refused: none."""
    for (rate, share, _, delta), noise in zip(MILLIONS, noises, strict=True):
        discretise.cache_clear()
        began = time.process_time()
        try:
            found: float | None = epsilon(profile_of(noise, rate, share), MILLION, delta)
        except UserError:
            found = None
        yield {"epsilon": found, "seconds": time.process_time() - began}


def other_work() -> dict[str, float]:
    """Seconds of what else the planner and the commands compute."""
    supply = planning.Supply(1000, np.full(1000, 5.0))
    plan = RotationProfile(0.9, 0.005, 0.3)
    work: dict[str, Callable[[], object]] = {
        "rounds for a noise": lambda: calibrate.rounds_for(
            2.0, 1e-6, RotationProfile(0.7, 0.001, 0.3)
        ),
        "share for a noise": lambda: calibrate.share_for(
            2.0, 1e-6, 20_000, partial(RotationProfile, 0.8, 0.001)
        ),
        "rough noise, as a run is chosen": lambda: planning.RoughNoise(8.0, 1e-5),
        "12 plans": lambda: list(
            planning.options(8.0, 1e-5, supply, [0.002, 0.02, 0.1], [100, 500], [0.1, 0.33])
        ),
        "epsilon against rounds": lambda: planning.curves(plan, 1000, 1e-5),
        "missed mentions, plans around": lambda: list(missed.neighbours(plan, 1000, 1e-6)),
    }
    seconds = {}
    for name, call in work.items():
        discretise.cache_clear()
        began = time.process_time()
        call()
        seconds[name] = time.process_time() - began
    return seconds


Mixture = Sequence[tuple[float, float]]  # shifts, and their probabilities


def exact_epsilon(losses: Floats, log_masses: Floats, rounds: int, delta: float) -> float:
    """Epsilon of so many independent losses, composed without a grid.

    With `M(s) = E exp(s loss)`, delta is the inverse Laplace transform of `M(s)^T / (s (s + 1))`,
    integrated along the line through the saddle point.
    """

    def log_moments(orders: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
        tops = np.max(orders[0].real * losses + log_masses)
        terms = [np.exp(s * losses + log_masses - tops).sum() for s in orders]
        return tops + np.log(np.array(terms))

    def derivatives(order: float) -> tuple[float, float, float]:
        tilted = order * losses + log_masses
        log_moment = float(special.logsumexp(tilted))
        weights = np.exp(tilted - log_moment)
        mean = float(weights @ losses)
        return log_moment, mean, float(weights @ (losses - mean) ** 2)

    def exponent(log_order: float) -> float:
        log_moment, mean, _ = derivatives(np.exp(log_order))
        return float(rounds * (log_moment - np.exp(log_order) * mean) - np.log(delta))

    order = float(np.exp(optimize.brentq(exponent, np.log(0.01), np.log(FARTHEST), xtol=1e-2)))
    log_moment, mean, variance = derivatives(order)
    step = min(0.05 * order, 0.1 / np.sqrt(rounds * variance))
    logs, left = np.array([rounds * log_moment + 0j]), 0.0
    while left > -30:  # in logarithms, relative to the saddle point
        heights = step * (len(logs) + np.arange(64))
        more = rounds * log_moments(order + 1j * heights)
        logs, left = np.append(logs, more), float(more.real.max()) - rounds * log_moment
    along = order + 1j * step * np.arange(len(logs))

    def delta_at(eps: float) -> float:
        values = (np.exp(logs - along * eps) / (along * (along + 1))).real
        return float(step / np.pi * (values.sum() - values[0] / 2))

    low = high = rounds * mean  # where Chernoff's bound is delta
    while delta_at(low) < delta:
        low -= 1 / order
    return float(optimize.brentq(lambda e: delta_at(e) - delta, low, high, rtol=1e-12))


def losses_between(upper: Mixture, lower: Mixture, noise: float) -> tuple[Floats, Floats]:
    """The losses of one mixture of Gaussians against another: cells of a line, and their masses."""
    far = 14 * noise + (1 + FARTHEST) * max(abs(shift) for shift, _ in (*upper, *lower))
    at = np.linspace(-far, far, 60_001)
    ours, theirs = (
        special.logsumexp([np.log(p) + s * (2 * at - s) / (2 * noise**2) for s, p in law], axis=0)
        for law in (upper, lower)
    )
    density = ours - (at / noise) ** 2 / 2 - np.log(noise * np.sqrt(2 * np.pi))
    return ours - theirs, density + np.log(at[1] - at[0])


def of_worlds(rate: float, share: float, noise: float, rounds: int, delta: float) -> float:
    """The largest exact epsilon of Theorem 2's two worlds, or of a user alone."""
    q, s = rate, share
    both = ((1 - q) ** 2, q * (1 - q), q * (1 - q), q**2)
    laws: list[tuple[Mixture, Mixture]] = [([(0.0, 1 - q), (1.0, q)], [(0.0, 1.0)])]
    if share:
        laws = [
            ([*zip((0.0, 1.0, r + s, 1 + r + s), both, strict=True)], [(0.0, 1 - q), (r, q)])
            for r in (1 - s, -1.0)
        ]
    return max(
        exact_epsilon(*losses_between(*pair, noise), rounds, delta)
        for law in laws
        for pair in (law, law[::-1])
    )


def of_theorem(rate: float, share: float, noise: float, rounds: int, delta: float) -> float:
    """The epsilon of Theorem 2's pair, at eight times as many losses and without a grid."""
    (pair,) = set(profile_of(noise, rate, share).pairs().values())
    with patch.object(pld_module, "_NODES", 8 * pld_module._NODES):
        sides = discretise.__wrapped__(pair)
    found = []
    for side in sides:
        used = side.masses > 0
        found.append(exact_epsilon(side.losses[used], np.log(side.masses[used]), rounds, delta))
    return max(found)


def row(name: str, result: dict[str, float]) -> str:
    peak = f"{result['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in result else ""
    return (
        f"{name:<42} {result['noise']:>9.4f} {result['evaluations']:>12.0f} "
        f"{result['seconds']:>9.2f} {peak:>8}"
    ).rstrip()


def in_a_process(*arguments: str, source: Path | None = None) -> Any:
    """A separate process, so that peak memory and warm caches are those of one calibration."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    line = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.check_output(line, env=environment))


def against_dp_accounting(evaluations: int | None) -> tuple[dict[str, Any], bool]:
    simple, tight, many = (
        in_a_process("--ours", str(rounds), str(int(reveal)))
        for rounds, reveal in ((ROUNDS, True), (ROUNDS, False), (MANY, False))
    )
    theirs = plain(evaluations)
    how = (
        "the whole search was run"
        if evaluations is None
        else f"{evaluations} evaluations were timed, their mean times the number needed"
    )
    print(f"epsilon {TARGET:g}, delta {DELTA:g}, user rate {RATE}, entity share {SHARE}\n")
    print(f"{'least noise to 0.02%':<42} {'noise':>9} {'evaluations':>12} {'seconds':>9} {'GB':>8}")
    print(row(f"{ROUNDS} rounds, plain on dp-accounting", theirs))
    print(row(f"{ROUNDS} rounds, ours, same theorem (1)", simple))
    print(row(f"{ROUNDS} rounds, ours, default theorem (2)", tight))
    print(row(f"{MANY:,} rounds, ours, default theorem (2)", many))
    ratio = theirs["seconds"] / simple["seconds"]
    print(f"\nplain side: {how}; {theirs['seconds'] / theirs['evaluations']:.2f} s per evaluation")
    agree = abs(theirs["noise"] / simple["noise"] - 1) < 2 * PRECISION
    fast = ratio >= LEAST_RATIO
    small = many["seconds"] < MOST_SECONDS and many["peak_bytes"] < MOST_BYTES
    print(f"both sides find the same noise: {'yes' if agree else 'NO'}")
    print(f"ratio x{ratio:,.0f}; target x{LEAST_RATIO:g}: {'met' if fast else 'MISSED'}")
    limits = f"{MOST_SECONDS:g} s, {MOST_BYTES / 1e9:g} GB at {MANY:,} rounds"
    print(f"target {limits}: {'met' if small else 'MISSED'}\n", flush=True)
    record = {"plain": theirs, "theorem_1": simple, "theorem_2": tight, "many_rounds": many}
    return record, agree and fast and small


def at_small_rates(before: Path | None) -> tuple[list[dict[str, Any]], bool]:
    rows = in_a_process("--grid", "all")
    if before is not None:
        timed = [one for one in rows if one["rounds"] == 1000]
        for one, other in zip(timed, in_a_process("--grid", "some", source=before), strict=True):
            one["before"] = {name: other[name] for name in ("noise", "seconds")}
    print(
        "seconds of one core to calibrate the noise: median and longest over rounds and targets "
        "(before: 1,000 rounds)\n"
    )
    print(f"{'method':<32} {'user rate':>9} {'now':>13} {'before':>15} {'noise, change':>20}")
    for method, rate in product(METHODS, RATES):
        cell = [one for one in rows if (one["method"], one["user_rate"]) == (method, rate)]
        line = f"{method:<32} {rate:>9g} {_middle_and_most(cell):>13}"
        if before is not None:
            cell = [one for one in cell if "before" in one]
            changes = [one["noise"] / one["before"]["noise"] - 1 for one in cell]
            line += f" {_middle_and_most([one['before'] for one in cell]):>15}"
            line += f" {min(changes):>+10.3%} {max(changes):>+9.3%}"
        print(line)
    longest = max(one["seconds"] for one in rows)
    met = longest <= LONGEST
    print(f"\nlongest {longest:.2f} s; target {LONGEST:g} s: {'met' if met else 'MISSED'}")
    if before is not None:
        most = max(one["before"]["seconds"] for one in rows if "before" in one)
        print(f"before: longest {most:.1f} s")
    print(flush=True)
    return rows, met


def _middle_and_most(rows: Sequence[dict[str, Any]]) -> str:
    seconds = [one["seconds"] for one in rows]
    return f"{np.median(seconds):.2f} {max(seconds):6.2f}"


def at_other_work(before: Path | None) -> tuple[dict[str, dict[str, float]], bool]:
    now = in_a_process("--other")
    was = {} if before is None else in_a_process("--other", source=before)
    print(f"{'seconds of one core':<34} {'now':>7} {'before':>7}")
    for name, seconds in now.items():
        print(f"{name:<34} {seconds:>7.2f} {was.get(name, np.nan):>7.2f}")
    print(flush=True)
    return {"now": now, "before": was}, True


def of_a_million(before: Path | None) -> tuple[list[dict[str, Any]], bool]:
    noises = [
        calibrate.noise_for(
            target, delta, MILLION, partial(profile_of, user_rate=rate, share=share)
        )
        for rate, share, target, delta in MILLIONS
    ]
    listed = json.dumps(noises)
    now = in_a_process("--million", listed)
    was = [None] * len(now) if before is None else in_a_process("--million", listed, source=before)
    print(
        f"epsilon of {MILLION:,} rounds; errors relative to the exact composition of the theorem\n"
    )
    print(
        f"{'user rate':>9} {'share':>5} {'delta':>6} {'noise':>8} {'exact':>8} {'error':>8} "
        f"{'seconds':>7} {'error before':>12} {'above a world':>13}"
    )
    rows = []
    for (rate, share, _, delta), noise, one, other in zip(MILLIONS, noises, now, was, strict=True):
        setting = (rate, share, noise, MILLION, delta)
        world = of_worlds(*setting)
        exact = of_theorem(*setting) if share else world
        result = {"user_rate": rate, "entity_share": share, "delta": delta, "noise": noise}
        result |= one | {"exact": exact, "error": one["epsilon"] / exact - 1, "world": world}
        earlier = ""
        if other is not None:
            result["before"] = other
            refused = other["epsilon"] is None
            earlier = "refused" if refused else f"{other['epsilon'] / exact - 1:+.2%}"
        rows.append(result)
        print(
            f"{rate:>9g} {share:>5g} {delta:>6g} {noise:>8.4f} {exact:>8.5f} "
            f"{result['error']:>+8.3%} {one['seconds']:>7.2f} {earlier:>12} "
            f"{one['epsilon'] / world - 1:>+13.2%}",
            flush=True,
        )
    errors = [one["error"] for one in rows]
    met = min(errors) >= 0 and max(errors) <= LARGEST_ERROR
    verdict = "met" if met else "MISSED"
    print(f"\nlargest error {max(errors):.2%}; target {LARGEST_ERROR:.0%}: {verdict}")
    return rows, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    parser.add_argument("--evaluations", type=int, help="time only N evaluations of the plain side")
    parser.add_argument("--before", type=Path, help="the src folder of an earlier release")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--ours", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--grid", choices=("all", "some"), help=argparse.SUPPRESS)
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--million", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(ours(arguments.ours[0], bool(arguments.ours[1]))))
        return 0
    if arguments.grid:
        print(json.dumps(list(small_rates(arguments.grid == "all"))))
        return 0
    if arguments.other:
        print(json.dumps(other_work()))
        return 0
    if arguments.million:
        print(json.dumps(list(million(json.loads(arguments.million)))))
        return 0
    parts: dict[str, Callable[[], tuple[Any, bool]]] = {
        "dp_accounting": lambda: against_dp_accounting(arguments.evaluations),
        "small_rates": lambda: at_small_rates(arguments.before),
        "other_work": lambda: at_other_work(arguments.before),
        "million_rounds": lambda: of_a_million(arguments.before),
    }
    met = True
    for name in [arguments.only] if arguments.only else parts:
        rows, good = parts[name]()
        met &= good
        path = arguments.out / "accounting.json"
        record = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(record | {name: rows}, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
