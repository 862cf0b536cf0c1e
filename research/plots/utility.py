"""Figures of the experiments that train, drawn from their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from research.plots.style import BLUE, GREEN, GREY, ORANGE, RED, label_axes, save
from research.select_results import best_setting
from uedp.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Result = Mapping[str, Any]
Row = Mapping[str, Any]


def against_epsilon(result: Result, path: Path) -> None:
    """The measure against epsilon, one panel per data set or model.

    The bottom axis shows the proven epsilon, the top axis, on the same scale, the epsilon of the
    paper's accountant for the same run (hollow marks).
    """
    figure, axes = new_figure(path, 1, len(result["panels"]))
    for panel, (key, title) in zip(np.atleast_1d(axes), result["panels"].items(), strict=True):
        rows = [r for r in result["rows"] if r["panel"] == key and r["test"] is not None]
        _epsilon_panel(panel, rows)
        panel.set_title(title)
        _logarithmic(panel, result["measure"] != "error rate")
        label_axes(panel, "epsilon, proven", result["measure"])
        if any(row["published"] is not None for row in rows):
            _published_axis(panel)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, fontsize=7)
        else:
            panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", color=GREY)
    save(figure, path)


def _epsilon_panel(axes: "Axes", rows: Sequence[Row]) -> None:
    whole = [row for row in rows if row["extended_rate"] == 1.0]
    for method, name, colour, mark in (
        ("rotation", "rotation: users and entities", BLUE, "o"),
        ("user-level", "user-level: users", ORANGE, "s"),
    ):
        own = [row for row in whole if row["method"] == method]
        targets = sorted({row["target"] for row in own if row["target"] is not None})
        points = [best for t in targets if (best := best_setting(own, target=t, category="all"))]
        if points:
            _line(axes, points, name, colour, mark)
        for target in targets:
            _categories(axes, [row for row in own if row["target"] == target], colour)
    used = [row for row in rows if row["extended_rate"]]
    _alg(axes, best_setting(used, method="uedp-alg", category="all"))
    for method, name, style in (
        ("deidentified", "de-identified", "--"),
        ("noiseless", "noiseless", ":"),
    ):
        if best := best_setting(whole, method=method):
            colour = GREEN if method == "deidentified" else GREY
            level = mean(row["test"] for row in best)
            axes.axhline(level, color=colour, linestyle=style, label=f"{name} (no guarantee)")


def _categories(axes: "Axes", rows: Sequence[Row], colour: str) -> None:
    """A dot for the mean of each category, and their names beside them, highest first."""
    names = sorted({row["category"] for row in rows} - {"all"})
    means = {name: mean(r["test"] for r in best_setting(rows, category=name)) for name in names}
    if not means:
        return
    at = rows[0]["epsilon"]
    for level in means.values():
        axes.plot(at, level, ".", color=colour, alpha=0.5)
    middle, label = (at, mean(means.values())), "\n".join(sorted(means, key=lambda n: -means[n]))
    axes.annotate(
        label, middle, size=6, color=colour, xytext=(6, 0), textcoords="offset points", va="center"
    )


def _published_axis(axes: "Axes") -> None:
    above = axes.secondary_xaxis("top")
    above.set_xlabel("epsilon, published (hollow marks; not a guarantee)", fontsize=8, color=RED)
    _plain_numbers(above.xaxis)
    above.tick_params(labelsize=7)


def _logarithmic(axes: "Axes", both: bool) -> None:
    """Logarithmic epsilon, and perplexity."""
    axes.set(xscale="log", yscale="log" if both else "linear")
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        _plain_numbers(axis)


def _plain_numbers(axis: "Axis") -> None:
    """Plain numbers at the ticks of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _line(axes: "Axes", points: Sequence[Sequence[Row]], name: str, colour: str, mark: str) -> None:
    """Means, with bars over the range of repeats."""
    at = [rows[0]["epsilon"] for rows in points]
    capsize = 3 if any(len(rows) > 1 for rows in points) else 0
    means, below, above = _bars(points)
    axes.errorbar(
        at,
        means,
        yerr=(below, above),
        color=colour,
        marker=mark,
        markersize=4,
        capsize=capsize,
        label=name,
    )
    published = [(rows[0]["published"], m) for rows, m in zip(points, means, strict=True)]
    hollow = [(epsilon, level) for epsilon, level in published if epsilon is not None]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), mark, color=colour, markersize=4, fillstyle="none")


