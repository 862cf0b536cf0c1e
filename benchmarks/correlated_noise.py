"""What noise that is correlated over rounds could gain: numbers of docs/privacy.md, section 5.

    python benchmarks/correlated_noise.py [--out benchmarks/results]

Banded matrix factorisation with Poisson sampling (Choquette-Choo, Ganesh, McKenna, McMahan, Rush,
Thakurta and Xu 2023), for users alone: with `b` bands, users are divided into `b` groups that take
turns, a group's users are drawn at `b` times the rate, and the accountant counts `T / b` rounds.
The batches have the same size as without bands.

Compared is the error that noise leaves in the averaged weights (`optimiser.average`) of gradient
descent at a constant rate, after the last round. The bands are those of a Toeplitz matrix that make
it smallest. Beside it: independent noise with `b` times the users in each of `T / b` rounds, whose
error is as small as it can be at cycle ends, but which takes fewer steps.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import solve_toeplitz
from scipy.optimize import minimize

from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.proven import UserLevelProfile

DELTA, ROUNDS = 1e-5, 200
EPSILONS, RATES, BANDS = (8.0, 2.0), (0.05, 0.1, 0.2), (1, 2, 4, 5)
AVERAGE = 0.95  # the default of adapters, as `optimiser.average`


def weights_of_rounds(rounds: int, average: float) -> Floats:
    """How much the gradient of each round moves the averaged weights after the last one."""
    back = np.arange(rounds)[::-1]
    return np.asarray(1 - average ** (back + 1.0))


def relative_error(bands: Floats, weights: Floats) -> float:
    """The deviation that noise of deviation 1 leaves, if columns of the matrix have norm 1.

    The rounds release `G + C^-1 Z` with `C` lower triangular and Toeplitz; what counts is
    `weights' C^-1`.
    """
    column = np.zeros(len(weights))
    column[: len(bands)] = bands
    row = np.zeros(len(weights))
    row[0] = bands[0]
    solved = solve_toeplitz((row, column), weights)  # the transpose of C
    return float(np.linalg.norm(solved) * np.linalg.norm(bands))


def best_bands(count: int, weights: Floats) -> Floats:
    """The bands with the smallest error, the first of which is 1."""

    def error(rest: Floats) -> float:
        return relative_error(np.concatenate([[1.0], rest]), weights)

    start = 0.5 / np.arange(1, count)
    options = {"maxiter": 4000, "fatol": 1e-10, "xatol": 1e-6}
    found = minimize(error, start, method="Nelder-Mead", options=options).x if count > 1 else start
    return np.concatenate([[1.0], found])


def row(epsilon: float, rate: float, bands: int) -> dict[str, Any]:
    """Noise and error of one setting; with any number of bands, a round draws as many users."""
    profile = partial(UserLevelProfile, user_rate=rate * bands)
    noise = noise_for(epsilon, DELTA, ROUNDS // bands, profile)
    weights = weights_of_rounds(ROUNDS, AVERAGE)
    fewer = weights_of_rounds(ROUNDS // bands, AVERAGE**bands)
    matrix = best_bands(bands, weights)
    return {
        "epsilon": epsilon,
        "rate": rate,
        "bands": bands,
        "noise": noise,
        "matrix": (matrix / np.linalg.norm(matrix)).tolist(),
        # gradients are means over drawn users, and steps are as long, of which fewer go as far
        "error": noise / rate * relative_error(matrix, weights) / weights.sum(),
        "error_fewer_rounds": noise / (rate * bands) * float(np.linalg.norm(fewer)) / fewer.sum(),
    }


def measured() -> list[dict[str, Any]]:
    rows = [row(epsilon, rate, bands) for rate in RATES for epsilon in EPSILONS for bands in BANDS]
    for one in rows:
        alike = ("epsilon", "rate")
        plain = next(r for r in rows if r["bands"] == 1 and all(r[k] == one[k] for k in alike))
        for name in ("error", "error_fewer_rounds"):
            one[f"relative_{name}"] = one[name] / plain["error"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    header = f"{'epsilon':>7} {'rate':>5} {'bands':>5} {'noise':>7} {'error':>6} {'fewer':>6}"
    lines = [
        f"{r['epsilon']:>7g} {r['rate']:>5g} {r['bands']:>5} {r['noise']:>7.3f} "
        f"{r['relative_error']:>6.3f} {r['relative_error_fewer_rounds']:>6.3f}"
        for r in rows
    ]
    return "\n".join([header, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out: Path = parser.parse_args().out
    rows = measured()
    (out / "correlated_noise.txt").write_text(table(rows) + "\n")
    (out / "correlated_noise.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
