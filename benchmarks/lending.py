"""How many sentences can be used in a round, by the order in which they take their entities.

    python benchmarks/lending.py MATERIALS [--out JSON]

`MATERIALS` holds prepared data sets (`uedp experiment` leaves them in OUT/.work/common/materials).
Waiting times are as in `mechanism/draw.py`, but with other powers of the demand; 0 is an order in
which all sentences come equally early. *Signal* is the sum of what users' updates could measure, as
in `accounting/planning.py`, at the entity share that the experiments use. *Different* is how many
sentences would do as well if they came equally often: an order that used the same few sentences in
every round could use more of them at once.
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np

from uedp.experiments.material import incidence
from uedp.experiments.settings import CORPORA
from uedp.mechanism import draw

POWERS = (0.0, 1.0, 2.0, 4.0)
LENDINGS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("materials", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        measured(data, options.materials / data, power) for data in CORPORA for power in POWERS
    ]
    print(f"{'data':6} {'power':>5} {'usable':>7} {'signal':>7} {'different':>9}")
    for row in rows:
        print(
            f"{row['data']:6} {row['power']:>5g} {row['usable']:>7.1%} {row['signal']:>7.0f} "
            f"{row['different']:>9.1%}"
        )
    if options.out:
        options.out.write_text(json.dumps({"lendings": LENDINGS, "rows": rows}, indent=2) + "\n")


def measured(data: str, folder: Path, power: float) -> dict[str, float | str]:
    found = incidence(folder)
    times = np.zeros(found.sentences)
    signal = 0.0
    with mock.patch.object(draw, "_DEMAND_POWER", power):
        for key in range(LENDINGS):
            usable = draw.lend(found, key)
            times += usable
            per_user = np.bincount(found.sentence_user[usable], minlength=found.users)
            signal += float(np.minimum(1.0, CORPORA[data].share * per_user).sum()) / LENDINGS
    return {
        "data": data,
        "power": power,
        "usable": float(times.mean() / LENDINGS),
        "signal": signal,
        "different": float(times.sum() ** 2 / (times**2).sum() / found.sentences),
    }


if __name__ == "__main__":
    main()
