"""Line charts as SVG, for the pages of reports and of the studio.

Colours are CSS variables (`templates/base.css` has them for light, dark and paper); lines also
differ in their dashes and in the shape of their points. A chart has neither ids nor styles of its
own, so that any number of them fit on one page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uedp.errors import UserError
from uedp.report.templates import template

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLOURS = 8  # `--series-1` to `--series-8`
_DASHES = ("", "7 3", "2 3", "10 3 2 3")
_BINS = 150  # of a long line; each keeps its lowest and its highest point
_FEW = 2 * _BINS  # points that are all drawn
_FEW_SHAPES = 30  # points that each get a shape; of more only the last one does
_LONGEST_LABEL = 44  # characters
_MOST_NAMED = 16  # lines that are named below the plot
_FONT, _LETTER = 14, 0.56  # height of text, and the width of a letter relative to it
_SWATCH, _ROW = 30, 21  # in the legend
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a chart; a y that is None or not finite leaves a gap.

    If any line of a chart is emphasised, the others are drawn thin and pale.
    """

    label: str
    x: Sequence[float] | Floats
    y: Sequence[float | None] | Floats
    emphasis: bool = False


@dataclass(frozen=True)
class ChartMark:
    """A vertical line at `x`, a horizontal one at `y`, or with both a point."""

    label: str
    x: float | None = None
    y: float | None = None


def line_chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    mark: ChartMark | None = None,
    size: tuple[int, int] = (520, 300),
) -> str:
    """One `<svg role="img">` element. It grows in height by the names of its lines.

    The title is for those who cannot see the chart, and is not drawn: put it into the caption of
    the figure too, where it can wrap.

    Guarantees:
      - the lowest and the highest point of every line are drawn, however many points there are
      - all text is escaped, and a name that is too long is cut
      - names stand below the plot, never over it
    """
    width, height = size
    points = [_points(line, log_x, log_y) for line in lines]
    at_x, at_y = (None, None) if mark is None else (mark.x, mark.y)
    x_axis = _axis([x for x, _ in points], at_x, log_x)
    y_axis = _axis([y for _, y in points], at_y, log_y, zero=not log_y)
    left = 14 + _FONT + max(_text_width(text) for _, text in y_axis.ticks)
    last = max((_text_width(text) for at, text in x_axis.ticks if at > 0.9), default=0.0)
    plot = _Box(left, 10, width - max(14, last / 2), height - 50)
    styles = [_style(place) for place in range(len(lines))]
    pale = any(line.emphasis for line in lines)
    drawn = []
    for line, (x, y), style in zip(lines, points, styles, strict=True):
        across, up = _thinned(x_axis.place(x), y_axis.place(y))
        path, places = plot.path(across, up)
        if len(places) > _FEW_SHAPES:
            places = places[-1:]
        look = {"width": 2.6 if line.emphasis else 1 if pale else 1.8}
        look["opacity"] = 0.45 if pale and not line.emphasis else 1
        shapes = "".join(_shape(style["shape"], *place) for place in places)
        drawn.append({"label": cut(line.label), "path": path, "shapes": shapes, **style, **look})
    drawn.sort(key=lambda one: one["width"])  # emphasised ones on top
    named = [{"text": cut(line.label), **style} for line, style in zip(lines, styles, strict=True)]
    entries = named[:_MOST_NAMED] if len(lines) > 1 else []
    if len(named) > _MOST_NAMED:
        entries.append({"text": f"and {len(named) - _MOST_NAMED:,} more lines"})
    if mark is not None:
        entries.append({"text": cut(mark.label), "colour": "ink", "dash": "1 4", "shape": "circle"})
    rows = _rows(entries, width - 16)
    return template("chart.svg").render(
        width=width,
        height=height + _ROW * len(rows),
        title=title,
        description=_description(lines, points, x_label, y_label),
        x_label=x_label,
        y_label=y_label,
        plot=plot,
        font=_FONT,
        x_ticks=[(plot.x(at), text) for at, text in _apart(x_axis.ticks, plot.right - plot.left)],
        y_ticks=[(plot.y(at), text) for at, text in y_axis.ticks],
        lines=drawn,
        empty=not any(one["path"] for one in drawn),
        legend=[
            (entry, x, height + 4 + _ROW * row)
            for row, each in enumerate(rows)
            for entry, x in each
        ],
        mark=None if mark is None else _placed(mark, plot, x_axis, y_axis),
        label_y=height - 14,
    )


