"""Figures of the audit of a training run."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uedp.report.plots import new_figure, save

if TYPE_CHECKING:  # it imports PyTorch
    from matplotlib.axes import Axes

    from uedp.audit.training import Finding, TrainingAudit

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
