"""Figures of the experiments that train. Each is drawn from an experiment's result alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from research.plots.experiments import BLUE, GREEN, GREY, ORANGE, RED, name_axes, save
from research.select_results import chosen
from uedp.report.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Result = Mapping[str, Any]
Row = Mapping[str, Any]


def against_epsilon(result: Result, path: Path) -> None:
    """The measure against epsilon, a panel for each data set or model.

    Epsilon has two axes of one scale: below what is proven, above, for hollow marks, where the
    paper's accountant has the same run.
    """
    figure, axes = new_figure(path, 1, len(result["panels"]))
    for panel, (key, title) in zip(np.atleast_1d(axes), result["panels"].items(), strict=True):
        rows = [r for r in result["rows"] if r["panel"] == key and r["test"] is not None]
        _epsilon_panel(panel, rows)
        panel.set_title(title)
        _logarithmic(panel, result["measure"] != "error rate")
        name_axes(panel, "epsilon, proven", result["measure"])
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
        ("rotation", "rotation: users with entities", BLUE, "o"),
        ("user-level", "user-level: users alone", ORANGE, "s"),
    ):
        own = [row for row in whole if row["method"] == method]
        targets = sorted({row["target"] for row in own if row["target"] is not None})
        points = [found for t in targets if (found := chosen(own, target=t, category="all"))]
        if points:
            _line(axes, points, name, colour, mark)
        for target in targets:
            _categories(axes, [row for row in own if row["target"] == target], colour)
    used = [row for row in rows if row["extended_rate"]]
    _alg(axes, chosen(used, method="uedp-alg", category="all"))
    for method, name, style in (
        ("deidentified", "de-identified", "--"),
        ("noiseless", "noiseless", ":"),
    ):
        if found := chosen(whole, method=method):
            colour = GREEN if method == "deidentified" else GREY
            level = mean(row["test"] for row in found)
            axes.axhline(level, color=colour, linestyle=style, label=f"{name} (no guarantee)")


def _categories(axes: "Axes", rows: Sequence[Row], colour: str) -> None:
    """A dot for the mean of each category, and beside them their names, the highest first."""
    names = sorted({row["category"] for row in rows} - {"all"})
    means = {name: mean(r["test"] for r in chosen(rows, category=name)) for name in names}
    if not means:
        return
    at = rows[0]["epsilon"]
    for level in means.values():
        axes.plot(at, level, ".", color=colour, alpha=0.5)
    middle, told = (at, mean(means.values())), "\n".join(sorted(means, key=lambda n: -means[n]))
    axes.annotate(
        told, middle, size=6, color=colour, xytext=(6, 0), textcoords="offset points", va="center"
    )


def _published_axis(axes: "Axes") -> None:
    above = axes.secondary_xaxis("top")
    above.set_xlabel("epsilon, published (hollow marks; not a guarantee)", fontsize=8, color=RED)
    _plain_numbers(above.xaxis)
    above.tick_params(labelsize=7)


def _logarithmic(axes: "Axes", upwards_too: bool) -> None:
    """Epsilon, and perplexity too, by ratio."""
    axes.set(xscale="log", yscale="log" if upwards_too else "linear")
    for axis in (axes.xaxis, axes.yaxis) if upwards_too else (axes.xaxis,):
        _plain_numbers(axis)


def _plain_numbers(axis: "Axis") -> None:
    """At the ticks of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _line(axes: "Axes", points: Sequence[Sequence[Row]], name: str, colour: str, mark: str) -> None:
    """Means, with bars from the least to the most where a run was repeated."""
    at = [found[0]["epsilon"] for found in points]
    capsize = 3 if any(len(found) > 1 for found in points) else 0
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
    both = [(f[0]["published"], m) for f, m in zip(points, means, strict=True)]
    hollow = [(at, level) for at, level in both if at is not None]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), mark, color=colour, markersize=4, fillstyle="none")


def _bars(points: Sequence[Sequence[Row]]) -> tuple[list[float], list[float], list[float]]:
    tests = [[row["test"] for row in found] for found in points]
    means = [mean(values) for values in tests]
    below = [m - min(values) for m, values in zip(means, tests, strict=True)]
    above = [max(values) - m for m, values in zip(means, tests, strict=True)]
    return means, below, above


def _alg(axes: "Axes", found: Sequence[Row]) -> None:
    if not found:
        return
    one, level = found[0], mean(row["test"] for row in found)
    label = "UeDP-Alg, the paper's noise"
    axes.plot(one["epsilon"], level, "D", color=RED, markersize=5, label=label)
    if one["published"] is not None:
        axes.plot(one["published"], level, "D", color=RED, markersize=5, fillstyle="none")
        axes.plot([one["published"], one["epsilon"]], [level] * 2, ":", color=RED, linewidth=0.8)


def against_extended_rate(result: Result, path: Path) -> None:
    """Above, the measure against the rate; below, against what was predicted of all options."""
    figure, axes = new_figure(path, 2, len(result["series"]))
    for column, series in enumerate(result["series"].values()):
        rows = series["rows"]
        base = next(row for row in rows if row["extended_rate"] == 1)
        swept = [row for row in rows if all(row[k] == base[k] for k in _SAME)]
        _measured(
            axes[0][column], sorted(swept, key=lambda row: row["extended_rate"]), "extended_rate"
        )
        axes[0][column].set_xlim(-0.05, 1.05)
        name_axes(axes[0][column], "rate of extended entities, q_s", series["measure"])
        axes[0][column].set_title(series["title"])
        top = max(row["predicted"]["merit"] for row in rows)
        merits = [{**row, "merit": row["predicted"]["merit"] / top} for row in rows]
        _measured(axes[1][column], merits, "merit", joined=False)
        name_axes(axes[1][column], "predicted signal to noise, of the best", series["measure"])
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
    """Error rates of the estimators, without noise and with the noise of their text."""
    from research.estimators import by_estimator

    figure, axes = new_figure(path, 1, 1)
    named = list(by_estimator(result))
    for offset, which, name, colour in (
        (-0.2, 1, "without noise", GREY),
        (0.2, 0, "with the noise of its text", BLUE),
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
    axes.set(xticks=range(len(named)), xticklabels=[found[0] for found in named], ylim=(0, 1))
    name_axes(axes, "", "error rate")
    axes.legend(frameon=False, fontsize=7, ncols=3)
    save(figure, path)
