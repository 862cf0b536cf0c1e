"""The entities that a statement names."""

from tests.accounting.runs import ENTITIES, SETUP, make_run
from uedp.accounting.certificate import issue
from uedp.accounting.decisions import Coverage, Propagation


def test_the_statement_names_detectors_versions_categories_lists_and_coverage(tmp_path):
    shown = issue(make_run(tmp_path / "run", **SETUP))
    first, second = shown.statement.splitlines()
    assert first.endswith("counts as one.")
    assert second == (
        "Entities: found by patterns (uedp 1), spacy:en (spaCy 3, en 3.1); categories person, "
        "contact; one hit of a model counts wherever the same words stand; deny-list (3 entries, "
        "abababababab); coverage not measured."
    )


def test_what_the_default_leaves_out_is_stated(tmp_path):
    left_out = "not protected: "
    words = "months, weekdays and words such as today alone"
    for number, (categories, said) in enumerate(
        [
            (("contact", "date"), f"percentages, years alone, {words};"),
            (("contact", "date", "year"), f"percentages, {words};"),
            (("contact", "date", "percent", "year"), f"{words};"),
            (("contact", "date", "percent", "year", "calendar"), None),
            (("contact",), None),
        ]
    ):
        known = ENTITIES.model_copy(update={"categories": categories, "propagation": RULE})
        shown = issue(make_run(tmp_path / str(number), **{**SETUP, "entities": known}))
        assert (left_out in shown.statement) == (said is not None)
        assert said is None or left_out + said in shown.statement
    detectors = {**ENTITIES.detectors, "labels": "marks"}
    known = known.model_copy(update={"detectors": detectors, "categories": ("date", "year")})
    shown = issue(make_run(tmp_path / "marked", **{**SETUP, "entities": known}))
    assert f"not protected unless people marked them as dates: percentages, {words}" in (
        shown.statement
    )
    # in a release without these categories they were dates
    known = ENTITIES.model_copy(update={"categories": ("date", "percent")})
    shown = issue(make_run(tmp_path / "earlier", **{**SETUP, "entities": known}))
    assert left_out not in shown.statement


def test_where_only_patterns_ran_no_names_are_looked_for(tmp_path):
    only = ENTITIES.model_copy(update={"detectors": {"patterns:US": "uedp 1"}, "lists": {}})
    shown = issue(make_run(tmp_path / "run", **{**SETUP, "entities": only}))
    assert "Entities: no names are looked for; found by patterns:US" in shown.statement
    assert "no names" not in issue(make_run(tmp_path / "names", **SETUP)).statement


def test_coverage_is_stated_where_it_was_measured(tmp_path):
    measured = Coverage(marks=10, sentences_found=0.983, sentences_complete=0.9, precision=0.875)
    known = ENTITIES.model_copy(update={"coverage": measured, "propagated": False})
    shown = issue(make_run(tmp_path / "run", **{**SETUP, "entities": known}))
    assert "98.3% found, 90.0% complete; 87.5% of the mentions are right" in shown.statement
    assert "measured on marks in this corpus, without noise, and are not covered" in shown.statement
    assert "no propagation" in shown.statement


RULE = Propagation(
    share=0.5,
    name_share=0.4,
    sure_share=0.05,
    ordinary_share=2 / 3,
    ordinary_hits=2,
    noise_share=0.1,
)


def test_the_rule_of_propagation_and_what_it_drops_are_stated(tmp_path):
    ruled = ENTITIES.model_copy(update={"propagation": RULE})
    shown = issue(make_run(tmp_path / "run", **{**SETUP, "entities": ruled})).statement
    assert (
        "what models found in at least 50% of its places counts in all of them (40% if it is "
        "capitalised and no ordinary word, 5% if it is several such words or an abbreviation, 67% "
        "and 2 hits if it is an ordinary word), and in those of one user by 5% of them if it is "
        "capitalised (50%, and 2 hits if it is an ordinary word); hits of models are dropped if "
        "they have no letter or digit, or are ordinary words in lower case found in under "
        "10% of their places"
    ) in shown
    assert "one hit" not in shown
    alone = ruled.model_copy(update={"propagated": False})
    shown = issue(make_run(tmp_path / "alone", **{**SETUP, "entities": alone})).statement
    assert (
        "a hit counts only where it was made (no propagation); hits of models are dropped" in shown
    )


def test_public_lists_are_named_with_their_versions(tmp_path):
    on = ENTITIES.model_copy(update={"public_lists": {"months": "version 1, 52 entries"}})
    shown = issue(make_run(tmp_path / "run", **{**SETUP, "entities": on})).statement
    assert "public unless a person: the list of months (version 1, 52 entries)" in shown
