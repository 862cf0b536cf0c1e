"""The epsilons of missed mentions in docs/privacy.md, and lower bounds on them.

python benchmarks/missed.py [--out benchmarks/results]

For each plan and case: epsilon with every draw revealed, epsilon by Theorem 3, and the largest
epsilon of a single one-dimensional world that is the same in every round, which no proof can beat.
"""

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy import special, stats

from uedp.accounting.divergence import Floats
from uedp.accounting.missed import MISSED_CASES, missed_epsilon, missed_words, neighbours
from uedp.accounting.pld import compose, discretise
from uedp.accounting.proven import RotationProfile, epsilon

DELTA = 1e-5
PLANS = {  # the demo's first
    "demo": (RotationProfile(0.5836614437399936, 0.02, 0.3), 100),
    "rate 0.1": (RotationProfile(1.514, 0.1, 0.4), 200),
    "rate 0.2": (RotationProfile(2.626, 0.2, 0.4), 200),
}
CELLS = 6000
PLACES = 7  # positions of a holder's other text, from opposing to agreeing


class OneWorld:
    """Two mixtures on a line by the exact masses of cells: divergences from below."""

    def __init__(self, noise: float, full: Floats, emptied: Floats, reach: float) -> None:
        means = np.concatenate([full[:, 0], emptied[:, 0]])
        edges = np.linspace(means.min() - 9 * noise, means.max() + 9 * noise, CELLS + 1)
        masses = [
            np.diff(special.ndtr((edges[:, None] - law[:, 0]) / noise) @ law[:, 1])
            for law in (full, emptied)
        ]
        tiny = np.finfo(float).tiny
        losses = np.log(np.maximum(masses[0], tiny) / np.maximum(masses[1], tiny))
        order = np.argsort(losses)
        self._losses = losses[order]
        self._below = [np.concatenate([[0.0], np.cumsum(mass[order])]) for mass in masses]
        self._reach = reach

    def full(self, epsilons: Floats) -> Floats:
        place = np.searchsorted(self._losses, epsilons)
        above = [below[-1] - below[place] for below in self._below]
        divergences: Floats = np.clip(above[0] - np.exp(epsilons) * above[1], 0.0, 1.0)
        return divergences

    def emptied(self, epsilons: Floats) -> Floats:
        place = np.searchsorted(self._losses, -epsilons)
        full, emptied = (below[place] for below in self._below)
        divergences: Floats = np.clip(emptied - np.exp(epsilons) * full, 0.0, 1.0)
        return divergences

    def loss_range(self) -> tuple[float, float]:
        return -self._reach, self._reach

    def loss_spread(self) -> float:
        return 1.0


def attained(plan: RotationProfile, rounds: int, lent: float, others: int, move: float) -> float:
    """The largest epsilon of a world in which all holders of a kind write alike."""
    best = 0.0
    places = np.linspace(0, 1, PLACES)
    for one, rest in product(places, places if others else [0.0]):
        resting = -1 + one * (2 - lent), -1 + rest * (2 - move)
        full, emptied = [], []
        for drawn, count in product((0, 1), range(others + 1)):
            chance = stats.binom.pmf(drawn, 1, plan.user_rate)
            chance *= stats.binom.pmf(count, others, plan.user_rate)
            mean = drawn * resting[0] + count * resting[1]
            emptied.append((mean, chance))
            for mine, p in ((0, 1 - plan.user_rate), (1, plan.user_rate)):
                full.append((mean + drawn * lent + count * move + mine, chance * p))
        world = OneWorld(plan.noise, np.array(full), np.array(emptied), 25 / plan.noise)
        sides = discretise(world)
        best = max(best, *(compose([(side, rounds)]).epsilon(DELTA) for side in sides))
    return best


def cases(plan: RotationProfile, rounds: int) -> list[dict[str, float | str | int | None]]:
    rows: list[dict[str, float | str | int | None]] = []
    share = plan.entity_share
    for users, sentences in MISSED_CASES:
        move = 2.0 if sentences is None else min(2.0, sentences * share)
        elsewhere = attained(plan, rounds, share, users, move)
        lent_too = attained(plan, rounds, min(2.0, share + move), users - 1, move)
        rows.append(
            {
                "missed in": missed_words(users, sentences),
                "users": users,
                "sentences_per_user": sentences,
                "revealed": missed_epsilon(
                    replace(plan, reveal_draw=True), rounds, DELTA, users, sentences
                ),
                "epsilon": missed_epsilon(plan, rounds, DELTA, users, sentences),
                "attained elsewhere": elsewhere,
                "attained in the lent user": lent_too,
            }
        )
        print(" ", rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out: Path = parser.parse_args().out
    result = {}
    for name, (plan, rounds) in PLANS.items():
        print(name, flush=True)
        result[name] = {
            "noise": plan.noise,
            "user_rate": plan.user_rate,
            "entity_share": plan.entity_share,
            "rounds": rounds,
            "delta": DELTA,
            "epsilon": epsilon(plan, rounds, DELTA),
            "cases": cases(plan, rounds),
            "neighbours": [
                {"change": row.change, "noise": row.profile.noise, "epsilons": row.epsilons}
                for row in neighbours(plan, rounds, DELTA)
            ],
        }
    (out / "missed.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
