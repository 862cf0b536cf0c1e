"""The breakdown experiment on small data, and its corpora."""

import copy

import pytest

from research import corpora
from research.base import Result
from research.corpora import detected_corpus, restrict_to_categories
from research.experiments import breakdown
from research.sources import DATA_SETS
from tests.research.conftest import AG_ARTICLES, Make
from uedp.corpus.users import random_groups


@pytest.fixture(scope="module")
def result(shared: Make) -> Result:
    return breakdown.measure(shared("breakdown"))


def test_conll_by_hand(result: Result) -> None:
    conll = result["data"]["conll"]
    assert conll["detectors"] == ["labels"]
    assert "hits_alone" not in conll
    here = conll["here"]
    assert (here["users"], here["sentences"], here["entities"]) == (3, 5, 6)
    # eu rejects german call peter blackburn rome paris met nothing here oslo waits
    assert here["vocabulary"] == 13
    assert here["sensitive"] == {"org": 2, "loc": 2, "person": 1, "misc": 1, "all": 4}
    assert here["mentions"] == {"org": 2, "loc": 3, "person": 1, "misc": 1}
    assert conll["histograms"]["sentences_per_user"] == {"1": 1, "2": 2}
    assert conll["histograms"]["holders"] == {"1": 5, "2": 1}


def test_ag_users_are_the_seeded_groups(result: Result) -> None:
    here = result["data"]["ag"]["here"]
    assert here["sentences"] == AG_ARTICLES
    assert here["users"] == random_groups(AG_ARTICLES, 15, 2, seed=0).max() + 1
    assert here["sensitive"]["org"] == 30  # two articles in three name Acme
    assert here["sensitive"]["all"] == 30


def test_edgar_counts_only_the_papers_categories(result: Result) -> None:
    edgar = result["data"]["edgar"]
    # x@y.example is a contact, hence pii; "ten days" is no category of the paper's
    assert edgar["here"]["sensitive"] == {"org": 1, "loc": 0, "gpe": 0, "pii": 3, "all": 3}
    assert edgar["hits_alone"]["sensitive"] == edgar["here"]["sensitive"]
    assert edgar["paper"]["sensitive"]["all"] == 2166


def test_a_public_word_is_a_hit_but_not_an_entity(
    options: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = detected_corpus("ag", options("breakdown"))
    monkeypatch.setattr(corpora, "public_words", lambda lists: {"acme": "a trade mark"})
    protected = detected_corpus("ag", options("breakdown"))
    assert protected.folder != before.folder
    assert protected.info["mentions"] == 0
    hits = detected_corpus("ag", options("breakdown"), protected=False)
    assert hits.info["mentions"] == before.info["mentions"] == 30


def test_a_corpus_is_detected_once_and_shared(
    shared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {name: detected_corpus(name, shared("breakdown")).folder for name in DATA_SETS}
    monkeypatch.setattr(corpora, "detect", None)
    assert {name: detected_corpus(name, shared("budget")).folder for name in DATA_SETS} == first


def test_names_outside_the_categories_are_ordinary_words(shared: Make) -> None:
    corpus = detected_corpus("conll", shared("breakdown"))
    places = restrict_to_categories(corpus, ("loc",))
    assert (places.users, places.sentences, places.entities) == (3, 5, 3)
    assert places.extended.tolist() == [True, True, False, True, False]
    everything = restrict_to_categories(corpus, ("org", "loc", "person", "misc"))
    assert everything.entities == 6
    assert sorted(everything.holders.counts) == [1, 1, 1, 1, 1, 2]


def test_conclusions_name_mentions_counted_as_sentences(result: Result) -> None:
    result = copy.deepcopy(result)  # the paper's counts belong to a module
    paper, here = (result["data"]["conll"][who] for who in ("paper", "here"))
    assert "equal the number of" not in breakdown.table(result)
    paper["sensitive"]["loc"] = here["mentions"]["loc"]
    page = breakdown.table(result)
    assert (
        "the paper's 3 sensitive sentences of category loc equal the number of loc mentions" in page
    )
    assert "2 sentences contain one" in page
