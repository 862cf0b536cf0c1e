"""What a model has learned from before, and who may begin with it."""

import json

import pytest

from tests.training import worlds
from uedp.accounting import certificate as certificates
from uedp.errors import UserError
from uedp.training import loop
from uedp.training.lineage import FILE, Learned, of_model
from uedp.training.material import Texts


@pytest.fixture
def train(tmp_path, saved, monkeypatch):
    """One round into a folder; of other users' text if asked for."""
    monkeypatch.setattr(certificates, "MISSED_CASES", ())

    def command(out, method, begin_with=None, others=False):
        users = worlds.USERS + (1 if others else 0)
        material = worlds.material(
            tmp_path / f"corpus-{users}",
            train=Texts(worlds.texts(users), worlds.labels(users)),
            incidence=worlds.incidence(users),
        )
        model = begin_with.folder if begin_with else saved()
        config = worlds.config(model, privacy__method=method, privacy__rounds=1)
        return loop.run(config, tmp_path / out, material=material)

    return command


@pytest.mark.parametrize("before", ["noiseless", "deidentified", "rotation"])
@pytest.mark.parametrize("method", ["rotation", "user-level", "uedp-alg"])
def test_a_private_run_does_not_begin_with_its_own_corpus(train, tmp_path, before, method):
    first = train("first", before)
    (learned,) = of_model(str(first.folder))
    assert (learned.method, learned.incidence) == (before, worlds.incidence().digest)
    with pytest.raises(UserError, match=rf"has learned from this corpus already.*{before}"):
        train("second", method, begin_with=first)
    assert not (tmp_path / "second").exists()


def test_nor_through_a_run_between(train):
    first = train("first", "noiseless")
    between = train("between", "rotation", begin_with=first, others=True)
    assert [one.method for one in of_model(str(between.folder))] == ["noiseless", "rotation"]
    with pytest.raises(UserError, match="has learned from this corpus already"):
        train("third", "rotation", begin_with=between)


def test_what_was_learned_from_other_text_is_a_caveat(train, tmp_path):
    first = train("first", "noiseless", others=True)
    plain = train("plain", "rotation").certificate
    after = train("after", "rotation", begin_with=first).certificate
    assert plain.setup.earlier_runs == "none known"
    assert after.setup.earlier_runs == "on other corpora"
    assert any("other runs before" in caveat for caveat in after.caveats)
    assert not any("other runs before" in caveat for caveat in plain.caveats)
    assert certificates.verify(tmp_path / "after") == after
    assert after.private
    assert after.epsilon == plain.epsilon


def test_without_noise_anything_goes(train):
    first = train("first", "noiseless")
    assert train("second", "noiseless", begin_with=first).finished


def test_a_list_that_cannot_be_read_is_not_taken_for_none(tmp_path):
    assert of_model("gpt2") == of_model(str(tmp_path)) == ()
    entry = {"run": "a", "method": "noiseless", "incidence": "b"}
    (tmp_path / FILE).write_text(json.dumps([entry]))
    assert of_model(str(tmp_path)) == (Learned("a", "noiseless", "b"),)
    for damaged in ("[", '[{"run": 1}]', "3"):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(UserError, match="damaged"):
            of_model(str(tmp_path))
