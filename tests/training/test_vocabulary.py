"""Words for word-level models: the tokenizer, the sources, and attacks on the private one."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as kinds
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.training import worlds
from tests.training.runs import DEEP, refused, stopping_after
from uedp.accounting.certificate import verify
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.noise import SecureNoise, SeededNoise
from uedp.models.load import public_tokenizer
from uedp.training import vocabulary as module
from uedp.training.loop import run
from uedp.training.vocabulary import (
    FOLDER,
    allowances,
    private_words,
    user_contributions,
    word_splitter,
    word_tokenizer,
    words_from_corpus,
    words_from_file,
    words_from_tokenizer,
)

split = word_splitter()


# --- the tokenizer --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(["the", "Cat", "don't", ",", "..."], max_length=16)


def test_known_words_are_tokens_and_others_are_unknown(tokenizer):
    ids = tokenizer("The CAT, the dog... don't")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("the", "cat", ",", "the", "<unk>", "...", "don", "'", "t")
    ]
    assert tokenizer.decode(ids[:3]) == "the cat ,"
    assert len(tokenizer) == 4 + 7  # the pieces of don't are words


@given(st.text())
def test_the_tokenizer_splits_like_the_word_splitter(text):
    words = split(text)
    made = word_tokenizer([*words, "another"])
    assert made.convert_ids_to_tokens(made(text)["input_ids"]) == words


def test_case_is_kept_on_request():
    made = word_tokenizer(["Cat"], lowercase=False)
    assert made("Cat cat")["input_ids"] == [4, made.unk_token_id]
    assert word_splitter(lowercase=False)("The Cat") == ["The", "Cat"]


def test_an_accent_is_one_letter_however_it_is_written():
    assert split("Cafe\u0301") == split("Caf\u00e9") == ["caf\u00e9"]


def test_no_token_is_added_to_a_text(tokenizer):
    assert tokenizer("")["input_ids"] == []
    assert tokenizer("  \n")["input_ids"] == []
    assert len(tokenizer("the")["input_ids"]) == 1


@pytest.mark.parametrize("special", ["<unk>", "<pad>", "<bos>", "<eos>"])
def test_a_text_cannot_spell_a_special_token(tokenizer, special):
    ids = tokenizer(f"the {special} the{special}")["input_ids"]
    assert not {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id} & set(ids)
    assert len(ids) == 2 + 2 * 3


def test_the_tokenizer_survives_saving_and_loading(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["The cat, <pad> the dog", "", "don't " * 30]
    for made in (tokenizer, again):
        made.encode("the")  # neither remembers what was asked before
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert again.get_vocab() == tokenizer.get_vocab()
    for name in ("pad", "unk", "bos", "eos"):
        assert getattr(again, f"{name}_token_id") == getattr(tokenizer, f"{name}_token_id")
    assert (again.model_max_length, again.padding_side) == (16, "right")
    cut = again(texts, truncation=True, padding=True)
    assert set(cut) == {"input_ids", "attention_mask"}
    assert {len(ids) for ids in cut["input_ids"]} == {16}


@pytest.mark.parametrize("nothing", [[], ["", " "]])
def test_an_empty_vocabulary_is_refused(nothing):
    with pytest.raises(UserError, match="no words"):
        word_tokenizer(nothing)


# --- public words ---------------------------------------------------------------------------------


def test_words_from_a_file_come_in_order_and_once(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("The\ncat\n\nthe\ndon't\n", encoding="utf-8")
    assert words_from_file(path) == ("the", "cat", "don", "'", "t")
    assert words_from_file(path, lowercase=False)[0] == "The"


@pytest.mark.parametrize(("content", "words"), [(b"", "no words"), (b"\xff\xfe\x00", "UTF-8")])
def test_a_file_without_words_is_refused(tmp_path, content, words):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        words_from_file(path)


def test_a_missing_word_list_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.txt: cannot be read"):
        words_from_file(tmp_path / "nothing.txt")


def wrapped(backend, **special):
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def byte_level():
    tokens = [
        *("<|end|>", "t", "h", "e", ",", "1", "\u0120", "\u00c3", "Ġ1", "Ġ19"),
        *("th", "the", "Ġthe", "Ġcat", "ĠThe", "Ġ,", "Ġ(-", "Ġc4t", "ĠÃ", "ĠÃ©", "Ċ"),
    ]
    backend = Tokenizer(kinds.BPE({token: n for n, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return wrapped(backend, eos_token="<|end|>")


def test_whole_words_of_a_byte_level_tokenizer():
    assert words_from_tokenizer(byte_level()) == (",", "1", "19", "the", "cat", "(-", "é")


def test_whole_words_of_sentencepiece_and_wordpiece_tokenizers():
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -2.0), ("s", -3.0), (".", -3.0)]
    backend = Tokenizer(kinds.Unigram(pieces, 0, False))
    backend.decoder = decoders.Metaspace()
    assert words_from_tokenizer(wrapped(backend, unk_token="<unk>")) == ("the", "cat", ".")
    vocabulary = {"[UNK]": 0, "the": 1, "##s": 2, "cat": 3, "!": 4, "[unused1]": 5}
    backend = Tokenizer(kinds.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert words_from_tokenizer(wrapped(backend, unk_token="[UNK]")) == ("the", "cat", "!")


def test_a_tokenizer_without_whole_words_is_refused():
    backend = Tokenizer(kinds.BPE({"a": 0, "b": 1, "Ġ": 2}, []))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(UserError, match="word list"):
        words_from_tokenizer(wrapped(backend))


# --- from the corpus ------------------------------------------------------------------------------


def test_corpus_words_are_the_most_frequent_ones():
    assert words_from_corpus(["the cat the", "a cat", "the end"], 3) == ("the", "cat", "a")


# --- what users give ------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 40), st.data())
def test_allowances_are_bounded_per_sentence_and_per_user(sentences, of_user, data):
    of_sentence = data.draw(st.integers(1, of_user))
    given_ = allowances(sentences, of_user, of_sentence)
    assert len(given_) == sentences
    assert all(0 <= most <= of_sentence for most in given_)
    assert sum(given_) == min(of_user, sentences * of_sentence)


LETTERS = "abcdefghij"


@st.composite
def corpora(draw_from):
    """A few users, entities and words; a text is a string of letters, each a word."""
    users, entities = draw_from(st.integers(1, 4)), draw_from(st.integers(1, 3))
    owners = draw_from(st.lists(st.integers(0, users - 1), min_size=1, max_size=9))
    mentions = [
        (sentence, entity)
        for sentence in range(len(owners))
        for entity in draw_from(st.sets(st.integers(0, entities - 1), max_size=2))
    ]
    texts = [" ".join(draw_from(st.lists(st.sampled_from(LETTERS), max_size=6))) for _ in owners]
    return texts, build(owners, mentions, users, entities)


def build(owners, mentions, users, entities) -> Incidence:
    pairs = np.array(mentions, dtype=np.int64).reshape(-1, 2)
    return Incidence.build(np.array(owners), pairs[:, 0], pairs[:, 1], users, entities)


releases = st.integers(1, 8).flatmap(
    lambda of_user: st.builds(
        VocabularyRelease,
        noise=st.just(1.0),
        threshold=st.just(3.0),
        words_per_user=st.just(of_user),
        words_per_sentence=st.integers(1, of_user),
    )
)


def protected(incidence):
    """Each thing of E and S, as the sentences emptied with it."""
    for entity in range(incidence.entities):
        yield set(incidence.entity_sentences[entity].tolist())
    for sentence in np.flatnonzero(incidence.extended).tolist():
        yield {sentence}


def neighbours(texts, incidence):
    """The corpus without a user, and without an entity of anyone's, for every pair of them."""
    for user, sentences in itertools.product(range(incidence.users), protected(incidence)):
        gone = sentences | set(incidence.user_sentences[user].tolist())
        yield user, ["" if n in gone else text for n, text in enumerate(texts)]


