"""Estimates are what linking again gives, where no surface depends on another."""

from dataclasses import replace

import pytest

from uedp.corpus.store import Corpus
from uedp.entities.detection import relink_trial
from uedp.entities.lists import Lists
from uedp.studio.draft import Draft, Figures
from uedp.studio.estimate import estimated_incidence


@pytest.fixture(scope="module")
def draft(original):
    opened = Draft(original)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"lists": Lists(public={"Ann Lee": "x"})},
        {"lists": Lists(sensitive={"Smallville": "gpe"})},
        {"lists": Lists(aliases={"Bob": "Ann Lee"})},
        {"categories": frozenset({"person"})},
        {"detectors": frozenset({"patterns"})},
        {"lists": Lists(public={"bob": "x"}, sensitive={"call": "misc"})},
    ],
)
def test_an_estimate_is_close(draft, changes, tmp_path):
    choice = replace(draft.applied, **changes)
    estimate = estimated_incidence(draft.base, draft.applied, choice)
    exact = relink_trial(
        tmp_path,
        draft.base.corpus,
        lists=choice.lists,
        categories=choice.categories,
        detectors=choice.detectors,
    )
    assert Figures.of(estimate) == Figures.of(exact.incidence)


def test_what_brings_hits_back_is_not_estimated(draft):
    choice = replace(draft.applied, categories=draft.applied.categories | {"calendar"})
    assert estimated_incidence(draft.base, draft.applied, choice) is None
    assert estimated_incidence(draft.base, choice, draft.applied) is not None


def test_the_corpus_is_only_read(draft, original, tmp_path):
    trial = relink_trial(tmp_path, Corpus(original), detectors=("labels",))
    assert not list(original.glob("ledger*"))
    assert not list(tmp_path.glob("ledger*"))
    assert set(trial.hits["detector"].to_pylist()) == {0}
