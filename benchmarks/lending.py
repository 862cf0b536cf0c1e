"""How much of a corpus a round can use, by the order in which sentences take their entities.

    python benchmarks/lending.py MATERIALS [--out JSON]

`MATERIALS` holds prepared data sets (`uedp experiment` leaves them in OUT/.work/common/materials).
Waiting times are as in `mechanism/draw.py`, but with other powers of the demand; 0 is an order in
which all sentences come equally early.

- *usable*: sentences that may be used in a round, of all.
- *whole*: the same, each counted by how much of an entity's share it has (several of one user that
  mention the same entity divide it).
- *different*: how many sentences would do as well if all came equally often. An order that used the
  same few sentences in every round could use more of them at once.
- *at most*: of whole sentences, what no rule can exceed, as long as all users together have one share
  of each entity, however divided: the optimum of a linear program.
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from uedp.experiments.material import incidence
from uedp.experiments.settings import CORPORA
from uedp.incidence import Incidence
from uedp.mechanism import draw

POWERS = (0.0, 1.0, 2.0, 4.0)
LENDINGS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("materials", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'data':6} {'power':>5} {'usable':>7} {'whole':>7} {'different':>9} {'at most':>7}")
    for data in CORPORA:
        found = incidence(options.materials / data)
        at_most = bound(found) / found.sentences
        for power in POWERS:
            row = {"data": data, "power": power, **measured(found, power), "at_most": at_most}
            rows.append(row)
            print(
                f"{data:6} {power:>5g} {row['usable']:>7.1%} {row['whole']:>7.1%} "
                f"{row['different']:>9.1%} {at_most:>7.1%}"
            )
    if options.out:
        options.out.write_text(json.dumps({"lendings": LENDINGS, "rows": rows}, indent=2) + "\n")


def measured(found: Incidence, power: float) -> dict[str, float]:
    everyone, no_limit = np.arange(found.users), draw.Sampling(1.0, per_entity=None)
    times, whole = np.zeros(found.sentences), 0.0
    with mock.patch.object(draw, "_DEMAND_POWER", power):
        for key in range(LENDINGS):
            place, sentences, mentions = draw.select(found, everyone, no_limit, key)
            times[sentences] += 1
            whole += float((1 / draw._crowding(place, mentions)).sum())
    return {
        "usable": float(times.mean() / LENDINGS),
        "whole": whole / LENDINGS / found.sentences,
        "different": float(times.sum() ** 2 / (times**2).sum() / found.sentences),
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
