"""Sentences and spans as the page shows them are those of the corpus."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.studio.conftest import LONG
from uedp.corpus.store import Corpus
from uedp.studio.browse import LISTED, LONGEST, Mention, SentenceFilter, View, cut, visible


@pytest.fixture(scope="module")
def view(original):
    return View(Corpus(original))


def test_mentions_are_those_of_the_corpus(view):
    texts = view.corpus.texts(np.arange(len(view)))
    for number, (text, expected) in enumerate(zip(texts, view.corpus.spans(), strict=True)):
        found = view.mentions(number, text)
        assert [((m.start, m.end, m.label), m.entity) for m in found] == expected
        assert [m.surface for m in found] == [text[m.start : m.end] for m in found]
        shown = view.sentences([number], whole=True)[0]
        assert "".join(piece.text for piece in shown.pieces) == visible(text)
        in_pieces = (m for piece in shown.pieces for m in piece.mentions)
        assert sorted(in_pieces, key=lambda m: m.index) == found


def test_detectors_are_those_that_hit(view):
    """Of every mention; none where it was spread from other places."""
    hits = {}
    for row in view.corpus.hits.to_pylist():
        key = row["sentence"], row["start"], row["end"]
        hits.setdefault(key, set()).add(view.corpus.detectors[row["detector"]])
    texts = view.corpus.texts(np.arange(len(view)))
    for number, text in enumerate(texts):
        for mention in view.mentions(number, text):
            key = number, mention.start, mention.end
            assert set(mention.detectors) == hits.get(key, set())


@pytest.mark.parametrize(
    "chosen",
    [
        SentenceFilter(),
        SentenceFilter(category="contact"),
        SentenceFilter(category="no such"),
        SentenceFilter(detector="patterns"),
        SentenceFilter(detector="labels", category="person"),
        SentenceFilter(detector=LISTED),
        SentenceFilter(doubtful=True),
        SentenceFilter(entity="annlee"),
        SentenceFilter(entity="nobody"),
        SentenceFilter(find="SMALLVILLE"),
        SentenceFilter(find="smallville", entity="annlee"),
        SentenceFilter(show="with"),
        SentenceFilter(show="without"),
        SentenceFilter(sentence=3),
    ],
)
def test_filters_choose_what_they_say(view, chosen):
    texts = view.corpus.texts(np.arange(len(view)))
    expected = []
    for number, text in enumerate(texts):
        mentions = view.mentions(number, text)
        fit = [
            m
            for m in mentions
            if chosen.category in ("", m.category)
            and (not chosen.detector or chosen.detector in (m.detectors or (LISTED,)))
            and chosen.entity in ("", view.name_of(m.entity))
            and (not chosen.doubtful or view.doubtful[m.entity])
        ]
        speaks = chosen.category or chosen.detector or chosen.entity or chosen.doubtful
        if (speaks or chosen.show == "with") and not fit:
            continue
        if chosen.show == "without" and mentions:
            continue
        if chosen.find.lower() in text.lower() and chosen.sentence in (None, number):
            expected.append(number)
    assert view.select(chosen).tolist() == expected


def test_a_long_text_is_cut_unless_asked_for(view):
    (number,) = view.select(SentenceFilter(find="x" * 5000))
    cut_off = view.sentences([number])[0]
    assert cut_off.hidden == len(" met Ann Lee")
    assert view.sentences([number], whole=True)[0].hidden == 0
    plain = cut(LONG, [])
    assert plain[0].text == LONG
    assert len(LONG) > LONGEST


def mention(start, end, index=0):
    return Mention(index, start, end, "X", "misc", 0, (), "")


@given(st.text(max_size=40), st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12))))
def test_pieces_are_the_text_and_hold_every_mention(text, places):
    mentions = [
        mention(start, min(start + length, len(text)), index)
        for index, (start, length) in enumerate(places)
        if start < len(text)
    ]
    pieces = cut(text, mentions)
    assert "".join(piece.text for piece in pieces) == visible(text)
    assert sorted(m.index for p in pieces for m in p.mentions) == [m.index for m in mentions]
    begin = 0
    for piece in pieces:
        assert piece.text
        end = begin + len(piece.text)
        assert all(begin <= m.start < m.end <= end for m in piece.mentions)
        begin = end


def test_control_characters_become_visible_and_keep_their_places():
    assert visible("a\x00\x1b\r\x7f\t\n") == "a␀␛␍␡\t\n"
    assert visible("\u202eevil\u202c שלום \u2067x\u2069") == "�evil� שלום �x�"
