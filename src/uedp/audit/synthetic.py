"""Synthetic text beside the text it was learned from: how good it is, and what it gives away.

All of this is for the curator only: it reads the training text without noise, and the guarantee of
the model does not cover it.

That synthetic text has phrases in common with the training text is no leak by itself: everybody
writes some of them. So everything is compared with people like those in the training part whose
text the model has not seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from uedp.audit.emitted import Names, Planted, names_in, secrets_in
from uedp.audit.nearest import TIED, NearestTexts
from uedp.audit.people import (
    GroupTest,
    NearestTest,
    People,
    PeopleTest,
    compare_groups,
    compare_nearest,
    user_groups,
)
from uedp.audit.secrets import Secret
from uedp.audit.text_quality import Quality, compare_quality
from uedp.audit.word_runs import Hasher, NgramOwners, WordHashes, is_in, match, text_words
from uedp.corpus.source import Source
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.files import sha256_of
from uedp.incidence import Ints
from uedp.progress import SILENT, Progress
from uedp.strict import parse_json
from uedp.training.synthetic import NOT_COVERED, about_path, read_about, text_guarantee

CURATOR_ONLY = (
    "For the curator only: these figures are computed from the training text without noise, and no "
    "guarantee covers them. Texts that are chosen or changed by them are not covered either."
)
RUNS = (8, 12, 16)
"""Words of runs that are taken for somebody's own, if one person alone wrote them."""

_FALSE_ALARM = 0.05  # of all tests together
_WHOLE = 0  # in place of a length
_TEXTS, _NEAREST = 20_000, 1_000  # that are compared
_HELD_OUT_GROUPS, _TRAIN_GROUPS = 8, 32
_REST = 50_000  # sentences of a block that is in no group


@dataclass(frozen=True)
class SharedRuns:
    """The longest run of words that a text has in common with the training text.

    `own` are texts with a run of so many words that one person alone wrote, or with `whole` the
    whole text if it has the least of them: of the training part, and held out. `people` are those
    who wrote them.
    """

    median: float
    percentile_95: float
    longest: int
    own: dict[str, tuple[int, int]]
    words: GroupTest | None
    people: dict[str, PeopleTest]


