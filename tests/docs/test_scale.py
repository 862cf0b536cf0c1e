"""The tables of docs/scale.md are those of the committed results."""

import json

from benchmarks import scale


def test_tables_are_written_from_the_results():
    results = [
        json.loads((scale.RESULTS / name).read_text())
        for name in ("scale.json", "distributed.json")
    ]
    shown = scale.PAGE.read_text().partition(scale.START)[2].partition(scale.END)[0]
    assert shown.strip() == scale.page(*results), "run `python benchmarks/scale.py --page`"


def test_every_factor_says_where_it_is_from():
    result = json.loads((scale.RESULTS / "scale.json").read_text())
    known = ("measured", "computed", "assumed", "extrapolated")
    assert all(row["source"].startswith(known) for row in result["estimate"])