def given_words(texts, incidence, release, key, known=frozenset()):
    return list(user_contributions(texts, incidence, release, key, split, known))


def moved(full, emptied):
    counts = [Counter(word for words in all_ for word in words) for all_ in (full, emptied)]
    return {word: counts[0][word] - counts[1][word] for word in {*counts[0], *counts[1]}}


def most_moved(release):
    """Theorem 4: the square of how far the counts may move."""
    return release.words_per_user + 3 * (release.words_per_sentence or 0)


@settings(max_examples=300, deadline=None)
@given(corpora(), releases, st.integers(0, 2**60))
def test_no_neighbour_moves_the_counts_beyond_theorem_4(corpus, release, key):
    texts, incidence = corpus
    full = given_words(texts, incidence, release, key)
    assert all(len(words) <= release.words_per_user for words in full)
    for user, others in neighbours(texts, incidence):
        emptied = given_words(others, incidence, release, key)
        assert emptied[user] == set()
        changed = [n for n in range(incidence.users) if n != user and full[n] != emptied[n]]
        assert len(changed) <= 1  # whom the entity is lent to
        for n in changed:
            assert emptied[n] < full[n]  # no word takes the place of another
            assert len(full[n] - emptied[n]) <= release.words_per_sentence
        changes = moved(full, emptied).values()
        assert min(changes, default=0) >= 0
        assert sum(change**2 for change in changes) <= most_moved(release)


