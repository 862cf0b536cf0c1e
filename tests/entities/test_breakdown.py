import numpy as np

from tests.conftest import marked
from uedp.corpus.sentence import Sentence
from uedp.entities.breakdown import breakdown, quantiles, widest_entities
from uedp.entities.categories import NAMES
from uedp.entities.detection import Detection, detect

SENTENCES = [
    marked("a", "Ann met Ann's boss Bob.", ("Ann", "PER"), ("Bob", "PER")),
    marked("b", "Bob, at Acme", ("Bob", "PER"), ("Acme", "ORG")),
    marked("b", "acme, acme!", ("acme", "ORG")),
    Sentence("c", "nothing"),
]


def test_numbers_by_hand(tmp_path):
    corpus = detect(SENTENCES, tmp_path / "c", Detection(("labels",)))
    numbers = breakdown(corpus)
    assert set(numbers["sensitive"]) == set(NAMES)
    assert {k: n for k, n in numbers["sensitive"].items() if n} == {
        "person": 2,
        "org": 2,
        "pii": 2,
        "default": 3,
        "all": 3,
    }
    assert (numbers["users"], numbers["sentences"], numbers["entities"]) == (3, 4, 3)
    # ann met anns boss bob at acme nothing
    assert numbers["vocabulary"] == 8
    assert numbers["holders"] == {"p50": 1, "p90": 2, "p99": 2, "max": 2}
    assert numbers["sentences_per_user"] == {"p50": 1, "p90": 2, "p99": 2, "max": 2}
    assert widest_entities(corpus, 2) == [("Bob", 2, 2), ("Ann", 1, 1)]


def test_quantiles_of_nothing():
    assert quantiles(np.zeros(0)) == {"p50": 0, "p90": 0, "p99": 0, "max": 0}
