import random
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from uedp.corpus.sentence import Span
from uedp.entities import propagation
from uedp.entities.propagation import Evidence, KnownSurfaces, Rule


def found(known, text, user=None):
    return [(text[s.start : s.end], s.label) for s in known.find(text, user=user)]


def known(*surfaces):
    result = KnownSurfaces()
    for surface, label in surfaces:
        result.add(surface, label)
    return result


def hits_of(text, *surfaces):
    """Spans of the first occurrences of surfaces."""
    return [Span(text.index(s), text.index(s) + len(s), "X") for s in surfaces]


def weighed(*texts, rule=None):
    """Evidence from texts of different users, each with the surfaces that a model hit in it."""
    return weighed_by_users(*((str(at), *text) for at, text in enumerate(texts)), rule=rule)


def weighed_by_users(*texts, rule=None):
    """The same, from users with texts."""
    evidence = Evidence(rule)
    for user, text, *surfaces in texts:
        for hit in hits_of(text, *surfaces):
            evidence.add(text[hit.start : hit.end], hit.label, user)
    for user, text, *surfaces in texts:
        evidence.count(text, hits_of(text, *surfaces), user)
    return evidence


def spread(*texts, rule=None):
    """The surfaces to be found everywhere, from texts with hits."""
    return as_known(weighed(*texts, rule=rule))


def as_known(evidence):
    result = KnownSurfaces()
    result.add_evidence(evidence)
    return result


# --- what spreads --------------------------------------------------------------------------------


def test_half_of_the_places_is_enough_and_less_is_not():
    names = spread(("a zork", "zork"), ("then zork sat",))
    assert found(names, "with zork") == [("zork", "X")]
    names = spread(("a zork", "zork"), ("then zork sat",), ("and zork slept",))
    assert found(names, "with zork") == []


def test_a_capitalised_word_that_is_not_ordinary_needs_two_hits_in_five():
    two = [("Zork ran", "Zork"), ("Zork sat", "Zork")]
    assert found(spread(*two, *[("a Zork",)] * 3), "with Zork") == [("Zork", "X")]
    assert found(spread(*two, *[("a Zork",)] * 4), "with Zork") == []
    # it is more often written without the capital
    assert found(spread(*two, *[("a Zork",)] * 3, *[("some zork",)] * 6), "Zork") == []


@pytest.mark.parametrize("name", ["Ann Zork", "Zork of Borg", "NATO", "ZDF2"])
def test_several_capitalised_words_or_an_abbreviation_need_one_hit_in_twenty(name):
    hit = (f"{name} ran", name)
    assert found(spread(hit, *[(f"then {name} sat",)] * 19), f"with {name}") == [(name, "X")]
    assert found(spread(hit, *[(f"then {name} sat",)] * 20), f"with {name}") == []


@pytest.mark.parametrize("other", ["Zork", "EU", "Zork-like thing"])
def test_other_names_need_more(other):
    assert found(spread((other, other), *[(f"then {other}",)] * 4), other) == []


# --- one sense per author ------------------------------------------------------------------------


def test_a_name_spreads_within_the_text_of_its_author_by_one_hit_in_twenty():
    others = [(f"u{i}", "a Zork") for i in range(9)]
    mine = [("ann", "Zork ran", "Zork"), *[("ann", "then Zork sat")] * 19]
    names = as_known(weighed_by_users(*mine, *others))
    assert found(names, "with Zork", "ann") == [("Zork", "X")]
    assert found(names, "with Zork", "u1") == []  # no model found it there
    assert found(names, "with Zork") == []
    names = as_known(weighed_by_users(*mine, ("ann", "Zork"), *others))
    assert found(names, "with Zork", "ann") == []


def test_an_ordinary_word_spreads_within_its_authors_text_by_half_and_two_hits():
    others = [(f"u{i}", "Mark this page") for i in range(9)]
    mine = [("ann", "Mark ran", "Mark"), ("ann", "Mark sat", "Mark"), ("ann", "Mark it")]
    names = as_known(weighed_by_users(*mine, ("ann", "Mark that"), *others))
    assert found(names, "Mark, mark", "ann") == [("Mark", "X")]
    assert found(names, "Mark", "u1") == []
    assert found(as_known(weighed_by_users(*mine, *[mine[2]] * 2, *others)), "Mark", "ann") == []
    assert found(as_known(weighed_by_users(mine[0], *others)), "Mark", "ann") == []


def test_a_word_in_lower_case_spreads_within_its_authors_text_by_half():
    others = [(f"u{i}", "a zork") for i in range(9)]
    mine = [("ann", "zork ran", "zork"), ("ann", "zork sat")]
    assert found(as_known(weighed_by_users(*mine, *others)), "zork", "ann") == [("zork", "X")]
    assert found(as_known(weighed_by_users(*mine, mine[1], *others)), "zork", "ann") == []


