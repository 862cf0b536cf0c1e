"""Vocabularies of word-level models, and their tokenizer.

There are three sources. Public: a word list, or the tokens of a public tokenizer that are whole
words. From the corpus, most frequent first: no guarantee covers them, and the certificate says so.
Privately from the corpus (section 7 of `docs/privacy.md`): words that many users contributed,
charged to the ledger.
"""

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from uedp.accounting.ledger import RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.incidence import Incidence
from uedp.mechanism.noise import Noise, SecureNoise
from uedp.mechanism.sampling import Sampling, draw, draw_whole
from uedp.models.load import public_tokenizer
from uedp.models.scratch import fast_tokenizer
from uedp.training.config import VocabularySettings

UNKNOWN, PADDING, START, END = "<unk>", "<pad>", "<bos>", "<eos>"
FOLDER = "vocabulary"  # holds the tokenizer of a run that makes its own vocabulary
_WORD_START = ("Ġ", "▁")  # prefixes of byte-level and SentencePiece tokens
_CONTINUATION = "##"  # prefix of WordPiece tokens
_REPLACEMENT = "\ufffd"  # an incomplete character
_GRID = 2.0**-12  # upper bound on the rounding grid of secure noise, in standard deviations


def make_run_tokenizer(
    settings: VocabularySettings,
    out: Path,
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease | None = None,
    ledger: RunLedger | None = None,
) -> Path:
    """Make the tokenizer of a run, unless an earlier process has, and return its folder.

    Guarantees:
      - a private vocabulary is in the ledger before noise is added to its counts, and is made once
      - a tokenizer whose files were changed since is refused
    """
    target = out / FOLDER
    if target.is_dir():
        if ledger is not None and model_files(target) != ledger.words:
            raise UserError(
                f"{target}: changed since this run made it; start a new run in another directory"
            )
        return target
    lowercase = settings.lowercase
    words = () if settings.path is None else _public_words(settings.path, lowercase)
    if settings.source == "corpus":
        words = words_from_corpus(texts, settings.size, lowercase)
    elif settings.source == "private":
        assert release is not None  # the plan has it
        assert ledger is not None
        ledger.spend_vocabulary()
        key, noise = secrets.randbits(62), SecureNoise()
        words = private_words(texts, incidence, release, noise, key, words, lowercase)
    with scratch_dir(target) as work:
        word_tokenizer(words, lowercase).save_pretrained(work / "new")
        if ledger is not None:
            ledger.record_words(model_files(work / "new"))
        (work / "new").rename(target)
    return target


def _public_words(path: str, lowercase: bool) -> tuple[str, ...]:
    """The words of a list, or of a tokenizer."""
    if Path(path).is_file() and not path.endswith((".json", ".json.gz")):
        return words_from_file(Path(path), lowercase)
    return words_from_tokenizer(public_tokenizer(path), lowercase)


# --- the tokenizer -------------------------------------------------------------------------------


def word_splitter(lowercase: bool = True) -> Callable[[str], list[str]]:
    """A function that splits a text into words, as `word_tokenizer` does.

    Words end at white space and where punctuation begins or ends; a run of punctuation is a word.
    """
    normalizer, word_splitter = _normalizer(lowercase), pre_tokenizers.Whitespace()

    def split(text: str) -> list[str]:
        return [word for word, _ in word_splitter.pre_tokenize_str(normalizer.normalize_str(text))]

    return split


def word_tokenizer(words: Sequence[str], lowercase: bool = True, max_length: int = 1024) -> Any:
    """A Transformers tokenizer whose tokens are the special tokens, then these words in order.

    Guarantees:
      - a word is as many tokens as `word_splitter` makes of it; an unknown word is `<unk>`
      - no token is added to a text: an empty text has none
      - a text cannot spell a special token
      - it is the same after saving and loading
    """
    split = word_splitter(lowercase)
    known = dict.fromkeys(piece for word in words for piece in split(word))
    if not known:
        raise UserError("the vocabulary has no words; use a public one")
    tokens = [UNKNOWN, PADDING, START, END, *known]
    backend = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, UNKNOWN))
    backend.normalizer = _normalizer(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": UNKNOWN, "pad_token": PADDING, "bos_token": START, "eos_token": END}
    return fast_tokenizer(backend, max_length, **special)


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    # NFC comes last: lower-casing may separate a letter from its accent
    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*steps, normalizers.NFC()])


# --- public words --------------------------------------------------------------------------------


def words_from_file(path: Path, lowercase: bool = True) -> tuple[str, ...]:
    """The words of a text file, in the order of their first occurrence."""
    split = word_splitter(lowercase)
    try:
        with path.open(encoding="utf-8") as file:
            words = dict.fromkeys(word for line in file for word in split(line))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not words:
        raise UserError(f"{path}: contains no words")
    return tuple(words)


