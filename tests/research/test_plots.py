"""Plots that a reader can read: wide panels, legends beside them, labels that do not collide."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from research.base import Result
from research.catalogue import EXPERIMENTS
from research.plots.style import spread

RESULTS = Path(__file__).parents[2] / "results"
WIDEST = 1020  # pixels: as it is shown on a page, without shrinking


def drawn(name: str, result: Result, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure of an experiment, laid out as it would be saved."""
    from matplotlib.figure import Figure

    seen: list[Any] = []

    def lay_out(figure: Any, *_: Any, **__: Any) -> None:
        figure.draw_without_rendering()
        seen.append(figure)

    monkeypatch.setattr(Figure, "savefig", lay_out)
    EXPERIMENTS[name].draw(result, path / f"{name}.svg")
    return seen[0]


def readable(figure: Any) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()
    panels = [axes.get_window_extent(renderer) for axes in figure.axes]
    assert min(panel.width for panel in panels) >= 700
    assert figure.bbox.width <= WIDEST
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    boxes = [legend.get_window_extent(renderer) for legend in legends]
    for axes in figure.axes:
        titles = [axes.title, axes._left_title]
        texts = [text for text in [*titles, *axes.texts] if text.get_text()]
        boxes += [Text.get_window_extent(text, renderer) for text in texts]  # without arrows
    assert boxes
    # text and legends are inside the figure, and off each other
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width + 1 for box in boxes)
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for legend in legends:
        box = legend.get_window_extent(renderer)
        assert not any(box.overlaps(panel.shrunk(0.99, 0.99)) for panel in panels)


@pytest.mark.parametrize("name", ["budget", "next-word-gpt", "classification", "estimators"])
def test_figures_of_the_page_are_readable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with most in them, of the results that the page shows."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    readable(drawn(name, result, tmp_path, monkeypatch))


def test_where_the_cost_falls_is_drawn_if_it_is_known(
    gpt_result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn("next-word-gpt", gpt_result, tmp_path, monkeypatch)
    readable(figure)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles[3:] == [f"{name}, where the cost falls" for name in titles[:3]]
    last = figure.axes[3]
    named = [label.get_text() for label in last.get_yticklabels()]
    assert named == ["noiseless", "user-level DP, 8", "rotation, 8", *named[3:]]
    without = [{**row, "parts": None} for row in gpt_result["rows"]]
    bare = drawn("next-word-gpt", {**gpt_result, "rows": without}, tmp_path, monkeypatch)
    assert len(bare.axes) == 3


@given(st.lists(st.floats(0, 200), max_size=8), st.floats(1, 30))
def test_labels_are_spread_and_stay_in_order(places: list[float], apart: float) -> None:
    top = 260.0
    found = spread(places, apart, top)
    pairs = sorted(zip(places, found, strict=True))
    assert [new for _, new in pairs] == sorted(found)
    assert all(
        b - a >= apart - 1e-6 for a, b in zip(sorted(found), sorted(found)[1:], strict=False)
    )
    assert all(-1e-6 <= place <= top + 1e-6 for place in found)
    if all(high - low >= apart for low, high in pairwise(sorted(places))):
        assert found == pytest.approx(places)
