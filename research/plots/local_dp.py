"""The figure of the local-dp experiment."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.plots.style import (
    BLUE,
    GREEN,
    GREY,
    RED,
    panel_legend,
    plain_numbers,
    save,
    stacked_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WAYS = {
    ("once", False): ("noise once per article", BLUE, "o"),
    ("once", True): ("the same after dropout", "#8fb3d9", "s"),
    ("every_visit", False): ("fresh noise at every visit", GREEN, "^"),
    ("one_value", False): ("one value per article (protects nothing)", RED, "x"),
}


def local_dp(result: Mapping[str, Any], path: Path) -> None:
    """Error against epsilon (bottom published, top proven), and proven epsilon against visits."""
    figure, (upper, lower) = stacked_panels(path, [5.0, 3.8])
    _errors(upper, result)
    _visits(lower, result)
    save(figure, path)


def _errors(axes: "Axes", result: Mapping[str, Any]) -> None:
    noised = [row for row in result["rows"] if row["epsilon"] is not None]
    for (way, dropped), (label, colour, marker) in _WAYS.items():
        rows = [r for r in noised if way in r["errors"] and bool(r["dropout"]) == dropped]
        if not rows:
            continue
        epsilons = [row["epsilon"] for row in rows]
        errors = [row["errors"][way] for row in rows]
        means = [sum(each) / len(each) for each in errors]
        axes.plot(epsilons, means, marker=marker, markersize=4, color=colour, label=label)
        low, high = list(map(min, errors)), list(map(max, errors))
        axes.fill_between(epsilons, low, high, color=colour, alpha=0.2, linewidth=0)
    least = result["out_of_reach"]
    axes.fill_between(
        least["epsilons"],
        least["least_error"],
        step="pre",  # the bound between two points is the lower one
        color=GREY,
        alpha=0.25,
        linewidth=0,
        label="impossible with independent noise",
    )
    for row in result["rows"]:
        if row["epsilon"] is None and not row["dropout"]:
            own = row["errors"]["noiseless"]
            axes.axhline(sum(own) / len(own), color=GREY, linestyle="--", label="no noise")
    axes.axhline(1 - 1 / result["classes"], color=GREY, linestyle=":", label="guessing")
    axes.set_xscale("log")
    plain_numbers(axes.xaxis, (1,))
    axes.set_ylim(0, 1)
    axes.set_xlabel("epsilon as published (not a guarantee)")
    axes.set_ylabel("error rate")
    _proven_above(axes, result["dimensions"])
    axes.spines["right"].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.15), ncols=3)


def _proven_above(axes: "Axes", dimensions: int) -> None:
    def proven(published: Any) -> Any:
        return published * dimensions

    def published(proven: Any) -> Any:
        return proven / dimensions

    above = axes.secondary_xaxis("top", functions=(proven, published))
    above.set_xlabel(f"epsilon as proven, {dimensions} dimensions, no dropout", labelpad=8)
    plain_numbers(above.xaxis, (1,))


def _visits(axes: "Axes", result: Mapping[str, Any]) -> None:
    visits = result["over_visits"]
    flat = [visits["published"]] * len(visits["visits"])
    for label, values, colour in (
        ("proven", visits["proven"], BLUE),
        (f"proven, delta {result['delta']:g}", visits["proven_at_delta"], GREEN),
        ("published (not a guarantee)", flat, RED),
    ):
        axes.plot(visits["visits"], values, marker="o", markersize=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_numbers(axes.xaxis, (1, 2, 5))
    plain_numbers(axes.yaxis, (1,))
    axes.set_xlabel("visits of an article, each with fresh noise")
    axes.set_ylabel(f"epsilon, where {visits['published']:g} is published")
    axes.spines[["top", "right"]].set_visible(False)
    panel_legend(axes)