@dataclass(frozen=True, eq=False)
class SyntheticAudit:
    """What was found. `p_values` are those of the tests; each `level` or less is an alarm."""

    texts: int
    compared: int
    guarantee: dict[str, Any]
    people: tuple[int, int]
    quality: Quality
    runs: SharedRuns
    nearest: NearestTest | None
    nearness: GroupTest | None
    names: Names
    secrets: Planted | None
    remarks: tuple[str, ...]
    closest: Sequence[tuple[int, int, str]] = field(default=(), repr=False)

    @property
    def p_values(self) -> dict[str, float]:
        found = {
            **{f"own runs: {length}": test for length, test in self.runs.people.items()},
            "longest runs": self.runs.words,
            "nearest text": self.nearest,
            "names": self.names.people,
            "secrets": self.secrets,
        }
        return {name: test.p_value for name, test in found.items() if test is not None}

    @property
    def level(self) -> float:
        """At which all tests together raise a false alarm with probability 5% at most."""
        return _FALSE_ALARM / max(1, len(self.p_values))

    @property
    def alarms(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.p_values.items() if value <= self.level)

    @property
    def verdict(self) -> str:
        """What the tests say, in a sentence, and what they do not."""
        if not self.p_values:
            return "No test: nobody was held out, and no secrets were planted."
        chance = f"all tests together raise a false alarm in at most {_FALSE_ALARM:.0%} of cases"
        if self.alarms:
            return (
                f"ALARM ({', '.join(self.alarms)}): the texts are closer to the people trained on "
                f"than to others like them, beyond chance; {chance}."
            )
        return (
            "No test finds the texts closer to the people trained on than to others like them; "
            f"{chance}. This is no proof: only the guarantee bounds what other attacks could find."
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers only: no text, no name and no secret."""
        values = asdict(self)
        del values["closest"]
        return {
            "kind": "uedp audit of synthetic text",
            "curator_only": CURATOR_ONLY,
            **values,
            "p_values": self.p_values,
            "level": self.level,
            "alarms": list(self.alarms),
            "verdict": self.verdict,
        }


def audit_texts(
    path: Path,
    corpus: Path,
    held_out: Path | None = None,
    *,
    run: Path | None = None,
    secrets: Sequence[Secret] | None = None,
    reference: str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> SyntheticAudit:
    """Compare a file of texts with the corpus it was learned from, and with people held out.

    Args:
        held_out: a corpus of other people, drawn from the same as those in the training part;
            without it, nothing can be told apart from chance
        run: the run that the texts are of, to verify its certificate
        secrets: what was planted in the corpus
        reference: a language model to measure the perplexity of texts by
    """
    rng = np.random.default_rng(seed)
    ids, texts = read_texts(path)
    pool = People(Corpus(corpus), None if held_out is None else Corpus(held_out))
    remarks = list(pool.remarks)
    hasher = Hasher()
    every = hasher.words(texts)
    chosen = np.arange(len(texts))
    if len(texts) > _TEXTS:
        chosen = np.sort(rng.choice(len(texts), _TEXTS, replace=False))
        remarks.append(f"runs of words: of {_TEXTS:,} texts drawn at random")
    query = every if len(chosen) == len(texts) else hasher.words(texts[i] for i in chosen)
    found = _compare(query, pool, hasher, rng, progress)
    closest = [
        (ids[chosen[i]], length, words)
        for i, length, words in _closest(query, found, [texts[i] for i in chosen])
    ]
    quality = compare_quality(texts, pool, hasher, reference, rng, progress)
    names = names_in(every, pool, hasher)
    planted = None if secrets is None else secrets_in(every, hasher, secrets)
    return SyntheticAudit(
        texts=len(texts),
        compared=len(query),
        guarantee=_guarantee(path, run),
        people=(pool.trained, pool.others),
        quality=quality,
        runs=found.runs,
        nearest=found.nearest,
        nearness=found.nearness,
        names=names,
        secrets=planted,
        remarks=tuple(remarks),
        closest=closest,
    )


def read_texts(path: Path) -> tuple[list[int], list[str]]:
    """The ids and texts of a file of synthetic text; lines without an id are numbered."""
    source = Source(path)
    ids: list[int] = []
    texts: list[str] = []
    for number, raw in source.lines():
        line = source.decoded(number, raw)
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            text = row["text"]
            if not isinstance(text, str):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f'{path}: line {number}: write {{"text": "..."}} on each line'
            ) from None
        ids.append(row["id"] if isinstance(row.get("id"), int) else number - 1)
        texts.append(text)
    if not any(map(str.strip, texts)):
        raise UserError(f"{path}: no texts; generate some first")
    return ids, texts


def _guarantee(path: Path, run: Path | None) -> dict[str, Any]:
    """What covers the texts: as their file says, if it is theirs, and as the run verifies now."""
    if not about_path(path).is_file():
        words = f"{NOT_COVERED}{about_path(path).name}, which says where they are from, is missing."
        return {"covered": False, "words": words}
    about = read_about(about_path(path))
    if about.size != path.stat().st_size or about.digest != sha256_of(path):
        words = f"{NOT_COVERED}they are not as they were drawn; the file was changed."
        return {"covered": False, "words": words}
    stated = about.guarantee
    if stated.covered and run is not None:
        now = text_guarantee(run)
        if now.run is not None and now.run != stated.run:
            words = f"{NOT_COVERED}they are of run {stated.run}, not of {now.run}."
            return {"covered": False, "words": words}
        stated = now
    return stated.model_dump(mode="json")


@dataclass(frozen=True, eq=False)
class _Compared:
    runs: SharedRuns
    nearest: NearestTest | None
    nearness: GroupTest | None
    starts: Ints  # the longest run from each word, in the training part
    longest: Ints  # of each text
    alone: np.ndarray  # whether a text has a run that one person of the training part alone wrote


def _compare(
    query: WordHashes,
    pool: People,
    hasher: Hasher,
    rng: np.random.Generator,
    progress: Progress,
) -> _Compared:
    """One pass over the text of everybody, in groups of as many people of either part."""
    some = np.sort(rng.choice(len(query), min(_NEAREST, len(query)), replace=False))
    near = NearestTexts(_selected(query, some))
    owners = {length: NgramOwners() for length in (*RUNS, _WHOLE)}
    starts = np.zeros(len(query.values), dtype=np.int64)
    keys = np.where(query.lengths >= min(RUNS), query.whole(), 0)
    known = np.unique(keys)
    means: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    total = len(pool.train) + (0 if pool.held_out is None else len(pool.held_out))
    with progress.stage("comparing", total, "sentences") as meter:
        for users, held, grouped in _blocks(pool, rng):
            texts, of_texts = pool.texts_of(users)
            block = hasher.words(texts)
            matches = match(query, block, RUNS)
            for length, (hashes, where) in matches.met.items():
                owners[length].add(hashes, of_texts[where])
            copied = is_in(block.whole(), known)
            owners[_WHOLE].add(block.whole()[copied], of_texts[copied])
            nearness = near.add(block, of_texts)
            if grouped:
                longest = query.per_text(matches.runs)
                means[held].append((float(longest.mean()), float(nearness.mean())))
            if not held:
                starts = np.maximum(starts, matches.runs)
            meter.advance(len(texts))
    own, people = {}, {}
    alone = np.zeros(len(query), dtype=np.bool_)
    for length, who in owners.items():
        if length == _WHOLE:
            texts_with, users = who.of(keys, np.arange(len(query)))
        else:
            hashes, places = query.ngrams(length)
            texts_with, users = who.of(hashes, query.text_of[places])
        inside = users < pool.trained
        name = "whole" if length == _WHOLE else str(length)
        own[name] = len(np.unique(texts_with[inside])), len(np.unique(texts_with[~inside]))
        alone[texts_with[inside]] = True
        if (test := pool.compare(np.unique(users))) is not None:
            people[name] = test
    longest = query.per_text(starts)
    tests: list[GroupTest | None] = [None, None]
    if min(map(len, means.values())) > 1:
        columns = {held: np.array(rows) for held, rows in means.items()}
        tests = [compare_groups(columns[False][:, i], columns[True][:, i], rng) for i in (0, 1)]
    told = near.owners[near.owners != TIED]
    in_training = np.arange(pool.trained + pool.others) < pool.trained
    return _Compared(
        runs=SharedRuns(
            median=float(np.median(longest)),
            percentile_95=float(np.percentile(longest, 95)),
            longest=int(longest.max()),
            own=own,
            words=tests[0],
            people=people,
        ),
        nearest=compare_nearest(told, in_training, rng) if pool.others and len(told) else None,
        nearness=tests[1],
        starts=starts,
        longest=longest,
        alone=alone,
    )


def _blocks(pool: People, rng: np.random.Generator) -> Iterator[tuple[Ints, bool, bool]]:
    """Users, whether they were held out, and whether they form a group of the common size."""
    size = max(1, pool.others // _HELD_OUT_GROUPS)
    first = np.arange(pool.trained)
    second = pool.trained + np.arange(pool.others)
    for users, held, most in ((first, False, _TRAIN_GROUPS), (second, True, pool.others)):
        groups, rest = user_groups(users, size, most if pool.others else 0, rng)
        yield from ((group, held, True) for group in groups)
        if len(rest):
            corpus = pool.held_out if held else pool.train
            assert corpus is not None
            counts = corpus.incidence.user_sentences.counts[rest - held * pool.trained]
            parts = np.flatnonzero(np.diff(np.cumsum(counts) // _REST)) + 1
            yield from ((part, held, False) for part in np.split(rest, parts))


def _closest(
    query: WordHashes, found: _Compared, texts: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Texts with the longest runs of the training part, those of one person first."""
    order = np.lexsort((-found.longest, ~found.alone))
    for text in order[: min(len(order), 100)].tolist():
        low, high = query.bounds[text], query.bounds[text + 1]
        length = int(found.longest[text])
        if length:
            place = int(found.starts[low:high].argmax())
            yield text, length, " ".join(text_words(texts[text])[place : place + length])


def _selected(words: WordHashes, texts: Ints) -> WordHashes:
    parts = [words.values[words.bounds[i] : words.bounds[i + 1]] for i in texts]
    ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    empty = np.zeros(0, dtype=np.uint64)
    return WordHashes(np.concatenate([empty, *parts]), ends)
