"""Calibration, compared with the same search written directly with dp-accounting.

    python benchmarks/accounting.py [--evaluations N]

Both search for the smallest noise (to 0.02%) that keeps 200 rounds within epsilon 8, by the same
theorem: the holder's draw revealed (Theorem 1), for which dp-accounting has the distributions. The
plain side discretises each case with dp-accounting's default step, mixes, composes and
bisects. With `--evaluations N` only N of its evaluations are timed, and their mean is multiplied by
the number that the search needs.

Targets: at least 20 times faster; 100,000 rounds in under 10 s and 2 GB on two cores.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from dp_accounting.pld import privacy_loss_distribution as pld

from uedp.accounting import calibrate
from uedp.accounting.proven import RotationProfile, epsilon

TARGET, DELTA, RATE, SHARE, ROUNDS = 8.0, 1e-5, 0.05, 0.33, 200
MANY = 100_000
PRECISION = 2e-4
LEAST_RATIO, MOST_SECONDS, MOST_BYTES = 20.0, 10.0, 2e9


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
    began = time.perf_counter()
    noise = calibrate.noise_for(
        TARGET, DELTA, rounds, lambda z: RotationProfile(z, RATE, SHARE, reveal_draw=reveal_draw)
    )
    return {
        "noise": noise,
        "seconds": time.perf_counter() - began,
        "evaluations": evaluations,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def plain(evaluations: int | None) -> dict[str, float]:
    began = time.perf_counter()
    if evaluations is None:
        noises: list[float] = []

        def spent(noise: float) -> float:
            noises.append(noise)
            return plain_epsilon(noise)

        noise = plain_search(spent)
        return {
            "noise": noise,
            "seconds": time.perf_counter() - began,
            "evaluations": len(noises),
        }
    tried: list[float] = []

    def quick(noise: float) -> float:
        tried.append(noise)
        return epsilon(RotationProfile(noise, RATE, SHARE, reveal_draw=True), ROUNDS, DELTA)

    noise = plain_search(quick)  # only for the number of evaluations and their noise
    began = time.perf_counter()
    for z in tried[-evaluations:]:
        plain_epsilon(z)
    mean = (time.perf_counter() - began) / min(evaluations, len(tried))
    return {"noise": noise, "seconds": mean * len(tried), "evaluations": len(tried)}


def row(name: str, result: dict[str, float]) -> str:
    peak = f"{result['peak_bytes'] / 1e9:.2f}" if "peak_bytes" in result else ""
    return (
        f"{name:<42} {result['noise']:>9.4f} {result['evaluations']:>12.0f} "
        f"{result['seconds']:>9.2f} {peak:>8}"
    ).rstrip()


def in_a_process(rounds: int, reveal_draw: bool) -> dict[str, float]:
    """A separate process, so that peak memory and warm caches are those of one calibration."""
    line = [sys.executable, __file__, "--ours", str(rounds), str(int(reveal_draw))]
    result: dict[str, float] = json.loads(subprocess.check_output(line))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, help="time only N evaluations of the plain side")
    parser.add_argument("--ours", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(ours(arguments.ours[0], bool(arguments.ours[1]))))
        return 0
    simple, tight, many = (
        in_a_process(rounds, reveal)
        for rounds, reveal in ((ROUNDS, True), (ROUNDS, False), (MANY, False))
    )
    theirs = plain(arguments.evaluations)
    how = (
        "the whole search was run"
        if arguments.evaluations is None
        else f"{arguments.evaluations} evaluations were timed, their mean times the number needed"
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
    print(f"target {limits}: {'met' if small else 'MISSED'}")
    return 0 if agree and fast and small else 1


if __name__ == "__main__":
    sys.exit(main())
