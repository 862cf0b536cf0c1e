"""Runs whose words come from a list, from the corpus, or privately from the corpus."""

import json

import pytest

from tests.training import worlds
from uedp.accounting.certificate import verify
from uedp.errors import UserError
from uedp.training.loop import run
from uedp.training.vocabulary import FOLDER

NEW = {
    "model__name": "awd-lstm",
    "model__sizes": {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1},
}


def config(source, **changes):
    values = {**NEW, "vocabulary__source": source, **changes}
    if "privacy__epsilon" in values:
        values["privacy__noise"] = None
    return worlds.config("awd-lstm", **values)


def words(out):
    return json.loads((out / FOLDER / "tokenizer.json").read_text())["model"]["vocab"]


def test_public_words(tmp_path):
    listed = tmp_path / "words.txt"
    listed.write_text("the\nday\nis\n")
    out = tmp_path / "run"
    found = run(
        config("public", vocabulary__path=str(listed)),
        out,
        data=worlds.training_data(tmp_path / "corpus"),
    )
    assert set(words(out)) == {"<unk>", "<pad>", "<bos>", "<eos>", "the", "day", "is"}
    assert found.certificate.setup.vocabulary == "public"


def test_words_of_the_corpus_are_marked(tmp_path):
    out = tmp_path / "run"
    found = run(
        config("corpus", vocabulary__size=3), out, data=worlds.training_data(tmp_path / "corpus")
    )
    assert len(words(out)) == 4 + 3
    assert any("vocabulary" in caveat for caveat in verify(out).caveats)
    assert found.certificate.setup.vocabulary == "from the corpus, not covered"
    assert not found.certificate.private
    assert found.certificate.statement.startswith("This run has no privacy guarantee.")


def test_private_words_are_charged_once(tmp_path):
    """They are in the ledger and in epsilon; resuming does not make them again."""
    listed = tmp_path / "words.txt"
    listed.write_text("the\n")
    out, held = tmp_path / "run", worlds.training_data(tmp_path / "corpus")
    asked = config(
        "private",
        vocabulary__path=str(listed),
        vocabulary__words_per_user=4,
        vocabulary__words_per_sentence=2,
        privacy__epsilon=50.0,
    )
    found = run(asked, out, data=held)
    issued = verify(out)
    assert issued.setup.vocabulary == "differentially private"
    assert issued.parameters["vocabulary_noise"] > 0
    assert found.certificate.epsilon <= 50
    ledger = (out / "ledger.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["record"]["kind"] for line in ledger]
    assert kinds == ["plan", "vocabulary", "words", *["rounds"] * 4, "saved", "corpus"]
    assert "the" in words(out)
    before = (out / "ledger.jsonl").read_bytes()
    run(asked, out, data=held, resume=True)
    assert (out / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"vocabulary__source": "public"}, "vocabulary.path"),
        ({"vocabulary__source": "private"}, "privacy.epsilon"),
        ({"vocabulary__source": "corpus", "model__tokenizer": "bytes"}, "model.tokenizer"),
        ({"vocabulary__source": "corpus", "model__name": "gpt2"}, "new model"),
    ],
)
def test_what_does_not_fit_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        worlds.config("x", **{**NEW, **changes})
