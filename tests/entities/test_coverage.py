import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.categories import category_of
from uedp.entities.coverage import _compare, _Extents, _Spans, compare, coverage, record_coverage
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.words import words
from uedp.errors import UserError


class Fixed:
    """Finds the spans it was told, whatever the text."""

    propagates = False

    def __init__(self, spans):
        self._spans = iter(spans)

    def detect(self, texts):
        return (next(self._spans) for _ in texts)


@pytest.fixture
def corpus(tmp_path) -> Corpus:
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
    register_detector("fixed")(lambda argument: Fixed(found))
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
    assert (result["mentions"], result["extra"], result["unjudged"]) == (3, 1, 0)


def test_precision_by_hand(corpus):
    precision = coverage(corpus)["precision"]
    person, org, everything = (precision[name] for name in ("person", "org", "all"))
    assert (person["mentions"], person["right"], person["exact"], person["same_category"]) == (
        1,
        1,
        1,
        1,
    )
    # "met Bob" overlaps a person; "No" overlaps nothing
    assert (org["mentions"], org["right"], org["exact"], org["same_category"]) == (2, 1, 0, 0)
    assert org["f1_exact"] is None  # no organisation is marked
    assert everything["precision"] == pytest.approx(2 / 3)
    # one of three mentions and one of four marks have the same ends
    assert everything["f1_exact"] == pytest.approx(2 * (1 / 3) * (1 / 4) / (1 / 3 + 1 / 4))
    assert precision["protected"] == everything


def test_a_category_that_nobody_marked_is_not_judged(tmp_path):
    sentences = [marked("a", "Ann paid $5 on March 3", ("Ann", "PER"))]
    result = coverage(detect(sentences, tmp_path / "c", Detection(("patterns",))))
    assert (result["mentions"], result["extra"], result["unjudged"]) == (2, 2, 2)
    assert result["precision"] == {}
    # but who marks people marks organisations, too
    register_detector("fixed")(lambda argument: Fixed([[Span(4, 8, "ORG")]]))
    (name,) = {"org"} & set(
        coverage(detect(sentences, tmp_path / "d", Detection(("fixed",))))["precision"]
    )
    assert name == "org"


def test_a_year_is_a_year_and_a_weekday_a_weekday_on_both_sides(tmp_path):
    text = "in 1999, on Monday and on March 3"
    marks = [(surface, "DATE_TIME") for surface in ("1999", "Monday", "March 3")]
    sentences = [marked("a", text, *marks)]
    by_default = coverage(detect(sentences, tmp_path / "c", Detection(("patterns",))))
    rows = by_default["categories"]
    names = ("date", "year", "calendar")
    assert [rows[name]["covered"] for name in names] == [1, 0, 0]
    assert (rows["all"]["marks"], rows["protected"]["marks"]) == (3, 1)
    asked = Detection(("patterns",), categories=frozenset(names))
    rows = coverage(detect(sentences, tmp_path / "d", asked))["categories"]
    assert [rows[name]["same_category"] for name in names] == [1, 1, 1]


def test_errors_by_sentence_and_user(corpus):
    errors = compare(corpus).errors
    # "No" in the last sentence is the third entity; "met Bob" overlaps a mark
    assert errors.false == [(2, 2, "org")]
    assert errors.incidence.extended.tolist() == [False, True, False]
    assert errors.without_false_hits().extended.tolist() == [False, True, True]
    assert errors.without_false_hits("person").extended.tolist() == [False, True, False]
    assert {name: dict(users) for (_, name), users in errors.missed.items()} == {
        "annlee": {},
        "bob": {},
        "rome": {"a": 2},
    }


def test_an_entity_with_a_right_mention_in_the_sentence_is_no_false_hit(tmp_path):
    register_detector("fixed")(lambda argument: Fixed([[Span(0, 3, "PER"), Span(8, 11, "PER")]]))
    sentence = marked("a", "Ann and Ann", ("Ann", "PER"))
    compared = compare(detect([sentence], tmp_path / "c", Detection(("fixed",))))
    assert compared.result["precision"]["person"]["right"] == 1
    assert compared.errors.false == []


