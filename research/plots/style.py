"""Colours, axes and files of all figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Matplotlib takes a second to import; only a plot should pay for it
    from matplotlib.axes import Axes

BLUE, RED, GREEN, GREY, ORANGE = "#3b6ea5", "#c0504d", "#6a9a3b", "#7f7f7f", "#d08c2f"
_DPI = 100


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


def label_axes(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
