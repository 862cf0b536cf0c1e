"""Detectors are found by name, those of a user's own file too."""

import json
import re
import sys
from pathlib import Path

import pytest

import uedp
from uedp.corpus.sentence import Sentence, Span
from uedp.entities import detectors
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import detector_version, load_detector, register_detector
from uedp.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-detector.md"
TEXTS = ["the FBI and NASA", "", "the UN"]
LONG = [[Span(4, 7, "MISC"), Span(12, 16, "MISC")], [], []]


@pytest.fixture
def shouting(tmp_path, monkeypatch):
    """The page's example as a file of its own; whatever it registers is forgotten afterwards."""
    monkeypatch.setattr(detectors, "_registry", dict(detectors._registry))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shouting.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "shouting.py"
    sys.modules.pop("shouting", None)


def test_the_pages_file_is_named_by_its_path(shouting, tmp_path):
    detector = load_detector(f"{shouting}:shouting:3")
    assert [list(spans) for spans in detector.detect(TEXTS)] == LONG
    assert detector_version(f"{shouting}:shouting") == "shouting 1.0"
    sentences = [Sentence("u", "we ask NASA"), Sentence("v", "Nasa called")]
    how = Detection((f"{shouting}:shouting",), workers=2)
    corpus = detect(sentences, tmp_path / "corpus", how)
    assert corpus.mentions["sentence"].to_pylist() == [0, 1]  # propagated
    assert corpus.info["detector_versions"] == {f"{shouting}:shouting": "shouting 1.0"}


def test_the_pages_file_is_named_by_its_kind_once_imported(shouting, tmp_path):
    import shouting as imported

    assert imported.Shouting.propagates
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"user": "u", "text": text}) + "\n" for text in TEXTS if text)
    )
    corpus = uedp.build_corpus(
        tmp_path / "in.jsonl", tmp_path / "corpus", detectors=["shouting:3"], workers=2
    )
    assert corpus.entities["surface"].to_pylist() == ["FBI", "NASA"]


def test_a_file_that_registers_nothing_or_fails_is_named(tmp_path):
    with pytest.raises(UserError, match=r"own.py': no such file"):
        load_detector(f"{tmp_path}/own.py:mine")
    (tmp_path / "own.py").write_text("x = 1")
    with pytest.raises(UserError, match=r"own.py:mine': unknown; choose among labels, patterns"):
        load_detector(f"{tmp_path}/own.py:mine")
    (tmp_path / "broken.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(UserError, match=r"broken.py': its file fails \(ZeroDivisionError"):
            load_detector(f"{tmp_path}/broken.py:mine")


def test_unknown_detector_and_needless_argument():
    with pytest.raises(UserError, match=r"'scapy:en': unknown; choose among labels.*stanza"):
        load_detector("scapy:en")
    with pytest.raises(UserError, match="'labels:en': takes no argument"):
        load_detector("labels:en")


@pytest.mark.parametrize("kind", ["spacy", "a:b", "own.py"])
def test_a_name_that_could_not_be_told_apart_is_refused(kind):
    with pytest.raises(ValueError, match=re.escape(repr(kind))):
        register_detector(kind)(lambda argument: load_detector("labels"))


def test_a_detector_that_workers_cannot_import_is_refused(tmp_path, shouting):
    register_detector("local")(lambda argument: load_detector("labels"))
    with pytest.raises(UserError, match=r"'local': workers cannot import it.*`workers=1`"):
        detect([Sentence("u", "x")], tmp_path / "c", Detection(("local",), workers=2))
    assert len(detect([Sentence("u", "x")], tmp_path / "c", Detection(("local",)))) == 1
