import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import marked, surfaces
from uedp.corpus.normalise import Splitter, normalise
from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError


@st.composite
def texts_with_spans(draw):
    text = draw(st.text(st.sampled_from("aB c.,-'Σİß€1\n\t😀"), min_size=1, max_size=40))
    edges = st.integers(0, len(text))
    pairs = draw(st.lists(st.tuples(edges, edges).filter(lambda p: p[0] < p[1]), max_size=4))
    return text, [Span(a, b, "X") for a, b in pairs]


def test_the_papers_normalising():
    text = "The U.S. said: 'Mr. O'Brien' paid $5 -- OK!"
    spans = [Span(4, 8, "GPE"), Span(16, 27, "PER"), Span(37, 39, "DASH")]
    new, moved = normalise(text, spans)
    assert new == "the us said mr obrien paid 5 ok"
    assert [span and new[span.start : span.end] for span in moved] == ["us", "mr obrien", None]


@given(texts_with_spans())
def test_text_does_not_depend_on_spans(case):
    text, spans = case
    assert normalise(text, spans)[0] == normalise(text, [])[0]


@given(texts_with_spans())
def test_span_covers_what_is_left_of_its_characters(case):
    text, spans = case
    new, moved = normalise(text, spans)
    for before, after in zip(spans, moved, strict=True):
        alone = normalise(text[before.start : before.end], [])[0]
        # lowering a final sigma looks at its neighbours; nothing else may differ
        kept = "" if after is None else new[after.start : after.end]
        assert kept.replace("ς", "σ") == alone.replace("ς", "σ")


@given(st.text(max_size=60))
def test_no_ascii_punctuation_or_double_blank_is_left(text):
    new, _ = normalise(text, [])
    assert not set(new) & set(string.punctuation)
    assert "  " not in new
    assert new == new.strip()


def test_split_keeps_marks_and_never_cuts_one():
    record = marked(
        "u",
        "I met Dr. Who. He works at Yahoo! Inc. now.  Bye.",
        ("Dr. Who", "PER"),
        ("Yahoo! Inc.", "ORG"),
    )
    pieces = list(Splitter("en")(record))
    assert [p.text for p in pieces] == ["I met Dr. Who.", "He works at Yahoo! Inc. now.", "Bye."]
    assert [surfaces(p) for p in pieces] == [[("Dr. Who", "PER")], [("Yahoo! Inc.", "ORG")], []]
    assert {p.user for p in pieces} == {"u"}


@given(texts_with_spans())
def test_split_loses_no_text_and_no_mark(case):
    text, spans = case
    pieces = list(Splitter("en")(Sentence("u", text, None, tuple(sorted(set(spans))))))
    assert "".join("".join(p.text.split()) for p in pieces) == "".join(text.split())
    # white space between sentences is dropped, and with it marks of nothing else
    visible = [s for s in set(spans) if text[s.start : s.end].strip()]
    kept = [p.text[s.start : s.end] for p in pieces for s in p.marks]
    assert sum(bool(surface.strip()) for surface in kept) == len(visible)
    for piece in pieces:
        for mark in piece.marks:
            assert 0 <= mark.start < mark.end <= len(piece.text)


@given(texts_with_spans(), st.integers(1, 4))
def test_no_sentence_is_too_long_and_no_mark_is_cut(case, limit):
    text, spans = case
    marks = tuple(sorted(set(spans)))
    split = Splitter("en", max_words=limit)
    pieces = list(split(Sentence("u", text, "label", marks)))
    assert "".join("".join(p.text.split()) for p in pieces) == "".join(text.split())
    assert {p.label for p in pieces} <= {"label"}
    assert split.sentences == len(pieces)
    if not marks:
        assert all(len(p.text.split()) <= limit for p in pieces)
    visible = sum(bool(text[s.start : s.end].strip()) for s in marks)
    assert sum(bool(p.text[s.start : s.end].strip()) for p in pieces for s in p.marks) == visible


def test_a_long_sentence_is_cut_where_it_pauses():
    words = [f"w{n}" for n in range(250)]
    words[70] += ","
    split = Splitter("en")
    pieces = list(split(Sentence("u", " ".join(words))))
    assert [len(p.text.split()) for p in pieces] == [71, 100, 79]
    assert (split.texts, split.divided, split.sentences, split.cuts) == (1, 1, 3, 2)
    lines = "\n".join(" ".join(words[at : at + 9]) for at in range(0, 250, 9))
    assert [len(p.text.split()) % 9 for p in Splitter("en")(Sentence("u", lines))] == [0, 0, 7]


def test_a_mark_longer_than_the_limit_stays_whole():
    text = " ".join(f"w{n}" for n in range(30))
    end = text.index(" w25")
    (one, other) = Splitter("en", 10)(Sentence("u", text, None, (Span(0, end, "X"),)))
    assert one.marks == (Span(0, end, "X"),)
    assert other.text == "w25 w26 w27 w28 w29"


def test_split_with_blanks_that_sentencex_fails_on(capfd):
    for blank in "\u00a0\u2003\u2028\u3000":
        pieces = list(Splitter("en")(Sentence("u", f"It is plan B{blank}. Next one.")))
        assert [p.text for p in pieces] == [f"It is plan B{blank}.", "Next one."]
    assert capfd.readouterr().err == ""


def test_a_record_that_sentencex_fails_on_stays_whole(monkeypatch):
    panic = type("PanicException", (BaseException,), {})

    def fails(error):
        def get_sentence_boundaries(language, text):
            raise error

        return get_sentence_boundaries

    record = Sentence("u", "One. Two.")
    monkeypatch.setattr("sentencex.get_sentence_boundaries", fails(panic))
    assert list(Splitter("en")(record)) == [record]
    monkeypatch.setattr("sentencex.get_sentence_boundaries", fails(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(Splitter("en")(record))


def test_split_takes_a_language_it_does_not_know():
    assert [p.text for p in Splitter("xx")(Sentence("u", "One. Two."))] == ["One.", "Two."]


def test_split_language_is_checked():
    with pytest.raises(UserError, match="language code"):
        Splitter("English!")
