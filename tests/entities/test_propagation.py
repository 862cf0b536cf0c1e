import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.sentence import Span
from uedp.entities import propagation
from uedp.entities.propagation import Evidence, KnownSurfaces, Rule


def found(known, text):
    return [(text[s.start : s.end], s.label) for s in known.find(text)]


def known(*surfaces):
    result = KnownSurfaces()
    for surface, label in surfaces:
        result.add(surface, label)
    return result


def hits_of(text, *surfaces):
    """Spans of the first occurrences of surfaces."""
    return [Span(text.index(s), text.index(s) + len(s), "X") for s in surfaces]


def weighed(*texts, rule=None):
    """Evidence from texts, each with the surfaces that a model hit in it."""
    evidence = Evidence(rule)
    for text, *surfaces in texts:
        for hit in hits_of(text, *surfaces):
            evidence.add(text[hit.start : hit.end], hit.label)
    for text, *surfaces in texts:
        evidence.count(text, hits_of(text, *surfaces))
    return evidence


def spread(*texts, rule=None):
    """The surfaces to be found everywhere, from texts with hits."""
    result = KnownSurfaces()
    result.add_evidence(weighed(*texts, rule=rule))
    return result


# --- what spreads --------------------------------------------------------------------------------


def test_half_of_the_places_is_enough_and_less_is_not():
    names = spread(("a zork", "zork"), ("then zork sat",))
    assert found(names, "with zork") == [("zork", "X")]
    names = spread(("a zork", "zork"), ("then zork sat",), ("and zork slept",))
    assert found(names, "with zork") == []


def test_a_capitalised_word_that_is_not_ordinary_needs_one_hit_in_twenty():
    names = spread(("Zork ran", "Zork"), *[("then Zork sat",)] * 19)
    assert found(names, "with Zork") == [("Zork", "X")]
    assert found(spread(("Zork ran", "Zork"), *[("a Zork",)] * 20), "Zork") == []
    # it is more often written without the capital
    names = spread(("Zork ran", "Zork"), *[("a Zork",)] * 2, *[("some zork",)] * 4)
    assert found(names, "Zork") == []


def test_several_words_with_capitals_are_a_name_even_if_each_is_ordinary():
    names = spread(("the Red Sea", "Red Sea"), *[("a Red Sea",)] * 9)
    assert found(names, "Red Sea, red sea, RED SEA") == [("Red Sea", "X")]
    assert found(spread(("RED SEA", "RED SEA"), *[("RED SEA",)] * 9), "RED SEA") == []


def test_an_ordinary_word_needs_more_places_and_two_hits():
    two = [("Mark came", "Mark"), ("Mark left", "Mark")]
    assert found(spread(*two, ("Mark this page",)), "Mark") == [("Mark", "X")]
    assert found(spread(*two, *[("Mark this page",)] * 2), "Mark") == []
    assert found(spread(two[0]), "Mark") == []  # one hit of one place


def test_places_are_counted_with_their_case():
    names = spread(("The US won", "US"), ("the US lost", "US"), *[("tell us more",)] * 9)
    assert found(names, "US and us and Us") == [("US", "X")]


def test_a_place_inside_a_longer_hit_counts_neither_way():
    longer = [("ask john zork now", "john zork")] * 5
    assert found(spread(("a zork", "zork"), ("the zork",), *longer), "zork") == [("zork", "X")]
    york = [("in New York", "New York")] * 9
    names = spread(("New rules", "New"), *york, *[("New idea",)] * 3)
    assert [surface for surface, _ in found(names, "New York")] == ["New York"]


def test_a_name_counts_inside_a_longer_hit_if_it_mostly_stands_alone():
    """`Kerry` is the same in `John Kerry`; `York` and `John` are not."""
    whole = ("John Kerry came", "John Kerry")
    names = spread(("Kerry ran", "Kerry"), ("Kerry sat", "Kerry"), whole, ("Kerry", "Kerry"))
    hits = hits_of(*whole)
    assert {whole[0][s.start : s.end] for s in names.find(whole[0], hits)} == {
        "Kerry",
        "John Kerry",
    }
    names = spread(("John ran", "John"), whole, ("John Zork sat", "John Zork"))
    assert [whole[0][s.start : s.end] for s in names.find(whole[0], hits)] == ["John Kerry"]
    assert found(names, "with John and no hit")[0] == ("John", "X")
    names.add("John", "X", always=True)  # an entry of a list counts everywhere
    assert len(names.find(whole[0], hits)) == 2


def test_case_variants_of_a_name_that_passed_are_found():
    names = spread(("Alice Smith ran", "Alice Smith"), ("Zork sat", "Zork"))
    assert found(names, "alice smith, ALICE SMITH, zork") == [
        ("alice smith", "X"),
        ("ALICE SMITH", "X"),
        ("zork", "X"),
    ]


@pytest.mark.parametrize("word", ["US", "May", "Will", "Mark", "White House"])
def test_a_variant_that_is_an_ordinary_word_is_not(word):
    names = spread((f"{word} x", word), (f"{word} y", word))
    assert found(names, word) == [(word, "X")]
    assert found(names, word.lower()) == []


def test_a_variant_that_is_a_word_of_its_own_in_this_text_is_not():
    names = spread(*[("LA is hot", "LA")] * 9, *[("qu\u00e9 la ciudad",)] * 4)
    assert found(names, "LA, la") == [("LA", "X")]
    rare = spread(("Zork is hot", "Zork"), ("the zork ciudad",))
    assert found(rare, "zork") == [("zork", "X")]
    judged = spread(*[("Zork is hot", "Zork")] * 9, ("a zork", "zork"), *[("zork",)] * 2)
    assert found(judged, "Zork, zork") == [("Zork", "X")]  # found in one of three places


