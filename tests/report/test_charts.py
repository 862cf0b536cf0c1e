"""Line charts: what is drawn, and that text stays text."""

import itertools
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from uedp.errors import UserError
from uedp.report.charts import COLOURS, ChartMark, Line, line_chart, number_text
from uedp.report.templates import stylesheet

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script> \"quoted\" & שלום 🙂"


def parsed(lines, **options):
    options = {"title": "title", "x_label": "round", "y_label": "users", **options}
    text = line_chart(lines, **options).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )
    return ElementTree.fromstring(text)


def points(chart, line=0):
    """The coordinates of the points of a line, in pieces between gaps."""
    path = chart.findall(f"{SVG}g[@class='line']/{SVG}path")[2 * line].get("d")
    pieces = [piece for piece in path.split("M") if piece]
    return [[tuple(map(float, at.split())) for at in piece.split("L")] for piece in pieces]


def test_a_spike_of_one_round_in_ten_thousand_is_drawn():
    y = np.full(10_000, 50.0)
    y[7_003], y[2_001] = 90.0, 10.0
    (drawn,) = points(parsed([Line("users", np.arange(10_000), y)]))
    heights = [y for _, y in drawn]
    assert len(drawn) <= 300
    assert heights.count(min(heights)) == heights.count(max(heights)) == 1
    assert min(heights) < heights[0] < max(heights)


def test_a_long_line_on_a_log_axis_keeps_its_first_rounds():
    x = np.arange(1, 10_001)
    (drawn,) = points(parsed([Line("epsilon", x, np.log(x))], log_x=True))
    assert len(drawn) <= 300
    # a third of the axis lies between rounds 1 and 22
    left, right = drawn[0][0], drawn[-1][0]
    assert sum(across < left + (right - left) / 3 for across, _ in drawn) >= 15


def test_few_points_are_all_drawn_and_a_missing_one_leaves_a_gap():
    nothing = [None, float("nan"), float("inf")]
    for missing in nothing:
        first, second = points(parsed([Line("a", [1, 2, 3, 4, 5], [1, 2, missing, 4, 5])]))
        assert (len(first), len(second)) == (2, 2)


def test_values_that_a_log_axis_cannot_show_leave_a_gap():
    first, second = points(parsed([Line("a", [1, 2, 3, 4], [1, 0, 10, 100])], log_y=True))
    assert (len(first), len(second)) == (1, 2)


def test_text_is_escaped_and_long_names_are_cut():
    lines = [Line(HOSTILE, [1, 2], [1, 2]), Line("w" * 10_000, [1, 2], [2, 1])]
    chart = parsed(lines, title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)
    assert chart.find(f"{SVG}title").text == HOSTILE
    assert not list(chart.iter(f"{SVG}script"))
    assert max(len(text.text) for text in chart.iter(f"{SVG}text")) < 60
    assert any(text.text.endswith("w…") for text in chart.iter(f"{SVG}text"))


def test_several_charts_fit_on_one_page():
    chart = line_chart([Line("a", [1, 2], [1, 2])], "t", "x", "y", mark=ChartMark("here", 1.5, 1.5))
    assert not re.search(r"\b(id|style|on\w+)=", chart)
    assert 'role="img"' in chart


def test_lines_differ_by_more_than_their_colour():
    chart = parsed([Line(f"run {n}", [1, 2], [n, n + 1]) for n in range(2 * COLOURS)])
    drawn = [list(group) for group in chart.findall(f"{SVG}g[@class='line']")]
    looks = [(path.get("stroke"), path.get("stroke-dasharray")) for _, path, _ in drawn]
    assert len(set(looks)) == len(looks)
    assert all(dash != other for (_, dash), (_, other) in itertools.pairwise(looks))


def test_every_colour_of_a_chart_is_defined_for_light_dark_and_paper():
    chart = line_chart(
        [Line(f"run {n}", [1, 2], [n, n + 1]) for n in range(COLOURS)],
        "t",
        "x",
        "y",
        mark=ChartMark("m", 1),
    )
    used = set(re.findall(r"var\((--[\w-]+)", chart))
    assert "--ink" in used
    assert f"--series-{COLOURS}" in used
    style = stylesheet()
    assert all(len(re.findall(rf"{name}:", style)) == 3 for name in used)


def test_names_stand_below_the_plot():
    chart = parsed([Line(f"a rather long name of run {n}", [1, 2], [n, 2]) for n in range(12)])
    bottom = max(y for line in range(12) for piece in points(chart, line) for _, y in piece)
    legend = [t for t in chart.findall(f"{SVG}text") if t.text.startswith("a rather long")]
    assert len(legend) == 12
    assert all(float(text.get("y")) > bottom for text in legend)
    height = float(chart.get("viewBox").split()[-1])
    assert all(float(text.get("y")) < height for text in legend)


def test_fifty_lines_name_the_first_and_say_how_many_more():
    chart = line_chart([Line(f"run {n}", [1], [n]) for n in range(50)], "t", "x", "y")
    assert "and 34 more lines" in chart


def test_a_chart_of_nothing_says_so():
    for lines in ([], [Line("a", [], [])], [Line("a", [1], [None])]):
        assert "nothing to show yet" in line_chart(lines, "t", "x", "y")


def test_a_chart_describes_its_ranges():
    text = parsed([Line("names", [1, 2, 3], [1000, 20, 35.5])]).find(f"{SVG}desc").text
    assert "names: from 1,000 to 35.5, between 20 and 1,000" in text


def test_coordinates_of_different_lengths_are_refused():
    with pytest.raises(UserError, match="2 x and 1 y"):
        line_chart([Line("a", [1, 2], [1])], "t", "x", "y")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1000, "1,000"),
        (0.05, "0.05"),
        (1e-5, "10⁻⁵"),
        (3.1e14, "3.1·10¹⁴"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_are_short(value, text):
    assert number_text(value) == text


def test_extreme_values_can_be_drawn():
    for values in ([1e-300, 1e300], [5, 5], [-1e9, 1e-9], [0, 0]):
        for log in (False, True):
            assert "nan" not in line_chart([Line("a", [1, 2], values)], "t", "x", "y", log_y=log)


def test_a_long_line_is_drawn_in_milliseconds():
    line = Line("a", np.arange(10_000), np.random.default_rng(0).normal(size=10_000))
    line_chart([line], "t", "x", "y")
    start = time.process_time()
    line_chart([line] * 50, "t", "x", "y")
    assert time.process_time() - start < 2
