"""The whole way from sentences to a corpus folder."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import marked
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.categories import category_of
from uedp.entities.coverage import coverage, record_coverage
from uedp.entities.detection import Detection, detect, lists_of, relink
from uedp.entities.detectors import register_detector
from uedp.entities.lists import Lists
from uedp.entities.propagation import SPREAD_WITHIN
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
    assert corpus.info["declared_public_not_met"] == {"Nobody Inc": "never met"}
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
        *[Sentence("a", "Acme rose.")] * 3,
        Sentence("b", "We like ACME's, not acme."),
        marked("c", "Coca-Cola and Coca Cola's", ("Coca-Cola", "ORG"), ("Coca Cola's", "ORG")),
    ]
    detectors = ("first-word", "labels")
    plain = detect(sentences, tmp_path / "plain", Detection(detectors))
    normal = detect(sentences, tmp_path / "normal", Detection(detectors, normalised=True))
    assert Incidence.of(plain.folder).digest == Incidence.of(normal.folder).digest
    assert mentions(normal)[2:] == [["acme"], ["acme", "acme"], ["cocacola", "coca colas"]]


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
    assert files_of(one.folder) == files_of(two.folder)


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
    with pytest.raises(UserError, match="make one with `build_corpus`"):
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
        "evidence.arrow",
        "incidence",
        "mentions.arrow",
        "sentences.arrow",
        "users.arrow",
    ]


# --- raw hits, and linking them again ------------------------------------------------------------


@register_detector("capitals")
class Capitals:
    """A stand-in for a model: capitalised words are names, except after a full stop."""

    propagates = True

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for text in texts:
            spans, position = [], 0
            for word in text.split(" "):
                before = text[position - 2 : position]
                if word[:1].isupper() and before != ". ":
                    label = "GPE" if word.startswith("J") else "PERSON"
                    spans.append(Span(position, position + len(word.rstrip(".,")), label))
                position += len(word) + 1
            yield spans


BLOG = [
    Sentence("a", "with Zork and Bob in Jordan"),
    Sentence("a", "later. Zork came back"),
    Sentence("b", "my zork is not ALICE nor Alice"),
    Sentence("b", "write to Bob at bob@mail.example"),
    Sentence("c", "Japan in May"),
    Sentence("c", "we may go :-) now"),
    Sentence("c", "plain text"),
]
MODEL = Detection(("capitals", "patterns"))


def files_of(folder) -> dict[str, bytes]:
    """Everything of a corpus but its ledgers."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("ledger")
    }


def test_raw_hits_are_kept_before_lists_and_categories(tmp_path):
    lists = Lists(public={"Bob": "known"})
    chosen = Detection(MODEL.detectors, frozenset({"person"}), lists=lists)
    corpus = detect(BLOG, tmp_path / "c", chosen)
    texts = [sentence.text for sentence in corpus]
    hits = corpus.hits.to_pylist()
    surfaces = [texts[hit["sentence"]][hit["start"] : hit["end"]] for hit in hits]
    assert {"Bob", "Jordan", "Zork", "bob@mail.example"} <= set(surfaces)
    by = dict(zip(surfaces, hits, strict=True))
    assert (by["Bob"]["detector"], by["Bob"]["propagates"]) == (0, True)
    assert (by["bob@mail.example"]["detector"], by["bob@mail.example"]["propagates"]) == (1, False)
    assert "Bob" not in chain(*mentions(corpus))


def test_evidence_counts_hits_and_places_of_every_entity(tmp_path):
    corpus = detect(BLOG, tmp_path / "c", MODEL)
    names = corpus.entities["name"].to_pylist()
    rows = dict(zip(names, corpus.evidence.to_pylist(), strict=True))
    # `Zork` passed with one of two places; `zork` of another user may be another word
    assert rows["zork"] == {"hits": 1, "places": 2, "detectors": 1}
    assert rows["bob@mail.example"] == {"hits": 1, "places": 1, "detectors": 2}
    # `may` is no variant of a name, but it is a place where the word stands
    assert rows["may"]["hits"] == 1
    report = corpus.info["propagation"]
    assert report["surfaces"]["spread"] >= 3
    assert report["mentions_added"] == 2  # and the `bob` in the address
    assert report["dropped"] == {}


