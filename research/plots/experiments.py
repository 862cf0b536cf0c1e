"""Figures of the experiments that train nothing, drawn from their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from research.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    label_at_right,
    label_axes,
    legend_above,
    panel_legend,
    plain_numbers,
    save,
    stacked_panels,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]


def breakdown_histograms(data: Result, path: Path) -> None:
    """Sentences per user, as in the paper, and users per entity, of each data set."""
    figure, panels = stacked_panels(path, [2.6] * 2 * len(data))
    for upper, lower, own in zip(panels[::2], panels[1::2], data.values(), strict=True):
        for panel in (upper, lower):
            title(panel, own["title"])
        values, times = _pairs(own["histograms"]["sentences_per_user"])
        width = max(1, int(values.max(initial=1)) // 60)
        edges = np.arange(0.5, values.max(initial=1) + width + 0.5, width)
        upper.hist(values, bins=edges.tolist(), weights=times, color=BLUE)
        label_axes(upper, "sentences per user", "users")
        values, times = _pairs(own["histograms"]["holders"])
        # edges between integers, so that no bin is empty by rounding
        edges = np.unique(np.round(np.geomspace(1, values.max(initial=1) + 1, 40))) - 0.5
        lower.hist(values, bins=edges.tolist(), weights=times, color=BLUE)
        lower.set(xscale="log", yscale="log")
        plain_numbers(lower.xaxis, (1, 2, 5))
        plain_numbers(lower.yaxis, (1,))
        label_axes(lower, "users who mention an entity", "entities")
    save(figure, path)


def _pairs(histogram: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([int(value) for value in histogram])
    return values, np.array(list(histogram.values()))


def coverage_bars(gold: Result, claimed: float, path: Path) -> None:
    """Marked words covered by a detector's hits, and by every mention of them."""
    figure, panels = stacked_panels(path, [0.9 + 0.42 * len(each) for each in gold.values()])
    for panel, (name_of_gold, detectors) in zip(panels, gold.items(), strict=True):
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
        panel.set(yticks=at, yticklabels=list(detectors), xlim=(0, 1))
        title(panel, name_of_gold)
        panel.invert_yaxis()
        label_axes(panel, "marked words covered", "")
    legend_above(figure, panels)
    save(figure, path)


def budget_panels(result: Result, path: Path) -> None:
    """Epsilon against rounds of each data set: published, then proven, on the same scale."""
    figure, panels = stacked_panels(path, [3.9] * 2 * len(result["data"]))
    rounds, labelled = result["rounds"], []
    for upper, lower, own in zip(panels[::2], panels[1::2], result["data"].values(), strict=True):
        labelled.append((upper, _published_panel(upper, rounds, own["published"]), RED))
        labelled.append((lower, _proven_panel(lower, rounds, own["proven"]), ORANGE))
        title(upper, f"{own['title']}, published: NOT A GUARANTEE", color=RED, pad=26)
        every = own["proven"]["categories"]["all"]
        holders = f"most common: {every['most_holders']} users, median: {every['median_holders']}"
        title(lower, f"{own['title']}, proven ({holders})", color=BLUE, pad=42)
        for panel in (upper, lower):
            panel.set(yscale="log", ylim=(1e-3, 1e3), xlim=(0, rounds[-1]))
            plain_numbers(panel.yaxis, (1,))
            label_axes(panel, "rounds", f"epsilon at delta {result['delta']:g}")
            panel_legend(panel, 5 if panel is upper else 3)
    figure.draw_without_rendering()  # lays the panels out
    for panel, ends, colour in labelled:
        at = [(rounds[-1], float(end)) for end in ends.values()]
        label_at_right(panel, at, list(ends), colour)
    save(figure, path)


def _published_panel(axes: "Axes", rounds: Sequence[int], curves: Result) -> dict[str, float]:
    for name, key, colour in (("user-level", "user", GREY), ("f_E", "f_e", ORANGE)):
        axes.plot(rounds, curves[key], color=colour, linestyle="--", linewidth=1.2, label=name)
    every = curves["f_e_plus"]["all"]
    axes.plot(rounds, every, color=RED, linestyle="--", linewidth=1.8, label="f_E+, all entities")
    ends = _each_category(axes, rounds, curves["f_e_plus"], RED, "--", "f_E+, each category")
    at, values = zip(*((row["rounds"], row["printed"]) for row in curves["printed"]), strict=True)
    axes.plot(
        at, values, "x", markersize=5, color="black", clip_on=False, label="printed in the paper"
    )
    return ends


def _proven_panel(axes: "Axes", rounds: Sequence[int], curves: Result) -> dict[str, float]:
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
    return _each_category(axes, rounds, each, ORANGE, "-", "the most common of each category")


def _each_category(
    axes: "Axes", rounds: Sequence[int], curves: Result, colour: str, style: str, name: str
) -> dict[str, float]:
    """A thin line for each category; returns where each ends."""
    drawn = {c: values for c, values in curves.items() if c != "all" and values is not None}
    for number, values in enumerate(drawn.values()):
        label = name if number == 0 else None
        axes.plot(rounds, values, color=colour, linestyle=style, linewidth=0.7, label=label)
    return {category: values[-1] for category, values in drawn.items()}


def released_bounds(result: Result, titles: Mapping[str, str], path: Path) -> None:
    """The published epsilon of models with the released code's noise, and bounds from below."""
    rows: list[tuple[str, float, float]] = []
    for name, title_ in titles.items():
        run = result["models"][name]["released"]
        for one in () if run is None else run["findings"]:
            label = f"{title_}\n{one['kind']}, {one['score']}"
            rows.append((label, one["epsilon"], run["published"]))
    figure, (axes,) = stacked_panels(path, [1.4 + 0.5 * max(len(rows), 3)])
    at = np.arange(len(rows))
    bounds = [row[1] for row in rows]
    axes.barh(at, bounds, height=0.6, color=BLUE, label="epsilon is at least")
    axes.plot([row[2] for row in rows], at, "|", color=RED, markersize=20, label="published")
    axes.set(yticks=at, yticklabels=[row[0] for row in rows], xlim=(0, None))
    axes.invert_yaxis()
    label_axes(axes, "epsilon", "")
    legend_above(figure, [axes])
    save(figure, path)
