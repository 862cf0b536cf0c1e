"""Statements, caveats and the line on missed mentions."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.accounting.runs import PROFILE, PUBLIC, SETUP, make_run
from uedp.accounting.certificate import issue
from uedp.accounting.decisions import BY_PLANNER, NOT_STATED, OTHERS_BY, Setup
from uedp.accounting.missed import MISSED_CASES
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile
from uedp.accounting.statement import caveats, rounded


def test_missed_sentences_stand_in_plain_words(tmp_path, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", MISSED_CASES)
    shown = issue(make_run(tmp_path / "run", **SETUP))
    one, five, whole = (rounded(row.epsilon) for row in shown.missed_mentions)
    assert shown.missed_line == (
        f"If the detector missed the entity in one sentence: epsilon {one}; in five sentences of "
        f"five users: epsilon {five}; in all sentences of one user: epsilon {whole}."
    )
    seeded = shown.model_copy(update={"private": False})
    assert seeded.missed_line == ""  # where nothing is promised, this is not promised either


CAVEATS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": ({"vocabulary_origin": "from another corpus, not covered"}, "another corpus"),
    "users": ({"users": "assigned at random"}, "people are not protected beyond"),
    "holders": ({"holders": "clients"}, "the texts stayed with clients: the guarantee does not"),
    "entities": ({"entities": None}, "which entities were looked for"),
    "labels": ({"labels": "from the corpus, not covered"}, "which labels there are"),
    "earlier runs": ({"earlier_runs": "on other corpora"}, "other runs before"),
    "public text": (
        {"public": PUBLIC},
        "trained without noise on 'news.txt' (1,200 sentences, SHA-256 abababababab; 70 steps of "
        "50 sentences), declared public by the person who ran this (not named): texts in it are "
        "not protected",
    ),
    "chosen by": ({"chosen_by": Setup().chosen_by}, "who chose the clip bounds"),
    "chosen by counts": (
        {"chosen_by": f"{BY_PLANNER}: user_rate, rounds{OTHERS_BY}me, on public data"},
        "which are not covered: user_rate, rounds",
    ),
}


@pytest.mark.parametrize("case", CAVEATS)
def test_what_is_not_covered_is_a_caveat_and_part_of_the_statement(tmp_path, case):
    change, words = CAVEATS[case]
    shown = issue(make_run(tmp_path / "run", **{**SETUP, **change}))
    (caveat,) = shown.caveats
    assert words in caveat
    assert shown.private
    assert f"\nCaveat: {caveat}." in shown.statement


def test_what_the_planner_left_to_others_may_still_not_be_stated(tmp_path):
    chosen = f"{BY_PLANNER}: user_rate{OTHERS_BY}{NOT_STATED}"
    shown = issue(make_run(tmp_path / "run", **{**SETUP, "chosen_by": chosen}))
    planner, others = shown.caveats
    assert planner.startswith("settings were chosen by counts of this corpus")
    assert others.startswith("who chose the clip bounds")
    mine = (
        f"me; {BY_PLANNER}: nothing"  # no claim of a person's own text is taken for the planner's
    )
    assert Setup(chosen_by=mine).chosen_by_planner == ""


def test_a_large_epsilon_says_that_it_says_little(tmp_path):
    much = issue(make_run(tmp_path / "much", RotationProfile(0.4, 0.5, 0.33), **SETUP))
    assert much.epsilon > 20
    assert "above 20 says little" in much.caveats[0]
    assert "says little" in much.statement
    assert not issue(make_run(tmp_path / "little", **SETUP)).caveats


@pytest.mark.parametrize(
    "profile", [PROFILE, UserLevelProfile(1.0, 0.05), UedpAlgProfile(2.0, 0.05, 946, 12)]
)
def test_groups_made_at_random_are_not_called_people(tmp_path, profile):
    shown = issue(make_run(tmp_path / "run", profile, **{**SETUP, "users": "assigned at random"}))
    assert "the user wrote" not in shown.statement + shown.unit
    assert "put together at random" in shown.unit
    assert shown.unit in shown.statement
    assert "Groups are not people" in shown.unit


def test_a_user_level_guarantee_needs_no_entities(tmp_path):
    shown = issue(make_run(tmp_path / "run", UserLevelProfile(1.0, 0.05), chosen_by="me"))
    assert shown.caveats == ()
    assert "Entities:" not in shown.statement


def test_sentences_without_a_stated_bound_count_as_unbounded(tmp_path):
    """Saying nothing must not make the table of missed mentions look better."""
    silent = issue(make_run(tmp_path / "run"))
    for bound in (1, 1000):
        said = issue(make_run(tmp_path / f"run-{bound}", sentences_per_user=bound))
        for quiet, loud in zip(silent.missed_mentions, said.missed_mentions, strict=True):
            assert loud.epsilon is not None
            assert quiet.epsilon is None or quiet.epsilon >= loud.epsilon * 0.999


def test_words_never_promise_more_than_the_number():
    assert rounded(7.9991) == "8"
    assert rounded(7.99949) == "8"
    assert rounded(1.0002) == "1.001"
    assert rounded(0.3) == "0.3"
    assert rounded(1.1, 6) == "1.1"
    assert rounded(0.33, 6, down=True) == "0.33"
    assert rounded(0.3299999, 6, down=True) == "0.329999"
    assert rounded(123456.7) == "1.235e+05"
    assert rounded(0.0) == "0"
    for value in (0.1234567, 1.00001, 99.995, 3e-9, 499.99):
        assert value <= float(rounded(value)) <= value * 1.001
        assert value * 0.999 <= float(rounded(value, down=True)) <= value


def test_no_sentence_bounds_odds_by_epsilon_alone():
    """False for a delta above 0 (docs/privacy.md, section 4); probabilities are bounded so."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    pages += [*(root / "src").rglob("*.py"), *(root / "src").rglob("*.html")]
    said = [
        sentence
        for page in pages
        for sentence in re.split(r"[.:]\s", " ".join(page.read_text().replace('"', "").split()))
        if re.search(r"\bodds\b.*\be\^|\be\^.*\bodds\b", sentence)
        and not re.search(r"2 e\^|By `e\^eps` alone", sentence)
    ]
    assert said == []
    lines = caveats(RotationProfile(0.3, 0.1, 0.3), Setup(), 21.0)
    (caveat,) = (line for line in lines if "odds" in line)
    assert "2 e^epsilon, and with a probability of 2 delta by more" in caveat
