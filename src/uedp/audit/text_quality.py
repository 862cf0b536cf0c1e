"""How varied texts are, and how much like others: counts of words and n-grams, no model.

Every figure depends on how many texts it is computed from. Compare equal numbers only.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from uedp.accounting.divergence import Floats
from uedp.audit.people import People
from uedp.audit.word_runs import Hasher, Hashes, WordHashes, is_in
from uedp.models.load import load_model
from uedp.progress import Progress
from uedp.training.tasks import NextWord

_TEXTS, _READ = 5_000, 200  # texts that are counted, and that another model reads
_SELF = 4  # words of the n-grams that texts are compared with each other by
_LENGTHS = np.array([0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 256, 512, 1 << 40])
_WEIGHTS = (0.7, 0.25, 0.05)  # of two words, of one, of any word, in a model of pairs


@dataclass(frozen=True)
class Diversity:
    """How varied some texts are.

    `distinct` 1, 2 and 3: different n-grams among all n-grams (Li et al. 2016). `shared`: of the
    n-grams of four words, the share that another of these texts has too, as in self-BLEU (Zhu et
    al. 2018). `repeated`: the share that the same text has had already.
    """

    texts: int
    words_mean: float
    words_median: float
    vocabulary: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    shared: float
    repeated: float
    duplicates: float


def diversity(words: WordHashes) -> Diversity:
    lengths = words.lengths
    hashes, places = words.ngrams(_SELF)
    texts = words.text_of[places].astype(np.uint64)
    pairs = np.unique(np.stack([hashes, texts]), axis=1)
    different, in_texts = np.unique(pairs[0], return_counts=True)
    shared = is_in(pairs[0], different[in_texts > 1])
    return Diversity(
        texts=len(words),
        words_mean=float(lengths.mean()) if len(lengths) else 0.0,
        words_median=float(np.median(lengths)) if len(lengths) else 0.0,
        vocabulary=len(np.unique(words.values)),
        **{f"distinct_{n}": _distinct(words.ngrams(n)[0]) for n in (1, 2, 3)},
        shared=float(shared.mean()) if len(shared) else 0.0,
        repeated=1 - pairs.shape[1] / len(hashes) if len(hashes) else 0.0,
        duplicates=1 - len(np.unique(words.whole())) / max(1, len(words)),
    )


def _distinct(hashes: Hashes) -> float:
    return len(np.unique(hashes)) / max(1, len(hashes))


def jensen_shannon(one: Floats, other: Floats) -> float:
    """The divergence of two laws in bits, from counts: 0 if equal, 1 if nothing is common."""
    p, q = (counts / max(counts.sum(), 1.0) for counts in (one, other))
    middle = (p + q) / 2

    def towards(law: Floats) -> float:
        own = law > 0
        return float((law[own] * np.log2(law[own] / middle[own])).sum())

    return max(0.0, (towards(p) + towards(q)) / 2)


def word_divergence(one: WordHashes, other: WordHashes) -> float:
    """The Jensen-Shannon divergence of the words of two sets of texts."""
    known = np.unique(np.concatenate([one.values, other.values]))
    return jensen_shannon(
        *(
            np.bincount(np.searchsorted(known, side.values), minlength=len(known)).astype(float)
            for side in (one, other)
        )
    )


def length_divergence(one: WordHashes, other: WordHashes) -> float:
    """The Jensen-Shannon divergence of the lengths of two sets of texts, in bins."""
    return jensen_shannon(
        *(np.histogram(side.lengths, _LENGTHS)[0].astype(float) for side in (one, other))
    )


def pair_perplexity(trained_on: WordHashes, tested_on: WordHashes, words: int) -> float:
    """Perplexity per word of a model of pairs of words, trained on some texts, on others.

    A mixture of the word after the one before, of the word, and of any of `words` words: what
    simple statistics of the first texts tell of the others.
    """
    pairs, places = tested_on.ngrams(2)
    if not len(pairs):
        return float("nan")
    seen_pairs, pair_counts = np.unique(trained_on.ngrams(2)[0], return_counts=True)
    firsts = trained_on.values[trained_on.ngrams(2)[1]]
    after, last = tested_on.values[places], tested_on.values[places + 1]
    total = max(1, len(trained_on.values))
    of_pair = _counts(pairs, seen_pairs, pair_counts)
    of_first = _counts(after, *np.unique(firsts, return_counts=True))
    of_word = _counts(last, *np.unique(trained_on.values, return_counts=True))
    chance = (
        _WEIGHTS[0] * np.divide(of_pair, of_first, out=np.zeros(len(pairs)), where=of_first > 0)
        + _WEIGHTS[1] * of_word / total
        + _WEIGHTS[2] / words
    )
    return float(np.exp(-np.log(chance).mean()))


def _counts(values: Hashes, known: Hashes, counts: np.ndarray) -> Floats:
    """How often each value was counted."""
    found = is_in(values, known)
    places = np.searchsorted(known, values)
    places[~found] = 0
    return np.where(found, counts[places] if len(counts) else 0, 0).astype(np.float64)


# --- the three kinds of text ---------------------------------------------------------------------


@dataclass(frozen=True)
class Quality:
    """Of as many texts each: the synthetic ones, some of the training part, some held out.

    Divergences (Jensen-Shannon, in bits) are from the training texts. `pair_perplexity` is that of
    held-out text under a model of pairs of words made from these texts. `perplexity` is that of
    these texts under another language model.
    """

    diversity: dict[str, Diversity]
    word_divergence: dict[str, float]
    length_divergence: dict[str, float]
    pair_perplexity: dict[str, float]
    perplexity: dict[str, float] | None


def compare_quality(
    texts: Sequence[str],
    pool: People,
    hasher: Hasher,
    reference: str | None,
    rng: np.random.Generator,
    progress: Progress,
) -> Quality:
    sizes = [len(texts), len(pool.train), *([] if pool.held_out is None else [len(pool.held_out)])]
    count = min(_TEXTS, *sizes)
    own = [texts[i] for i in rng.choice(len(texts), count, replace=False)]
    sides = {"synthetic": own, "training": pool.sample(False, count, rng)}
    if pool.held_out is not None:
        sides["held out"] = pool.sample(True, count, rng)
    words = {name: hasher.words(side) for name, side in sides.items()}
    others = [name for name in sides if name != "training"]
    utility = {}
    if pool.held_out is not None:
        # tested on people whose text is in neither
        test = words["held out"]
        known = len(np.unique(np.concatenate([side.values for side in words.values()])))
        utility = {
            name: pair_perplexity(words[name], test, known) for name in ("synthetic", "training")
        }
    return Quality(
        diversity={name: diversity(side) for name, side in words.items()},
        word_divergence={n: word_divergence(words[n], words["training"]) for n in others},
        length_divergence={n: length_divergence(words[n], words["training"]) for n in others},
        pair_perplexity=utility,
        perplexity=None if reference is None else _perplexity(reference, sides, progress),
    )


def _perplexity(
    reference: str, sides: Mapping[str, list[str]], progress: Progress
) -> dict[str, float]:
    """Per token of some texts under another model, whatever it has learned."""
    loaded = load_model(reference)
    model = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name, texts in sides.items():
        some = [text for text in texts if text.strip()][:_READ]
        task = NextWord(some, loaded.tokenizer, loaded.max_tokens)
        found[name] = float(task.evaluate(model, nullcontext, None, progress)["perplexity"])
    return found
