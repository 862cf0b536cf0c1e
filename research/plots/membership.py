"""The figure of the extraction benchmark."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from research.plots.style import GREY, save
from uedp.report.plots import new_figure

COLOURS = ("#3b6ea5", "#c0504d", "#6a9a3b", "#8064a2", "#d08a2e", "#4bacc6", "#7f7f7f")


def membership_figure(
    runs: Mapping[str, Mapping[str, Any]], path: Path, false_positives: float = 0.001
) -> None:
    """ROC curves on log axes, and the true positive rate at a low false positive rate, by holders.

    Each value is what `research.membership.membership` returns for a run.
    """
    figure, (left, right) = new_figure(path, 1, 2)
    for number, (name, row) in enumerate(runs.items()):
        above = np.sort(np.concatenate([group["above"] for group in row["groups"].values()]))
        rates = np.maximum(above, 0.5) / row["others"]  # a log axis has no 0
        caught = np.arange(1, len(above) + 1) / len(above)
        left.step(
            np.append(rates, 1.0),
            np.append(caught, 1.0),
            where="post",
            color=COLOURS[number % len(COLOURS)],
            label=f"{name} ({row['area']:.2f})",
        )
    least = min(0.5 / row["others"] for row in runs.values())
    left.plot([least, 1], [least, 1], color="black", linestyle=":", linewidth=1)
    left.axvline(false_positives, color=GREY, linewidth=1)
    left.set(xscale="log", yscale="log", xlim=(least, 1.0), ylim=(5e-4, 1.1))
    left.set_xlabel("false positive rate")
    left.set_ylabel("true positive rate")
    left.legend(frameon=False, fontsize=8, title="run (area)", title_fontsize=8)
    groups = list(dict.fromkeys(name for row in runs.values() for name in row["groups"]))
    for number, row in enumerate(runs.values()):
        at = [
            next(r for r in row["groups"][g]["at"] if r["false_positives"] == false_positives)[
                "true_positives"
            ]
            for g in groups
        ]
        shares = np.array([rate["share"] for rate in at])
        errors = [shares - [rate["low"] for rate in at], [rate["high"] for rate in at] - shares]
        places = np.arange(len(groups)) + (number - (len(runs) - 1) / 2) * 0.8 / len(runs)
        right.errorbar(
            places,
            shares,
            np.maximum(errors, 0),
            fmt="o",
            markersize=4,
            color=COLOURS[number % len(COLOURS)],
        )
    right.axhline(false_positives, color="black", linestyle=":", linewidth=1)
    right.set_xticks(range(len(groups)), groups)
    right.set_ylim(-0.02, 1.02)
    right.set_xlabel("users who hold the secret")
    right.set_ylabel(f"true positive rate at {false_positives:.1%} false positives")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
