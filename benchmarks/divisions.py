"""Other ways to divide an entity's share than max-min fair shares: what the planner expects.

    python benchmarks/divisions.py DATASETS [--out benchmarks/results]

`DATASETS` holds prepared data sets (`research/datasets.py`). Each division maximises `sum w^(1-a) /
(1-a)` over the weights `w` of sentences, where those of each entity add up to at most 1 and the
expected update of each user is no longer than the clipping norm. The power `a` is 1 for
proportional fairness and infinite for max-min fairness; the smaller it is, the more goes to
sentences whose entities few others mention. Printed is the planner's figure relative to that of
max-min shares, which `fair_shares` gives, at the settings of `research/utility.py`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from research.datasets import load_incidence
from research.utility import SETTINGS
from uedp.accounting.planning import Supply, expected_square
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, fair_supply, select_for_all
from uedp.mechanism.sampling import Floats

POWERS = (4.0, 2.0, 1.0, 0.5, 0.3)
_STEPS, _LEAST, _MOST = 400, 1e-9, 1e9


def divided(incidence: Incidence, sharing: Sharing, power: float) -> Floats:
    """Weights of one fairness, by dual ascent: a price of each entity and each user.

    Weights that exceed a limit after the last step are scaled down to it.
    """
    chosen = np.flatnonzero(select_for_all(incidence, sharing, 0))
    mentions = incidence.sentence_entities.take(chosen)
    place, entity = mentions.row_of_value(), mentions.values
    user = incidence.sentence_user[chosen]
    prices, of_users = np.ones(incidence.entities), np.full(incidence.users, 1e-3)
    for step in range(_STEPS):
        paid = np.bincount(place, prices[entity], minlength=len(chosen)) + of_users[user]
        own = np.minimum(1.0, np.maximum(paid, _LEAST) ** (-1 / power))
        pace = power * (0.5 if step < _STEPS // 4 else 0.25)
        prices = _raised(prices, np.bincount(entity, own[place], minlength=len(prices)), pace)
        of_users = _raised(of_users, _norms(own, user, incidence.users, sharing), pace)
    over = np.ones(len(chosen))
    load = np.bincount(entity, own[place], minlength=len(prices))
    np.maximum.at(over, place, load[entity])
    np.maximum(over, _norms(own, user, incidence.users, sharing)[user], out=over)
    weights = np.zeros(incidence.sentences)
    weights[chosen] = own / over
    return weights


def _raised(prices: Floats, load: Floats, pace: float) -> Floats:
    """Higher where more is used than there is, lower where less."""
    moved: Floats = np.clip(prices * np.clip(load, 1e-3, 1e3) ** pace, _LEAST, _MOST)
    return moved


def _norms(weights: Floats, user: Any, users: int, sharing: Sharing) -> Floats:
    """The expected length of each user's update, as the planner expects it."""
    total = np.bincount(user, weights, minlength=users)
    squares = np.bincount(user, weights**2, minlength=users)
    norms: Floats = sharing.entity_share * np.sqrt(expected_square(total, squares))
    return norms


def measured(datasets: Path) -> list[dict[str, Any]]:
    rows = []
    for data, setting in SETTINGS.items():
        if not (datasets / data / "about.json").exists():
            continue
        incidence = load_incidence(datasets / data)
        sharing = Sharing(setting.share, setting.cap)
        fair = fair_supply(incidence, sharing).signal(setting.share)
        for power in POWERS:
            weights = divided(incidence, sharing, power)
            used = int((weights > 0).sum())
            own = Supply.of_weights(incidence.users, incidence.sentence_user, weights, used)
            rows.append(
                {
                    "data": data,
                    "share": setting.share,
                    "power": power,
                    "smallest": float(weights[weights > 0].min()),
                    "figure": own.signal(setting.share) / fair,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    header = f"{'data':13} {'share':>5} {'power':>5} {'least weight':>12} {'figure':>7}"
    lines = [
        f"{r['data']:13} {r['share']:>5g} {r['power']:>5g} {r['smallest']:>12.4f} "
        f"{r['figure']:>7.3f}"
        for r in rows
    ]
    return "\n".join([header, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = measured(options.datasets)
    (options.out / "divisions.txt").write_text(table(rows) + "\n")
    (options.out / "divisions.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
