"""Diversity and likeness of texts, by hand."""

import math

import numpy as np
import pytest

from uedp.audit.text_quality import (
    diversity,
    jensen_shannon,
    length_divergence,
    pair_perplexity,
    word_divergence,
)
from uedp.audit.word_runs import Hasher


def words(*texts: str):
    return Hasher().words(texts)


def test_diversity_by_hand():
    found = diversity(words("a b c d e", "a b c d", "x x x x x", "A B, c d."))
    assert (found.texts, found.vocabulary) == (4, 6)
    assert found.words_mean == 18 / 4
    assert found.distinct_1 == 6 / 18
    assert found.distinct_2 == 5 / 14  # ab bc cd de xx
    # six runs of four words, of which abcd is in three texts; xxxx stands twice in one
    assert found.shared == pytest.approx(3 / 5)
    assert found.repeated == pytest.approx(1 / 6)
    assert found.duplicates == pytest.approx(1 / 4)


def test_texts_without_words_have_a_diversity():
    found = diversity(words("", "…"))
    assert (found.vocabulary, found.distinct_1, found.shared, found.repeated) == (0, 0, 0, 0)


def test_divergence_is_zero_for_equal_laws_and_one_for_disjoint_ones():
    assert jensen_shannon(np.array([1.0, 3]), np.array([2.0, 6])) == pytest.approx(0, abs=1e-12)
    assert jensen_shannon(np.array([1.0, 0]), np.array([0.0, 5])) == pytest.approx(1)
    half = jensen_shannon(np.array([1.0, 0]), np.array([1.0, 1]))
    assert half == pytest.approx(0.5 * math.log2(4 / 3) + 0.25 * math.log2(2 / 3) + 0.25)
    same = words("a b", "c")
    assert word_divergence(same, words("c b", "a")) == pytest.approx(0, abs=1e-12)
    assert word_divergence(same, words("x y z")) == pytest.approx(1)
    assert length_divergence(same, words("z", "x y")) == pytest.approx(0, abs=1e-12)
    assert length_divergence(same, words("x y z z z z z z z")) == pytest.approx(1)


def test_word_pairs_learned_from_like_texts_predict_better():
    likes = words(*["the cat sat on the mat"] * 3)
    test = words("the cat sat")
    good, bad = (pair_perplexity(side, test, 10) for side in (likes, words("no dogs here")))
    the_cat = 0.7 * 3 / 6 + 0.25 * 3 / 18 + 0.05 / 10
    cat_sat = 0.7 + 0.25 * 3 / 18 + 0.05 / 10
    assert good == pytest.approx(1 / math.sqrt(the_cat * cat_sat))
    assert bad == pytest.approx(10 / 0.05)
