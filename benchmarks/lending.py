"""How much of a corpus is usable at a time, and how much any rule of lending could use.

    python benchmarks/lending.py DATASETS [--out JSON]

`DATASETS` holds prepared data sets (`python -m research` leaves them in
OUT/.work/common/datasets).

- *usable*: sentences all of whose entities are lent to their user, of all.
- *whole*: the same, each counted by how much of an entity's share it has (several of one user
  that mention the same entity divide it).
- *at most*: of whole sentences, what no rule can exceed, as long as all users together have one
  share of each entity, however divided: the optimum of a linear program.
- *never*: sentences with an entity that are not usable in any round of a run.
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
    for data, corpus in DATA_SETTINGS.items():
        found = load_incidence(options.datasets / data)
        row = {"data": data, "rounds": corpus.rounds, **measured(found, corpus.rounds)}
        rows.append(row)
        print(
            f"{data:6} {row['rounds']:>6} {row['usable']:>7.1%} {row['whole']:>7.1%} "
            f"{row['at_most']:>7.1%} {row['never']:>6.1%}"
        )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def measured(found: Incidence, rounds: int) -> dict[str, float]:
    everyone, no_limit = np.arange(found.users), draw.Sampling(1.0, per_entity=None)
    times, whole = np.zeros(found.sentences), 0.0
    for key in range(rounds):
        _, sentences, mentions = draw.select(found, everyone, no_limit, key)
        times[sentences] += 1
        whole += float((1 / draw.crowding(mentions)).sum())
    return {
        "usable": float(times.mean() / rounds),
        "whole": whole / rounds / found.sentences,
        "at_most": bound(found) / found.sentences,
        "never": float((times[~found.extended] == 0).mean()),
    }


def bound(found: Incidence) -> float:
    """The most that weights of sentences, in 0..1, sum up to if those of each entity do to 1."""
    mentions = found.sentence_entities
    ones = np.ones(len(mentions.values))
    shape = (found.entities, found.sentences)
    of_entity = csr_array((ones, (mentions.values, mentions.row_of_value())), shape=shape)
    solved = linprog(
        -np.ones(found.sentences), A_ub=of_entity, b_ub=np.ones(found.entities), bounds=(0, 1)
    )
    assert solved.success, solved.message
    return -float(solved.fun)


if __name__ == "__main__":
    main()