def words_from_tokenizer(tokenizer: Any, lowercase: bool = True) -> tuple[str, ...]:
    """The tokens that are whole words, numbers or punctuation, in the order of their ids.

    Most tokenizers number their tokens about by frequency. Some of these tokens only begin words;
    a token does not show which.
    """
    split = word_splitter(lowercase)
    words: dict[str, None] = {}
    for token in _word_tokens(tokenizer):
        word = "".join(split(token))
        plain = word.isalpha() or word.isdecimal() or not any(map(str.isalnum, word))
        if plain and word.isprintable() and _REPLACEMENT not in word and split(token) == [word]:
            words[word] = None
    if not words:
        raise UserError("no token of this tokenizer is a whole word; use a word list instead")
    return tuple(words)


def _word_tokens(tokenizer: Any) -> Iterator[str]:
    ids: dict[str, int] = tokenizer.get_vocab()
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    tokens = [token for token in sorted(ids, key=ids.__getitem__) if token not in special]
    marked = any(token.startswith(_WORD_START) for token in tokens)
    for token in tokens:
        if marked:
            text = tokenizer.convert_tokens_to_string([token]).strip()
            # punctuation, and single digits, may come without a space before them
            if token.startswith(_WORD_START) or not any(map(str.isalpha, text)):
                yield text
        elif not token.startswith(_CONTINUATION):
            yield token


# --- words of the corpus -------------------------------------------------------------------------


def words_from_corpus(texts: Sequence[str], size: int, lowercase: bool = True) -> tuple[str, ...]:
    """The most frequent words of the texts, which no guarantee covers."""
    split = word_splitter(lowercase)
    counts = Counter(word for text in texts for word in split(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ranked[:size])


def private_words(
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease,
    noise: Noise,
    key: int,
    public: Sequence[str] = (),
    lowercase: bool = True,
) -> tuple[str, ...]:
    """The public words, then words that many users contributed: the mechanism of Theorem 4.

    The release must be in the ledger before this is called (`RunLedger.spend_vocabulary`).

    Args:
        noise: `SecureNoise` outside tests; the threshold is six standard deviations out, where
            PyTorch's own noise ends.
        key: determines lending. It may be public, but must not depend on the texts.

    Guarantees:
      - a word is released only if its noisy count is above the threshold
      - the released words and their order depend only on the noisy counts above the threshold
    """
    split = word_splitter(lowercase)
    counts = Counter(
        word
        for words in user_contributions(texts, incidence, release, key, split, frozenset(public))
        for word in words
    )
    words = sorted(counts)
    noisy = torch.tensor([counts[word] for word in words], dtype=torch.float64)
    noise.add_([noisy], release.deviation)
    # one grid step more: rounding must not lift a count over the threshold
    threshold = release.threshold + _GRID * release.deviation
    released = sorted(
        (-count, word)
        for count, word in zip(noisy.tolist(), words, strict=True)
        if count > threshold
    )
    return (*public, *(word for _, word in released))


def user_contributions(
    texts: Sequence[str],
    incidence: Incidence,
    release: VocabularyRelease,
    key: int,
    split: Callable[[str], list[str]],
    known: frozenset[str] = frozenset(),
) -> Iterator[set[str]]:
    """The words that each user contributes, apart from known ones.

    Guarantees:
      - no user contributes more than `words_per_user` words
      - with `words_per_sentence`, the sentences of an entity, or one sentence without entities, add
        at most that many words to one user's contribution, and remove none; other users'
        user_contributions stay the same
    """
    uniforms = np.random.default_rng()  # at sampling rate 1 the draw does not depend on it
    if release.words_per_sentence is None:
        chosen = draw_whole(incidence, Sampling(1.0), uniforms, key).sentences
    else:
        # twice as many sentences as full ones would need: many are short
        max_sentences = max(2 * release.words_per_user // release.words_per_sentence, 1)
        sampling = Sampling(1.0, per_entity=1, per_user=max_sentences)
        chosen = draw(incidence, sampling, uniforms, key).sentences
    for user in range(len(chosen)):
        own = chosen[user].tolist()
        if release.words_per_sentence is None:
            parts = [(own, release.words_per_user)]
        else:
            limits = allowances(len(own), release.words_per_user, release.words_per_sentence)
            parts = [([sentence], limit) for sentence, limit in zip(own, limits, strict=True)]
        contribution: set[str] = set()
        for sentences, limit in parts:
            words = (word for sentence in sentences for word in split(texts[sentence]))
            counts = Counter(word for word in words if word not in known)
            contribution.update(_most_used(counts, limit, f"{key} {sentences[:1]}"))
        yield contribution


def allowances(sentences: int, words_per_user: int, words_per_sentence: int) -> list[int]:
    """The number of words that each of a user's sentences may contribute, as equal as possible.

    Guarantees:
      - depends on these numbers only: emptying one text leaves the allowances of others unchanged
      - none exceeds `words_per_sentence`, and their sum does not exceed `words_per_user`
    """
    limits, left = [], words_per_user
    for place in range(sentences):
        limits.append(min(words_per_sentence, math.ceil(left / (sentences - place))))
        left -= limits[-1]
    return limits


def _most_used(counts: Counter[str], limit: int, seed: str) -> list[str]:
    """The words used most, then the shortest (common words are short), then random ones.

    Depends on these counts only: other sentences must not influence the choice.
    """
    shuffled = random.Random(seed).sample(list(counts), len(counts))
    return sorted(shuffled, key=lambda word: (-counts[word], len(word)))[:limit]
