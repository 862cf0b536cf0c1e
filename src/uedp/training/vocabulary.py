"""Words for word-level models: where they may come from, and a tokenizer of them.

Three sources. Public: a list, or the whole words among a public tokenizer's tokens. From the
corpus, most frequent first: that marks the run's certificate, for a rare word tells who is in the
corpus. Privately from the corpus (section 7 of `docs/privacy.md`): only words that many users gave,
charged to the ledger.
"""

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from uedp.accounting.decisions import PRIVATE_VOCABULARY, Origin
from uedp.accounting.ledger import RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.incidence import Incidence
from uedp.mechanism.noise import Noise, SecureNoise
from uedp.mechanism.sampling import Sampling, draw, draw_whole
from uedp.models.load import public_tokenizer
from uedp.training.config import VocabularySettings

UNKNOWN, PADDING, START, END = "<unk>", "<pad>", "<bos>", "<eos>"
_STARTS_WORD = ("Ġ", "▁")  # of byte-level and of SentencePiece tokens
_WITHIN_WORD = "##"  # of WordPiece tokens
_UNREADABLE = "\ufffd"  # part of a character
_GRID = 2.0**-12  # secure noise rounds to a grid of at most so many deviations


@dataclass(frozen=True)
class Vocabulary:
    """Words, the most useful first, and what the certificate has to say of them."""

    words: tuple[str, ...]
    origin: Origin


FOLDER = "vocabulary"  # of a run that has words of its own: their tokenizer


def prepare(
    settings: VocabularySettings,
    out: Path,
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease | None = None,
    ledger: RunLedger | None = None,
) -> Path:
    """Make the tokenizer of a run, once, and give its folder.

    Guarantees:
      - a private vocabulary is in the ledger before its counts are noised, and is made once
      - words are those that were made: files that were changed since are refused
    """
    target = out / FOLDER
    if target.is_dir():
        if ledger is not None and model_files(target) != ledger.words:
            raise UserError(
                f"{target}: not the words that this run made; start a new run elsewhere"
            )
        return target
    public: Sequence[str] = ()
    if settings.path is not None:
        public = _public(settings.path, settings.lowercase).words
    if settings.source == "corpus":
        words: Sequence[str] = words_of_corpus(texts, settings.size, settings.lowercase).words
    elif settings.source == "private":
        assert release is not None  # of the plan
        assert ledger is not None
        ledger.spend_vocabulary()
        key, noise = secrets.randbits(62), SecureNoise()
        words = private_words(
            texts, incidence, release, noise, key, public, settings.lowercase
        ).words
    else:
        words = public
    with scratch_dir(target) as work:
        word_tokenizer(words, settings.lowercase).save_pretrained(work / "new")
        if ledger is not None:
            ledger.record_words(model_files(work / "new"))
        (work / "new").rename(target)
    return target


def _public(path: str, lowercase: bool) -> Vocabulary:
    """The words of a list, or those of a tokenizer's tokens that are whole words."""
    if Path(path).is_file() and not path.endswith((".json", ".json.gz")):
        return words_in_file(Path(path), lowercase)
    return words_of_tokenizer(public_tokenizer(path), lowercase)


# --- words and the tokenizer ---------------------------------------------------------------------


def splitter(lowercase: bool = True) -> Callable[[str], list[str]]:
    """A function that gives the words of a text: as `word_tokenizer` sees them.

    White space separates words, and so does where punctuation begins or ends; a run of punctuation
    is a word.
    """
    normal, pieces = _normalizer(lowercase), pre_tokenizers.Whitespace()

    def split(text: str) -> list[str]:
        return [word for word, _ in pieces.pre_tokenize_str(normal.normalize_str(text))]

    return split


def word_tokenizer(words: Sequence[str], lowercase: bool = True, max_length: int = 1024) -> Any:
    """A Transformers tokenizer whose tokens are these words, in this order after the special ones.

    Guarantees:
      - every word is one token, or as many as `splitter` cuts it into; what is no word is `<unk>`
      - no token is added to a text: an empty one has none
      - a text cannot spell a special token
      - saved and loaded, it is the same
    """
    from transformers import PreTrainedTokenizerFast

    split = splitter(lowercase)
    known = dict.fromkeys(piece for word in words for piece in split(word))
    if not known:
        raise UserError("the vocabulary has no words; take a public one")
    tokens = [UNKNOWN, PADDING, START, END, *known]
    backend = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, UNKNOWN))
    backend.normalizer = _normalizer(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        pad_token=PADDING,
        bos_token=START,
        eos_token=END,
        model_max_length=max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    # composed last: lower-casing may leave a letter and its accent apart
    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*steps, normalizers.NFC()])


# --- public words --------------------------------------------------------------------------------


def words_in_file(path: Path, lowercase: bool = True) -> Vocabulary:
    """The words of a text file, in the order of their first appearance; one per line, or a text."""
    split = splitter(lowercase)
    try:
        with path.open(encoding="utf-8") as file:
            words = dict.fromkeys(word for line in file for word in split(line))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not words:
        raise UserError(f"{path}: holds no words")
    return Vocabulary(tuple(words), "public")