def number_text(value: float) -> str:
    """A number as an axis shows it: 1,000, 0.05, 3·10¹⁴."""
    size = abs(value)
    if value == 0 or 1e-4 <= size < 1e6:
        return f"{value:,.0f}" if size >= 1000 else f"{value:.5g}"
    power = math.floor(math.log10(size) + 1e-12)
    factor = f"{value / 10.0**power:.3g}"
    times = "" if factor == "1" else f"{factor}·"
    return f"{times}10{str(power).translate(_SUPERSCRIPTS)}"


def cut(text: str, most: int = _LONGEST_LABEL) -> str:
    """The text on one line, cut where it is too long."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- scales --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """A scale to 0..1, and its ticks: where they stand, and what they say."""

    low: float
    high: float
    log: bool
    ticks: Sequence[tuple[float, str]] = ()

    def place(self, values: Any) -> Any:
        scaled = np.log10(values) if self.log else values
        return (scaled - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def x(self, share: float) -> float:
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, share: float) -> float:
        return round(self.bottom - share * (self.bottom - self.top), 1)

    def path(self, across: Floats, up: Floats) -> tuple[str, list[tuple[float, float]]]:
        """The `d` of a line with gaps where it is NaN, and the places of its points."""
        xs = np.round(self.left + across * (self.right - self.left), 1).tolist()
        ys = np.round(self.bottom - up * (self.bottom - self.top), 1).tolist()
        parts, places, command = [], [], "M"
        for x, y in zip(xs, ys, strict=True):
            if y != y:  # NaN
                command = "M"
                continue
            parts.append(f"{command}{x:g} {y:g}")
            places.append((x, y))
            command = "L"
        return "".join(parts), places


def _points(line: Line, log_x: bool, log_y: bool) -> tuple[Floats, Floats]:
    """The coordinates of a line; y is NaN where there is nothing to draw."""
    if len(line.x) != len(line.y):
        raise UserError(f"a line of {len(line.x):,} x and {len(line.y):,} y values")
    x, y = np.array(line.x, dtype=np.float64), np.array(line.y, dtype=np.float64)
    usable = np.isfinite(x) & ((x > 0) | (not log_x))
    x, y = x[usable], y[usable]
    return x, np.where(np.isfinite(y) & ((y > 0) | (not log_y)), y, np.nan)


def _axis(series: Sequence[Floats], marked: float | None, log: bool, zero: bool = False) -> _Axis:
    values = np.concatenate([*series, [] if marked is None else [marked]])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if log:
        return _log_axis(low or 1.0, high)
    if zero and 0 < low < 0.5 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(high) / 2 or 0.5
        low, high = low - half, high + half
    step = _nice((high - low) / 4)
    if zero:  # the ends of a vertical axis are ticks
        low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [
        round(step * place, 12) if step > 1e-9 else step * place for place in range(first, last + 1)
    ]
    plain = _Axis(low, high, False)
    return _Axis(low, high, False, [(float(plain.place(at)), number_text(at)) for at in ticks])


def _log_axis(low: float, high: float) -> _Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    decades = max(last - first, 1)
    factors = (1,) if decades > 3 else (1, 2, 5) if decades > 1 else (1, 2, 3, 5, 7)
    stride = math.ceil(decades / 7)
    bottom, top = math.log10(low), math.log10(high)
    if top - bottom < 0.02:
        bottom, top = bottom - 0.15, top + 0.15
    plain = _Axis(bottom, top, True)
    values = [f * 10.0**p for p in range(first, first + decades + 1, stride) for f in factors]
    inside = [(float(plain.place(value)), number_text(value)) for value in values]
    ticks = [(at, text) for at, text in inside if -1e-9 <= at <= 1 + 1e-9]
    if len(ticks) < 2:
        ends = (10.0**bottom, 10.0**top)
        ticks = [(float(plain.place(at)), number_text(float(f"{at:.2g}"))) for at in ends]
    return _Axis(bottom, top, True, ticks)


def _nice(step: float) -> float:
    """The next step of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(
        power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= step * 0.999
    )


