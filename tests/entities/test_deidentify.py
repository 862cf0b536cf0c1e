import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.entities.deidentify import deidentify
from uedp.entities.detection import Detection, detect
from uedp.incidence import Incidence

SENTENCES = [
    marked("a", "Ann wrote to Bob.", ("Ann", "PER"), ("Bob", "PER"), label="mail"),
    marked("b", "ANN called Acme", ("ANN", "PER"), ("Acme", "ORG")),
]


def test_placeholders(tmp_path):
    corpus = detect(SENTENCES, tmp_path / "c", Detection(("labels",)))
    clean = deidentify(corpus, tmp_path / "d")
    assert [s.text for s in clean] == ["[PERSON] wrote to [PERSON].", "[PERSON] called [ORG]"]
    assert [(s.user, s.label) for s in clean] == [("a", "mail"), ("b", None)]
    assert Incidence.of(clean.folder).entities == 0


def test_pseudonyms_are_consistent_and_distinct(tmp_path):
    corpus = detect(SENTENCES, tmp_path / "c", Detection(("labels",)))
    texts = [s.text for s in deidentify(corpus, tmp_path / "d", "pseudonym")]
    first, second = (re.findall(r"\[(\w+)-(\d+)\]", text) for text in texts)
    assert first[0] == second[0]  # Ann is ANN
    assert len({number for _, number in (*first, *second)}) == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 8)), max_size=5))
def test_no_character_of_a_mention_is_left(tmp_path_factory, pairs):
    text = "abcdefghijklmnopqrst"
    spans = {Span(a, min(a + n, 20), "PER") for a, n in pairs}
    folder = tmp_path_factory.mktemp("c")
    corpus = detect(
        [Sentence("u", text, None, tuple(sorted(spans)))], folder / "c", Detection(("labels",))
    )
    (clean,) = deidentify(corpus, folder / "d")
    hidden = {i for s in spans for i in range(s.start, s.end)}
    kept = "".join(c for i, c in enumerate(text) if i not in hidden)
    assert clean.text.replace("[PERSON]", "") == kept
