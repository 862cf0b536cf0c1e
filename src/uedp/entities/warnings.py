"""Warnings about a corpus whose entities, users or texts look wrong, each with its remedy.

They are for the person who holds the corpus: they quote entities and a user's name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uedp.corpus.store import Corpus
from uedp.entities.categories import BASE, category_of
from uedp.entities.ordinary import is_ordinary

SMALL = 20  # sentences; shares of fewer say nothing
COMMON = 50  # entities with the most users, among which ordinary words are looked for
NAMED = 5  # of which this many are named
MENTIONS = 200  # of each that are looked at
SENSITIVE = 0.5  # share of the sentences
ONE_USER = 0.1  # share of the sentences
REPEATED = 0.05  # share of the sentences,
LONG_ENOUGH = 40  # in characters: people write the same short sentences
SAMPLE = 300  # sentences whose language is identified,
FEWEST = 10  # at least,
LETTERS = 30  # of so many letters
FOREIGN = 0.2  # share of the sample

# Languages that identification takes for each other.
_ALIKE = {
    "en": {"en", "pcm", "sco", "jam"},
    "no": {"no", "nb", "nn", "da"},
    "nb": {"no", "nb", "nn", "da"},
    "hr": {"hr", "bs", "sr", "sh"},
    "sr": {"hr", "bs", "sr", "sh"},
    "id": {"id", "ms"},
}
# fmt: off
_LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "ms": "Malay", "nb": "Norwegian",
    "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sk": "Slovak", "sl": "Slovene", "sr": "Serbian", "sv": "Swedish",
    "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese",
    "zh": "Chinese",
}
# fmt: on


def corpus_warnings(corpus: Corpus) -> list[str]:
    """What looks wrong in a corpus after detection: one line each, with its remedy.

    Reads the texts once; memory grows by eight bytes a sentence.
    """
    return [
        *_names_not_sought(corpus),
        *_nothing_found(corpus),
        *_ordinary_entities(corpus),
        *_mostly_sensitive(corpus),
        *_marks_not_protected(corpus),
        *_one_large_user(corpus),
        *_a_user_per_text(corpus),
        *_repeated_texts(corpus),
        *_unknown_language(corpus),
    ]


def _names_not_sought(corpus: Corpus) -> Iterator[str]:
    if all(name.partition(":")[0] == "patterns" for name in corpus.info["detectors"]):
        listed = " but those listed" if corpus.info.get("declared_sensitive") else ""
        yield (
            f"only patterns were looked for, and no names{listed}: people, places and "
            "organisations are not protected; add a detector for names, such as "
            "`detectors='patterns,spacy:en_core_web_sm'`"
        )


def _nothing_found(corpus: Corpus) -> Iterator[str]:
    if len(corpus) and not corpus.info["mentions"]:
        yield (
            "no entity was found in any sentence: only users are protected; check `text=...`, "
            "`detectors=...` and `categories=...`"
        )


def _ordinary_entities(corpus: Corpus) -> Iterator[str]:
    ordinary = ordinary_entities(corpus)
    if ordinary:
        quoted = ", ".join(f'"{surface}"' for surface in ordinary[:NAMED])
        one = len(ordinary) == 1
        yield (
            f"of the {COMMON} entities with the most users, {len(ordinary)} "
            f"{'is an ordinary word' if one else 'are ordinary words'} ({quoted}"
            f"{', ...' if len(ordinary) > NAMED else ''}): every sentence with such a word is "
            "sensitive, and few can be used in a round; declare them public with "
            "`allow_list=...`, or choose a detector that was made for such text"
        )


def ordinary_entities(corpus: Corpus, among: int = COMMON) -> list[str]:
    """Of the entities with the most users, those that are ordinary words, written as such.

    A word counts if it is English and most of its mentions are in lower case or begin a sentence:
    "it" and "Later", but neither "US" nor "May" in the middle of a sentence. In normalised text
    case says nothing, so that nothing counts.
    """
    if corpus.info.get("normalised"):
        return []
    holders = corpus.incidence.holders.counts
    top = np.argsort(-holders, kind="stable")[:among]
    surfaces = corpus.entities["surface"].take(top).to_pylist()
    candidates = {
        int(entity): surface
        for entity, surface in zip(top, surfaces, strict=True)
        if is_ordinary(surface)
    }
    as_words: Counter[int] = Counter()
    looked_at: Counter[int] = Counter()
    for entity, text, start, end in _mentions_of(corpus, list(candidates)):
        surface = text[start:end]
        as_words[entity] += surface.islower() or (
            surface[1:].islower() and not text[:start].strip("\"'“‘(*- ")
        )
        looked_at[entity] += 1
    return [
        surface
        for entity, surface in candidates.items()
        if 2 * as_words[entity] > looked_at[entity]
    ]


def _mentions_of(corpus: Corpus, entities: list[int]) -> Iterator[tuple[int, str, int, int]]:
    """Mentions of entities, at most `MENTIONS` of each: (entity, text, start, end)."""
    if not entities:
        return
    found = corpus.mentions.filter(pc.is_in(corpus.mentions["entity"], pa.array(entities)))
    numbers = found["entity"].to_numpy()
    rows = np.concatenate([np.flatnonzero(numbers == entity)[:MENTIONS] for entity in entities])
    columns = [found[name].to_numpy()[rows] for name in ("entity", "sentence", "start", "end")]
    texts = corpus.texts(columns[1])
    for entity, text, start, end in zip(columns[0], texts, columns[2], columns[3], strict=True):
        yield int(entity), text, int(start), int(end)


def _mostly_sensitive(corpus: Corpus) -> Iterator[str]:
    incidence = corpus.incidence
    sensitive = float((~incidence.extended).mean()) if len(corpus) else 0.0
    if sensitive > SENSITIVE and len(corpus) >= SMALL:
        yield (
            f"{sensitive:.0%} of the sentences are sensitive: those whose entities other users "
            "mention, too, can seldom be used in a round, and a model learns little; look at the "
            "entities with the most users, declare public what is (`allow_list=...`), and choose "
            "`categories=...`"
        )


def _marks_not_protected(corpus: Corpus) -> Iterator[str]:
    if "labels" not in corpus.info["detectors"]:
        return
    counted: Counter[str] = Counter()
    for batch in corpus.batches(["marks"]):
        labels = batch.column(0).flatten().field("label")
        counted.update(
            {pair["values"]: pair["counts"] for pair in labels.value_counts().to_pylist()}
        )
    chosen = set(corpus.info.get("categories", BASE))
    left_out: Counter[str] = Counter()
    for label, count in counted.items():
        if category_of(label) not in chosen:
            left_out[category_of(label)] += count
    if left_out:
        named = ", ".join(sorted(left_out))
        yield (
            f"{left_out.total():,} human marks are of categories that are not protected ({named}); "
            "protect them with `categories='all'`"
        )


def _one_large_user(corpus: Corpus) -> Iterator[str]:
    counts = corpus.incidence.user_sentences.counts
    if len(corpus) < SMALL or counts.max() < ONE_USER * len(corpus):
        return
    if counts.max() < 2 * counts.mean():  # among few users everybody has a tenth
        users = "only one user" if len(counts) == 1 else f"only {len(counts)} users"
        yield (
            f"the text is by {users}: noise that hides one of so few hides what the others have "
            "in common, too; check that `user=...` names the author"
        )
        return
    largest = int(counts.argmax())
    name = str(corpus.user_names[largest])
    name = name if len(name) <= 40 else f"{name[:37]}..."
    yield (
        f"one user, {name!r}, wrote {counts[largest] / len(corpus):.0%} of the sentences: in a "
        "round a user counts as one, however much they wrote, so most of it is lost; check that "
        "`user=...` names the author, and that this is one person and not a placeholder"
    )


def _a_user_per_text(corpus: Corpus) -> Iterator[str]:
    source = corpus.info["source"]
    split = source.get("split")
    texts = split["texts"] if isinstance(split, dict) else len(corpus)
    # a data set of marks has no authors
    if texts < SMALL or corpus.users < texts or source.get("reader") == "presidio-research":
        return
    yield (
        f"every text has a user of its own ({corpus.users:,} users): if people wrote several, each "
        "is protected for one text only; check that `user=...` names the author, not the message"
    )


def _repeated_texts(corpus: Corpus) -> Iterator[str]:
    hashes = np.empty(len(corpus), dtype=np.int64)
    long = np.empty(len(corpus), dtype=bool)
    done = 0
    for batch in corpus.batches(["text"]):
        for text in batch.column(0).to_pylist():
            stripped = text.strip()
            hashes[done], long[done] = hash(stripped), len(stripped) >= LONG_ENOUGH
            done += 1
    owners = corpus.sentences["user"].to_numpy()[long]
    _, first, text_of = np.unique(hashes[long], return_index=True, return_inverse=True)
    copies = len(owners) - len(first)
    if copies < REPEATED * len(corpus) or len(corpus) < SMALL:
        return
    by_others = int((owners != owners[first][text_of]).sum())
    if 2 * by_others < copies:
        cost = "a user's repetitions count as so many sentences, and crowd out the others"
    else:
        cost = (
            "a text that several users share is protected as if each had written their own, so "
            "that a model may learn it by heart"
        )
    yield (
        f"{copies:,} sentences ({copies / len(corpus):.0%}) repeat another one, {by_others:,} of "
        f"them by another user: {cost}; remove quoted, forwarded and generated text first"
    )


def _unknown_language(corpus: Corpus) -> Iterator[str]:
    versions = corpus.info.get("detector_versions", {})
    known = detector_languages((name, versions.get(name, "")) for name in corpus.info["detectors"])
    if known is None:
        return
    alike = set().union(*(_ALIKE.get(language, {language}) for language in known))
    texts = _readable_sample(corpus)
    if len(texts) < FEWEST:
        return
    from py3langid import classify  # loads a model

    languages = Counter(str(classify(text)[0]) for text in texts)
    foreign = Counter({name: n for name, n in languages.items() if name not in alike})
    if foreign.total() < FOREIGN * len(texts):
        return
    (first, count), *_ = foreign.most_common(1)
    if 2 * count < foreign.total():  # scattered: text that is in no language
        return
    yield (
        f"{foreign.total() / len(texts):.0%} of the sentences are not in a language that the "
        f"detector knows ({_listed(known)}), most of them in {_language(first)}: names in them "
        "are easily missed; add a detector for it with `detectors=...`"
    )


def detector_languages(detectors: Iterable[tuple[str, str]]) -> set[str] | None:
    """The languages of detectors, by name and version; None if one may know any.

    Patterns and human marks have none of their own.
    """
    languages = set()
    for name, version in detectors:
        kind, _, argument = name.partition(":")
        if kind in ("patterns", "labels"):
            continue
        if kind == "stanza":
            languages.add(re.split(r"[-_]", argument)[0].lower())
        elif kind in ("spacy", "presidio") and (
            pipeline := re.search(r"(?:^|[ ,])([a-z]{2,3})_\w+ ", version)
        ):
            languages.add(pipeline[1])
        else:
            return None
    return languages if languages and "xx" not in languages else None


def _readable_sample(corpus: Corpus) -> list[str]:
    """Sentences from all parts of a corpus: no headlines in capitals, tables or single words."""
    places = np.arange(0, len(corpus), max(1, len(corpus) // (10 * SAMPLE)))
    readable = []
    for text in corpus.texts(places):
        letters = sum(map(str.isalpha, text))
        capitals = sum(map(str.isupper, text))
        if letters >= LETTERS and letters > 0.6 * len(text) and capitals < 0.2 * letters:
            readable.append(text)
    return readable[:: max(1, len(readable) // SAMPLE)][:SAMPLE]


def _language(code: str) -> str:
    return _LANGUAGES.get(code, f"the language {code!r}")


def _listed(codes: Iterable[str]) -> str:
    return " and ".join(sorted(map(_language, codes)))