@settings(max_examples=50, deadline=None)
@given(corpora(), st.integers(1, 8), st.integers(0, 2**60))
def test_user_level_contributions_are_the_users_own_words(corpus, of_user, key):
    texts, incidence = corpus
    release = VocabularyRelease(1.0, 3.0, of_user, None)
    full = given_words(texts, incidence, release, key)
    for user in range(incidence.users):
        own = {w for s in incidence.user_sentences[user].tolist() for w in split(texts[s])}
        assert full[user] <= own
        assert len(full[user]) == min(of_user, len(own))
        gone = set(incidence.user_sentences[user].tolist())
        others = ["" if n in gone else text for n, text in enumerate(texts)]
        emptied = given_words(others, incidence, release, key)
        assert emptied[user] == set()
        assert all(full[n] == emptied[n] for n in range(incidence.users) if n != user)


@settings(max_examples=50, deadline=None)
@given(corpora(), releases, st.integers(0, 2**60), st.sets(st.sampled_from(LETTERS)))
def test_known_words_are_not_contributed(corpus, release, key, known):
    texts, incidence = corpus
    assert not known & set().union(*given_words(texts, incidence, release, key, frozenset(known)))


def violated(give, release, texts, incidence):
    """Whether some neighbour moves what `give` counts farther than the theorem says."""
    full = give(texts)
    return any(
        sum(change**2 for change in moved(full, give(others)).values()) > most_moved(release)
        for _, others in neighbours(texts, incidence)
    )


def test_the_bound_is_violated_without_lending():
    """Three users write of one entity: all of them move."""
    release = VocabularyRelease(1.0, 3.0, 2, 1)
    texts = ["a b", "a b", "a b"]
    incidence = build([0, 1, 2], [(0, 0), (1, 0), (2, 0)], 3, 1)

    def everyone(texts):
        return [set(split(text)[:2]) for text in texts]

    assert violated(everyone, release, texts, incidence)
    assert not violated(
        lambda texts: given_words(texts, incidence, release, 1), release, texts, incidence
    )


