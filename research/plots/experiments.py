"""Figures of the experiments that train nothing, drawn from their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from research.plots.style import BLUE, GREEN, GREY, ORANGE, RED, label_axes, save
from uedp.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]


def breakdown_histograms(data: Result, path: Path) -> None:
    """Sentences per user, as in the paper, and users per entity; one column per data set."""
    figure, axes = new_figure(path, 2, len(data))
    for column, own in enumerate(data.values()):
        upper, lower = axes[0][column], axes[1][column]
        upper.set_title(own["title"])
        values, times = _pairs(own["histograms"]["sentences_per_user"])
        width = max(1, int(values.max(initial=1)) // 60)
        edges = np.arange(0.5, values.max(initial=1) + width + 0.5, width)
        upper.hist(values, bins=edges, weights=times, color=BLUE)
        label_axes(upper, "sentences per user", "users")
        values, times = _pairs(own["histograms"]["holders"])
        # edges between integers, so that no bin is empty by rounding
        edges = np.unique(np.round(np.geomspace(1, values.max(initial=1) + 1, 40))) - 0.5
        lower.hist(values, bins=edges, weights=times, color=BLUE)
        lower.set(xscale="log", yscale="log")
        label_axes(lower, "users who mention an entity", "entities")
    save(figure, path)


def _pairs(histogram: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([int(value) for value in histogram])
    return values, np.array(list(histogram.values()))


def coverage_bars(gold: Result, claimed: float, path: Path) -> None:
    """Marked words covered by a detector's hits, and by every mention of them."""
    figure, axes = new_figure(path, 1, len(gold))
    for panel, (title, detectors) in zip(np.atleast_1d(axes), gold.items(), strict=True):
        at = np.arange(len(detectors))
        for key, name, offset, colour in (
            ("hits", "hits", -0.2, GREY),
            ("every_mention", "every mention of them", 0.2, BLUE),
        ):
            rows = [own[key]["all"] for own in detectors.values()]
            rates = [row["words_covered"] / max(row["words"], 1) for row in rows]
            panel.barh(at + offset, rates, height=0.38, color=colour, label=name)
        panel.axvline(
            claimed, color=RED, linestyle="--", linewidth=1, label=f"the paper's {claimed:.0%}"
        )
        panel.set(yticks=at, yticklabels=list(detectors), xlim=(0, 1), title=title)
        panel.invert_yaxis()
        label_axes(panel, "marked words covered", "")
    figure.legend(
        *np.atleast_1d(axes)[0].get_legend_handles_labels(),
        ncols=3,
        loc="outside lower center",
        frameon=False,
    )
    save(figure, path)


def budget_panels(result: Result, path: Path) -> None:
    """Epsilon against rounds: published above, proven below, on the same scale."""
    figure, axes = new_figure(path, 2, len(result["data"]))
    rounds = result["rounds"]
    for column, own in enumerate(result["data"].values()):
        upper, lower = axes[0][column], axes[1][column]
        _published_panel(upper, rounds, own["published"])
        _proven_panel(lower, rounds, own["proven"])
        upper.set_title(f"{own['title']}, published: NOT A GUARANTEE", color=RED, size=10)
        every = own["proven"]["categories"]["all"]
        holders = f"most common: {every['most_holders']} users, median: {every['median_holders']}"
        lower.set_title(f"{own['title']}, proven ({holders})", color=BLUE, size=10)
        for panel in (upper, lower):
            panel.set(yscale="log", ylim=(1e-3, 1e3), xlim=(0, 1.13 * rounds[-1]))
            label_axes(panel, "rounds", f"epsilon at delta {result['delta']:g}")
    for row, place in ((0, "outside upper center"), (1, "outside lower center")):
        handles, names = axes[row][0].get_legend_handles_labels()
        figure.legend(handles, names, loc=place, ncols=len(names), frameon=False, fontsize=9)
    save(figure, path)


def _published_panel(axes: "Axes", rounds: Sequence[int], curves: Result) -> None:
    for name, key, colour in (("user-level", "user", GREY), ("f_E", "f_e", ORANGE)):
        axes.plot(rounds, curves[key], color=colour, linestyle="--", linewidth=1.2, label=name)
    every = curves["f_e_plus"]["all"]
    axes.plot(rounds, every, color=RED, linestyle="--", linewidth=1.8, label="f_E+, all entities")
    _each_category(axes, rounds, curves["f_e_plus"], RED, "--", "f_E+, each category")
    at, values = zip(*((row["rounds"], row["printed"]) for row in curves["printed"]), strict=True)
    axes.plot(at, values, "x", markersize=5, color="black", label="printed in the paper")


def _proven_panel(axes: "Axes", rounds: Sequence[int], curves: Result) -> None:
    every = curves["categories"]["all"]
    for name, values, colour, width in (
        ("UeDP-Alg, an entity that everybody mentions", curves["everybody"], RED, 1.2),
        ("the most common one", every["most"], ORANGE, 1.8),
        ("the median one", every["median"], GREEN, 1.2),
        ("user level", curves["user_alone"], GREY, 1.2),
        (
            "rotation, any entity, equal noise-to-signal ratio",
            curves["rotation"]["epsilon"],
            BLUE,
            1.8,
        ),
    ):
        if values is not None:
            axes.plot(rounds, values, color=colour, linewidth=width, label=name)
    each = {category: here["most"] for category, here in curves["categories"].items()}
    _each_category(axes, rounds, each, ORANGE, "-", "the most common of each category")


def _each_category(
    axes: "Axes", rounds: Sequence[int], curves: Result, colour: str, style: str, name: str
) -> None:
    """A thin line for each category, with its name at the end; names do not overlap."""
    drawn = {c: values for c, values in curves.items() if c != "all" and values is not None}
    floor = 0.0
    for number, category in enumerate(sorted(drawn, key=lambda c: float(drawn[c][-1]))):
        values = drawn[category]
        label = name if number == 0 else None
        axes.plot(rounds, values, color=colour, linestyle=style, linewidth=0.7, label=label)
        floor = max(values[-1], 1.4 * floor)
        axes.text(1.01 * rounds[-1], floor, category, size=7, color=colour, va="center")
