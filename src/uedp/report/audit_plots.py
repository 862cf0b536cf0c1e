"""Figures of audits."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uedp.audit.ranks import Ranked, chance_exposure, roc
from uedp.report.plots import label_axes, new_figure, save

if TYPE_CHECKING:  # they import PyTorch
    from matplotlib.axes import Axes

    from uedp.audit.training import Finding, TrainingAudit
    from uedp.audit.verdict import MechanismAudit

_COLOURS = ("#3b6ea5", "#c0504d", "#6a9a3b", "#8064a2", "#d08a2e", "#4bacc6", "#7f7f7f")
_OUT, _IN, *_ = _COLOURS
_CUT, _LEFT_OUT = "#555555", "#9a9a9a"
_MARKS = {
    "lower bound, threshold": ("o", "#3b6ea5"),
    "lower bound, Gaussian fit": ("D", "#7ba7d0"),
    "lower bound, proven curve": ("s", "#6a9a3b"),
    "proven": ("|", "#222222"),
    "published (not a privacy guarantee)": ("x", "#c0504d"),
}


def mechanism_bounds(audits: Mapping[str, "MechanismAudit"], path: Path) -> None:
    """A row per named audit: its lower bounds, the proven and the published epsilon.

    The axis is logarithmic, so a bound of 0 is not drawn.
    """
    figure, axes = new_figure(path, 1, 1)
    figure.set_size_inches(9.0, 1.8 + 0.33 * len(audits))
    rows = [values(audit) for audit in audits.values()]
    for name, (marker, colour) in _MARKS.items():
        points = [(row[name], place) for place, row in enumerate(rows) if row[name]]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                marker,
                color=colour,
                label=name,
                markersize=13 if marker == "|" else 6,
                markeredgewidth=2 if marker in "|x" else 1,
            )
    axes.set_yticks(range(len(audits)), list(audits))
    axes.set_ylim(len(audits) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    deltas = sorted({audit.delta for audit in audits.values()})
    axes.set_xlabel("epsilon at delta " + ", ".join(f"{delta:g}" for delta in deltas))
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    save(figure, path)


def values(audit: "MechanismAudit") -> dict[str, float | None]:
    """The marks of a row, by their names in the legend; None is not drawn."""
    curve = audit.curve.epsilon if audit.curve else None
    shown = (audit.threshold.epsilon, audit.gaussian.epsilon, curve, audit.proven, audit.published)
    return dict(zip(_MARKS, shown, strict=True))


def score_histograms(audit: "TrainingAudit", path: Path) -> None:
    """For each finding, the scores of canaries that were in and of those that were out."""
    kinds = list(dict.fromkeys(finding.kind for finding in audit.findings))
    scores = list(dict.fromkeys(finding.score for finding in audit.findings))
    figure, grid = new_figure(path, len(kinds), len(scores))
    panels = np.atleast_2d(grid)
    for finding in audit.findings:
        _panel(panels[kinds.index(finding.kind), scores.index(finding.score)], finding)
    panels[0, 0].legend(frameon=False)
    proven = "none" if audit.proven is None else f"{audit.proven:.3g}"
    figure.suptitle(f"{audit.method}, {audit.rounds:,} rounds, proven epsilon {proven}")
    save(figure, path)


def _panel(axes: "Axes", finding: "Finding") -> None:
    scores, inside = np.array(finding.scores), np.array(finding.inside)
    edges = np.histogram_bin_edges(scores, bins=40).tolist()
    axes.hist(scores[~inside], bins=edges, color=_OUT, alpha=0.6, label="out")
    axes.hist(scores[inside], bins=edges, color=_IN, alpha=0.6, label="in")
    for cut in (finding.guessed_in_above, finding.guessed_out_up_to):
        if cut is not None:
            axes.axvline(cut, color=_CUT, linestyle=":", linewidth=1)
    axes.set_title(f"{finding.kind}, {finding.score}: epsilon above {finding.epsilon:.2f}")
    label_axes(axes, "score", "canaries")


def extraction_figure(found: Mapping[str, Sequence[Ranked]], path: Path) -> None:
    """For each run a histogram of exposures; beside them the runs' ROC curves on log axes."""
    columns = math.ceil((len(found) + 1) / 2) if len(found) > 1 else 2
    figure, axes = new_figure(path, 1 if len(found) == 1 else 2, columns)
    panels = list(np.ravel(axes))
    for panel in panels[len(found) + 1 :]:
        panel.set_axis_off()
    top = max(math.log2(item.among) for items in found.values() for item in items)
    for panel, (name, items), colour in zip(panels, found.items(), cycle(_COLOURS), strict=False):
        _histogram(panel, name, items, colour, top)
    _curves(panels[len(found)], found)
    save(figure, path)


def _histogram(axes: "Axes", name: str, items: Sequence[Ranked], colour: str, top: float) -> None:
    edges = np.arange(0, math.ceil(top) + 1.5)
    styles: list[dict[str, Any]] = [
        {"color": colour},
        {"color": _LEFT_OUT, "histtype": "step", "linewidth": 1.5},
    ]
    for member, label, style in zip((True, False), items[0].sides, styles, strict=True):
        exposures = [item.exposure for item in items if item.member is member]
        weights = np.full(len(exposures), 1 / max(len(exposures), 1))
        axes.hist(exposures, edges.tolist(), weights=weights, label=label, **style)
    chance = chance_exposure(max(item.among for item in items))
    axes.axvline(chance, color="black", linestyle=":", linewidth=1, label="mean by chance")
    axes.set_title(name, fontsize=10)
    label_axes(axes, "exposure, bits", "share")
    axes.legend(frameon=False, fontsize=8)


def _curves(axes: "Axes", found: Mapping[str, Sequence[Ranked]]) -> None:
    least = 1.0
    for (name, items), colour in zip(found.items(), cycle(_COLOURS), strict=False):
        curve = roc(items)
        false, true = curve.curve()
        least = min(least, 1 / len(curve.others), 1 / len(curve.members))
        axes.step(
            np.maximum(false, 0.5 / len(curve.others)),  # where a log axis can show no false ones
            true,
            where="post",
            color=colour,
            label=f"{name} ({curve.area():.2f})",
        )
    axes.plot([least / 2, 1], [least / 2, 1], color="black", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least / 2, 1.0)
    axes.set_ylim(least / 2, 1.1)
    label_axes(axes, "false positive rate", "true positive rate")
    axes.legend(frameon=False, fontsize=8, title="run (area)", title_fontsize=8)