def test_the_bound_is_violated_if_other_sentences_fill_up():
    """The first words of all sentences, up to the user's limit: an emptied one makes room."""
    release = VocabularyRelease(1.0, 3.0, 2, 1)
    texts = ["a", "b", "a", "c", "d"]
    incidence = build([0, 0, 1, 1, 1], [(2, 0)], 2, 1)

    def filling(texts):
        own = (incidence.user_sentences[user].tolist() for user in range(incidence.users))
        return [set([word for s in mine for word in split(texts[s])[:1]][:2]) for mine in own]

    assert violated(filling, release, texts, incidence)
    for key in range(20):
        assert not violated(
            lambda texts, key=key: given_words(texts, incidence, release, key),
            release,
            texts,
            incidence,
        )


def test_the_bound_is_violated_without_a_limit_per_sentence(monkeypatch):
    """As when a sentence may give whatever the user has left."""
    release = VocabularyRelease(1.0, 3.0, 4, 1)
    texts = ["a b c d", "a b c d"]
    incidence = build([0, 1], [(1, 0)], 2, 1)

    def give(texts):
        return given_words(texts, incidence, release, 1)

    assert not violated(give, release, texts, incidence)
    monkeypatch.setattr(module, "allowances", lambda sentences, most, _: [most] * sentences)
    assert violated(give, release, texts, incidence)


def test_users_with_many_sentences_contribute_many_words():
    """Not one word of each of a thousand sentences, and the same one."""
    texts = ["a b c d e f g h i j"] * 1000
    incidence = build([0] * 1000, [], 1, 0)
    (words,) = given_words(texts, incidence, VocabularyRelease(1.0, 3.0, 16, 8), 1)
    assert len(words) > 4


# --- what is released -----------------------------------------------------------------------------


def a_word_each(counts: dict[str, int]) -> tuple[list[str], Incidence]:
    """So many users give each word; a user gives one."""
    texts = [word for word, count in counts.items() for _ in range(count)]
    return texts, build(range(len(texts)), [], len(texts), 0)


def test_words_come_public_first_then_by_noisy_count():
    texts, incidence = a_word_each({"often": 900, "sometimes": 500, "rarely": 3, "public": 900})
    release = VocabularyRelease(2.0, 100.0, 4, 4)
    words = private_words(texts, incidence, release, SecureNoise(), 1, ["public", "more"])
    assert words == ("public", "more", "often", "sometimes")


def test_released_words_do_not_depend_on_corpus_order():
    counts = {"b": 50, "a": 50, "c": 50}
    release = VocabularyRelease(1.0, 5.0, 1, 1)
    forward = private_words(*a_word_each(counts), release, SeededNoise(3), 1)
    backward = private_words(
        *a_word_each(dict(reversed(counts.items()))), release, SeededNoise(3), 1
    )
    assert forward == backward


def test_an_empty_corpus_releases_no_words():
    texts, incidence = a_word_each({})
    release = VocabularyRelease(1.0, 5.0, 1, 1)
    assert private_words(texts, incidence, release, SecureNoise(), 1) == ()
    incidence = build([0], [], 1, 0)
    assert private_words([""], incidence, release, SecureNoise(), 1) == ()


def test_secure_noise_rounds_no_word_over_the_threshold():
    """A count just below the threshold, noise of one grid step: rounding must not lift it."""
    release = VocabularyRelease(1.0, 8.0, 1, 1)

    class Up:
        source = "cipher"

        def add_(self, sums, deviation):
            for total in sums:
                total += deviation * 2.0**-13  # the most that rounding to the grid adds

    texts, incidence = a_word_each({"word": 8})
    assert private_words(texts, incidence, release, Up(), 1) == ()


def test_private_words_make_a_tokenizer_without_rare_words(tmp_path):
    texts, incidence = a_word_each({"often": 900, "rarely": 3})
    release = VocabularyRelease(2.0, 100.0, 4, 4)
    made = word_tokenizer(private_words(texts, incidence, release, SecureNoise(), 1))
    assert made("often rarely")["input_ids"] == [4, made.unk_token_id]
    made.save_pretrained(tmp_path)
    assert "rarely" not in json.dumps(json.loads((tmp_path / "tokenizer.json").read_text()))


