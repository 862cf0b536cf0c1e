"""Time and memory of one round's draw on a large incidence.

    python benchmarks/draw.py

Target: 1 million users, 10 million sentences, 3 million entities, user rate 1e-3: a round in at
most 0.25 s on average, one-off preparation (building the incidence) at most 60 s, 4 GB. Lending is
computed for all users at once, sampled or not, and on a large incidence is reused for several
rounds; the rounds in between read only the sampled users' sentences.
"""

import resource
import statistics
import sys
import time

import numpy as np

from uedp.incidence import Incidence
from uedp.mechanism.lending import lend
from uedp.mechanism.sampling import Sampling, draw
from uedp.methods.rotation import lending_schedule

USERS, SENTENCES, ENTITIES, MENTIONS = 1_000_000, 10_000_000, 3_000_000, 12_000_000
ROUNDS = 51  # with three lendings


def main() -> int:
    rng = np.random.default_rng(0)
    # log-uniform ranks: a few entities everywhere, most of them rare
    entity = (np.exp(rng.random(MENTIONS) * np.log(ENTITIES)) - 1).astype(np.int32)
    owner = rng.integers(0, USERS, SENTENCES, dtype=np.int32)
    sentence = rng.integers(0, SENTENCES, MENTIONS, dtype=np.int64)
    start = time.perf_counter()
    incidence = Incidence.build(owner, sentence, entity, USERS, ENTITIES)
    prepared = time.perf_counter() - start
    del entity, owner, sentence
    sampling = Sampling(1e-3, per_entity=1, per_user=16)
    seconds, selected, users = [], 0, 0
    schedule = lending_schedule(lend, incidence, seed=0)
    for key in range(ROUNDS):
        start = time.perf_counter()
        drawn = draw(incidence, sampling, rng, key, schedule.at(key, key))
        seconds.append(time.perf_counter() - start)
        selected += len(drawn.sentences.values)
        users += len(drawn.users)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    mean, median, worst = statistics.mean(seconds), statistics.median(seconds), max(seconds)
    print(f"{USERS:,} users, {SENTENCES:,} sentences, {ENTITIES:,} entities, {MENTIONS:,} mentions")
    print(f"preparation {prepared:.1f} s, peak memory {peak / 1e9:.2f} GB")
    print(f"a round: mean {mean:.3f} s, median {median:.3f} s, worst of {ROUNDS} {worst:.3f} s")
    sampled, used = users / ROUNDS, selected / ROUNDS
    print(f"per round {sampled:,.0f} users sampled, {used:,.0f} sentences selected")
    met = mean <= 0.25 and prepared <= 60 and peak <= 4e9
    print(f"target 0.25 s, 60 s, 4 GB: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