def test_a_name_rarely_found_spreads_within_its_authors_text_only(tmp_path):
    sentences = [
        Sentence("a", "Acme rose"),
        *[Sentence(user, "they left Acme there") for user in "abaccb"],
    ]
    detection = Detection(("first-word",))
    corpus = detect(sentences, tmp_path / "c", detection)
    found = ["Acme" in row for row in mentions(corpus)]
    assert found == [sentence.user == "a" for sentence in sentences]
    assert corpus.info["propagation"]["surfaces"][SPREAD_WITHIN] == 1
    assert corpus.evidence.to_pylist() == [{"hits": 1, "places": 7, "detectors": 1}]
    relinked = relink(corpus, tmp_path / "again")
    assert files_of(relinked.folder) == files_of(corpus.folder)


def test_dropped_hits_are_counted_by_reason(tmp_path):
    @register_detector("noisy")
    class Noisy:
        propagates = True

        def __init__(self, argument):
            pass

        def detect(self, texts):
            for text in texts:
                yield [Span(i, i + 3, "X") for i in (text.find(":-)"),) if i >= 0]

    corpus = detect(BLOG, tmp_path / "c", Detection(("noisy",)))
    assert corpus.info["propagation"]["dropped"] == {"no letter or digit": 1}
    assert corpus.info["mentions"] == 0
    assert corpus.info["hits"] == 1


LISTS = Lists(
    public={"Bob": "known", "Nobody": "never met"},
    sensitive={"plain text": "misc", "Jordan": "loc"},
    aliases={"Zork": "Alice"},
    shipped=("countries", "months"),
)


@pytest.mark.parametrize(
    "changes",
    [
        {"lists": LISTS},
        {"categories": frozenset({"person"})},
        {"propagate": False},
        {"lists": LISTS, "categories": frozenset({"gpe", "contact"}), "propagate": True},
    ],
)
def test_linking_again_is_detecting_again(tmp_path, changes):
    """Byte for byte: tables, incidence and manifest."""
    first = detect(BLOG, tmp_path / "c", MODEL)
    other = relink(first, tmp_path / "other", **changes)
    scratch = detect(BLOG, tmp_path / "scratch", replace(MODEL, **changes))
    assert files_of(other.folder) == files_of(scratch.folder)
    relink(first, **changes)
    assert files_of(first.folder) == files_of(scratch.folder)
    # and back
    back = relink(
        Corpus(first.folder),
        lists=MODEL.lists,
        categories=MODEL.categories,
        propagate=MODEL.propagate,
    )
    assert files_of(back.folder) == files_of(detect(BLOG, tmp_path / "again", MODEL).folder)


def test_linking_again_keeps_the_lists_of_before(tmp_path):
    first = detect(BLOG, tmp_path / "c", replace(MODEL, lists=LISTS))
    assert lists_of(first) == LISTS
    more = lists_of(first).with_more(Lists(sensitive={"go": "misc"}))
    both = relink(first, lists=more)
    assert lists_of(both) == more
    assert "go" in chain(*mentions(both))
    assert "Bob" not in chain(*mentions(both))


def test_shipped_lists_are_public_unless_a_person_or_denied(tmp_path):
    @register_detector("people")
    class People:
        propagates = True

        def __init__(self, argument):
            pass

        def detect(self, texts):
            for text in texts:
                label = "PERSON" if "met" in text else "GPE"
                yield [Span(i, i + 6, label) for i in (text.find("Jordan"),) if i >= 0]

    texts = [
        Sentence("a", "we met Jordan"),
        Sentence("b", "off to Jordan"),
        Sentence("c", "the Jordan border"),
    ]
    on = Lists(shipped=("countries",))
    corpus = detect(texts, tmp_path / "c", Detection(("people",), lists=on))
    assert mentions(corpus) == [["Jordan"], [], []]
    assert corpus.info["public_lists"]["countries"].startswith("version 1, ")
    off = relink(corpus, lists=Lists())
    assert [set(found) for found in mentions(off)] == [{"Jordan"}] * 3
    denied = relink(off, lists=replace(on, sensitive={"Jordan": "gpe"}))
    assert [set(found) for found in mentions(denied)] == [{"Jordan"}] * 3


