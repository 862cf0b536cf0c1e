"""The share of a corpus that is usable in a round, and the bound for any lending rule.

    python benchmarks/lending.py DATASETS [--out JSON]

`DATASETS` holds prepared data sets (`python -m research` leaves them in
OUT/.work/common/datasets).

- *usable*: the share of sentences whose entities are all lent to their user.
- *whole*: the same, each weighted by its part of an entity's share (sentences of one user that
  mention the same entity divide it).
- *at most*: a bound on *whole* for every rule that gives all users together one share of each
  entity, however divided: the optimum of a linear program.
- *never*: the share of sentences with an entity that are usable in no round of a run.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from research.datasets import load_incidence
from research.settings import DATA_SETTINGS
from uedp.incidence import Incidence
from uedp.mechanism import sampling as draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'data':6} {'rounds':>6} {'usable':>7} {'whole':>7} {'at most':>7} {'never':>6}")
    for data, settings in DATA_SETTINGS.items():
        rounds, incidence = settings.rounds, load_incidence(options.datasets / data)
        row = {"data": data, "rounds": rounds, **measure(incidence, rounds)}
        rows.append(row)
        print(
            f"{data:6} {row['rounds']:>6} {row['usable']:>7.1%} {row['whole']:>7.1%} "
            f"{row['at_most']:>7.1%} {row['never']:>6.1%}"
        )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def measure(incidence: Incidence, rounds: int) -> dict[str, float]:
    everyone, no_limit = np.arange(incidence.users), draw.Sampling(1.0, per_entity=None)
    times, whole = np.zeros(incidence.sentences), 0.0
    for key in range(rounds):
        _, sentences, mentions = draw.select(incidence, everyone, no_limit, key)
        times[sentences] += 1
        whole += float((1 / draw.crowding(mentions)).sum())
    return {
        "usable": float(times.mean() / rounds),
        "whole": whole / rounds / incidence.sentences,
        "at_most": bound(incidence) / incidence.sentences,
        "never": float((times[~incidence.extended] == 0).mean()),
    }


def bound(incidence: Incidence) -> float:
    """The largest sum of sentence weights in 0..1 if those of each entity sum to at most 1."""
    mentions = incidence.sentence_entities
    ones = np.ones(len(mentions.values))
    entities, sentences = incidence.entities, incidence.sentences
    places = (mentions.values, mentions.row_of_value())
    of_entity = csr_array((ones, places), shape=(entities, sentences))
    solved = linprog(-np.ones(sentences), A_ub=of_entity, b_ub=np.ones(entities), bounds=(0, 1))
    assert solved.success, solved.message
    return -float(solved.fun)


if __name__ == "__main__":
    main()
