"""The figure of the local-dp experiment."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp.report.plots import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREEN, _RED, _GREY = "#3b6ea5", "#6a9a3b", "#c0504d", "#777777"
_WAYS = {
    ("once", False): ("noise once per article", _BLUE, "o"),
    ("once", True): ("the same after dropout", "#8fb3d9", "s"),
    ("every_visit", False): ("new noise at every visit", _GREEN, "^"),
    ("one_value", False): ("one value per article\n(protects nothing)", _RED, "x"),
}


def local_dp(result: Mapping[str, Any], path: Path) -> None:
    """Error against epsilon, published below and proven above; proven epsilon against visits."""
    figure, (left, right) = new_figure(path, 1, 2)
    _errors(left, result)
    _visits(right, result)
    save(figure, path)


def _errors(axes: "Axes", result: Mapping[str, Any]) -> None:
    noised = [row for row in result["rows"] if row["epsilon"] is not None]
    for (way, dropped), (label, colour, marker) in _WAYS.items():
        rows = [r for r in noised if way in r["errors"] and bool(r["dropout"]) == dropped]
        if not rows:
            continue
        epsilons = [row["epsilon"] for row in rows]
        found = [row["errors"][way] for row in rows]
        means = [sum(each) / len(each) for each in found]
        axes.plot(epsilons, means, marker=marker, markersize=4, color=colour, label=label)
        low, high = list(map(min, found)), list(map(max, found))
        axes.fill_between(epsilons, low, high, color=colour, alpha=0.2, linewidth=0)
    least = result["out_of_reach"]
    axes.fill_between(
        least["epsilons"],
        least["least_error"],
        step="pre",  # between two points the lower one holds
        color=_GREY,
        alpha=0.25,
        linewidth=0,
        label="out of reach of\nindependent noise",
    )
    for row in result["rows"]:
        if row["epsilon"] is None and not row["dropout"]:
            errors = row["errors"]["noiseless"]
            axes.axhline(sum(errors) / len(errors), color=_GREY, linestyle="--", label="no noise")
    axes.axhline(1 - 1 / result["classes"], color=_GREY, linestyle=":", label="guessing")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.25)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel("epsilon as published (not a guarantee)")
    axes.set_ylabel("error rate")
    _proven_above(axes, result["dimensions"])
    axes.spines["right"].set_visible(False)
    axes.legend(frameon=False, fontsize=6, loc="upper center", ncols=3)


def _proven_above(axes: "Axes", dimensions: int) -> None:
    def proven(published: Any) -> Any:
        return published * dimensions

    def published(proven: Any) -> Any:
        return proven / dimensions

    above = axes.secondary_xaxis("top", functions=(proven, published))
    above.set_xlabel(f"epsilon as proven, {dimensions} dimensions, no dropout")


def _visits(axes: "Axes", result: Mapping[str, Any]) -> None:
    found = result["over_visits"]
    flat = [found["published"]] * len(found["visits"])
    for label, values, colour in (
        ("proven", found["proven"], _BLUE),
        (f"proven, delta {result['delta']:g}", found["proven_at_delta"], _GREEN),
        ("published (not a guarantee)", flat, _RED),
    ):
        axes.plot(found["visits"], values, marker="o", markersize=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("visits of an article, each with new noise")
    axes.set_ylabel(f"epsilon, where {found['published']:g} is published")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
