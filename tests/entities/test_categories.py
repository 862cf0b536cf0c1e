import pytest

from uedp.corpus.store import CATEGORIES
from uedp.entities.categories import (
    BASE,
    LABELS,
    NAMES,
    category_of,
    expand_categories,
    mask_of,
    masks,
)
from uedp.errors import UserError

PAPER = {
    *("person", "loc", "org", "misc", "gpe", "pii", "date", "norp", "fac", "product", "event"),
    *(
        "law",
        "language",
        "work_of_art",
        "time",
        "percent",
        "money",
        "quantity",
        "ordinal",
        "cardinal",
    ),
}


def test_the_papers_twenty_are_there():
    assert len(PAPER) == 20
    assert set(NAMES).issuperset(PAPER)


def test_the_order_is_that_of_the_stored_numbers():
    assert tuple(BASE) == CATEGORIES


def test_tables_agree_and_name_known_categories():
    seen: dict[str, str] = {}
    for table in LABELS.values():
        for label, category in table.items():
            assert category in BASE
            assert seen.setdefault(label, category) == category, f"{label} means two things"


@pytest.mark.parametrize(
    ("label", "category"),
    [
        ("PER", "person"),
        ("gpe", "gpe"),
        ("EMAIL_ADDRESS", "contact"),
        ("contact", "contact"),
        ("DRUG", "misc"),
    ],
)
def test_category_of(label, category):
    assert category_of(label) == category


def test_unions():
    assert expand_categories(["pii", "ORG"]) == {"person", "loc", "gpe", "contact", "org"}
    assert expand_categories(["all"]) == set(BASE)
    assert set(BASE) - expand_categories("default") == {"percent", "year", "calendar"}
    assert expand_categories("default, year, calendar") == set(BASE) - {"percent"}
    assert masks()["pii"] == mask_of(["person", "loc", "gpe", "contact"])


@pytest.mark.parametrize("names", [["people"], [""], []])
def test_unknown_category_is_refused(names):
    with pytest.raises(UserError, match="`categories="):
        expand_categories(names)
