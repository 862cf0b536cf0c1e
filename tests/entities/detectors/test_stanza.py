import functools
import json
import sys
from pathlib import Path

import pytest
import stanza
from stanza.models.common.doc import Document

from uedp.corpus.sentence import Span
from uedp.entities.detectors import load_detector
from uedp.entities.detectors.stanza import Stanza, load_stanza
from uedp.errors import UserError

pytestmark = pytest.mark.usefixtures("no_network")

NAMES = {"Ada": "S-PERSON", "New": "B-GPE", "York": "E-GPE", "Bell": "B-ORG", "Labs": "E-ORG"}


class Pipeline:
    """Stands in for the models only: words at spaces, names from a list, Stanza's documents."""

    processors = ("tokenize", "ner")

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def bulk_process(self, texts: list[str]) -> list[Document]:
        self.batches.append(texts)
        return [self._document(text) for text in texts]

    def _document(self, text: str) -> Document:
        tokens, start = [], 0
        for number, word in enumerate(text.split(), 1):
            start = text.index(word, start)
            place = f"start_char={start}|end_char={start + len(word)}"
            tag = NAMES.get(word, "O")
            tokens.append({"id": (number,), "text": word, "misc": place, "ner": tag})
            start += len(word)
        document = Document([tokens], text=text)
        document.build_ents()
        return document


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models in place of the user's own."""
    monkeypatch.setattr(stanza, "Pipeline", functools.partial(stanza.Pipeline, dir=str(tmp_path)))
    return tmp_path


def test_spans_are_characters_of_each_text() -> None:
    detector = Stanza(Pipeline())
    texts = ["Ada  of New York", "", "nobody", " \n", "At Bell Labs Ada"]
    assert list(detector.detect(texts)) == [
        [Span(0, 3, "PERSON"), Span(8, 16, "GPE")],
        [],
        [],
        [],
        [Span(3, 12, "ORG"), Span(13, 16, "PERSON")],
    ]
    assert detector.propagates


def test_texts_go_in_batches_without_blank_ones() -> None:
    pipeline = Pipeline()
    texts = [f"Ada {number}" if number % 3 else " " for number in range(600)]
    found = list(Stanza(pipeline).detect(texts))
    assert found == [[Span(0, 3, "PERSON")] if text.strip() else [] for text in texts]
    assert len(pipeline.batches) == 3
    handed = [text for batch in pipeline.batches for text in batch]
    assert handed == [text for text in texts if text.strip()]


def test_loads_tokenizer_and_ner_without_download(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def build(*args: object, **options: object) -> Pipeline:
        asked.append((args, options["processors"], options["download_method"]))
        return Pipeline()

    monkeypatch.setattr(stanza, "Pipeline", build)
    (found,) = load_detector("stanza:en").detect(["Ada"])
    assert found == [Span(0, 3, "PERSON")]
    assert asked == [(("en",), "tokenize,ner", None)]


DOWNLOAD = r"""`python -c "import stanza; stanza\.download\('en'\)"`"""


def test_no_models_at_all(models: Path) -> None:
    with pytest.raises(UserError, match=DOWNLOAD):
        load_detector("stanza:en")
    assert list(models.iterdir()) == []


def resources(models: Path, *processors: str) -> None:
    """Stanza's list of models, as a download of another language would leave it."""
    models.mkdir(exist_ok=True)
    english = {name: {"x": {"md5": "0", "dependencies": []}} for name in processors}
    english |= {"packages": {"default": dict.fromkeys(processors, "x")}}
    (models / "resources.json").write_text(json.dumps({"en": english | {"lang_name": "English"}}))


def test_models_of_another_language_only(models: Path) -> None:
    resources(models, "tokenize", "ner")
    with pytest.raises(UserError, match=f"not installed; run {DOWNLOAD}"):
        load_stanza("en")
    with pytest.raises(UserError, match="does not know the language"):
        load_stanza("tlh")


def test_language_without_ner(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resources(models, "tokenize")
    (models / "en").mkdir()
    # Past the tokenizer, whose model is not to be had here.
    monkeypatch.setattr(
        stanza, "Pipeline", functools.partial(stanza.Pipeline, tokenize_pretokenized=True)
    )
    with pytest.raises(UserError, match="no NER model"):
        load_stanza("en")


def test_pipeline_that_left_ner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline()
    pipeline.processors = ("tokenize",)  # type: ignore[assignment]
    monkeypatch.setattr(stanza, "Pipeline", lambda *_, **__: pipeline)
    with pytest.raises(UserError, match="no NER model"):
        load_stanza("en")


def test_no_argument() -> None:
    with pytest.raises(UserError, match="stanza:en"):
        load_detector("stanza")


@pytest.mark.parametrize("argument", ["en'); import os; ('", "./models", "e n", "en:default"])
def test_what_is_no_language_code(argument: str) -> None:
    with pytest.raises(UserError, match="not a language code"):
        load_stanza(argument)


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stanza", None)
    with pytest.raises(UserError, match=r"pip install 'uedp\[stanza\]'"):
        load_stanza("en")
