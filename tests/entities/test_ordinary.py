"""Ordinary English words."""

import re

import pytest

from uedp.entities.ordinary import is_ordinary, ordinary_words


@pytest.mark.parametrize(
    "word",
    "to is it my him as later love summer may will mark us bill i u march second sun sat lol "
    "gonna haha im dont ur btw It US May WILL don't it's they're didn’t parents'".split(),
)
def test_words_that_a_reader_does_not_take_for_names(word):
    assert is_ordinary(word)


@pytest.mark.parametrize(
    "word",
    "alice London GOOGLE mary smith john michael reuters iraq obama paris berlin tokyo "
    "microsoft yahoo english german monday april james david washington 42 ... ' alice's".split(),
)
def test_names_and_numbers_are_not_ordinary(word):
    assert not is_ordinary(word)


def test_the_list_is_sorted_words_in_lower_case():
    words = ordinary_words()
    assert 8_000 < len(words) < 16_000
    assert all(re.fullmatch(r"[a-z0-9]+(?:'[a-z]+)*", word) for word in words)
