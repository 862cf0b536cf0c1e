"""What a model has learned from before, and who may begin with it."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.training import worlds
from tests.training.runs import DEEP, refused
from uedp.accounting import certificate as certificates
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.training import loop
from uedp.training.datasets import Texts
from uedp.training.lineage import FILE, Ancestor, model_ancestors


@pytest.fixture
def train_round(tmp_path, saved, monkeypatch):
    """One round into a folder; of other users' text if asked for."""
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())

    def command(out, method, begin_with=None, others=False):
        users = worlds.USERS + (1 if others else 0)
        material = worlds.training_data(
            tmp_path / f"corpus-{users}",
            train=Texts(worlds.texts(users), worlds.labels(users)),
            incidence=worlds.incidence(users),
        )
        model = begin_with.folder if begin_with else saved()
        config = worlds.config(model, privacy__method=method, privacy__rounds=1)
        return loop.run(config, tmp_path / out, data=material)

    return command


@pytest.mark.parametrize("before", ["noiseless", "deidentified", "rotation"])
@pytest.mark.parametrize("method", ["rotation", "user-level", "uedp-alg"])
def test_a_model_that_learned_from_the_corpus_is_refused(train_round, tmp_path, before, method):
    first = train_round("first", before)
    (learned,) = model_ancestors(str(first.folder))
    assert (learned.method, learned.incidence) == (before, worlds.incidence().digest)
    with pytest.raises(UserError, match=rf"has learned from this corpus already.*{before}"):
        train_round("second", method, begin_with=first)
    assert not (tmp_path / "second").exists()


def test_an_indirect_ancestor_on_the_same_corpus_is_refused(train_round):
    first = train_round("first", "noiseless")
    between = train_round("between", "rotation", begin_with=first, others=True)
    assert [one.method for one in model_ancestors(str(between.folder))] == ["noiseless", "rotation"]
    with pytest.raises(UserError, match="has learned from this corpus already"):
        train_round("third", "rotation", begin_with=between)


def test_training_on_another_corpus_is_a_caveat(train_round, tmp_path):
    first = train_round("first", "noiseless", others=True)
    plain = train_round("plain", "rotation").certificate
    after = train_round("after", "rotation", begin_with=first).certificate
    assert plain.setup.earlier_runs == "none known"
    assert after.setup.earlier_runs == "on other corpora"
    assert any("other runs before" in caveat for caveat in after.caveats)
    assert not any("other runs before" in caveat for caveat in plain.caveats)
    assert certificates.verify(tmp_path / "after") == after
    assert after.private
    assert after.epsilon == plain.epsilon


def test_runs_without_noise_may_reuse_a_corpus(train_round):
    first = train_round("first", "noiseless")
    assert train_round("second", "noiseless", begin_with=first).finished


@pytest.fixture
def word_model(tmp_path, monkeypatch):
    """A new word-level model of one round; its words and its corpus are asked for."""
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())

    def command(out, others=False, **changes):
        users = worlds.USERS + (1 if others else 0)
        material = worlds.training_data(
            tmp_path / f"corpus-{users}",
            train=Texts(worlds.texts(users), worlds.labels(users)),
            incidence=worlds.incidence(users),
        )
        sizes = {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1}
        config = worlds.config("awd-lstm", model__sizes=sizes, privacy__rounds=1, **changes)
        return loop.run(config, tmp_path / out, data=material).certificate

    return command


@pytest.mark.parametrize("where", ["", "/tokenizer.json", "/vocabulary"])
@pytest.mark.parametrize("field", ["model__tokenizer", "vocabulary__path"])
def test_a_vocabulary_of_the_same_corpus_is_not_public(word_model, tmp_path, where, field):
    word_model("first", vocabulary__source="corpus")
    taken = {field: f"{tmp_path / 'first'}{where}"}
    if field == "vocabulary__path":
        taken["vocabulary__source"] = "public"
    found = word_model("second", **taken)
    assert not found.private
    assert found.setup.vocabulary == "from the corpus, not covered"
    assert found.statement.startswith("This run has no privacy guarantee.")
    assert any("made from this corpus" in caveat for caveat in found.caveats)
    assert certificates.verify(tmp_path / "second") == found


def test_a_copied_vocabulary_keeps_its_lineage(word_model, tmp_path):
    word_model("first", vocabulary__source="corpus")
    shutil.copytree(tmp_path / "first" / "vocabulary", tmp_path / "words")
    assert not word_model("second", model__tokenizer=str(tmp_path / "words")).private