def words_of_tokenizer(tokenizer: Any, lowercase: bool = True) -> Vocabulary:
    """The tokens of a tokenizer that can stand alone: letters, digits, or punctuation.

    In the order of their ids, which for most tokenizers is about that of their frequency. Some are
    the beginnings of words only; a token does not tell.
    """
    split = splitter(lowercase)
    words: dict[str, None] = {}
    for token in _standing_alone(tokenizer):
        word = "".join(split(token))
        plain = word.isalpha() or word.isdecimal() or not any(map(str.isalnum, word))
        if plain and word.isprintable() and _UNREADABLE not in word and split(token) == [word]:
            words[word] = None
    if not words:
        raise UserError("no token of this tokenizer is a whole word; name a word list instead")
    return Vocabulary(tuple(words), "public")


def _standing_alone(tokenizer: Any) -> Iterator[str]:
    numbers: dict[str, int] = tokenizer.get_vocab()
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    tokens = [token for token in sorted(numbers, key=numbers.__getitem__) if token not in special]
    marked = any(token.startswith(_STARTS_WORD) for token in tokens)
    for token in tokens:
        if marked:
            text = tokenizer.convert_tokens_to_string([token]).strip()
            # punctuation, and digits where each is a token, have no space before them
            if token.startswith(_STARTS_WORD) or not any(map(str.isalpha, text)):
                yield text
        elif not token.startswith(_WITHIN_WORD):
            yield token


# --- words of the corpus -------------------------------------------------------------------------


def words_of_corpus(texts: Sequence[str], size: int, lowercase: bool = True) -> Vocabulary:
    """The most frequent words of the texts. Not covered by any guarantee, and marked so."""
    split = splitter(lowercase)
    counts = Counter(word for text in texts for word in split(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Vocabulary(tuple(ranked[:size]), "from the corpus, not covered")


def private_words(
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease,
    noise: Noise,
    key: int,
    public: Sequence[str] = (),
    lowercase: bool = True,
) -> Vocabulary:
    """Words that many users gave, after noise: the mechanism of Theorem 4.

    `public` words come first and need not be found. `key` decides over lending and need not be
    secret; it must not be chosen by looking at texts. `noise` is `SecureNoise`, but in tests: the
    threshold lies six deviations out, where PyTorch's own noise ends. Enter the release in the
    ledger (`RunLedger.spend_vocabulary`) before calling this.

    Guarantees:
      - a word is released only if its noisy count is above the threshold
      - what is released, and its order, follows from the noisy counts of words above the threshold
    """
    split = splitter(lowercase)
    counts = Counter(
        word
        for words in contributions(texts, incidence, release, key, split, frozenset(public))
        for word in words
    )
    words = sorted(counts)
    noisy = torch.tensor([counts[word] for word in words], dtype=torch.float64)
    noise.add_([noisy], release.deviation)
    # a step more: rounding to a grid must not lift a count over the threshold
    above = noisy > release.threshold + _GRID * release.deviation
    found = sorted(
        (
            (-value, word)
            for value, word, kept in zip(noisy.tolist(), words, above, strict=True)
            if kept
        )
    )
    return Vocabulary((*public, *(word for _, word in found)), PRIVATE_VOCABULARY)


def contributions(
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease,
    key: int,
    split: Callable[[str], list[str]],
    known: frozenset[str] = frozenset(),
) -> Iterator[set[str]]:
    """The words each user gives, known ones left out.

    Guarantees:
      - no user gives more than `words_per_user`
      - with `words_per_sentence`, the texts of an entity, or of a sentence without one, can add so
        many words to what one user gives, and take none away; what all others give is the same
    """
    anything = np.random.default_rng()  # at rate 1, nothing depends on it
    if release.words_per_sentence is None:
        chosen = draw_whole(incidence, Sampling(1.0), anything, key).sentences
    else:
        # twice as many sentences as could fill a user's share: many are short
        most_sentences = max(2 * release.words_per_user // release.words_per_sentence, 1)
        sampling = Sampling(1.0, per_entity=1, per_user=most_sentences)
        chosen = draw(incidence, sampling, anything, key).sentences
    for user in range(len(chosen)):
        own = chosen[user].tolist()
        if release.words_per_sentence is None:
            parts = [(own, release.words_per_user)]
        else:
            given = allowances(len(own), release.words_per_user, release.words_per_sentence)
            parts = [([sentence], most) for sentence, most in zip(own, given, strict=True)]
        given_words: set[str] = set()
        for sentences, most in parts:
            words = Counter(word for sentence in sentences for word in split(texts[sentence]))
            fresh = [word for word in words if word not in known]
            given_words.update(_preferred(fresh, words, most, f"{key} {sentences[:1]}"))
        yield given_words


def allowances(sentences: int, words_per_user: int, words_per_sentence: int) -> list[int]:
    """How many words each of a user's sentences may give: alike, and few enough together.

    Guarantees:
      - depends on nothing but these numbers: a text that is emptied leaves no room to others
      - none is above `words_per_sentence`; their sum is not above `words_per_user`
    """
    given, left = [], words_per_user
    for place in range(sentences):
        given.append(min(words_per_sentence, math.ceil(left / (sentences - place))))
        left -= given[-1]
    return given


def _preferred(words: list[str], counts: Counter[str], most: int, seed: str) -> list[str]:
    """Those used most, then the shortest (common words are short), then any.

    Reads nothing but the words it is given: what another sentence holds must not matter.
    """
    shuffled = random.Random(seed).sample(words, len(words))
    return sorted(shuffled, key=lambda word: (-counts[word], len(word)))[:most]
