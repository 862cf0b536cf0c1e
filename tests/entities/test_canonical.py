import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.entities.canonical import Canon, canonical, words
from uedp.errors import UserError

SAME = [
    ("U.S.", "US", "u.s", "U.S.'s", "ＵＳ"),
    ("O'Brien", "O’Brien’s", "OBRIEN"),
    ("Coca-Cola", "coca cola", "COCA  COLA", "Coca\nCola's"),
    ("(415) 555-0133", "+1 415 555 0133", "415.555.0133", "1-415-555-0133"),
    ("Ann.Lee@Mail.example", "ann.lee@mail.example"),
    ("AC-20394857", "AC 20394857", "ac20394857"),
    ("Straße", "STRASSE"),
    ("ﬁnance", "finance"),
    ("हिन्दी", "हिन्दी"),
    ("New York", "new york.", "'New York'"),
]
DIFFERENT = [
    ("1/11", "11/1"),
    ("New York", "York"),
    ("ann@x.example", "ann@y.example"),
    ("415 555 0133", "415 555 0134"),
    ("3.5", "35"),
    ("東京", "京都"),
    ("कमल", "कमला"),
]


@pytest.mark.parametrize("surfaces", SAME, ids=lambda s: s[0])
def test_one_entity(surfaces):
    assert len({canonical(surface) for surface in surfaces}) == 1


@pytest.mark.parametrize("surfaces", DIFFERENT, ids=lambda s: s[0])
def test_two_entities(surfaces):
    assert len({canonical(surface) for surface in surfaces}) == 2


def test_region_decides_what_a_local_number_dials():
    assert canonical("020 7946 0018", "GB") == canonical("+44 20 7946 0018", "GB")
    assert canonical("020 7946 0018", "US") != canonical("+44 20 7946 0018", "US")


@given(st.text(min_size=1).filter(str.strip))
def test_never_empty(surface):
    assert canonical(surface)


@given(st.text(st.sampled_from("aB3.’'- é"), min_size=1).filter(lambda s: s.strip(" .’'-")))
def test_case_and_outer_punctuation_do_not_matter(surface):
    assert canonical(f"“{surface.upper()}”,") == canonical(surface)


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6), max_size=5))
def test_words_are_the_same_inside_a_text(parts):
    surface = " ".join(parts)
    alone = [word for word, _, _ in words(surface)]
    inside = [word for word, _, _ in words(f"So, ({surface}) it was")]
    assert inside == ["so", *alone, "it", "was"]


def test_words_know_where_they_stand():
    text = "The U.S.'s 東京 office.Acme"
    assert [text[a:b] for _, a, b in words(text)] == ["The", "U.S.'s", "東", "京", "office", "Acme"]


def test_aliases_chain_and_unite():
    canon = Canon({"Big Blue": "IBM", "I.B.M. Corp": "Big Blue"})
    assert canon("ibm corp") == canon("BIG BLUE") == canon("IBM") == "ibm"
    assert canon("Apple") == "apple"


def test_alias_ring_is_refused():
    with pytest.raises(UserError, match="ring"):
        Canon({"a1": "b1", "b1": "a1"})