def test_only_what_is_protected_goes_on_record(tmp_path):
    register_detector("fixed")(lambda argument: Fixed([[Span(0, 3, "PER")]]))
    sentences = [marked("a", "Ann in Rome, 5%", ("Ann", "PER"), ("Rome", "LOC"), ("5%", "PERCENT"))]
    corpus = detect(
        sentences, tmp_path / "c", Detection(("fixed",), categories=frozenset({"person"}))
    )
    record_coverage(corpus, coverage(corpus))
    recorded = Corpus(corpus.folder).info["coverage"]
    assert recorded == {
        "marks": 1,
        "sentences_found": 1.0,
        "sentences_complete": 1.0,
        "precision": 1.0,
    }
    none = detect(sentences, tmp_path / "d", Detection(("fixed",), categories=frozenset({"law"})))
    with pytest.raises(UserError, match="none of its marks is of a category that it protects"):
        record_coverage(none, coverage(none))


def test_part_of_a_mark_is_not_all_of_it(tmp_path):
    register_detector("fixed")(lambda argument: Fixed([[Span(0, 3, "PER")]]))
    sentence = marked("a", "Ann Lee", ("Ann Lee", "PER"))
    person = coverage(detect([sentence], tmp_path / "c", Detection(("fixed",))))["categories"][
        "person"
    ]
    assert (person["covered"], person["words_covered"], person["sentences_found"]) == (0, 1, 1)
    assert person["sentences_complete"] == 0


def test_many_marks_in_one_sentence_take_no_time(tmp_path):
    count = 20_000
    text = "Ann " * count
    marks = tuple(Span(4 * i, 4 * i + 3, "PER") for i in range(count))
    register_detector("fixed")(lambda argument: Fixed([marks[::2]]))
    corpus = detect([Sentence("a", text, None, marks)], tmp_path / "c", Detection(("fixed",)))
    began = time.monotonic()
    person = coverage(corpus)["categories"]["person"]
    assert time.monotonic() - began < 10  # every mark against every mention takes minutes
    assert (person["exact"], person["words_covered"]) == (count // 2, count // 2)


_SPANS = st.lists(
    st.builds(
        lambda start, length, label: Span(start, min(start + length, 12), label),
        st.integers(0, 11),
        st.integers(1, 12),
        st.sampled_from(["PER", "PERSON", "LOC"]),
    ),
    max_size=5,
    unique=True,
)


@settings(max_examples=200, deadline=None)
@given(_SPANS, _SPANS)
def test_the_search_agrees_with_a_walk(marks, spans):
    text = "ab cd. e-f g"
    counted = _compare(text, marks, _Spans(text, spans))

    def overlap(a, b):
        return a.start < b.end and b.start < a.end

    assert counted.exact == sum(any(s[:2] == m[:2] for s in spans) for m in marks)
    assert counted.same_category == sum(
        any(overlap(s, m) and category_of(s.label) == category_of(m.label) for s in spans)
        for m in marks
    )
    inside = [
        [(m.start + a, m.start + b) for _, a, b in words(text[m.start : m.end])]
        or [(m.start, m.end)]
        for m in marks
    ]
    covered = [[any(s.start <= a and b <= s.end for s in spans) for a, b in i] for i in inside]
    assert counted.words_covered == sum(map(sum, covered))
    assert counted.covered == sum(map(all, covered))
    assert counted.sentences_complete == all(map(all, covered))
    extents = _Extents(marks)
    assert [extents.overlap(s) for s in spans] == [any(overlap(s, m) for m in marks) for s in spans]


def test_a_corpus_without_marks_is_refused(tmp_path):
    corpus = detect([Sentence("a", "x")], tmp_path / "c", Detection(("labels",)))
    with pytest.raises(UserError, match="no human marks"):
        coverage(corpus)


def test_an_entity_under_two_ids_is_missed_where_it_has_the_rarer_one(tmp_path):
    found = [[Span(0, 7, "PER")], [Span(0, 7, "PER")], [Span(0, 3, "PER")], []]
    register_detector("fixed")(lambda argument: Fixed(found))
    sentences = [
        marked(user, f"Ann Lee {number}", ("Ann Lee", "PER"))
        for number, user in enumerate(["a", "b", "c", "c"])
    ]
    errors = compare(
        detect(sentences, tmp_path / "c", Detection(("fixed",), propagate=False))
    ).errors
    assert errors.missed == {("person", "annlee"): {"c": 2}}


def test_an_entity_that_always_has_one_other_form_is_not_missed(tmp_path):
    register_detector("fixed")(lambda argument: Fixed([[Span(0, 3, "PER")]] * 2))
    sentences = [marked(user, "Ann Lee", ("Ann Lee", "PER")) for user in "ab"]
    errors = compare(
        detect(sentences, tmp_path / "c", Detection(("fixed",), propagate=False))
    ).errors
    assert errors.missed == {("person", "annlee"): {}}