def test_a_linked_vocabulary_keeps_its_lineage(word_model, tmp_path):
    word_model("first", vocabulary__source="corpus")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "tokenizer.json"
    link.symlink_to(tmp_path / "first" / "vocabulary" / "tokenizer.json")
    assert not word_model("second", model__tokenizer=str(link)).private


def test_the_vocabulary_of_a_trained_model_is_not_public(word_model, train_round, tmp_path):
    word_model("first", vocabulary__source="corpus")
    first = SimpleNamespace(folder=tmp_path / "first")
    found = train_round("second", "rotation", first, others=True).certificate
    assert found.setup.vocabulary == "from another corpus, not covered"
    assert any("made from another corpus" in caveat for caveat in found.caveats)


def test_a_vocabulary_keeps_its_lineage_through_another_corpus(word_model, tmp_path):
    word_model("first", vocabulary__source="corpus")
    between = word_model("between", others=True, model__tokenizer=str(tmp_path / "first"))
    assert between.private
    assert between.setup.vocabulary == "from another corpus, not covered"
    assert any("made from another corpus" in caveat for caveat in between.caveats)
    third = word_model("third", model__tokenizer=str(tmp_path / "between"))
    assert not third.private


def test_a_public_tokenizer_stays_public_through_a_run(word_model, tmp_path):
    word_model("first", model__tokenizer="bytes")
    found = word_model("second", model__tokenizer=str(tmp_path / "first"))
    assert found.private
    assert found.setup.vocabulary == "public"


def test_a_private_vocabulary_of_another_run_is_not_private_here(word_model, tmp_path):
    changes = {"privacy__noise": None, "privacy__epsilon": 50.0}
    word_model(
        "first",
        vocabulary__source="private",
        vocabulary__path=None,
        vocabulary__words_per_user=4,
        vocabulary__words_per_sentence=4,
        **changes,
    )
    found = word_model("second", model__tokenizer=str(tmp_path / "first"))
    assert not found.private


def test_texts_detected_again_are_recognised_in_their_folder(tmp_path, saved, monkeypatch):
    """By the digest under the corpus's key, which outlives a new detection."""
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    config = worlds.config(saved(), privacy__method="noiseless", privacy__rounds=1)
    loop.run(config, tmp_path / "first", data=worlds.training_data(tmp_path / "corpus"))
    owners = worlds.incidence().sentence_user
    none = Incidence.build(owners, np.zeros(0, int), np.zeros(0, int), worlds.USERS, 0)
    again = worlds.training_data(tmp_path / "corpus", incidence=none)
    with pytest.raises(UserError, match="has learned from this corpus already"):
        loop.run(worlds.config(tmp_path / "first"), tmp_path / "second", data=again)


def test_an_unreadable_lineage_is_not_taken_for_none(tmp_path):
    assert model_ancestors("gpt2") == model_ancestors(str(tmp_path)) == ()
    entry = {"run": "a", "method": "noiseless", "incidence": "b"}
    (tmp_path / FILE).write_text(json.dumps([entry]))
    assert model_ancestors(str(tmp_path)) == (Ancestor("a", "noiseless", "b"),)
    for damaged in ("[", '[{"run": 1}]', "3"):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(UserError, match="damaged"):
            model_ancestors(str(tmp_path))


@pytest.mark.parametrize("content", [b"{", b"7", b"[7]", b'[{"run": 1}]', b"\xff", DEEP, b'["a"]'])
def test_a_damaged_lineage_is_refused(content, tmp_path):
    (tmp_path / FILE).write_bytes(content)
    assert "lineage.json: damaged" in refused(lambda: model_ancestors(str(tmp_path)))


def test_a_lineage_with_wrong_types_is_refused(tmp_path):
    entry = {"run": "a", "method": "noiseless", "incidence": ["0" * 64]}
    (tmp_path / FILE).write_text(json.dumps([entry]))
    assert "lineage.json: damaged" in refused(lambda: model_ancestors(str(tmp_path)))


def test_the_ledger_also_records_the_lineage(train):
    """`lineage.json` is emptied; the ledger beside the weights still names the corpus."""
    sizes = {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1}
    first = train("first", model="awd-lstm", model__sizes=sizes, model__tokenizer="bytes")
    (first.folder / "lineage.json").write_text("[]")
    with pytest.raises(UserError, match="has learned from this corpus already"):
        train("second", model=str(first.folder))
