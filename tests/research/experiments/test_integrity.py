"""The integrity experiment on small data."""

import copy

import pytest

from research.base import Result
from research.experiments import integrity
from tests.research.conftest import Make
from uedp.entities import detectors
from uedp.errors import UserError

SINGLE = ("patterns", "spacy", "presidio")


@pytest.fixture(scope="module")
def result(shared: Make) -> Result:
    return integrity.measure(shared("integrity"))


def test_every_available_detector_against_every_gold_standard(result: Result) -> None:
    assert set(result["gold"]) == set(integrity.GOLD)
    for by_detector in result["gold"].values():
        assert set(by_detector) == {*SINGLE, "spacy + patterns", "presidio + patterns"}
    assert result["not_at_hand"] == dict.fromkeys(("stanza", "transformers"), "no --model given")


def test_spacy_on_conll_by_hand(result: Result) -> None:
    hits = result["gold"]["CoNLL-2003 testa"]["spacy"]["hits"]
    # marks: Ann Lee, Rome, Acme, Big Corp; the last is not known
    assert (hits["all"]["marks"], hits["all"]["covered"]) == (4, 3)
    assert (hits["all"]["words"], hits["all"]["words_covered"]) == (6, 4)
    assert (hits["all"]["sentences_found"], hits["all"]["sentences_complete"]) == (2, 1)
    assert (hits["org"]["marks"], hits["org"]["covered"]) == (2, 1)
    assert hits["extra"] == 0
    assert result["gold"]["CoNLL-2003 testb"]["spacy"]["hits"]["all"]["covered"] == 0
    made_up = result["gold"]["presidio v2"]["spacy"]["hits"]["all"]
    assert (made_up["words"], made_up["words_covered"]) == (3, 2)


def test_combined_detectors_cover_at_least_what_each_covers(result: Result) -> None:
    for by_detector in result["gold"].values():
        for kind in ("spacy", "presidio"):
            united, alone = (
                by_detector[f"{kind} + patterns"]["hits"]["all"],
                by_detector[kind]["hits"]["all"],
            )
            assert united["words_covered"] >= alone["words_covered"]


def test_a_finished_step_is_reused(
    result: Result, shared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "detect", None)
    assert integrity.measure(shared("integrity")) == result


def test_a_detector_that_does_not_load_is_named_and_left_out(
    shared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:

    def load(name: str) -> detectors.Detector:
        if name.startswith("presidio"):
            raise UserError(f"detector {name!r}: not installed")
        return detectors.load_detector(name)

    monkeypatch.setattr(integrity, "load_detector", load)
    result = integrity.measure(shared("integrity"))
    assert set(result["gold"]["presidio v2"]) == {"patterns", "spacy", "spacy + patterns"}
    assert result["not_at_hand"]["presidio"] == "detector 'presidio:pipeline': not installed"
    assert "Not measured: presidio" in integrity.table(result)


def test_conclusions_compare_with_the_paper(result: Result) -> None:
    page = integrity.table(result)
    assert "| gold, detector | person | loc | org | pii | all |" in page
    assert "| CoNLL-2003 testa, spacy | 100.0% | 100.0% | 50.0% | 100.0% | 75.0% |" in page
    assert "CoNLL-2003 testa: spaCy by itself covers 66.7% of the marked words" in page
    assert page.count("does not reach") == len(integrity.GOLD)
    result = copy.deepcopy(result)
    every = result["gold"]["CoNLL-2003 testa"]["spacy"]["hits"]["all"]
    every["words_covered"] = every["words"]
    assert "which reaches the paper's 94%" in integrity.table(result)