# --- runs -----------------------------------------------------------------------------------------


NEW = {
    "model__name": "awd-lstm",
    "model__sizes": {"hidden_size": 6, "embedding_size": 4, "num_hidden_layers": 1},
}


def word_config(source, **changes):
    values = {**NEW, "vocabulary__source": source, **changes}
    if "privacy__epsilon" in values:
        values["privacy__noise"] = None
    return worlds.config("awd-lstm", **values)


def run_vocabulary(out):
    return json.loads((out / FOLDER / "tokenizer.json").read_text())["model"]["vocab"]


def test_a_run_with_public_words(tmp_path):
    listed = tmp_path / "words.txt"
    listed.write_text("the\nday\nis\n")
    out = tmp_path / "run"
    outcome = run(
        word_config("public", vocabulary__path=str(listed)),
        out,
        data=worlds.training_data(tmp_path / "corpus"),
    )
    assert set(run_vocabulary(out)) == {"<unk>", "<pad>", "<bos>", "<eos>", "the", "day", "is"}
    assert outcome.certificate.setup.vocabulary == "public"


def test_a_run_with_corpus_words_has_no_guarantee(tmp_path):
    out = tmp_path / "run"
    outcome = run(
        word_config("corpus", vocabulary__size=3),
        out,
        data=worlds.training_data(tmp_path / "corpus"),
    )
    assert len(run_vocabulary(out)) == 4 + 3
    assert any("vocabulary" in caveat for caveat in verify(out).caveats)
    assert outcome.certificate.setup.vocabulary == "from the corpus, not covered"
    assert not outcome.certificate.private
    assert outcome.certificate.statement.startswith("This run has no privacy guarantee.")


def test_private_words_are_charged_once(tmp_path):
    """They are in the ledger and in epsilon; resuming does not make them again."""
    listed = tmp_path / "words.txt"
    listed.write_text("the\n")
    out, held = tmp_path / "run", worlds.training_data(tmp_path / "corpus")
    asked = word_config(
        "private",
        vocabulary__path=str(listed),
        vocabulary__words_per_user=4,
        vocabulary__words_per_sentence=2,
        privacy__epsilon=50.0,
    )
    outcome = run(asked, out, data=held)
    issued = verify(out)
    assert issued.setup.vocabulary == "differentially private"
    assert issued.parameters["vocabulary_noise"] > 0
    assert outcome.certificate.epsilon <= 50
    ledger = (out / "ledger.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["record"]["kind"] for line in ledger]
    assert kinds == ["plan", "vocabulary", "words", *["rounds"] * 4, "saved", "corpus"]
    assert "the" in run_vocabulary(out)
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
def test_vocabulary_settings_that_do_not_fit_the_model_are_refused(changes, why):
    with pytest.raises(UserError, match=why):
        worlds.config("x", **{**NEW, **changes})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"model": 7}', DEEP])
def test_a_damaged_tokenizer_is_refused(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content)
    refused(lambda: public_tokenizer(tmp_path))
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    refused(lambda: public_tokenizer(tmp_path))


def test_a_changed_private_vocabulary_is_refused(train, tmp_path):
    """`vocabulary/` of a stopped run holds another word."""
    options = {
        "model": "awd-lstm",
        "model__sizes": NEW["model__sizes"],
        "privacy__noise": None,
        "privacy__epsilon": 50.0,
        "vocabulary__source": "private",
        "vocabulary__words_per_user": 4,
        "vocabulary__words_per_sentence": 4,
    }
    train(progress=stopping_after(1), **options)
    path = tmp_path / "run" / "vocabulary" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    last = max(words, key=words.get)
    words["secretname"] = words.pop(last)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="changed since this run made it"):
        train(resume=True, **options)
