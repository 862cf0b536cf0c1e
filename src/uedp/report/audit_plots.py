"""Figures of audits."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uedp.report.plots import new_figure, save

if TYPE_CHECKING:  # they import PyTorch
    from matplotlib.axes import Axes

    from uedp.audit.training import Finding, TrainingAudit
    from uedp.audit.verdict import MechanismAudit

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


_IN, _OUT, _CUT = "#c0504d", "#3b6ea5", "#555555"


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
    axes.set_xlabel("score")
    axes.set_ylabel("canaries")
    axes.spines[["top", "right"]].set_visible(False)
