"""What is put on record of texts, entities and users, and compared with a corpus afterwards."""

import json
from pathlib import Path

import pytest

from tests.training import worlds
from uedp.accounting import certificate as certificates
from uedp.accounting.ledger import CorpusLedger
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.coverage import coverage, record_coverage
from uedp.entities.detection import Detection, detect
from uedp.entities.lists import Lists
from uedp.errors import UserError
from uedp.training import api, loop
from uedp.training.datasets import Texts, training_data_from
from uedp.training.provenance import detected_entities, refuse_other_corpus, user_assignment

NEW = {
    "model__tokenizer": "bytes",
    "model__sizes": {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1},
    "privacy__rounds": 1,
}
LISTS = Lists(public={"Acme": "it is public"}, sensitive={"Zoe": "person"}, aliases={"Z": "Zoe"})


def sentences(word="day"):
    return [
        Sentence(f"user {user}", f"the {word} {user} of zoe@example.org", None, (Span(0, 3, "X"),))
        for user in range(40)
    ]


@pytest.fixture(autouse=True)
def quick_certificates(monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())


@pytest.fixture
def corpus(tmp_path) -> Path:
    detection = Detection(("patterns:GB",), frozenset({"contact", "person"}), lists=LISTS)
    return detect(sentences(), tmp_path / "corpus", detection).folder


def trained(corpus: Path, out: Path) -> certificates.Certificate:
    config = worlds.config("awd-lstm", data__train=str(corpus), **NEW)
    said: list[str] = []
    found = loop.run(config, out, say=said.append).certificate
    assert "\n".join(said).startswith(found.statement)
    shown = api.preview(config).plan.statement.splitlines()
    # before the first run there is no key, so lists are not named by their digests
    assert shown[0] == said[0]
    assert len(shown) == len(found.statement.splitlines())
    return found


def test_a_certificate_names_the_detected_entities(corpus, tmp_path):
    found = trained(corpus, tmp_path / "run")
    entities = found.setup.entities
    assert entities.detectors["patterns:GB"].startswith("uedp 0.")
    assert entities.categories == ("contact", "person")
    assert {name: held.entries for name, held in entities.lists.items()} == {
        "public": 1,
        "sensitive": 1,
        "aliases": 1,
    }
    line = found.statement.splitlines()[1]
    assert line.startswith("Entities: no names are looked for but those listed; found by patterns:")
    assert "coverage not measured" in line
    digest = entities.lists["sensitive"].digest
    assert digest[:12] in line
    # neither the list nor a hash that could be guessed
    assert "Zoe" not in (tmp_path / "run" / "certificate.json").read_text()
    assert digest == CorpusLedger(corpus).keyed(json.dumps([{"Zoe": "person"}]))


def test_every_detector_has_a_version(tmp_path):
    info = detect(sentences(), tmp_path / "c", Detection(("patterns", "labels"))).info
    assert info["detector_versions"]["labels"] == "human marks"
    assert "phonenumbers" in info["detector_versions"]["patterns"]
    assert not detected_entities(info).names_sought or "labels" in info["detectors"]
    assert detected_entities(info).names_sought


def test_measured_coverage_is_certified(tmp_path):
    made = detect(sentences(), tmp_path / "corpus", Detection(("patterns",)))
    record_coverage(made, coverage(made))
    found = trained(made.folder, tmp_path / "run").setup.entities.coverage
    assert found.marks == 40
    assert found.sentences_found == 1  # each holds an address
    assert found.sentences_complete == 0  # "the" was marked
    own = detect(sentences(), tmp_path / "own", Detection(("labels",)))
    with pytest.raises(UserError, match="nothing to measure"):
        record_coverage(own, coverage(own))


def test_a_corpus_other_than_the_certified_one_is_refused(corpus, tmp_path):
    found = trained(corpus, tmp_path / "run")
    certificates.verify(tmp_path / "run", corpus=corpus)
    refuse_other_corpus(found, corpus)
    # the same people and entities, other texts
    detection = Detection(("patterns:GB",), frozenset({"contact", "person"}), lists=LISTS)
    kept = (corpus / "ledger.jsonl").read_bytes()

    def again(words, made):
        detect(words, corpus, made, overwrite=True)
        (corpus / "ledger.jsonl").write_bytes(kept)

    again(sentences("night"), detection)
    with pytest.raises(UserError, match="not the texts that the run"):
        refuse_other_corpus(found, corpus)
    again(sentences(), Detection(("patterns:US",), detection.categories, lists=LISTS))
    with pytest.raises(UserError, match="its detection is not the certified one"):
        refuse_other_corpus(found, corpus)
    again(sentences()[:30], detection)
    with pytest.raises(UserError, match="not the users and entities that the run"):
        refuse_other_corpus(found, corpus)
    again(sentences(), detection)
    refuse_other_corpus(found, corpus)


