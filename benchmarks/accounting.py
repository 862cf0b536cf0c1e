"""Calibrating noise: ours against the same search written plainly on dp-accounting.

    python benchmarks/accounting.py [--plain-evaluations N]

Both find the noise for epsilon 8 at delta 1e-5, user rate 0.05, 200 rounds, entity share 0.33, by
Theorem 1, to the same precision. The plain search takes dp-accounting's mixture-of-Gaussians
distribution for each revealed case at its default resolution, mixes, composes and bisects; one
evaluation takes half a minute, so by default N of them are timed and the time for the whole
search is that many times the number of steps it needs (bisection from the bracket 0.5 .. 2).
Target: ours at least 20 x faster; 100,000 rounds calibrated in under 10 s and 2 GB.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time

from dp_accounting.pld import privacy_loss_distribution as pld

from uedp.accounting.calibrate import noise_for
from uedp.accounting.proven import Rotation, epsilon

TARGET, DELTA, RATE, ROUNDS, SHARE = 8.0, 1e-5, 0.05, 200, 0.33
PRECISION = 2e-4


def plain_epsilon(noise: float) -> float:
    alone = pld.from_mixture_gaussian_mechanism(noise, [0.0, 1.0], [1 - RATE, RATE])
    both = pld.from_mixture_gaussian_mechanism(noise, [SHARE, 1 + SHARE], [1 - RATE, RATE])
    mixed = alone.compute_mixture(both, 1 - RATE)
    return float(mixed.self_compose(ROUNDS).get_epsilon_for_delta(DELTA))


def many_rounds() -> dict[str, float]:
    began = time.perf_counter()
    noise = noise_for(TARGET, DELTA, 100_000, lambda z: Rotation(z, 0.01, SHARE))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"noise": noise, "seconds": seconds, "bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain-evaluations", type=int, default=2)
    parser.add_argument("--many-rounds", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.many_rounds:
        print(json.dumps(many_rounds()))
        return

    began = time.perf_counter()
    noise = noise_for(TARGET, DELTA, ROUNDS, lambda z: Rotation(z, RATE, SHARE, reveal_draw=True))
    ours = time.perf_counter() - began

    began = time.perf_counter()
    for _ in range(options.plain_evaluations):
        theirs = plain_epsilon(noise)
    each = (time.perf_counter() - began) / options.plain_evaluations
    steps = math.ceil(math.log2((2 - 0.5) / (PRECISION * noise)))
    same = epsilon(Rotation(noise, RATE, SHARE, reveal_draw=True), ROUNDS, DELTA)
    print(f"noise for epsilon {TARGET:g}, delta {DELTA:g}, {ROUNDS} rounds: {noise:.4f}")
    print(f"epsilon at that noise: ours {same:.4f}, dp-accounting {theirs:.4f}")
    print(f"ours, whole search                    {ours:8.2f} s")
    print(f"plain, one evaluation (mean of {options.plain_evaluations})     {each:8.2f} s")
    print(f"plain, whole search of {steps} steps       {each * steps:8.0f} s  (steps x one)")
    ratio = each * steps / ours
    print(f"ratio {ratio:,.0f} x, target 20: {'met' if ratio >= 20 else 'MISSED'}")

    # in a process of its own, for its own peak memory
    output = subprocess.check_output([sys.executable, __file__, "--many-rounds"])
    many = json.loads(output)
    met = many["seconds"] < 10 and many["bytes"] < 2e9
    print(
        f"100,000 rounds, user rate 0.01, Theorem 2: noise {many['noise']:.4f} in "
        f"{many['seconds']:.1f} s, {many['bytes'] / 1e9:.2f} GB; "
        f"target 10 s, 2 GB: {'met' if met else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
