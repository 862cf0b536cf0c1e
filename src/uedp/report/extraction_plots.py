"""Figures of extraction: exposures and membership inference."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uedp.audit.ranks import Ranked, chance_exposure, roc
from uedp.report.plots import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#3b6ea5", "#c0504d", "#6a9a3b", "#8064a2", "#d08a2e", "#4bacc6", "#7f7f7f")
_LEFT_OUT = "#9a9a9a"


def extraction_figure(found: Mapping[str, Sequence[Ranked]], path: Path) -> None:
    """For each run a histogram of exposures; beside them the runs' ROC curves on log axes."""
    columns = math.ceil((len(found) + 1) / 2) if len(found) > 1 else 2
    figure, axes = new_figure(path, 1 if len(found) == 1 else 2, columns)
    panels = list(np.ravel(axes))
    for panel in panels[len(found) + 1 :]:
        panel.set_axis_off()
    top = max(math.log2(item.among) for items in found.values() for item in items)
    for number, (name, items) in enumerate(found.items()):
        _histogram(panels[number], name, items, _colour(number), top)
    _curves(panels[len(found)], found)
    save(figure, path)


def _histogram(axes: "Axes", name: str, items: Sequence[Ranked], colour: str, top: float) -> None:
    edges = np.arange(0, math.ceil(top) + 1.5)
    named = ("planted", "left out") if items[0].extracted is not None else ("held in", "held out")
    for member, label in zip((True, False), named, strict=True):
        exposures = [item.exposure for item in items if item.member is member]
        weights = np.full(len(exposures), 1 / max(len(exposures), 1))
        if member:
            axes.hist(exposures, edges.tolist(), weights=weights, color=colour, label=label)
        else:
            axes.hist(
                exposures,
                edges.tolist(),
                weights=weights,
                histtype="step",
                color=_LEFT_OUT,
                linewidth=1.5,
                label=label,
            )
    chance = chance_exposure(max(item.among for item in items))
    axes.axvline(chance, color="black", linestyle=":", linewidth=1, label="mean by chance")
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("exposure, bits")
    axes.set_ylabel("share")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _curves(axes: "Axes", found: Mapping[str, Sequence[Ranked]]) -> None:
    least = 1.0
    for number, (name, items) in enumerate(found.items()):
        curve = roc(items)
        false, true = curve.curve()
        least = min(least, 1 / len(curve.others), 1 / len(curve.members))
        axes.step(
            np.maximum(false, 0.5 / len(curve.others)),  # where a log axis can show no false ones
            true,
            where="post",
            color=_colour(number),
            label=f"{name} ({curve.area():.2f})",
        )
    axes.plot([least / 2, 1], [least / 2, 1], color="black", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least / 2, 1.0)
    axes.set_ylim(least / 2, 1.1)
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, title="run (area)", title_fontsize=8)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