def _apart(ticks: Sequence[tuple[float, str]], width: float) -> list[tuple[float, str]]:
    """Those ticks whose text does not run into the one before."""
    kept: list[tuple[float, str]] = []
    for at, text in ticks:
        before = kept[-1] if kept else (-math.inf, "")
        needed = (_text_width(text) + _text_width(before[1])) / 2 + 8
        if (at - before[0]) * width >= needed:
            kept.append((at, text))
    return kept


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most two points for each of so many bins: the lowest and the highest."""
    if len(x) <= _FEW:
        return x, y
    ascending = bool((np.diff(x) >= 0).all())
    place = x if ascending else np.linspace(0, 1, len(x))
    bins = np.minimum((place * _BINS).astype(np.int64), _BINS - 1)
    edges = np.flatnonzero(np.diff(bins)) + 1
    keep: list[int] = []
    for own in np.split(np.arange(len(x)), edges):
        drawn = own[np.isfinite(y[own])]
        if not len(drawn):  # a gap
            keep.append(int(own[0]))
            continue
        ends = {int(drawn[np.argmin(y[drawn])]), int(drawn[np.argmax(y[drawn])])}
        keep.extend(sorted(ends))
    return x[keep], y[keep]


# --- names and shapes ----------------------------------------------------------------------------


def _style(place: int) -> dict[str, str]:
    """How a line looks; no two of the first 32 look alike, and no two neighbours have one shape."""
    shapes = ("circle", "square", "triangle", "diamond")
    return {
        "colour": f"series-{place % COLOURS + 1}",
        "dash": _DASHES[(place + place // COLOURS) % len(_DASHES)],
        "shape": shapes[(place + place // COLOURS) % len(shapes)],
    }


def _shape(name: str, x: float, y: float) -> str:
    if name == "circle":
        return f"M{x - 3:g} {y:g}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z"
    if name == "square":
        return f"M{x - 3:g} {y - 3:g}h6v6h-6z"
    if name == "triangle":
        return f"M{x - 3.6:g} {y + 3:g}h7.2l-3.6 -6.6z"
    return f"M{x - 4:g} {y:g}l4 -4l4 4l-4 4z"


def _text_width(text: str) -> float:
    return _LETTER * _FONT * len(text)


def _rows(
    entries: Sequence[dict[str, str]], width: float
) -> list[list[tuple[dict[str, str], float]]]:
    """The entries of a legend in rows, each with where it begins."""
    rows: list[list[tuple[dict[str, str], float]]] = []
    at = width + 1.0
    for entry in entries:
        needed = (_SWATCH + 6 if "colour" in entry else 0) + _text_width(entry["text"]) + 14
        if at + needed > width or not rows:
            rows.append([])
            at = 8.0
        swatch = _shape(entry["shape"], 0, 0) if "shape" in entry else ""
        rows[-1].append(({"colour": "", "dash": "", **entry, "swatch": swatch}, round(at, 1)))
        at += needed
    return rows


def _placed(mark: ChartMark, plot: _Box, x_axis: _Axis, y_axis: _Axis) -> dict[str, float | None]:
    x = None if mark.x is None else plot.x(float(x_axis.place(mark.x)))
    y = None if mark.y is None else plot.y(float(y_axis.place(mark.y)))
    return {"x": x, "y": y}


def _description(
    lines: Sequence[Line], points: Sequence[tuple[Floats, Floats]], x_label: str, y_label: str
) -> str:
    """What somebody who cannot see the chart should know of it: each line's ends and range."""
    parts = [f"{y_label} against {x_label}."]
    for line, (_, y) in list(zip(lines, points, strict=True))[:_MOST_NAMED]:
        drawn = np.isfinite(y)
        if not drawn.any():
            parts.append(f"{cut(line.label)}: nothing to show.")
            continue
        ends = [number_text(float(f"{value:.3g}")) for value in y[drawn][[0, -1]]]
        spread = [number_text(float(f"{v:.3g}")) for v in (y[drawn].min(), y[drawn].max())]
        parts.append(
            f"{cut(line.label)}: from {ends[0]} to {ends[1]}, between {spread[0]} and {spread[1]}."
        )
    return " ".join(parts)
