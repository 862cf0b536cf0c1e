"""Figures of audits."""

from collections.abc import Mapping
from pathlib import Path

from uedp.audit.verdict import MechanismAudit
from uedp.report.plots import new_figure, save

_MARKS = {
    "lower bound, threshold": ("o", "#3b6ea5"),
    "lower bound, Gaussian fit": ("D", "#7ba7d0"),
    "lower bound, proven curve": ("s", "#6a9a3b"),
    "proven": ("|", "#222222"),
    "published (not a privacy guarantee)": ("x", "#c0504d"),
}


def mechanism_bounds(audits: Mapping[str, MechanismAudit], path: Path) -> None:
    """A row per named audit: its lower bounds, what is proven, and what was published.

    The axis is logarithmic, so a bound of 0, which proves nothing, is not drawn.
    """
    figure, axes = new_figure(path, 1, 1)
    figure.set_size_inches(9.0, 1.8 + 0.33 * len(audits))
    rows = [values(audit) for audit in audits.values()]
    for name, (marker, colour) in _MARKS.items():
        points = [(row[name], place) for place, row in enumerate(rows) if row[name]]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                marker,
                color=colour,
                label=name,
                markersize=13 if marker == "|" else 6,
                markeredgewidth=2 if marker in "|x" else 1,
            )
    axes.set_yticks(range(len(audits)), list(audits))
    axes.set_ylim(len(audits) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    deltas = sorted({audit.delta for audit in audits.values()})
    axes.set_xlabel("epsilon at delta " + ", ".join(f"{delta:g}" for delta in deltas))
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    save(figure, path)


def values(audit: MechanismAudit) -> dict[str, float | None]:
    """What a row shows, by its name in the legend; None is not there."""
    curve = audit.curve.epsilon if audit.curve else None
    shown = (audit.threshold.epsilon, audit.gaussian.epsilon, curve, audit.proven, audit.published)
    return dict(zip(_MARKS, shown, strict=True))
