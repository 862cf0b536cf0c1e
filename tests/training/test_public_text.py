"""Text that is declared public: what can be read, and what is refused as private."""

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training import worlds
from tests.training.runs import refused
from uedp.corpus.sentence import Sentence
from uedp.entities.detection import Detection, detect
from uedp.training.config import PublicSettings, parse_config
from uedp.training.datasets import (
    Texts,
    public_warnings,
    read_public_text,
    read_training_data,
    refuse_private_text,
    refuse_unlabelled,
)
from uedp.training.public_text import overlap, plain_digest

NEWS = ["Rain fell in the north. It will be dry in the south.", "Nothing else happened at all."]
SENTENCES = ["Rain fell in the north.", "It will be dry in the south.", NEWS[1]]


def written(folder, name):
    path = folder / name
    if name.endswith(".txt"):
        path.write_text("\n\n".join(NEWS) + "\n")
    elif name.endswith(".txt.gz"):
        path.write_bytes(gzip.compress("\n".join(NEWS).encode()))
    elif name.endswith(".csv"):
        path.write_text("text,topic\n" + "".join(f'"{text}",x\n' for text in NEWS))
    else:
        rows = [{"text": text, "topic": "x"} for text in NEWS]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus(folder, texts, users=None):
    users = users or [f"u{number % 7}" for number in range(len(texts))]
    sentences = [Sentence(user, text) for user, text in zip(users, texts, strict=True)]
    return detect(sentences, folder, Detection(("patterns",), frozenset({"contact"}))).folder


@pytest.mark.parametrize("name", ["news.txt", "news.txt.gz", "news.csv", "news.jsonl"])
def test_files_are_read_as_detection_would_without_users_or_detectors(tmp_path, name, monkeypatch):
    monkeypatch.setattr("uedp.entities.detection.detect_into", None)
    public = read_public_text(written(tmp_path, name), PublicSettings())
    assert list(public.texts) == SENTENCES
    assert (public.name, public.users, public.incidence) == (name, frozenset(), "")
    assert public.digest == plain_digest(SENTENCES)
    whole = read_public_text(written(tmp_path, name), PublicSettings(split="none"))
    assert list(whole.texts) == NEWS


def test_a_corpus_is_read_with_its_users(tmp_path):
    public = read_public_text(corpus(tmp_path / "c", SENTENCES, ["a", "b", "b"]), PublicSettings())
    assert list(public.texts) == SENTENCES
    assert public.users == {"a", "b"}
    assert public.incidence
    assert public.digest == plain_digest(SENTENCES)  # whoever wrote it, and in whatever format
    assert not (tmp_path / "c" / "ledger.jsonl").exists()


def test_labels_of_a_file(tmp_path):
    path = written(tmp_path, "news.csv")
    config = worlds.config("gpt2", task__kind="classification")
    labelled = read_public_text(path, PublicSettings(label="topic"))
    assert list(labelled.labels) == ["x"] * 3
    refuse_unlabelled(config, labelled)
    without = read_public_text(path, PublicSettings())
    message = refused(lambda: refuse_unlabelled(config, without))
    assert "no labels to learn from; name their column in public.label" in message


def test_what_cannot_be_read_names_fields_of_the_config(tmp_path):
    (tmp_path / "news.jsonl").write_text(json.dumps({"body": "a"}) + "\n")
    message = refused(lambda: read_public_text(tmp_path / "news.jsonl", PublicSettings()))
    assert message.startswith("data.public: ")
    assert "name it with public.text='body'" in message
    (tmp_path / "news").write_text("a")
    message = refused(lambda: read_public_text(tmp_path / "news", PublicSettings()))
    assert "name the format by public.reader: " in message
    message = refused(lambda: read_public_text(tmp_path / "none.txt", PublicSettings()))
    assert "no such file" in message
    (tmp_path / "empty.txt").write_text("\n \n")
    message = refused(lambda: read_public_text(tmp_path / "empty.txt", PublicSettings()))
    assert "holds no sentences" in message


# --- what it has in common with private text -----------------------------------------------------

_TEXT = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=7).map(" ".join)