def test_a_corpus_without_raw_hits_is_refused_with_the_remedy(tmp_path):
    normal = detect(BLOG, tmp_path / "n", replace(MODEL, normalised=True))
    with pytest.raises(UserError, match=r"its text was normalised.*detect it again"):
        relink(normal)
    old = detect(BLOG, tmp_path / "old", MODEL)
    path = old.folder / "corpus.json"
    info = json.loads(path.read_text())
    for name in ("hits", "hits_digest", "propagation"):
        del info[name]
    path.write_text(json.dumps(info))
    (old.folder / "hits.arrow").unlink()
    (old.folder / "evidence.arrow").unlink()
    before = files_of(old.folder)
    with pytest.raises(UserError, match=r"an earlier version.*detect it again"):
        relink(Corpus(old.folder))
    assert Corpus(old.folder).evidence is None
    assert files_of(old.folder) == before


def test_changed_hits_are_refused(tmp_path):
    corpus = detect(BLOG, tmp_path / "c", MODEL)
    other = detect(BLOG, tmp_path / "o", Detection(("patterns", "capitals")))
    (corpus.folder / "hits.arrow").write_bytes((other.folder / "hits.arrow").read_bytes())
    with pytest.raises(UserError, match=r"hits.arrow: was changed"):
        relink(corpus)


def test_linking_again_forgets_a_coverage_that_was_recorded(tmp_path):
    corpus = detect([*ACME, *BLOG], tmp_path / "c", MODEL)
    record_coverage(corpus, coverage(corpus))
    assert "coverage" in Corpus(corpus.folder).info
    assert "coverage" not in relink(Corpus(corpus.folder)).info


def test_one_ledger_for_all_detections_of_the_same_texts(tmp_path):
    """A copy with other entities is no way to forget what was spent, before or after."""
    corpus = detect(BLOG, tmp_path / "c", MODEL)
    early = relink(corpus, tmp_path / "early", propagate=False)  # before there is a ledger
    (corpus.folder / "ledger.jsonl").write_text("spent\n")
    (corpus.folder / "ledger-mark-one.jsonl").write_text("one\n")
    late = relink(corpus, tmp_path / "late", propagate=False)
    here = relink(corpus)
    with (here.folder / "ledger.jsonl").open("a") as file:
        file.write("more\n")
    for made in (early, late, here):
        assert (made.folder / "ledger.jsonl").read_text() == "spent\nmore\n"
    assert (late.folder / "ledger-mark-one.jsonl").read_text() == "one\n"


def test_the_ledger_of_other_texts_is_not_replaced(tmp_path):
    corpus = detect(BLOG, tmp_path / "c", MODEL)
    (corpus.folder / "ledger.jsonl").write_text("spent\n")
    other = detect(ACME, tmp_path / "o", MODEL)
    (other.folder / "ledger.jsonl").write_text("of others\n")
    with pytest.raises(UserError, match="has a ledger of its own"):
        relink(corpus, other.folder, overwrite=True)
    assert (other.folder / "ledger.jsonl").read_text() == "of others\n"


@pytest.mark.parametrize(
    "change",
    [
        {"detectors": 3},
        {"categories": [1]},
        {"declared_sensitive": 3},
        {"declared_public": ["x"]},
        {"aliases": {"a": 3}},
        {"public_lists": 5},
        {"propagation": {"rule": {"shares": 1}}},
        {"source": 3},
    ],
)
def test_a_manifest_that_cannot_be_read_is_a_one_line_error(tmp_path, change):
    corpus = detect(BLOG, tmp_path / "c", MODEL)
    corpus.info.update(change)
    with pytest.raises(UserError) as refused:
        relink(corpus)
    assert "\n" not in str(refused.value)
    assert Corpus(corpus.folder).info["detectors"] == ["capitals", "patterns"]