def _bars(points: Sequence[Sequence[Row]]) -> tuple[list[float], list[float], list[float]]:
    tests = [[row["test"] for row in rows] for rows in points]
    means = [mean(values) for values in tests]
    below = [m - min(values) for m, values in zip(means, tests, strict=True)]
    above = [max(values) - m for m, values in zip(means, tests, strict=True)]
    return means, below, above


def _alg(axes: "Axes", rows: Sequence[Row]) -> None:
    if not rows:
        return
    one, level = rows[0], mean(row["test"] for row in rows)
    label = "UeDP-Alg, the paper's noise"
    axes.plot(one["epsilon"], level, "D", color=RED, markersize=5, label=label)
    if one["published"] is not None:
        axes.plot(one["published"], level, "D", color=RED, markersize=5, fillstyle="none")
        axes.plot([one["published"], one["epsilon"]], [level] * 2, ":", color=RED, linewidth=0.8)


def against_extended_rate(result: Result, path: Path) -> None:
    """The measure against the rate (top) and against the predicted merit (bottom)."""
    figure, axes = new_figure(path, 2, len(result["series"]))
    columns = np.reshape(axes, (2, -1)).T  # also of a single sweep
    for (upper, lower), sweep in zip(columns, result["series"].values(), strict=True):
        rows = sweep["rows"]
        base = next(row for row in rows if row["extended_rate"] == 1)
        swept = [row for row in rows if all(row[k] == base[k] for k in _SAME)]
        _measured(upper, sorted(swept, key=lambda row: row["extended_rate"]), "extended_rate")
        upper.set_xlim(-0.05, 1.05)
        label_axes(upper, "rate of extended entities, q_s", sweep["measure"])
        upper.set_title(sweep["title"])
        top = max(row["predicted"]["merit"] for row in rows)
        merits = [{**row, "merit": row["predicted"]["merit"] / top} for row in rows]
        _measured(lower, merits, "merit", joined=False)
        label_axes(lower, "predicted merit relative to the best", sweep["measure"])
    save(figure, path)


_SAME = ("user_rate", "rounds", "share")


def _measured(axes: "Axes", rows: Sequence[Row], over: str, joined: bool = True) -> None:
    ran = [row for row in rows if row["test"] is not None]
    if not ran:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=GREY)
        return
    at = [row[over] for row in ran]
    for part, colour, mark in (("validation", GREY, "s"), ("test", BLUE, "o")):
        style = mark + ("-" if joined else "")
        axes.plot(at, [row[part] for row in ran], style, color=colour, markersize=4, label=part)
    lowest, highest = ([of(row["tests"]) for row in ran] for of in (min, max))
    axes.vlines(at, lowest, highest, color=BLUE, linewidth=1)
    axes.legend(frameon=False, fontsize=7)


def estimator_bars(result: Result, path: Path) -> None:
    """Error rates of the estimators, without noise and with the stated noise."""
    from research.experiments.estimators import by_estimator

    figure, axes = new_figure(path, 1, 1)
    named = list(by_estimator(result))
    for offset, which, name, colour in (
        (-0.2, 1, "without noise", GREY),
        (0.2, 0, "with the stated noise", BLUE),
    ):
        for place, (_, *parts) in enumerate(named):
            tests = [row["test"] for row in parts[which]]
            if tests:
                axes.bar(place + offset, mean(tests), 0.38, color=colour)
                axes.vlines(place + offset, min(tests), max(tests), color=RED, linewidth=1)
            else:
                axes.text(place + offset, 0.02, "not run", rotation=90, size=7, ha="center")
        axes.bar(0, 0, color=colour, label=name)
    axes.axhline(result["guessing"], color=RED, linestyle="--", linewidth=1, label="guessing")
    axes.set(xticks=range(len(named)), xticklabels=[name for name, *_ in named], ylim=(0, 1))
    label_axes(axes, "", "error rate")
    axes.legend(frameon=False, fontsize=7, ncols=3)
    save(figure, path)
