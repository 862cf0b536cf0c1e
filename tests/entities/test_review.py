"""The table of entities, for the person who holds the corpus."""

import json
from collections.abc import Iterator, Sequence

import pytest

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.lists import Lists
from uedp.entities.review import EntityTable
from uedp.errors import UserError


@register_detector("only-zork")
class OnlyZork:
    """A stand-in for a model: finds `Zork` before `!`, and `later` once."""

    propagates = True

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for text in texts:
            at, once = text.find("Zork!"), text.find("later?")
            yield [
                *([Span(at, at + 4, "ORG")] if at >= 0 else []),
                *([Span(once, once + 5, "PER")] if once >= 0 else []),
            ]


SENTENCES = [
    Sentence("a", "Zork! and bob@mail.example"),
    Sentence("a", "Zork again"),
    Sentence("b", "no Zork"),
    Sentence("b", "later? maybe later"),
    marked("c", "Ann here, Ann", ("Ann", "PER")),
    marked("d", "Ann there", ("Ann", "LOC")),
    marked("e", "Ann", ("Ann", "PER")),
    Sentence("e", "hello there"),
]


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    detection = Detection(
        ("labels", "only-zork", "patterns"), lists=Lists(sensitive={"hello there": "misc"})
    )
    return detect(SENTENCES, tmp_path / "c", detection)


def test_every_entity_stands_in_the_table_once_widest_first(corpus):
    table = EntityTable(corpus)
    rows = table.rows(table.select())
    assert len(rows) == corpus.info["entities"] == len({row.surface for row in rows})
    assert [row.users for row in rows] == sorted((row.users for row in rows), reverse=True)
    ann, zork = rows[:2]
    assert (ann.surface, ann.category, ann.users, ann.mentions) == ("Ann", "person", 3, 3)
    assert (ann.found, ann.detectors) == (1.0, ("labels",))
    # a model found it in one place of three: that is enough for its author, not for another
    assert (zork.surface, zork.users, zork.sentences, zork.mentions) == ("Zork", 1, 2, 2)
    assert (zork.found, zork.detectors) == (round(1 / 3, 4), ("only-zork",))


def test_filters(corpus):
    table = EntityTable(corpus)

    def shown(**choice: object) -> list[str]:
        return [row.surface for row in table.rows(table.select(**choice))]

    assert shown(find="ZOR") == ["Zork"]
    assert shown(categories="contact") == ["bob@mail.example"]
    # rarely found, or ordinary; what a list says is certain, but its words are ordinary
    assert set(shown(doubtful=True)) == {"Zork", "later", "hello there"}
    assert shown(doubtful=True, find="zork") == ["Zork"]
    assert shown(find="nothing like it") == []
    with pytest.raises(UserError, match="unknown category"):
        shown(categories="planets")


def test_a_listed_entity_has_no_share(corpus):
    table = EntityTable(corpus)
    (row,) = table.rows(table.select(find="hello"))
    assert (row.found, row.detectors, row.ordinary) == (None, (), True)


def test_a_corpus_of_an_earlier_release_is_listed_without_shares(corpus):
    path = corpus.folder / "corpus.json"
    info = json.loads(path.read_text())
    del info["propagation"]
    path.write_text(json.dumps(info))
    table = EntityTable(Corpus(corpus.folder))
    assert all(row.found is None and not row.detectors for row in table.rows(table.select()))
    assert len(table.select(doubtful=True)) == 2


def test_a_corpus_without_entities(tmp_path):
    table = EntityTable(detect([Sentence("u", "plain")], tmp_path / "c", Detection(("labels",))))
    assert table.rows(table.select(doubtful=True)) == []
