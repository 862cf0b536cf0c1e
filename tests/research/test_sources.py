"""The table of data sets, and the tables of the paper's numbers that use its keys."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from research import paper, settings
from research.public import public_words
from research.sources import DATA_SETS, TRAINING_SETS
from tests.research import trained
from uedp.corpus.users import random_groups
from uedp.entities.categories import expand_categories

AG_ARTICLES = 15 * trained.USERS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.data(tmp_path_factory.mktemp("data"))


def test_all_tables_have_the_same_keys() -> None:
    tables = (
        paper.COUNTS,
        paper.USERS_PER_ROUND,
        paper.PERPLEXITIES,
        settings.DATA_SETTINGS,
    )
    assert all(table.keys() == DATA_SETS.keys() for table in tables)
    assert {name for name, *_ in paper.EPSILONS} == DATA_SETS.keys()


def test_the_papers_categories_are_those_it_counts() -> None:
    for name, data_set in DATA_SETS.items():
        counted = paper.COUNTS[name]["sensitive"].keys()
        assert {*data_set.paper_categories, "all"} == counted


def test_categories_exist() -> None:
    for data_set in DATA_SETS.values():
        for category in (*data_set.paper_categories, *data_set.categories):
            assert expand_categories([category])


def test_all_parts_are_read(data: Path) -> None:
    for data_set in DATA_SETS.values():
        for part in data_set.files:
            sentences = data_set.sentences(data, part)
            assert len(sentences) > 5
            assert data_set.sentences(data, part, 5)[-1].text == sentences[4].text


def test_random_groups_are_formed_in_the_training_part_only(data: Path) -> None:
    ag = DATA_SETS["ag"]
    users = [s.user for s in ag.sentences(data, "train")]
    drawn = random_groups(AG_ARTICLES, 15, 2, seed=0)
    # the same partition, whatever the names
    assert len({*zip(users, drawn, strict=True)}) == len({*users}) == len({*drawn}) > 2
    assert users == [s.user for s in ag.sentences(data, "train")]
    assert {s.user for s in ag.sentences(data, "test")} == {""}  # as they were read


def test_only_data_sets_without_human_marks_have_public_words() -> None:
    for data_set in DATA_SETS.values():
        assert bool(public_words(data_set.public)) != data_set.marked
    edgar = public_words(DATA_SETS["edgar"].public)
    assert edgar["material adverse effect"] == "contract language"
    assert "material adverse effect" not in public_words(DATA_SETS["ag"].public)


def test_subsets_of_users_are_nested(tmp_path: Path) -> None:
    rows = [{"user": f"author-{n % 9}", "text": f"Text {n}. Another."} for n in range(45)]
    folder = tmp_path / "blogs"
    folder.mkdir()
    with gzip.open(folder / "train.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    blogs = TRAINING_SETS["blogs"]
    users = []
    for most in (2, 5, None):
        read = replace(blogs, most_users=most).sentences(tmp_path, "train")
        users.append({sentence.user for sentence in read})
        assert len(read) == 5 * len(users[-1])  # all texts of each
    assert [len(own) for own in users] == [2, 5, 9]
    assert users[0] < users[1] < users[2]


def test_ag_as_sentences_has_the_same_users(data: Path) -> None:
    whole = DATA_SETS["ag"].sentences(data, "train")
    pieces = TRAINING_SETS["ag-sentences"].sentences(data, "train")
    assert {s.user for s in whole} == {s.user for s in pieces}
    assert "".join(s.text for s in whole).replace(" ", "") == "".join(
        s.text for s in pieces
    ).replace(" ", "")
