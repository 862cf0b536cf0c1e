import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.entities.propagation import KnownSurfaces


def found(known, text):
    return [(text[s.start : s.end], s.label) for s in known.find(text)]


def known(*surfaces):
    result = KnownSurfaces()
    for surface, label in surfaces:
        result.add(surface, label)
    return result


def test_every_form_of_a_surface_is_found():
    text = "ACME CORP. sued Acme-Corp's rival; acme corp won. Acme alone did not."
    assert found(known(("Acme Corp", "ORG")), text) == [("ACME CORP", "ORG"), ("Acme-Corp", "ORG")]


def test_lower_case_counts_only_if_it_was_detected_so():
    text = "Tell us what the US may do in May."
    assert found(known(("US", "GPE"), ("May", "DATE")), text) == [("US", "GPE"), ("May", "DATE")]
    assert ("us", "GPE") in found(known(("us", "GPE")), text)


def test_overlapping_and_nested_mentions_are_all_found():
    names = known(("New York", "GPE"), ("New York Times", "ORG"), ("Times Square", "LOC"))
    assert found(names, "New York Times Square") == [
        ("New York", "GPE"),
        ("New York Times", "ORG"),
        ("Times Square", "LOC"),
    ]


GLUED = [
    ("Alice", "Alice'll call"),
    ("Alice", "le livre d’Alice"),
    ("Ali", "Ali'nin evi"),
    ("Bob", "❤️Bob"),
    ("Bob", "Bobʼs"),
    ("Acme", "the Ac\u00adme way"),
    ("トヨタ", "ﾄﾖﾀの車"),
    ("한국", "한국은"),
    ("東京", "私は東京に住む"),
    ("สมชาย", "คุณสมชายไป"),
    ("José", "Jose\u0301 came"),
    ("U.S.", "US-based"),
    ("Smith", "done.Smith left"),
]


@pytest.mark.parametrize(("surface", "text"), GLUED)
def test_typography_does_not_hide_a_name(surface, text):
    assert len(found(known((surface, "X")), text)) == 1


def test_no_match_inside_a_word_and_none_for_a_single_letter():
    assert found(known(("Ann", "PER"), ("A", "ORG")), "Annual Plan A by Ann") == [("Ann", "PER")]


def test_always_means_any_case_and_any_length():
    names = KnownSurfaces()
    for surface in ("C++", "#1", "X", "李", "Project Zero"):
        names.add(surface, "misc", always=True)
    text = "we use c++ at #1, not x or Xerox or C+; 李 runs project zero"
    assert [s for s, _ in found(names, text)] == ["project zero", "c++", "#1", "x", "李"]


def test_commonest_label_is_given():
    names = known(("Jordan", "PER"), ("Jordan", "GPE"), ("Jordan", "PER"))
    assert found(names, "Jordan") == [("Jordan", "PER")]


_WORD = st.text(st.sampled_from("abC"), min_size=1, max_size=3)


@given(
    st.lists(_WORD, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_every_run_of_words_that_was_added_is_found_everywhere(parts, runs):
    text = " ".join(parts)
    starts = [len(" ".join(parts[:i])) + (i > 0) for i in range(len(parts))]
    added = [parts[i : i + n] for i, n in runs if parts[i : i + n]]
    names = known(*((" ".join(run), "X") for run in added))
    spans = {(s.start, s.end) for s in names.find(text)}
    lower = [word.lower() for word in parts]
    for run in added:
        surface = " ".join(run)
        if len("".join(run)) < 2:
            continue
        for i in range(len(parts) - len(run) + 1):
            end = starts[i] + len(surface)
            same = lower[i : i + len(run)] == [word.lower() for word in run]
            if same and (surface.islower() or not text[starts[i] : end].islower()):
                assert (starts[i], end) in spans
