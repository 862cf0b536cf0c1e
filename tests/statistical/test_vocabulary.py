"""The private vocabulary releases words with the probabilities that Theorem 4 assumes."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import special

from tests.statistical.rates import check_rate
from tests.training.test_vocabulary import a_word_each, build, given_words
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.mechanism.noise import SecureNoise, SeededNoise
from uedp.training.vocabulary import private_words


@pytest.mark.parametrize("source", [SecureNoise, lambda: SeededNoise(3)])
def test_a_word_is_released_with_the_probability_of_its_count(source):
    """And none that no one gives; counts are whole users, noise is Gaussian."""
    counts = {f"w{n}": n for n in (1, 4, 8, 12, 20)}
    texts, incidence = a_word_each(counts)
    release = VocabularyRelease(5.0, 8.0, 1, 1)
    trials = 1_200
    seen: Counter[str] = Counter()
    noise = source()
    for key in range(trials):
        seen.update(private_words(texts, incidence, release, noise, key))
    assert set(seen) <= set(counts)
    for word, count in counts.items():
        expected = special.ndtr((count - release.threshold) / release.deviation)
        wrong = special.ndtr((count - release.threshold) / (release.deviation * 4 / 3))
        deviation = math.sqrt(expected * (1 - expected) / trials)
        assert abs(seen[word] / trials - expected) < 5 * deviation
        if count in (1, 20):  # far enough from the threshold for a third more noise to show
            assert abs(wrong - expected) > 8 * deviation


@pytest.mark.parametrize(
    ("of_sentence", "of_entity"),
    [(None, ""), (4, "u v w x"), (4, "a b c d")],
    ids=["user alone", "other words", "the same words"],
)
def test_new_words_are_released_as_rarely_as_the_failure_says(of_sentence, of_entity):
    """All words are the user's or the entity's, as many as may be: one of the two is the worst."""
    release = VocabularyRelease(1.0, 4.5, 6, of_sentence)
    texts = ["a b c", "d e f", of_entity]
    incidence = build([0, 0, 1], [(2, 0)], 2, 1)
    counts = Counter(w for words in given_words(texts, incidence, release, 1) for w in words)
    assert sum(counts.values()) == 6 + (of_sentence or 0)
    stays = special.ndtr((release.threshold - np.array([*counts.values()])) / release.deviation)
    expected = 1 - float(np.prod(stays))
    assert expected <= release.failure * (1 + 1e-12)
    assert of_sentence or expected == pytest.approx(release.failure)
    trials, noise = 1_800, SecureNoise()
    released = sum(bool(private_words(texts, incidence, release, noise, 1)) for _ in range(trials))
    check_rate(released, trials, expected, off=expected * 4 / 3)