def test_case_variants_are_found_within_the_authors_text_unless_the_text_speaks_against_them():
    others = [(f"u{i}", "a Zork") for i in range(9)]
    evidence = weighed_by_users(("ann", "Zork ran", "Zork"), ("bob", "with zork"), *others)
    names = as_known(evidence)
    assert [surface for surface, _ in found(names, "zork, ZORK", "ann")] == ["zork", "ZORK"]
    assert found(names, "zork, ZORK", "bob") == []
    common = [(f"v{i}", "some zork") for i in range(8)]
    names = as_known(weighed_by_users(("ann", "Zork ran", "Zork"), *common, *others))
    assert found(names, "Zork, zork", "ann") == [("Zork", "X")]


def test_what_spreads_everywhere_spreads_within_every_text():
    names = as_known(weighed_by_users(("ann", "Zork ran", "Zork"), ("bob", "Zork", "Zork")))
    assert found(names, "Zork", "cy") == found(names, "Zork", "ann") == [("Zork", "X")]


def test_outcomes_and_places_not_found_count_users():
    evidence = weighed_by_users(
        *[("ann", "Zork ran", "Zork"), ("ann", "a Zork")],
        *[(f"u{i}", "a Zork") for i in range(9)],
        *[("bob", "later", "later"), ("bob", "see later")],
    )
    assert evidence.outcomes() == {
        propagation.SPREAD_WITHIN: 1,
        propagation.TOO_FEW_ORDINARY: 1,
    }
    assert dict(evidence.unfound(as_known(evidence))) == {"Zork": 9, "later": 1}


_ONE_OF = st.sampled_from(["Zork", "zork", "ZORK", "Mark", "mark", "Bob Lee", "NATO"])


@given(st.lists(st.tuples(st.sampled_from("abc"), _ONE_OF, st.booleans()), min_size=1))
def test_every_place_is_found_or_counted_as_not_found(texts):
    """Whoever wrote what: what is hit, spread and not found adds up to all places."""
    rows = [(user, word, word) if hit else (user, word) for user, word, hit in texts]
    evidence = weighed_by_users(*rows)
    names = as_known(evidence)
    missing = dict(evidence.unfound(names))
    for word in {word for _, word, hit in texts if hit}:
        here = [(user, hit) for user, other, hit in texts if other == word]
        left = sum(not hit and (word, "X") not in found(names, word, user) for user, hit in here)
        assert missing.get(word, 0) == left


@given(st.lists(st.tuples(st.sampled_from("abc"), _ONE_OF, st.booleans()), min_size=1))
def test_more_hits_never_find_less_of_the_same_name(texts):
    """A hit more of a form with a capital never takes it from any user's text."""
    rows = [(user, word, word) if hit else (user, word) for user, word, hit in texts]
    before = as_known(weighed_by_users(*rows))
    user, word = rows[0][:2]
    assume(not word.islower())  # one hit that does not pass shows a variant to be another word
    after = as_known(weighed_by_users((user, word, word), *rows[1:]))
    for reader in "abc":
        if found(before, word, reader):
            assert found(after, word, reader)


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


def test_a_variant_that_is_a_word_of_its_own_is_not():
    names = spread(*[("LA is hot", "LA")] * 9, *[("qu\u00e9 la ciudad",)] * 4)
    assert found(names, "LA, la") == [("LA", "X")]
    names = spread(("MR", "MR"), *[("Mr and Ms",)] * 6)
    assert found(names, "MR, Mr") == [("MR", "X")]
    names = spread(("Air Zork", "Air Zork"), *[("the air zork",)] * 6)
    assert found(names, "Air Zork, air zork") == [("Air Zork", "X")]
    rare = spread(*[("Zork is hot", "Zork")] * 3, ("the zork ciudad",))
    assert found(rare, "zork") == [("zork", "X")]
    headline = spread(("Zork is hot", "Zork"), *[("ZORK WINS",)] * 9)
    assert found(headline, "ZORK") == [("ZORK", "X")]
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
        evidence.add(surface, "X", "u")
    for words, _, _, span in marked:
        evidence.count(" ".join(words), [span], "u")
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
        assert evidence._own["u", key][form] == (hits[form], places[form])


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
        evidence.add("Ann " * length, "X", "u")

    def seconds(repeated):
        text = "Ann " * repeated
        hits = [Span(i * 4, i * 4 + 3, "X") for i in range(0, repeated, 2)]
        began = time.process_time()
        evidence.count(text, hits, "u")
        return time.process_time() - began

    seconds(200)
    long, short = (min(seconds(repeated) for _ in range(3)) for repeated in (4000, 400))
    assert long < 30 * max(short, 0.005)


def test_memory_grows_with_the_surfaces_of_users_not_with_text():
    evidence = weighed(("Zork ran", "Zork"))
    for number in range(500):
        evidence.count(f"Zork met somebody{number} there", [], f"user{number}")
    assert evidence._of(("zork",), ("Zork",)) == (1, 501)
    assert len(evidence._places) == len(evidence._own) == 1


def test_a_rule_of_zero_is_the_old_one():
    anywhere = Rule(share=0, name_share=0, ordinary_share=0, ordinary_hits=1, noise_share=0)
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
