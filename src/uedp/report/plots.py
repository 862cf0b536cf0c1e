"""Figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from uedp.errors import UserError
from uedp.incidence import Incidence

if TYPE_CHECKING:  # Matplotlib takes a second to import
    from matplotlib.axes import Axes

_BLUE = "#3b6ea5"


def incidence_histograms(incidence: Incidence, path: Path) -> None:
    """The paper's histogram of sentences per user, and beside it that of holders per entity."""
    figure, (left, right) = new_figure(path, 1, 2)
    sentences = incidence.user_sentences.counts
    most = int(sentences.max(initial=1))
    width = max(1, most // 60)
    left.hist(sentences, bins=np.arange(0.5, most + width + 0.5, width).tolist(), color=_BLUE)
    label_axes(left, "sentences per user", "users")
    if incidence.entities:
        holders = incidence.holders.counts
        # log-log, for a long tail; edges lie between integers so that no bin is empty by rounding
        edges = np.unique(np.round(np.geomspace(1, int(holders.max(initial=1)) + 1, 40))) - 0.5
        right.hist(holders, bins=edges.tolist(), color=_BLUE)
        right.set_xscale("log")
        right.set_yscale("log")
    label_axes(right, "users who mention an entity", "entities")
    save(figure, path)


def epsilon_curves(curves: dict[str, list[tuple[int, float]]], delta: float, path: Path) -> None:
    """Epsilon against rounds, one line per kind of protection."""
    figure, axes = new_figure(path, 1, 1)
    for (name, points), colour in zip(curves.items(), (_BLUE, "#c0504d", "#6a9a3b"), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, color=colour)
    label_axes(axes, "rounds", f"epsilon at delta {delta:g}")
    axes.legend(frameon=False)
    save(figure, path)


def check_figure_name(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"{path}: the name of a figure must end in .png, .svg or .pdf")


def new_figure(path: Path, rows: int, columns: int) -> Any:
    from matplotlib.figure import Figure

    check_figure_name(path)
    figure = Figure(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns)


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def label_axes(axes: "Axes", over: str, of: str) -> None:
    axes.set_xlabel(over)
    axes.set_ylabel(of)
    axes.spines[["top", "right"]].set_visible(False)