@given(st.lists(_TEXT, max_size=30), st.lists(_TEXT, max_size=30))
def test_common_sentences_are_counted(one, other):
    found = overlap(one, other)
    assert found == overlap(other, one)
    assert found.common == len(set(one) & set(other))
    long_ = [{text for text in side if len(text.split()) >= 5} for side in (one, other)]
    assert found.longer == len(long_[0] & long_[1])
    assert found.share == (found.longer / min(map(len, long_)) if all(long_) else 0)
    changed = [f"  {text.upper()}! " for text in one] * 2
    assert overlap(changed, other) == found


def data_with(tmp_path, texts, **public):
    count = worlds.USERS * worlds.EACH
    own = [f"on day {number} nothing much happened to me" for number in range(count)]
    data = worlds.training_data(
        tmp_path / "corpus", train=Texts(own, [None] * count), names=("ann", "bob")
    )
    public.setdefault("labels", [None] * len(texts))
    return replace(data, public=worlds.public_text(texts=texts, **public))


def others(count):
    return [f"in year {number} it rained all summer" for number in range(count)]


def test_a_copy_of_the_private_text_is_refused(tmp_path):
    mine = data_with(tmp_path, others(5)).train.texts
    for texts, reason in (
        (mine, "has the texts of the corpus to protect"),
        ([*mine[3:8], *others(300)], "5 of its longer sentences stand in the corpus to protect"),
        ([text.upper() + " !" for text in mine[:2]], "(100% of the smaller text)"),
    ):
        message = refused(lambda texts=texts: refuse_private_text(data_with(tmp_path, texts)))
        assert reason in message
        assert message.startswith("data.public 'weather.txt': ")
        assert "name text by others" in message
        assert "happened" not in message  # no text is printed


def test_a_few_common_sentences_are_a_warning(tmp_path):
    data = data_with(tmp_path, others(300))
    greeting = replace(data, train=Texts([*data.train.texts[1:], "Thanks a lot!"], [None] * 120))
    public = worlds.public_text(texts=[*others(300), "thanks a lot"], labels=[None] * 301)
    both = replace(greeting, public=public)
    refuse_private_text(both)
    (warning,) = public_warnings(both)
    assert "data.public has in common with the corpus to protect: 1 (greetings" in warning
    refuse_private_text(data)
    assert not list(public_warnings(data))
    assert not list(public_warnings(replace(data, public=None)))


def test_texts_by_users_of_the_corpus_are_refused(tmp_path):
    data = data_with(tmp_path, others(20), users=frozenset({"bob", "eve"}))
    message = refused(lambda: refuse_private_text(data))
    assert "1 of its users have the name of a user in the corpus to protect" in message
    assert "give its texts as a file without users" in message


def test_a_copy_of_the_held_out_text_is_refused(tmp_path):
    data = data_with(tmp_path, others(40))
    copied = replace(data, held_out=Texts(others(9), [None] * 9))
    message = refused(lambda: refuse_private_text(copied))
    assert "9 of its sentences stand in data.evaluate" in message
    few = replace(data, held_out=Texts(["so it rains", *SENTENCES], [None] * 4))
    few = replace(few, public=worlds.public_text(texts=["So it rains!", *others(9)],
                                                 labels=[None] * 10))  # fmt: skip
    refuse_private_text(few)
    (warning,) = public_warnings(few)
    assert "data.public has in common with data.evaluate: 1;" in warning


def test_the_corpus_itself_is_refused(tmp_path):
    texts = [f"on day {number} nothing happened" for number in range(14)]
    mine = corpus(tmp_path / "mine", texts)
    again = corpus(tmp_path / "again", others(14))  # of the same shape

    def read(public):
        data = {"train": mine, "public": public}
        values = {"privacy": {"epsilon": 8}, "data": data, "model": {"name": "gpt2"}}
        return read_training_data(parse_config(values))

    assert "is the corpus to protect" in refused(lambda: read(mine))
    assert "has the users and entities of" in refused(lambda: read(again))
    path = tmp_path / "copy.txt"
    path.write_text("\n".join(texts))
    assert "has the texts of the corpus" in refused(lambda: read(path))
    path.write_text("\n".join(others(14)))
    assert list(read(path).public.texts) == others(14)
