"""The whole way from sentences to a corpus folder."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.categories import category_of
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.lists import Lists
from uedp.errors import UserError
from uedp.incidence import Incidence

ACME = [
    marked("ann", "Bob works at Acme Corp.", ("Bob", "PER"), ("Acme Corp", "ORG")),
    marked("ben", "ACME CORP hired nobody.", ("ACME CORP", "ORG")),
    Sentence("ben", "Nothing to see."),
    marked("ann", "Acme Corp's Bob, again Bob.", ("Acme Corp's", "ORG"), ("Bob", "PER")),
]


@register_detector("first-word")
class FirstWord:
    """A stand-in for a model: it recognises `Acme` only at the start of a sentence."""

    propagates = True

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for text in texts:
            yield [Span(0, 4, "ORG")] if text.startswith("Acme") else []


def mentions(corpus: Corpus) -> list[list[str]]:
    texts = [s.text for s in corpus]
    return [
        [text[span.start : span.end] for span, _ in found]
        for text, found in zip(texts, corpus.spans(), strict=True)
    ]


def test_one_entity_whoever_wrote_it(tmp_path):
    corpus = detect(ACME, tmp_path / "c", Detection(("labels",)))
    assert corpus.entities["surface"].to_pylist() == ["Bob", "Acme Corp"]
    incidence = Incidence.of(corpus.folder)
    assert (incidence.users, incidence.sentences, incidence.entities) == (2, 4, 2)
    assert incidence.holders[0].tolist() == [0]
    assert incidence.holders[1].tolist() == [0, 1]
    assert incidence.extended.tolist() == [False, False, True, False]


def test_sentences_come_back_as_they_were(tmp_path):
    corpus = detect(ACME, tmp_path / "c", Detection(("labels",)))
    assert list(corpus) == ACME
    assert corpus.texts([3, 0]) == [ACME[3].text, ACME[0].text]


def test_marks_are_not_propagated_but_a_models_hits_are(tmp_path):
    sentences = [Sentence("a", "Acme rose."), Sentence("b", "We like Acme.")]
    off = detect(sentences, tmp_path / "off", Detection(("first-word",), propagate=False))
    on = detect(sentences, tmp_path / "on", Detection(("first-word",)))
    assert mentions(off) == [["Acme"], []]
    assert mentions(on) == [["Acme"], ["Acme"]]
    gold = [marked("a", "Acme rose.", ("Acme", "ORG")), Sentence("b", "We like Acme.")]
    assert mentions(detect(gold, tmp_path / "gold", Detection(("labels",)))) == [["Acme"], []]


def test_detectors_unite(tmp_path):
    sentence = marked("a", "Write to Bob at bob@mail.example", ("Bob", "PER"))
    corpus = detect([sentence], tmp_path / "c", Detection(("labels", "patterns")))
    assert mentions(corpus) == [["Bob", "bob@mail.example"]]


def test_only_chosen_categories_are_sensitive(tmp_path):
    corpus = detect(ACME, tmp_path / "c", Detection(("labels",), categories=frozenset({"person"})))
    assert mentions(corpus) == [["Bob"], [], [], ["Bob"]]


def test_lists(tmp_path):
    lists = Lists(
        public={"ACME corp": "listed company", "Nobody Inc": "never met"},
        sensitive={"see": "misc"},
        aliases={"nobody": "Bob"},
    )
    sentences = [*ACME, marked("cy", "nobody came", ("nobody", "PER"))]
    corpus = detect(sentences, tmp_path / "c", Detection(("labels",), lists=lists))
    assert mentions(corpus) == [["Bob"], ["nobody"], ["see"], ["Bob", "Bob"], ["nobody"]]
    assert corpus.info["declared_public"] == {"ACME corp": "listed company"}
    assert corpus.info["declared_public_not_met"] == ["Nobody Inc"]
    assert corpus.info["declared_sensitive"] == {"see": "misc"}
    # Bob, and nobody who is Bob
    assert Incidence.of(corpus.folder).holders[0].tolist() == [0, 1, 2]


def test_a_public_name_hides_no_other(tmp_path):
    lists = Lists(public={"Bob Smith Realty": "listed"}, sensitive={"Bob Smith": "person"})
    sentence = marked("a", "Bob Smith Realty called", ("Bob Smith Realty", "ORG"))
    corpus = detect([sentence], tmp_path / "c", Detection(("labels",), lists=lists))
    assert mentions(corpus) == [["Bob Smith"]]


def test_other_names_of_a_hit_are_looked_for(tmp_path):
    sentences = [marked("a", "IBM rose", ("IBM", "ORG")), Sentence("b", "Big Blue fell")]
    lists = Lists(aliases={"Big Blue": "IBM"})
    corpus = detect(sentences, tmp_path / "c", Detection(("labels",), lists=lists))
    assert mentions(corpus) == [["IBM"], ["Big Blue"]]
    assert Incidence.of(corpus.folder).entities == 1


def test_normalising_changes_no_identity(tmp_path):
    sentences = [
        Sentence("a", "Acme rose."),
        Sentence("b", "We like ACME's, not acme."),
        marked("c", "Coca-Cola and Coca Cola's", ("Coca-Cola", "ORG"), ("Coca Cola's", "ORG")),
    ]
    detectors = ("first-word", "labels")
    plain = detect(sentences, tmp_path / "plain", Detection(detectors))
    normal = detect(sentences, tmp_path / "normal", Detection(detectors, normalised=True))
    assert Incidence.of(plain.folder).digest == Incidence.of(normal.folder).digest
    assert mentions(normal) == [["acme"], ["acme"], ["cocacola", "coca colas"]]


def test_normalising_comes_after_detection(tmp_path):
    sentences = [
        marked("a", "E-mail: Bob.Lee@Mail.example, O.K.?", ("Bob.Lee", "PER")),
        Sentence("b", "--- !!"),
    ]
    corpus = detect(sentences, tmp_path / "c", Detection(("patterns",), normalised=True))
    assert [s.text for s in corpus] == ["email bobleemailexample ok"]
    assert mentions(corpus) == [["bobleemailexample"]]
    assert [s.text[m.start : m.end] for s in corpus for m in s.marks] == ["boblee"]
    assert corpus.info["empty_after_normalising"] == 1
    assert corpus.users == 1


def test_incidence_holds_no_names(tmp_path):
    """Guarantee of `Incidence`: whatever the names are, its files are the same bytes."""

    def bytes_of(name: str, first: str, second: str) -> dict[str, bytes]:
        sentences = [
            marked("u", f"{first} met {second}", (first, "PER"), (second, "PER")),
            marked("v", f"{second} left", (second, "PER")),
        ]
        corpus = detect(sentences, tmp_path / name, Detection(("labels",)))
        return {f.name: f.read_bytes() for f in (corpus.folder / "incidence").iterdir()}

    assert bytes_of("one", "Alice", "Zoe") == bytes_of("two", "Yannick", "Bo")


_TEXT = st.lists(st.sampled_from(["Ann", "Bob", "Cy", "x", "y"]), min_size=1, max_size=5).map(
    " ".join
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("uvw"), _TEXT), min_size=1, max_size=8))
def test_incidence_is_what_the_texts_say(tmp_path_factory, rows):
    sentences = []
    for user, text in rows:
        spans, position = [], 0
        for word in text.split():
            if word[0].isupper():
                spans.append(Span(position, position + len(word), "PER"))
            position += len(word) + 1
        sentences.append(Sentence(user, text, None, tuple(spans)))
    corpus = detect(sentences, tmp_path_factory.mktemp("c") / "c", Detection(("labels",)))
    incidence = Incidence.of(corpus.folder)
    names = corpus.entities["surface"].to_pylist()
    users = corpus.user_names.to_pylist()
    assert names == list(dict.fromkeys(w for _, t in rows for w in t.split() if w[0].isupper()))
    for number, (user, text) in enumerate(rows):
        assert users[incidence.sentence_user[number]] == user
        mentioned = {names[e] for e in incidence.sentence_entities[number]}
        assert mentioned == {w for w in text.split() if w[0].isupper()}


def test_workers_change_nothing(tmp_path):
    sentences = [Sentence(f"u{i % 7}", f"mail a{i % 50}@x.example now") for i in range(1500)]
    one = detect(sentences, tmp_path / "one", Detection(("patterns",)))
    two = detect(sentences, tmp_path / "two", Detection(("patterns",), workers=2))
    assert Incidence.of(one.folder).digest == Incidence.of(two.folder).digest
    assert mentions(one) == mentions(two)
    assert Incidence.of(one.folder).entities == 50


def test_a_worker_that_cannot_load_says_why(tmp_path):
    with pytest.raises(UserError, match="no_such_pipeline"):
        detect(ACME, tmp_path / "c", Detection(("spacy:no_such_pipeline",), workers=2))
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_nothing_and_spares_what_was_there(tmp_path):
    def breaks() -> Iterator[Sentence]:
        yield ACME[0]
        raise UserError("broken on line 2")

    with pytest.raises(UserError, match="line 2"):
        detect(breaks(), tmp_path / "new", Detection(("labels",)))
    assert list(tmp_path.iterdir()) == []
    before = detect(ACME, tmp_path / "old", Detection(("labels",))).info
    with pytest.raises(UserError, match="line 2"):
        detect(breaks(), tmp_path / "old", Detection(("labels",)), overwrite=True)
    assert Corpus(tmp_path / "old").info == before
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_existing_folder_is_refused_and_only_a_corpus_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        detect(ACME, tmp_path / "mine", Detection(("labels",)))
    with pytest.raises(UserError, match="not a corpus"):
        detect(ACME, tmp_path / "mine", Detection(("labels",)), overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_not_a_corpus(tmp_path):
    with pytest.raises(UserError, match="build one first"):
        Corpus(tmp_path)
    (tmp_path / "corpus.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        Corpus(tmp_path)


def test_no_mentions_at_all(tmp_path):
    corpus = detect([Sentence("u", "plain")], tmp_path / "c", Detection(("labels",)))
    incidence = Incidence.of(corpus.folder)
    assert incidence.entities == 0
    assert incidence.extended.all()
    assert corpus.entities.num_rows == 0


def test_categories_are_stored_with_mentions(tmp_path):
    corpus = detect(ACME, tmp_path / "c", Detection(("labels",)))
    labels = Counter(corpus.mentions["label"].to_pylist())
    assert labels == {"PER": 2, "ORG": 3}
    assert category_of("PER") == "person"
    assert np.unique(np.asarray(corpus.mentions["category"])).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("bad", "named"),
    [({"detectors": ()}, "`detectors="), ({"detectors": ("labels",), "workers": 0}, "`workers=0`")],
)
def test_invalid_options_are_refused(bad, named):
    with pytest.raises(UserError, match=named):
        Detection(**bad)


def test_no_scratch_files_are_left(tmp_path):
    folder = detect(ACME, tmp_path / "c", Detection(("labels",), normalised=True)).folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "corpus.json",
        "entities.arrow",
        "incidence",
        "mentions.arrow",
        "sentences.arrow",
        "users.arrow",
    ]
