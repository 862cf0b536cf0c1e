from dataclasses import replace

import pytest

from tests.conftest import marked
from tests.corpus.test_store import rewrite
from tests.training import worlds
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.training.api import preview
from uedp.training.config import parse_config
from uedp.training.datasets import Texts, TrainingData, read_texts, read_training_data

TRAIN = [
    marked("a", "Ann wrote to Bob.", ("Ann", "PER"), ("Bob", "PER"), label="mail"),
    marked("b", "ANN called Acme", ("ANN", "PER"), ("Acme", "ORG"), label="call"),
    marked("b", "nothing", label=None),
]
HELD_OUT = [marked("c", "one", label="mail"), marked("c", "two", label="call"), marked("d", "x")]


@pytest.fixture
def corpora(tmp_path):
    detect(TRAIN, tmp_path / "train", Detection(("labels",)))
    detect(HELD_OUT, tmp_path / "held out", Detection(("labels",)))
    return tmp_path


def config(folder, method="rotation", **data):
    privacy = {"method": method} | ({"epsilon": 1} if method == "rotation" else {})
    where = {"train": str(folder / "train")} | data
    return parse_config({"privacy": privacy, "data": where, "model": {"name": "gpt2"}})


def test_sentences_labels_and_incidence_are_those_of_the_corpus(corpora):
    found = read_training_data(config(corpora))
    assert found.train.texts == [sentence.text for sentence in TRAIN]
    assert found.train.labels == ["mail", "call", None]
    assert found.incidence.digest == Incidence.of(corpora / "train").digest
    assert found.ledger == corpora / "train"
    assert found.held_out is None
    assert found.label_names() == ["call", "mail"]


def test_the_held_out_set_is_another_corpus(corpora):
    elsewhere = str(corpora / "held out")
    found = read_training_data(config(corpora, evaluate=elsewhere)).held_out
    assert (found.texts, found.labels) == (["one", "two", "x"], ["mail", "call", None])
    few = read_training_data(config(corpora, evaluate=elsewhere, evaluate_sentences=2)).held_out
    assert (few.texts, few.labels) == (["one", "two"], ["mail", "call"])


def test_mentions_are_known_of_held_out_texts(corpora):
    others = [
        marked("z", "Zoe left", ("Zoe", "PER")),
        marked("y", "so did Max of Acme", ("Max", "PER"), ("Acme", "ORG")),
    ]
    detect(others, corpora / "others", Detection(("labels",)))
    expected = [(0, 0, 3, "person"), (1, 7, 10, "person"), (1, 14, 18, "org")]
    found = read_training_data(config(corpora, evaluate=str(corpora / "others")))
    assert found.held_out.mentions.rows() == expected
    assert found.train.mentions is None
    assert read_texts(corpora / "others", 1).mentions.rows() == expected[:1]


def test_deidentified_texts_have_no_names_and_the_same_order(corpora):
    others = [marked("z", "Zoe left", ("Zoe", "PER")), marked("y", "so did Max", ("Max", "PER"))]
    detect(others, corpora / "others", Detection(("labels",)))
    elsewhere = str(corpora / "others")
    found = read_training_data(config(corpora, "deidentified", evaluate=elsewhere))
    assert found.train.texts == ["[PERSON] wrote to [PERSON].", "[PERSON] called [ORG]", "nothing"]
    assert found.train.labels == ["mail", "call", None]
    assert found.held_out.texts == ["Zoe left", "so did Max"]  # measured as they are


def test_evaluating_on_the_training_corpus_is_refused(corpora, tmp_path):
    (tmp_path / "link").symlink_to(corpora / "train")
    detect(TRAIN, tmp_path / "anew", Detection(("labels",)))
    detect(TRAIN, tmp_path / "otherwise", Detection(("labels",), frozenset({"org"})))
    renamed = [replace(sentence, text=sentence.text.upper()) for sentence in TRAIN]
    detect(renamed, tmp_path / "renamed", Detection(("labels",)))
    for name, how in (
        ("train", "is the training corpus"),
        ("link", "is the training corpus"),
        ("anew", "the same users and entities"),
        ("otherwise", "the same texts"),
        ("renamed", "the same users and entities"),
    ):
        with pytest.raises(UserError, match=f"data.evaluate .*{how}"):
            read_training_data(config(corpora, evaluate=str(tmp_path / name)))
        with pytest.raises(UserError, match=f"data.evaluate .*{how}"):
            preview(config(corpora, evaluate=str(tmp_path / name)))  # nor in a dry run


def changed(folder, **columns):
    rewrite(folder / "train" / "sentences.arrow", **columns)
    return config(folder)


def test_texts_changed_since_detection_are_refused(corpora):
    """Shuffled among users, they have the same incidence and the same digest of it."""
    texts = [sentence.text for sentence in TRAIN]
    before = read_training_data(config(corpora)).incidence.digest
    settings = changed(corpora, text=texts[::-1], marks=[[], [], []])
    assert Incidence.of(corpora / "train").digest == before
    with pytest.raises(UserError, match=r"sentences\.arrow: changed since detection"):
        read_training_data(settings)


def test_labels_changed_since_detection_are_refused(corpora):
    with pytest.raises(UserError, match=r"sentences\.arrow: changed since detection"):
        read_training_data(changed(corpora, label=["call", "mail", None]))


def test_users_other_than_those_of_the_incidence_are_refused(corpora):
    with pytest.raises(UserError, match=r"sentences\.arrow: its users are not those"):
        read_training_data(changed(corpora, user=[1, 0, 0]))


def test_held_out_texts_changed_since_detection_are_refused(corpora):
    rewrite(corpora / "held out" / "sentences.arrow", text=["two", "one", "x"])
    with pytest.raises(UserError, match=r"held out/sentences\.arrow: changed since detection"):
        read_training_data(config(corpora, evaluate=str(corpora / "held out")))


def test_the_text_digest_depends_on_texts_and_their_order(corpora):
    found = read_training_data(config(corpora))
    assert found.text_digest == Corpus(corpora / "train").text_digest
    by_hand = TrainingData(found.train, found.incidence, corpora)
    assert by_hand.text_digest == found.text_digest
    other = Texts(found.train.texts[::-1], found.train.labels)
    assert TrainingData(other, found.incidence, corpora).text_digest != found.text_digest
    assert read_training_data(config(corpora, "deidentified")).text_digest != found.text_digest


def test_texts_that_do_not_match_the_incidence_are_refused(tmp_path):
    with pytest.raises(UserError, match="2 texts, but 120 sentences in the incidence"):
        TrainingData(Texts(["a", "b"], [None, None]), worlds.incidence(), tmp_path)


def test_a_folder_that_is_not_a_corpus_is_refused(corpora):
    with pytest.raises(UserError, match=r"nowhere: not a corpus"):
        read_training_data(config(corpora, train=str(corpora / "nowhere")))


def test_classification_needs_two_labels(tmp_path):
    found = worlds.training_data(tmp_path, train=Texts(worlds.texts(), [None] * 120))
    with pytest.raises(UserError, match="at least two labels, found 0; detect it again"):
        found.label_names()
