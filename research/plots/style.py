"""Colours, panels, labels and files of all figures.

Panels lie one below the other, so that each is wide enough to be read on a page; legends are
outside of them.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from uedp.report.plots import check_figure_name

if TYPE_CHECKING:  # Matplotlib takes a second to import; only a plot should pay for it
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

BLUE, RED, GREEN, GREY, ORANGE = "#3b6ea5", "#c0504d", "#6a9a3b", "#7f7f7f", "#d08c2f"
PURPLE = "#7b5ea7"
_DPI = 100
_WIDTH = 10.2  # inches: seven of a panel, its axis to the left, and labels to the right
_LABEL = 13.0  # points from one label to the next


def stacked_panels(path: Path, heights: Sequence[float]) -> tuple[Any, list["Axes"]]:
    """A figure with one panel below the other, of these heights in inches."""
    from matplotlib.figure import Figure

    check_figure_name(path)
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained", dpi=_DPI)
    ratios = {"height_ratios": list(heights)}
    axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw=ratios)
    return figure, list(axes[:, 0])


def legend_above(figure: Any, panels: Sequence["Axes"], columns: int = 3) -> None:
    """One legend above all panels, with every name once."""
    named: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    if named:
        figure.legend(
            named.values(), named.keys(), loc="outside upper center", ncols=columns, frameon=False
        )


def panel_legend(axes: "Axes", columns: int = 4) -> None:
    """A legend above a panel, at its right; the panel's title is at its left."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            names,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=columns,
            frameon=False,
            fontsize=9,
            borderaxespad=0.2,
        )


def title(axes: "Axes", text: str, **style: Any) -> None:
    axes.set_title(text, loc="left", **style)


def label_at_right(
    axes: "Axes", at: Sequence[tuple[float, float]], names: Sequence[str], colour: str
) -> None:
    """Names in the margin at the right of a panel, each joined to its point; none overlap.

    The figure must have been laid out, and the panel's limits must not change afterwards.
    """
    to_points = 72 / axes.figure.dpi
    height = axes.get_window_extent().height * to_points
    bottom = axes.get_window_extent().y0
    wanted = [(axes.transData.transform(point)[1] - bottom) * to_points for point in at]
    for point, name, place in zip(at, names, spread(wanted, _LABEL, height), strict=True):
        axes.annotate(
            name,
            point,
            xycoords="data",
            xytext=(1.015, place / height),
            textcoords="axes fraction",
            va="center",
            size=9,
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6},
        )


def spread(places: Sequence[float], apart: float, top: float) -> list[float]:
    """Places at least `apart`, in the same order, and no farther from where they were than needed.

    All are between 0 and `top`, unless there are too many.
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    groups: list[list[float]] = []  # of labels that touch: where each would have its first
    for rank, number in enumerate(order):
        groups.append([places[number] - rank * apart])
        while len(groups) > 1 and mean(groups[-2]) >= mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    firsts = [mean(group) for group in groups for _ in group]
    most = top - (len(places) - 1) * apart
    found = [0.0] * len(places)
    for rank, number in enumerate(order):
        found[number] = min(max(firsts[rank], 0.0), max(most, 0.0)) + rank * apart
    return found


def save(figure: Any, path: Path) -> None:
    """Write a figure reproducibly: without a date, and with text in SVG as text."""
    import matplotlib
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=_DPI, metadata=metadata)
    if path.suffix.lower() == ".png":  # plots have few colours: a third of the bytes
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def plain_numbers(axis: "Axis", subs: Sequence[int] = (1, 2, 3, 5)) -> None:
    """Plain numbers at the ticks of a logarithmic axis: at multiples `subs` of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def label_axes(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
