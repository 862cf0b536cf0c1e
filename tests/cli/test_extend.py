"""`uedp extend`, and `uedp train --continue`."""

import json

import pytest

from tests.training import worlds


@pytest.fixture
def place(tmp_path, run, monkeypatch):
    """A corpus of thirty users, and more text."""
    for module in ("statement", "growth"):
        monkeypatch.setattr(f"uedp.accounting.{module}.MISSED_CASES", ())
    monkeypatch.chdir(tmp_path)
    for name, users in (("old.jsonl", range(30)), ("new.jsonl", range(25, 45))):
        rows = ({"user": f"u{user}", "text": f"call 555-010-{1000 + user}"} for user in users)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("detect", "old.jsonl", "--out", "corpus").code == 0
    return tmp_path


def test_a_corpus_grows_and_its_epochs_are_shown(place, run):
    done = run("extend", "corpus", "new.jsonl", "--forget", "u3")
    assert done.code == 0
    assert "epoch 2 adds 15 users, 20 sentences, 15 entities" in done.out
    assert "1 user left" in done.out
    shown = run("inspect", "corpus", "--json")
    epochs = json.loads(shown.out)["epochs"]
    assert [row["users"] for row in epochs] == [30, 15]
    assert [row["left"] for row in epochs] == [0, 1]
    assert "epochs: what each added" in run("inspect", "corpus").out
    assert "2 epochs" in run("entities", "corpus").out
    gone = run("extend", "corpus", "--forget", "u4", "--json")
    assert json.loads(gone.out)["left"] == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name new data, or users to forget"),
        (("--forget", "u99"), "no user of this corpus"),
        (("missing.jsonl",), "missing.jsonl"),
    ],
)
def test_mistakes_are_named_and_change_nothing(place, run, arguments, reason):
    done = run("extend", "corpus", *arguments)
    assert done.code == 2
    assert reason in done.err
    assert not (place / "corpus" / "epochs").exists()


def test_training_goes_on_where_a_run_ended(place, run, saved_model):
    flags = ("--set", "run.device=cpu", "--user-rate", "0.5", "--entity-share", "0.5")
    first = ("--corpus", "corpus", "--model", saved_model, "--train", "full", "--rounds", "2")
    assert run("train", *first, *flags, "--epsilon", "8", "--out", "run").code == 0
    assert run("extend", "corpus", "new.jsonl", "--forget", "u3").code == 0
    refused = run("train", "--continue", "run", "--out", "more")
    assert refused.code == 2
    assert "privacy.epsilon (--epsilon) 8: the runs that the model went through" in refused.err
    preview = run("train", "--continue", "run", "--epsilon", "9", "--dry-run")
    assert "model.continued=true" in preview.out
    assert "at the noise that each plan needs" not in preview.out  # it would be this run's alone
    done = run("train", "--continue", "run", "--epsilon", "9", "--out", "more")
    assert done.code == 0, done.err
    assert "This counts all 2 runs on this corpus" in done.out
    assert run("certificate", "verify", "more", "--corpus", "corpus").code == 0
    assert run("certificate", "verify", "run", "--corpus", "corpus").code == 0
    ledger = run("ledger", "corpus")
    assert "joined" in ledger.out
    mixed = run("train", "--continue", "run", "--model", "x", "--out", "z")
    assert "leave out --model" in mixed.err
    assert "holds no run" in run("train", "--continue", "nothing", "--out", "z").err


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    return worlds.model(tmp_path_factory.getbasetemp() / "models", "gpt2")
