"""Time and memory to build the incidence, and whether both grow linearly.

    python benchmarks/incidence.py

Target: 10 million mentions, 1 million users, 3 million entities in at most 30 s and 4 GB on two
cores. The floor is memory traffic: three counting sorts, each reading and writing every mention
a few times, some 100 bytes per mention; a second or so for 10 million.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np

from uedp.incidence import Incidence

SIZES = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
TARGET_SECONDS, TARGET_BYTES = 30.0, 4e9


def world(mentions: int, seed: int = 0) -> dict[str, np.ndarray | int]:
    """Zipf-like entities over uniform sentences: a few entities everywhere, most of them rare."""
    rng = np.random.default_rng(seed)
    users, sentences, entities = mentions // 10, mentions, 3 * mentions // 10
    rank = np.exp(rng.random(mentions) * np.log(entities)) - 1  # log-uniform: probability ~ 1/rank
    return {
        "sentence_user": rng.integers(0, users, sentences, dtype=np.int32),
        "mention_sentence": rng.integers(0, sentences, mentions, dtype=np.int64),
        "mention_entity": rank.astype(np.int32),
        "users": users,
        "entities": entities,
    }


def measure(mentions: int) -> dict[str, float]:
    arguments = world(mentions)
    began = time.perf_counter()
    incidence = Incidence.build(**arguments)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    assert incidence.entities == arguments["entities"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"mentions": mentions, "seconds": seconds, "peak_bytes": peak}


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return 0
    # each size in its own process, so that one's peak memory is not another's
    rows = [
        json.loads(subprocess.check_output([sys.executable, __file__, str(size)])) for size in SIZES
    ]
    print(f"{'mentions':>12} {'seconds':>8} {'us/mention':>11} {'peak GB':>8}")
    for row in rows:
        per = row["seconds"] / row["mentions"] * 1e6
        seconds, peak = row["seconds"], row["peak_bytes"] / 1e9
        print(f"{row['mentions']:>12,} {seconds:>8.2f} {per:>11.3f} {peak:>8.2f}")
    last, first = rows[-1], rows[0]
    growth = (last["seconds"] / last["mentions"]) / (first["seconds"] / first["mentions"])
    met = last["seconds"] <= TARGET_SECONDS and last["peak_bytes"] <= TARGET_BYTES
    print(f"time per mention, largest to smallest: x{growth:.2f} (1 is linear)")
    target = f"{TARGET_SECONDS:.0f} s, {TARGET_BYTES / 1e9:.0f} GB at {SIZES[-1]:,}"
    print(f"target {target}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
