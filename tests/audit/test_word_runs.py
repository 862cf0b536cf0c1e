"""Runs of words in common: against a search by hand."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uedp.audit.word_runs import (
    Hasher,
    NgramOwners,
    match,
    ngram_hash,
    surface_hashes,
    text_words,
)

WORDS = st.lists(st.lists(st.sampled_from("abc"), max_size=7).map(" ".join), max_size=5)


def test_words_are_letters_and_digits_in_any_case():
    assert text_words("Call Ann-Marie's 212-555 NOW!") == "call ann marie s 212 555 now".split()
    assert text_words("ÉCOLE Straße") == ["école", "strasse"]
    assert text_words("東京は") == ["東", "京", "は"]
    assert text_words("… —") == []


def has(texts: list[str], run: list[str]) -> bool:
    n = len(run)
    return any(
        words[i : i + n] == run for words in map(str.split, texts) for i in range(len(words))
    )


@given(WORDS, WORDS)
def test_the_longest_run_is_that_of_a_search_by_hand(query, block):
    hasher = Hasher()
    ours, theirs = hasher.words(query), hasher.words(block)
    found = match(ours, theirs, (2,))
    expected, pairs = [], set()
    for words in map(str.split, query):
        for i in range(len(words)):
            lengths = [n for n in range(1, len(words) - i + 1) if has(block, words[i : i + n])]
            expected.append(max(lengths, default=0))
            if i + 1 < len(words):
                pairs.update(
                    (" ".join(words[i : i + 2]), text)
                    for text, other in enumerate(block)
                    if has([other], words[i : i + 2])
                )
    assert found.runs.tolist() == expected
    hashes, texts = found.met.get(2, (np.zeros(0), np.zeros(0)))
    known = {ngram_hash(hasher(pair.split())): pair for pair, _ in pairs}
    assert {(known[h], t) for h, t in zip(hashes.tolist(), texts.tolist(), strict=True)} == pairs
    largest = [max((expected[i] for i in range(a, b)), default=0) for a, b in bounds(query)]
    assert ours.per_text(found.runs).tolist() == largest


def bounds(texts: list[str]) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *(len(text.split()) for text in texts)]).tolist()
    return list(pairwise(ends))


def test_a_run_does_not_go_on_in_the_next_text():
    hasher = Hasher()
    found = match(hasher.words(["a b c d"]), hasher.words(["x a b", "c d y"]), ())
    assert found.runs.tolist() == [2, 1, 2, 1]


def test_an_ngram_belongs_to_a_user_if_nobody_else_has_it():
    hasher, owners = Hasher(), NgramOwners()
    query = hasher.words(["a b c", "b c d"])
    for texts, users in ((["a b", "b c"], [1, 1]), (["b c", "c d"], [2, 3]), (["c d"], [3])):
        block = hasher.words(texts)
        hashes, where = match(query, block, (2,)).met[2]
        owners.add(hashes, np.array(users)[where])
    hashes, places = query.ngrams(2)
    texts, users = owners.of(hashes, query.text_of[places])
    assert list(zip(texts.tolist(), users.tolist(), strict=True)) == [(0, 1), (1, 3)]
    nobody = NgramOwners().of(hashes, query.text_of[places])
    assert [len(part) for part in nobody] == [0, 0]


def test_whole_texts_and_names_are_compared_by_their_words():
    hasher = Hasher()
    keys = hasher.words(["Hello, you!", "hello you", "hello", "you hello", ""]).whole()
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 4
    found = surface_hashes(hasher, ["Ann Lee", "212-555-0183", "…", "Bob"], 3)
    assert sorted(found) == [1, 2, 3]
    hashes, _ = hasher.words(["call ann lee"]).ngrams(2)
    assert found[2][0] in hashes
    assert found[2].tolist()[1:] == [0, 0, 0]
