import json
import sys
from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.tokens import Span as SpacySpan
from spacy.training import Example

from uedp.corpus.sentence import Span
from uedp.entities.detectors import load_detector
from uedp.entities.detectors.spacy import load_pipeline, load_spacy
from uedp.errors import UserError

NAMES = [{"label": "PER", "pattern": "Ada Lovelace"}, {"label": "GPE", "pattern": "Paris"}]
LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96}


def saved(nlp: Language, folder: Path) -> str:
    nlp.to_disk(folder)
    return str(folder)


@pytest.fixture
def ruler(tmp_path: Path) -> str:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns(NAMES)
    return saved(nlp, tmp_path / "ruler")


def trained(folder: Path, *, shared: bool) -> str:
    """A small model that knows one sentence, its `ner` on the shared layers or on its own."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    nlp.add_pipe("ner", config={"model": {"tok2vec": LISTENER}} if shared else {})
    marks = {"entities": [(4, 16, "PER")], "tags": ["RB", "NN", "NN", "VB"]}
    example = Example.from_dict(nlp.make_doc("Now Ada Lovelace wrote"), marks)
    nlp.initialize(lambda: [example])
    for _ in range(20):
        nlp.update([example])
    return saved(nlp, folder)


def test_spans_are_characters_of_each_text_in_order(ruler: str) -> None:
    detector = load_detector(f"spacy:{ruler}")
    found = list(detector.detect(["In Paris, Ada Lovelace wrote.", "Nobody here.", "", "Paris"]))
    assert found == [[Span(3, 8, "GPE"), Span(10, 22, "PER")], [], [], [Span(0, 5, "GPE")]]
    assert detector.propagates


def test_all_texts_go_through_one_pipe(ruler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = load_spacy(ruler)
    calls = []
    pipe = Language.pipe
    monkeypatch.setattr(Language, "pipe", lambda *args, **kw: calls.append(1) or pipe(*args, **kw))
    assert len(list(detector.detect(["Paris."] * 300))) == 300
    assert len(calls) == 1


@pytest.mark.parametrize(("shared", "needed"), [(True, ["tok2vec", "ner"]), (False, ["ner"])])
def test_only_what_ner_listens_to_is_run(tmp_path: Path, shared: bool, needed: list[str]) -> None:
    folder = trained(tmp_path / "ner", shared=shared)
    nlp = load_pipeline(folder, kind="spacy")
    assert nlp.pipe_names == needed
    text = "Now Ada Lovelace wrote"
    assert list(load_spacy(folder).detect([text])) == [[Span(4, 16, "PER")]]


def test_a_ruler_keeps_what_its_patterns_read(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("attribute_ruler").add([[{"ORTH": "Ada"}]], {"POS": "PROPN"})
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PER", "pattern": [{"POS": "PROPN"}]}])
    nlp.add_pipe("merge_entities")
    folder = saved(nlp, tmp_path / "pos")
    assert "merge_entities" not in load_pipeline(folder, kind="spacy").pipe_names
    assert list(load_spacy(folder).detect(["Hello Ada"])) == [[Span(6, 9, "PER")]]


def test_a_ruler_on_spelling_needs_nothing(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    ruler = nlp.add_pipe("span_ruler", config={"annotate_ents": True})
    ruler.add_patterns([{"label": "PER", "pattern": [{"LOWER": "ada"}]}])
    folder = saved(nlp, tmp_path / "spelling")
    assert load_pipeline(folder, kind="spacy").pipe_names == ["span_ruler"]
    assert list(load_spacy(folder).detect(["Hello Ada"])) == [[Span(6, 9, "PER")]]


@Language.component("uedp_test_last_sentence")
def last_sentence(doc: Doc) -> Doc:
    """Somebody's own: it declares nothing, reads sentence boundaries and writes entities."""
    *_, last = doc.sents
    doc.ents = [SpacySpan(doc, last.start, last.end, "LAST")]
    return doc


def test_a_component_of_ones_own_runs_with_all_before_it(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("uedp_test_last_sentence")
    nlp.add_pipe("doc_cleaner")
    folder = saved(nlp, tmp_path / "own")
    assert load_pipeline(folder, kind="spacy").pipe_names[:2] == nlp.pipe_names[:2]
    assert list(load_spacy(folder).detect(["One. Two."])) == [[Span(5, 9, "LAST")]]


@Language.component("uedp_test_counts", assigns=["doc.cats"])
def counts(doc: Doc) -> Doc:
    raise AssertionError("needed by nobody")


def test_a_component_that_declares_other_work_does_not_run(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns(NAMES)
    nlp.add_pipe("uedp_test_counts")
    folder = saved(nlp, tmp_path / "counts")
    assert list(load_spacy(folder).detect(["Paris"])) == [[Span(0, 5, "GPE")]]


def test_foreign_version_neither_warns_nor_fails(ruler: str) -> None:
    meta = Path(ruler, "meta.json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"spacy_version": ">=3.0,<3.1"}))
    with pytest.warns(UserWarning, match="W095"):
        spacy.load(ruler)
    assert list(load_spacy(ruler).detect(["Paris"]))  # a warning is an error here


def test_no_argument() -> None:
    with pytest.raises(UserError, match="spacy:en_core_web_sm"):
        load_detector("spacy")


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"pip install 'uedp\[spacy\]'"):
        load_spacy("en_core_web_sm")


def test_missing_model() -> None:
    with pytest.raises(UserError, match="`python -m spacy download en_core_web_zz`"):
        load_spacy("en_core_web_zz")


@pytest.mark.parametrize("path", ["./en_core_web_sm", "~/no/such", "/no/such", "no/such"])
def test_missing_folder(path: str) -> None:
    with pytest.raises(UserError, match=f"{path}': no such folder"):
        load_spacy(path)


def test_relative_folder(ruler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(ruler).parent)
    assert list(load_spacy("ruler").detect(["Paris"])) == [[Span(0, 5, "GPE")]]


def test_folder_without_pipeline(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no meta\.json"):
        load_spacy(str(tmp_path))


def test_damaged_pipeline(ruler: str) -> None:
    config = Path(ruler, "config.cfg")
    config.write_text(config.read_text().replace('"entity_ruler"', '"of_no_factory"'))
    with pytest.raises(UserError, match=r"cannot be loaded: .*of_no_factory") as raised:
        load_spacy(ruler)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("span_ruler", [False, True])
def test_pipeline_without_entities(tmp_path: Path, span_ruler: bool) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    if span_ruler:  # writes doc.spans alone unless told otherwise
        nlp.add_pipe("span_ruler").add_patterns(NAMES)
    with pytest.raises(UserError, match=r"finds no entities.*" + ", ".join(nlp.pipe_names)):
        load_spacy(saved(nlp, tmp_path / "plain"))


def test_text_beyond_the_pipelines_limit(ruler: str) -> None:
    found = load_spacy(ruler).detect(["a " * 500_001])
    with pytest.raises(UserError, match=r"has 1,000,002 characters.*`split="):
        next(found)
