from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.sentence import Span
from uedp.entities.propagation import KnownSurfaces


def found(known, text, taken=()):
    return [(text[s.start : s.end], s.label) for s in known.find(text, taken)]


def known(*surfaces):
    result = KnownSurfaces()
    for surface, label in surfaces:
        result.add(surface, label)
    return result


def test_every_form_of_a_surface_is_found():
    text = "ACME CORP. sued Acme-Corp's rival; acme corp won. Acme alone did not."
    assert found(known(("Acme Corp", "ORG")), text) == [
        ("ACME CORP", "ORG"),
        ("Acme-Corp's", "ORG"),
    ]


def test_lower_case_counts_only_if_it_was_detected_so():
    text = "Tell us what the US may do in May."
    assert found(known(("US", "GPE"), ("May", "DATE")), text) == [("US", "GPE"), ("May", "DATE")]
    assert ("us", "GPE") in found(known(("us", "GPE")), text)


def test_longest_wins_and_spans_do_not_overlap():
    names = known(("New York", "GPE"), ("New York Times", "ORG"), ("Times Square", "LOC"))
    assert found(names, "New York Times Square, New York") == [
        ("New York Times", "ORG"),
        ("New York", "GPE"),
    ]


def test_inside_a_taken_span_nothing_is_added_but_around_it_is():
    names = known(("China", "GPE"), ("Bank of China", "ORG"))
    text = "Bank of China and China"
    assert found(names, text, [Span(0, 13, "ORG")]) == [("China", "GPE")]
    assert found(names, text, [Span(8, 13, "GPE")])[0] == ("Bank of China", "ORG")


def test_no_match_inside_a_word_and_none_for_a_single_letter():
    assert found(known(("Ann", "PER"), ("A", "ORG")), "Annual Plan A by Ann") == [("Ann", "PER")]


def test_name_is_found_inside_unspaced_text():
    assert found(known(("東京", "GPE")), "私は東京に住む") == [("東京", "GPE")]


def test_commonest_label_is_given():
    names = known(("Jordan", "PER"), ("Jordan", "GPE"), ("Jordan", "PER"))
    assert found(names, "Jordan") == [("Jordan", "PER")]


_WORD = st.text(st.sampled_from("abC"), min_size=2, max_size=3)


@given(st.lists(_WORD, min_size=1, max_size=12), st.data())
def test_any_run_of_words_is_found_again(parts, data):
    start = data.draw(st.integers(0, len(parts) - 1))
    end = data.draw(st.integers(start + 1, len(parts)))
    surface, text = " ".join(parts[start:end]), " ".join(parts)
    names = known((surface, "X"))
    spans = names.find(text)
    offset = len(" ".join(parts[:start])) + (start > 0)
    # the planted mention is found, or an earlier overlapping one of the same words is
    assert any(s.start < offset + len(surface) and offset < s.end for s in spans)
    assert all(a.end <= b.start for a, b in pairwise(spans))
