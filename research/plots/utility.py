"""Figures of the experiments that train, drawn from their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from research.parts import Measured, measured_apart
from research.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
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
from research.select_results import PUBLIC_FIRST, best_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]
Row = Mapping[str, Any]


METHODS = (
    ("rotation", "rotation: users and entities", BLUE, "o"),
    ("fair-shares", "fair shares: users and entities", PURPLE, "^"),
    ("user-level", "user-level: users", ORANGE, "s"),
    (f"fair-shares{PUBLIC_FIRST}", "fair shares, public text first", PURPLE, "^"),
    (f"user-level{PUBLIC_FIRST}", "user-level, public text first", ORANGE, "s"),
)


def against_epsilon(result: Result, path: Path) -> None:
    """The measure against epsilon, one panel per data set or model; then where the cost falls.

    The bottom axis shows the proven epsilon, the top axis, on the same scale, the epsilon of the
    paper's accountant for the same run (hollow marks).
    """
    apart = {key: measured_apart(result["rows"], key) for key in result["panels"]}
    apart = {key: measured for key, measured in apart.items() if measured}
    heights = [0.9 + 0.27 * (len(measured) + 1) for measured in apart.values()]
    users = [3.6] if result.get("by_users") else []
    figure, every = stacked_panels(path, ([3.6] * len(result["panels"]) + heights + users) or [3.6])
    panels, lower = every[: len(result["panels"])], every[len(result["panels"]) :]
    if not (heights or users or panels):
        lower.pop().text(0.5, 0.5, "not run", ha="center", color=GREY)
    if users:
        _users_panel(lower.pop(), result["by_users"])
    drawn = []
    for panel, (key, name) in zip(panels, result["panels"].items(), strict=True):
        rows = [r for r in result["rows"] if r["panel"] == key and r["test"] is not None]
        _epsilon_panel(panel, rows)
        title(panel, name)
        _logarithmic(panel, result["measure"] != "error rate")
        label_axes(panel, "epsilon, proven", result["measure"])
        if any(row["published"] is not None for row in rows):
            _published_axis(panel)
        if not panel.get_legend_handles_labels()[0]:
            panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", color=GREY)
        drawn.append((panel, rows))
    for panel, (key, measured) in zip(lower, apart.items(), strict=True):
        _parts_panel(panel, measured, result["measure"])
        title(panel, f"{result['panels'][key]}, where the cost falls")
        panel_legend(panel)
    legend_above(figure, panels)
    figure.draw_without_rendering()  # lays the panels out
    for panel, rows in drawn:
        _categories(panel, rows)
    save(figure, path)


def _users_panel(axes: "Axes", by_users: Sequence[Row]) -> None:
    """The ratio to user-level DP against the number of users."""
    for method, name, colour, mark in METHODS:
        targets = sorted({one["target"] for one in by_users if one["method"] == method})
        for target, style in zip(reversed(targets), ("-", "--", ":"), strict=False):
            own = [one for one in by_users if (one["method"], one["target"]) == (method, target)]
            at, ratios = [one["users"] for one in own], [one["ratio"] for one in own]
            label = f"{name.partition(':')[0]}, epsilon {target:g}"
            axes.plot(at, ratios, style + mark, color=colour, markersize=5, label=label)
    axes.axhline(1.0, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(counts := sorted({one["users"] for one in by_users}))
    axes.set_xticks([], minor=True)
    axes.set_xticklabels([f"{count:,}" for count in counts])
    label_axes(axes, "users", "ratio to user-level DP")
    title(axes, "Blogs, by the number of users")
    panel_legend(axes, 2)


def _parts_panel(axes: "Axes", measured: Sequence[Measured], measure: str) -> None:
    """A line per method, from other tokens to names, with the mark of all tokens between."""
    named = ("without entities", "all", "with entities")
    if measure != "error rate":
        named = ("other tokens", "all tokens", "names")
    for place, one in enumerate(measured):
        axes.plot([one.others, one.names], [place, place], color=GREY, linewidth=1, zorder=1)
    at = range(len(measured))
    for name, values, mark, colour in (
        (named[0], [one.others for one in measured], "o", BLUE),
        (named[1], [one.whole for one in measured], "|", "black"),
        (named[2], [one.names for one in measured], "D", RED),
    ):
        axes.plot(values, at, mark, color=colour, markersize=7, linestyle="none", label=name)
    axes.set_yticks(at, [one.label.replace("epsilon ", "") for one in measured])
    axes.set_ylim(len(measured) - 0.5, -0.5)
    if measure != "error rate":
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
    label_axes(axes, measure, "")


def _epsilon_panel(axes: "Axes", rows: Sequence[Row]) -> None:
    whole = [row for row in rows if row["extended_rate"] == 1.0]
    for method, name, colour, mark in METHODS:
        own = [row for row in whole if row["method"] == method]
        targets = sorted({row["target"] for row in own if row["target"] is not None})
        points = [best for t in targets if (best := best_setting(own, target=t, category="all"))]
        if points:
            style = "--" if method.endswith(PUBLIC_FIRST) else "-"
            _line(axes, points, name, colour, mark, style)
        for one in _category_means(own):
            axes.plot(*one[1], ".", color=colour, alpha=0.6)
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


def _category_means(rows: Sequence[Row]) -> list[tuple[str, tuple[float, float]]]:
    """The name of each single category that was protected, its epsilon and its mean."""
    found = []
    for target in sorted({row["target"] for row in rows if row["target"] is not None}):
        own = [row for row in rows if row["target"] == target]
        for name in sorted({row["category"] for row in own} - {"all"}):
            best = best_setting(own, category=name)
            level = mean(row["test"] for row in best)
            found.append((name, (float(best[0]["epsilon"]), level)))
    return found


def _categories(axes: "Axes", rows: Sequence[Row]) -> None:
    """The names of single categories, in the margin."""
    whole = [row for row in rows if row["extended_rate"] == 1.0]
    for method, _, colour, _ in METHODS:
        if found := _category_means([row for row in whole if row["method"] == method]):
            label_at_right(
                axes, [at for _, at in found], [f"{name} only" for name, _ in found], colour
            )


def _published_axis(axes: "Axes") -> None:
    above = axes.secondary_xaxis("top")
    above.set_xlabel("epsilon, published (hollow marks; not a guarantee)", fontsize=9, color=RED)
    plain_numbers(above.xaxis)
    above.tick_params(labelsize=8)


def _logarithmic(axes: "Axes", both: bool) -> None:
    """Logarithmic epsilon, and perplexity."""
    axes.set(xscale="log", yscale="log" if both else "linear")
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        plain_numbers(axis)


def _line(
    axes: "Axes", points: Sequence[Sequence[Row]], name: str, colour: str, mark: str, style: str
) -> None:
    """Means, with bars over the range of repeats."""
    at = [rows[0]["epsilon"] for rows in points]
    capsize = 3 if any(len(rows) > 1 for rows in points) else 0
    means, below, above = _bars(points)
    axes.errorbar(
        at,
        means,
        yerr=(below, above),
        color=colour,
        linestyle=style,
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
    """For each sweep that ran, the measure against the rate and against the predicted merit."""
    planned = list(result["series"].values())
    ran = [sweep for sweep in planned if any(row["test"] is not None for row in sweep["rows"])]
    shown = ran or planned[:1]
    figure, panels = stacked_panels(path, [3.2] * 2 * len(shown))
    for upper, lower, sweep in zip(panels[::2], panels[1::2], shown, strict=True):
        rows = sweep["rows"]
        base = next(row for row in rows if row["extended_rate"] == 1)
        swept = [row for row in rows if all(row[k] == base[k] for k in _SAME)]
        _measured(upper, sorted(swept, key=lambda row: row["extended_rate"]), "extended_rate")
        upper.set_xlim(-0.05, 1.05)
        label_axes(upper, "rate of extended entities, q_s", sweep["measure"])
        top = max(row["predicted"]["merit"] for row in rows)
        merits = [{**row, "merit": row["predicted"]["merit"] / top} for row in rows]
        _measured(lower, merits, "merit", joined=False)
        label_axes(lower, "predicted merit relative to the best", sweep["measure"])
        for panel in (upper, lower):
            title(panel, sweep["title"])
            panel_legend(panel)
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


def estimator_bars(result: Result, path: Path) -> None:
    """Error rates of the estimators, without noise and with the stated noise."""
    from research.experiments.estimators import by_estimator

    figure, (axes,) = stacked_panels(path, [3.6])
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
                axes.text(place + offset, 0.02, "not run", rotation=90, size=9, ha="center")
        axes.bar(0, 0, color=colour, label=name)
    axes.axhline(result["guessing"], color=RED, linestyle="--", linewidth=1, label="guessing")
    axes.set(xticks=range(len(named)), xticklabels=[name for name, *_ in named], ylim=(0, 1))
    label_axes(axes, "", "error rate")
    panel_legend(axes)
    save(figure, path)
