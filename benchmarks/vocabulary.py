"""Private vocabularies: words kept, unknown words in held-out text, and the cost in noise.

    python benchmarks/vocabulary.py TRAIN HELD_OUT TOKENIZER [--out benchmarks/results]

TRAIN and HELD_OUT are corpus folders; TOKENIZER is the `tokenizer.json` of a public tokenizer.
"""

import argparse
import json
import secrets
from collections import Counter
from pathlib import Path
from statistics import mean

from transformers import PreTrainedTokenizerFast

from uedp import Corpus, Incidence
from uedp.accounting.calibrate import noise_for
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile
from uedp.accounting.vocabulary import release_for
from uedp.mechanism.noise import SecureNoise
from uedp.training.vocabulary import (
    private_words,
    word_splitter,
    words_from_corpus,
    words_from_tokenizer,
)

DELTA, WORDS_PER_USER, WORDS_PER_SENTENCE = 1e-5, 64, 16
RATE, SHARE, ROUNDS = 0.1, 0.3, 200
REPEATS = 10


def rotation(noise: float) -> Profile:
    return RotationProfile(noise, RATE, SHARE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    train, held_out = Corpus(options.train), Corpus(options.held_out)
    texts, incidence = train.texts(range(len(train))), Incidence.of(options.train)
    split = word_splitter()
    seen = Counter(word for text in held_out.texts(range(len(held_out))) for word in split(text))

    def unknown(words: tuple[str, ...]) -> float:
        return 1 - sum(seen[word] for word in set(words)) / seen.total()

    rows = []

    def add(name: str, words: float, share: float, **more: float) -> None:
        rows.append({"vocabulary": name, "words": words, "unknown": share, **more})
        print(f"{name:<40}{words:>10,.1f} words{share:>8.1%} unknown", more or "", flush=True)

    corpus = words_from_corpus(texts, len(texts) * 1000)
    for size in (100, 1000, 10_000, len(corpus)):
        add("of the corpus, not covered", size, unknown(corpus[:size]))
    public = words_from_tokenizer(PreTrainedTokenizerFast(tokenizer_file=str(options.tokenizer)))
    add("public", len(public), unknown(public))
    for target in (1.0, 2.0, 8.0):
        for unit, of_sentence in (("user and entity", WORDS_PER_SENTENCE), ("user", None)):
            release = release_for(target, DELTA, 1.0, WORDS_PER_USER, of_sentence)
            vocabularies = [
                private_words(texts, incidence, release, SecureNoise(), secrets.randbits(60))
                for _ in range(REPEATS)
            ]
            add(
                f"private, {unit}, epsilon {target:g}",
                mean(map(len, vocabularies)),
                mean(map(unknown, vocabularies)),
                noise=release.noise,
                threshold=release.threshold,
            )
    costs = []
    for target in (8.0, 2.0, 1.0):
        alone = noise_for(target, DELTA, ROUNDS, rotation)
        for share in (0.1, 0.3, 0.5):
            release = release_for(target, DELTA, share, WORDS_PER_USER, WORDS_PER_SENTENCE)
            beside = noise_for(target, DELTA, ROUNDS, rotation, [(release, 1)])
            costs.append({"epsilon": target, "share": share, "noise": beside / alone})
            print(f"epsilon {target:g}, share {share}: noise of the rounds x{beside / alone:.3f}")
    setting = {
        "delta": DELTA,
        "words_per_user": WORDS_PER_USER,
        "words_per_sentence": WORDS_PER_SENTENCE,
        "users": incidence.users,
        "rounds": {"user_rate": RATE, "entity_share": SHARE, "rounds": ROUNDS},
    }
    result = {"setting": setting, "vocabularies": rows, "cost": costs}
    (options.out / "vocabulary.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
