import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.entities.canonical import Canon, canonical, strict_form
from uedp.entities.words import words
from uedp.errors import UserError

SAME = [
    ("U.S.", "US", "u.s", "U.S.'s", "ＵＳ", "the US"),
    ("O'Brien", "O’Brien’s", "OBRIEN"),
    ("Coca-Cola", "coca cola", "COCA  COLA", "Coca\nCola's"),
    ("(415) 555-0133", "+1 415 555 0133", "415.555.0133", "1-415-555-0133", "415‑555‑0133"),
    ("415-555-0133", "415-555-0133,", "“415-555-0133”", "\u202a+1 415 555 0133\u202c"),
    ("415-555-0133", "415-555-0133 x5", "415-555-0133 ext. 5"),
    ("Ann.Lee@Mail.example", "ann.lee@mail.example", "<ann.lee@mail.example>,"),
    ("bob@x.example", "bob (at) x.example", "bob@x.example's"),
    ("GB82 WEST 1234 5698 7654 32", "GB82WEST12345698765432"),
    ("QQ 12 34 56 C", "QQ123456C"),
    ("AC-20394857", "AC 20394857", "ac20394857", "AC-2039-4857"),
    ("account 12345", "acct #12345", "Account no. 12345", "12345"),
    ("Straße", "STRASSE"),
    ("ﬁnance", "finance"),
    ("José", "Jose\u0301", "JOSÉ"),
    ("Acme™", "Acme", "Ac\u00adme"),
    ("トヨタ", "ﾄﾖﾀ"),
    ("New York", "new york.", "'New York'", "NewYork"),
    ("ʼ", "“ʼ”, ", "'", "..."),
]
DIFFERENT = [
    ("1/11", "11/1"),
    ("New York", "York"),
    ("ann@x.example", "ann@y.example"),
    ("415 555 0133", "415 555 0134"),
    ("3.5", "35"),
    ("東京", "京都"),
    ("कमल", "कमला"),
    ("The", "A"),
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


_ANY = st.text(st.characters(categories=["L", "M", "N", "P", "Zs"]), min_size=1, max_size=12)


@given(_ANY.filter(lambda s: any(map(str.isalnum, s))))
def test_case_and_outer_punctuation_do_not_matter(surface):
    assert canonical(f"“{surface}”, ") == canonical(surface)
    # characters whose capital is another letter altogether are Unicode's, not ours to mend
    if surface.upper().casefold() == surface.casefold():
        assert canonical(surface.upper()) == canonical(surface)


@given(st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6), max_size=5))
def test_words_are_the_same_inside_a_text(parts):
    surface = " ".join(parts)
    alone = [word for word, _, _ in words(surface)]
    inside = [word for word, _, _ in words(f"So, ({surface}) it was")]
    assert inside == ["so", *alone, "it", "was"]


def test_words_know_where_they_stand():
    text = "The U.S.'s 東京 office.Acme"
    assert [text[a:b] for _, a, b in words(text)] == ["The", "U.S", "東", "京", "office", "Acme"]


def test_aliases_chain_and_unite():
    canon = Canon({"Big Blue": "IBM", "I.B.M. Corp": "Big Blue"})
    assert canon("ibm corp") == canon("BIG BLUE") == canon("IBM") == "ibm"
    assert canon("Apple") == "apple"


def test_names_of_an_entity():
    canon = Canon({"Big Blue": "IBM", "I.B.M. Corp": "Big Blue", "I.B.M.": "IBM"})
    assert canon.other_names(canon("ibm")) == {"Big Blue", "IBM", "I.B.M. Corp", "I.B.M."}
    assert canon.other_names("apple") == frozenset()


def test_alias_ring_and_double_meaning_are_refused():
    with pytest.raises(UserError, match="leads back to itself"):
        Canon({"a1": "b1", "b1": "a1"})
    with pytest.raises(UserError, match="two different entities"):
        Canon({"Big Blue": "IBM", "big-blue": "Apple"})


def test_public_form_frees_only_what_was_written():
    assert strict_form("Reuters’s") == strict_form("REUTERS") == strict_form(" reuters")
    assert strict_form("C++") != strict_form("C")
    assert strict_form("1/11/2024") != strict_form("11/1/2024")
