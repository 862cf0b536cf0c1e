"""Where the cost falls: the table and its conclusions."""

from typing import Any

from research import parts, render


def row(method: str, target: float | None, names: float, others: float, **more: Any) -> Any:
    name = f"{method}-{target}"
    return {
        "panel": "conll",
        "method": method,
        "category": "all",
        "extended_rate": 1.0,
        "target": target,
        "epsilon": target,
        "setting": name,
        "name": name,
        "test": (names * others) ** 0.5,
        "validation": 1.0,
        "parts": {"names": names, "others": others, "count": 1000, "names_count": 500},
    } | more


def result(*rows: Any, measure: str = "perplexity") -> Any:
    return {"measure": measure, "panels": {"conll": "CoNLL-2003"}, "rows": list(rows), "paper": {}}


def test_methods_stand_in_order_with_names_other_tokens_and_all() -> None:
    found = parts.table(
        result(
            row("deidentified", None, 400.0, 9.0),
            row("rotation", 8.0, 225.0, 16.0),
            row("rotation", 2.0, 256.0, 25.0),
            row("user-level", 8.0, 100.0, 16.0),
            row("noiseless", None, 81.0, 4.0),
        )
    )
    assert found.splitlines()[:7] == [
        "| perplexity on the test part, where the cost falls | names | other tokens | all tokens |",
        "| --- | ---: | ---: | ---: |",
        "| CoNLL-2003, noiseless | 81 | 4 | 18 |",
        "| CoNLL-2003, user-level DP, epsilon 8 | 100 | 16 | 40 |",
        "| CoNLL-2003, rotation, epsilon 8 | 225 | 16 | 60 |",
        "| CoNLL-2003, rotation, epsilon 2 | 256 | 25 | 80 |",
        "| CoNLL-2003, de-identified | 400 | 9 | 60 |",
    ]
    assert (
        "- CoNLL-2003, rotation, epsilon 8: perplexity is 2.25 times that of user-level DP on "
        "names, 1.00 times on other tokens. Names are 50% of the tokens and bear 100% of the "
        "additional loss."
    ) in found
    assert "epsilon 2: perplexity" not in found  # no user-level DP to compare with


def test_a_gain_on_one_side_is_no_share_of_a_cost() -> None:
    better = row("fair-shares", 8.0, 90.0, 32.0)
    found = parts.table(result(row("user-level", 8.0, 100.0, 16.0), better))
    assert "fair shares, epsilon 8: perplexity is 0.90 times" in found
    assert "bear" not in found


def test_the_setting_is_that_of_the_main_table() -> None:
    """The best by validation; if its run recorded no names, another must not stand for it."""
    good = row("rotation", 8.0, 50.0, 8.0, setting="a", validation=0.5)
    bad = row("rotation", 8.0, 70.0, 8.0, setting="b", validation=0.9)
    again = row("rotation", 8.0, 60.0, 8.0, setting="a", validation=0.5)
    (found,) = parts.measured_apart([bad, good, again], "conll")
    assert (found.names, found.others, found.share) == (55.0, 8.0, 0.5)
    assert parts.measured_apart([bad, good, {**again, "parts": None}], "conll") == []


def test_runs_from_before_it_was_recorded_are_left_out() -> None:
    old = row("rotation", 8.0, 2.0, 2.0)
    del old["parts"]
    assert parts.table(result(old)) == ""
    one_category = row("rotation", 8.0, 2.0, 2.0, category="person")
    assert parts.table(result(one_category, row("rotation", 8.0, 2.0, 2.0, test=None))) == ""


def test_classifiers_are_measured_on_sentences() -> None:
    found = parts.table(result(row("noiseless", None, 0.2, 0.1), measure="error rate"))
    assert "| with entities | without entities | all |" in found
    assert "| CoNLL-2003, noiseless | 20.0% | 10.0% | 14.1% |" in found


def test_fair_shares_stand_beside_rotation_on_the_page() -> None:
    rows = [
        row(method, 8.0, names, 4.0, published=None, epsilon=8.0, before=2.0)
        for method, names in (("rotation", 100.0), ("fair-shares", 81.0), ("user-level", 64.0))
    ]
    page = render.page(result(*rows))
    assert "| CoNLL-2003, UeDP by fair shares: all entities | - | - | 18 at 8 |" in page
    assert "fair shares (users and entities) 18, user-level DP 16: a factor of 1.12" in page
    assert "rotation (users and entities) 20, user-level DP 16: a factor of 1.25" in page
