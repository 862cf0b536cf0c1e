import pytest

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.coverage import coverage
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError


class Fixed:
    """Finds the spans it was told, whatever the text."""

    propagates = False

    def __init__(self, spans):
        self._spans = iter(spans)

    def detect(self, sentences):
        return (next(self._spans) for _ in sentences)


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Corpus:
    sentences = [
        marked("a", "Ann Lee met Bob in Rome", ("Ann Lee", "PER"), ("Bob", "PER"), ("Rome", "LOC")),
        marked("a", "Rome again", ("Rome", "LOC")),
        Sentence("b", "No names here"),
    ]
    found = [
        [Span(0, 7, "PERSON"), Span(8, 15, "ORG")],  # Ann Lee exactly; "met Bob" with another label
        [],
        [Span(0, 2, "ORG")],
    ]
    monkeypatch.setattr("uedp.entities.parallel.load", lambda name: Fixed(found))
    return detect(sentences, tmp_path / "c", Detection(("fixed",)))


def test_counts_by_hand(corpus):
    result = coverage(corpus)
    person, loc, everything = (result["categories"][name] for name in ("person", "loc", "all"))
    assert (person["marks"], person["exact"], person["covered"], person["same_category"]) == (
        2,
        1,
        2,
        1,
    )
    assert (person["words"], person["words_covered"]) == (3, 3)
    assert (person["sentences"], person["sentences_found"], person["sentences_complete"]) == (
        1,
        1,
        1,
    )
    assert (loc["marks"], loc["covered"], loc["sentences"], loc["sentences_found"]) == (2, 0, 2, 1)
    assert (everything["sentences"], everything["sentences_found"]) == (2, 1)
    assert everything["sentences_complete"] == 0
    assert everything["word_recall"] == pytest.approx(3 / 5)
    assert result["categories"]["pii"]["marks"] == 4
    assert {name: row["marks"] for name, row in result["labels"].items()} == {"PER": 2, "LOC": 2}
    assert (result["mentions"], result["extra"]) == (3, 1)


def test_part_of_a_mark_is_not_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("uedp.entities.parallel.load", lambda name: Fixed([[Span(0, 3, "PER")]]))
    sentence = marked("a", "Ann Lee", ("Ann Lee", "PER"))
    person = coverage(detect([sentence], tmp_path / "c", Detection(("fixed",))))["categories"][
        "person"
    ]
    assert (person["covered"], person["words_covered"], person["sentences_found"]) == (0, 1, 1)
    assert person["sentences_complete"] == 0


def test_a_corpus_without_marks_is_refused(tmp_path):
    corpus = detect([Sentence("a", "x")], tmp_path / "c", Detection(("labels",)))
    with pytest.raises(UserError, match="no human marks"):
        coverage(corpus)
