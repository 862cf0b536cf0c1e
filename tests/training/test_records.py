"""What a run made and learned from, whatever is done to the files that say so."""

import json

import pytest

from tests.training import worlds
from tests.training.test_loop import stopping_after
from uedp.errors import UserError
from uedp.training import loop

SIZES = {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def quick_certificates(monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())


def trained(tmp_path, out, model="awd-lstm", **options):
    progress = {"progress": options.pop("progress")} if "progress" in options else {}
    material = worlds.training_data(tmp_path / "corpus")
    resume = options.pop("resume", False)
    config = worlds.config(model, **options)
    return loop.run(config, tmp_path / out, data=material, resume=resume, **progress)


def test_a_private_vocabulary_is_the_one_that_was_released(tmp_path):
    """`vocabulary/` of a stopped run holds another word."""
    options = {
        "model__sizes": SIZES,
        "privacy__noise": None,
        "privacy__epsilon": 50.0,
        "vocabulary__source": "private",
        "vocabulary__words_per_user": 4,
        "vocabulary__words_per_sentence": 4,
    }
    trained(tmp_path, "run", progress=stopping_after(1), **options)
    path = tmp_path / "run" / "vocabulary" / "tokenizer.json"
    told = json.loads(path.read_text())
    words = told["model"]["vocab"]
    last = max(words, key=words.get)
    words["secretname"] = words.pop(last)
    path.write_text(json.dumps(told))
    with pytest.raises(UserError, match="changed since this run made it"):
        trained(tmp_path, "run", resume=True, **options)


def test_what_a_run_learned_from_is_in_its_ledger_too(tmp_path):
    """`lineage.json` is emptied; the ledger beside the weights still names the corpus."""
    first = trained(tmp_path, "first", model__sizes=SIZES, model__tokenizer="bytes")
    (first.folder / "lineage.json").write_text("[]")
    with pytest.raises(UserError, match="has learned from this corpus already"):
        trained(tmp_path, "second", str(first.folder))