def test_a_single_letter_and_a_long_stretch_do_not_spread():
    stretch = " ".join(f"W{i}" for i in range(propagation.LONGEST + 1))
    names = spread(("Q sat", "Q"), (stretch, stretch))
    assert len(names) == 0


# --- what is dropped -----------------------------------------------------------------------------


def test_hits_without_a_letter_or_digit_are_dropped():
    evidence = weighed(("see :-) there", ":-)"), ("and \U0001f600 now", "\U0001f600"))
    assert evidence.dropped(":-)") == propagation.NO_LETTER
    assert evidence.dropped("\U0001f600") == propagation.NO_LETTER
    assert evidence.dropped("7") is None
    assert evidence.dropped("\u674e") is None


def test_only_a_rarely_found_ordinary_word_in_lower_case_is_dropped():
    rest = [(f"it was {word} again",) for word in ("later", "mark", "zork")] * 11
    evidence = weighed(("was it later", "later"), ("a zork", "zork"), *rest, ("was It", "It"))
    assert evidence.dropped("later") == propagation.NOISE
    assert evidence.dropped("zork") is None  # no ordinary word
    assert evidence.dropped("It") is None  # a capital
    often = weighed(("call mark", "mark"), ("mark it", "mark"), *[("a mark",)] * 10)
    assert often.dropped("mark") is None  # a name in lower case, perhaps


# --- counting ------------------------------------------------------------------------------------

_TEXTS = st.lists(
    st.lists(st.sampled_from(["Ann", "ann", "Lee", "us", "US", "x"]), min_size=1, max_size=8),
    min_size=1,
    max_size=6,
)


@given(_TEXTS, st.data())
def test_every_place_is_counted_once(texts, data):
    """Against a search of every window by hand."""
    evidence, places, hits = Evidence(), {}, {}
    marked = []
    for words in texts:
        start = data.draw(st.integers(0, len(words) - 1))
        end = data.draw(st.integers(start + 1, min(start + 2, len(words))))
        offset = len(" ".join(words[:start])) + (start > 0)
        surface = " ".join(words[start:end])
        marked.append((words, start, end, Span(offset, offset + len(surface), "X")))
        evidence.add(surface, "X")
    for words, _, _, span in marked:
        evidence.count(" ".join(words), [span])
    for words, start, end, _ in marked:
        for first in range(len(words)):
            for last in range(first + 1, len(words) + 1):
                form = tuple(words[first:last])
                hit = (first, last) == (start, end)
                if hit or not (start <= first and last <= end):
                    places[form] = places.get(form, 0) + 1
                    hits[form] = hits.get(form, 0) + hit
    for words, start, end, _ in marked:
        form = tuple(words[start:end])
        key = tuple(word.lower() for word in form)
        assert evidence._of(key, form) == (hits[form], places[form])


def test_the_order_of_texts_changes_nothing():
    texts = [("Zork ran", "Zork"), ("a Zork",), ("zork", "zork"), ("ZORK", "ZORK"), ("Lee", "Lee")]
    shuffled = texts[:]
    random.Random(3).shuffle(shuffled)
    text = "Zork zork ZORK Lee LEE"
    assert found(spread(*texts), text) == found(spread(*shuffled), text)


def test_counting_is_linear_in_the_text():
    """Ten times the text, at most thirty times the time, whatever repeats in it."""
    evidence = Evidence()
    for length in range(1, propagation.LONGEST + 1):
        evidence.add("Ann " * length, "X")

    def seconds(repeated):
        text = "Ann " * repeated
        hits = [Span(i * 4, i * 4 + 3, "X") for i in range(0, repeated, 2)]
        began = time.process_time()
        evidence.count(text, hits)
        return time.process_time() - began

    seconds(200)
    assert seconds(4000) < 30 * max(seconds(400), 0.005)


def test_memory_grows_with_surfaces_not_with_text():
    evidence = weighed(("Zork ran", "Zork"))
    for number in range(500):
        evidence.count(f"Zork met somebody{number} there", [])
    assert evidence._of(("zork",), ("Zork",)) == (1, 501)
    assert len(evidence._places) == 1


def test_a_rule_of_zero_is_the_old_one():
    anywhere = Rule(share=0, ordinary_share=0, ordinary_hits=1, noise_share=0)
    names = spread(("it rained", "it"), *[("it is",)] * 50, rule=anywhere)
    assert found(names, "so it goes") == [("it", "X")]


# --- what is found -------------------------------------------------------------------------------


def test_every_form_of_a_surface_is_found():
    text = "ACME CORP. sued Acme-Corp's rival; acme corp won. Acme alone did not."
    assert found(known(("Acme Corp", "ORG")), text) == [
        ("ACME CORP", "ORG"),
        ("Acme-Corp", "ORG"),
        ("acme corp", "ORG"),
    ]


def test_another_name_in_lower_case_counts_unless_its_words_are_ordinary():
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


_WORD = st.text(st.sampled_from("qzC"), min_size=2, max_size=3)  # none of them ordinary


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
        for i in range(len(parts) - len(run) + 1):
            if lower[i : i + len(run)] == [word.lower() for word in run]:
                assert (starts[i], starts[i] + len(" ".join(run))) in spans