def test_another_user_assignment_is_refused(corpus, tmp_path):
    found = trained(corpus, tmp_path / "run")
    path = corpus / "corpus.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"source": {"assigned_users": "15,2"}}))
    with pytest.raises(UserError, match="its users are assigned at random, not as given"):
        refuse_other_corpus(found, corpus)


def test_randomly_assigned_users_are_certified_as_such(tmp_path):
    origin = {"assigned_users": "15,2"}
    made = detect(sentences(), tmp_path / "corpus", Detection(("patterns",)), origin=origin)
    assert user_assignment(made.info) == "assigned at random"
    found = trained(made.folder, tmp_path / "run")
    assert "the user wrote" not in found.statement
    assert "put together at random" in found.statement.splitlines()[0]
    assert any("people are not protected beyond" in caveat for caveat in found.caveats)


@pytest.mark.parametrize(
    "change",
    [
        {"detectors": 3},
        {"categories": [1]},
        {"propagated": "perhaps"},
        {"detector_versions": []},
        {"declared_sensitive": 3},
        {"coverage": {"marks": "many"}},
    ],
)
def test_an_unreadable_manifest_is_a_one_line_error(corpus, change):
    with pytest.raises(UserError, match=r"corpus.json: its detectors, categories") as refused:
        detected_entities({**Corpus(corpus).info, **change})
    assert "\n" not in str(refused.value)


def test_missing_information_stays_missing():
    assert detected_entities(None) is None
    assert detected_entities({}) is None
    assert (
        user_assignment(None)
        == user_assignment({"source": None})
        == user_assignment({"source": 3})
        == "as given"
    )


def test_every_change_of_owner_text_or_label_changes_the_digest(corpus, tmp_path):
    plain = worlds.training_data(tmp_path / "a")
    texts, labels = worlds.texts(), worlds.labels()
    others = [
        worlds.training_data(tmp_path / "a", train=Texts([texts[0] + " ", *texts[1:]], labels)),
        worlds.training_data(tmp_path / "a", train=Texts([texts[1], texts[0], *texts[2:]], labels)),
        worlds.training_data(tmp_path / "a", train=Texts(texts, [None, *labels[1:]])),
        worlds.training_data(tmp_path / "a", train=Texts(texts, ["", *labels[1:]])),
        worlds.training_data(tmp_path / "a", train=Texts(texts, [])),
        worlds.training_data(tmp_path / "a", incidence=worlds.incidence(30, 4)),
        training_data_from(Corpus(corpus)),
    ]
    digests = [one.text_digest for one in (plain, *others)]
    assert len(set(digests)) == len(digests)
    assert worlds.training_data(tmp_path / "b").text_digest == digests[0]


def test_nothing_is_certified_that_counts_dropped_hits(corpus, tmp_path):
    """They are in no incidence: their number would tell what an emptied text said."""
    info = Corpus(corpus).info
    report = info["propagation"]
    other = {**info, "propagation": {**report, "hits": report["hits"] + 1, "dropped": {"x": 1}}}
    assert detected_entities(other) == detected_entities(info)


def test_users_of_both_corpora_are_warned_of(corpus, tmp_path):
    """Other texts of users who are protected: a split by time, or two files of the same people."""
    later = [Sentence(f"user {user}", f"so late {user}") for user in range(38, 42)]
    held_out = detect(later, tmp_path / "later", Detection(("patterns",))).folder
    config = worlds.config("awd-lstm", data__train=str(corpus), data__evaluate=str(held_out), **NEW)
    said: list[str] = []
    loop.run(config, tmp_path / "run", say=said.append)
    assert (
        "warning: 2 users of data.evaluate have the name of a user in the training corpus: "
        "measures on their texts have no noise, and no guarantee covers them"
    ) in said
