"""From a stream of sentences to a corpus on disk: detect, propagate, link, count.

Pass one runs the detectors over the stream and writes sentences and hits. Pass two reads them
back, finds every other mention of what was hit, gives each mention its canonical form, and
normalises the text if asked: last, because all before needs case and punctuation to see by. Then
entities are numbered and the incidence is built. Text is held a batch at a time throughout; what
grows with the corpus in memory is the table of users, the table of distinct entities, and a few
bytes per sentence and mention.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import uedp
from uedp.corpus.normalise import normalise
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import (
    CATEGORIES,
    ENTITIES,
    MENTIONS,
    SENTENCES,
    USERS,
    Corpus,
    RowWriter,
    SentenceWriter,
    grouped,
    new_folder,
    read_sentences,
    read_table,
    write_manifest,
)
from uedp.entities import parallel
from uedp.entities.canonical import Canon, strict
from uedp.entities.categories import BASE, category_of
from uedp.entities.detectors import detector_version
from uedp.entities.lists import Lists
from uedp.entities.propagation import KnownSurfaces
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence
from uedp.progress import SILENT, Meter, Progress

_CATEGORY_NUMBER = {name: number for number, name in enumerate(CATEGORIES)}
_HITS = pa.schema([MENTIONS.field(name) for name in ("sentence", "start", "end", "label")])
_LINKED = pa.schema([*list(MENTIONS)[:-1], *ENTITIES])


@dataclass(frozen=True)
class Detection:
    """What is looked for, and what becomes of a hit."""

    detectors: tuple[str, ...]
    categories: frozenset[str] = frozenset(BASE)
    propagate: bool = True
    normalised: bool = False
    lists: Lists = field(default_factory=Lists)
    workers: int = 1

    def __post_init__(self) -> None:
        if not self.detectors:
            raise UserError("`detectors=...`: name at least one detector")
        if self.workers < 1:
            raise UserError(f"`workers={self.workers}`: at least one is needed")


def detect(
    sentences: Iterable[Sentence],
    out: Path | str,
    detection: Detection,
    *,
    origin: dict[str, Any] | None = None,
    position: Callable[[], int] | None = None,
    total: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Corpus:
    """Write the corpus of these sentences to the folder `out`, with mentions and incidence.

    `origin` goes on record in the manifest. `position` and `total` let the progress bar follow
    the source's bytes when the number of sentences is not known.

    Guarantees:
      - a sentence's mentions are all hits of any detector in the chosen categories, what
        propagation, the deny-list and other names of what was hit add, less those whose surface
        the allow-list declares public
      - mentions with the same canonical form are one entity, whoever wrote them
      - `out` appears complete or not at all
    """
    linker = _Linker(detection)
    with new_folder(Path(out), overwrite) as work:
        with progress.stage("detecting", total, "sentences") as meter:
            count = _first_pass(sentences, work, detection, linker, meter, position)
        with progress.stage("linking", count, "sentences") as meter:
            kept, mentions = _second_pass(work, count, detection, linker, meter)
        with progress.stage("counting", mentions, "mentions") as meter:
            users, entities = _number_and_count(work, meter)
        for scratch in ("hits.arrow", "linked.arrow"):
            (work / scratch).unlink()
        write_manifest(
            work,
            {
                "uedp": uedp.__version__,
                "users": users,
                "sentences": kept,
                "entities": entities,
                "mentions": mentions,
                "source": origin or {},
                "detectors": list(detection.detectors),
                "detector_versions": {name: detector_version(name) for name in detection.detectors},
                "categories": sorted(detection.categories),
                "propagated": detection.propagate,
                "normalised": detection.normalised,
                "empty_after_normalising": count - kept,
                **linker.record(),
            },
        )
    return Corpus(out)


class _Linker:
    """What is known of entities while a corpus is read: surfaces to find, lists, identities."""

    def __init__(self, detection: Detection) -> None:
        lists = detection.lists
        self.canon = Canon(lists.aliases, _region(detection.detectors))
        self._lists = lists
        self._propagate = detection.propagate
        self._public = {strict(entity): entity for entity in lists.public}
        self._met: set[str] = set()
        self._known = KnownSurfaces()
        for entity, category in lists.sensitive.items():
            self._known.add(entity, category, always=True)
            self._add_other_names(entity, category)

    def is_public(self, surface: str) -> bool:
        entity = self._public.get(strict(surface)) if self._public else None
        if entity is not None:
            self._met.add(entity)
        return entity is not None

    def learn(self, surface: str, label: str, propagates: bool) -> None:
        """A surface was hit: it, and what else it is called, may stand elsewhere."""
        if self._propagate and propagates:
            self._known.add(surface, label)
        self._add_other_names(surface, label)

    def find(self, text: str) -> list[Span]:
        """Mentions of what is known, public ones left out."""
        if not self._known:
            return []
        return [s for s in self._known.find(text) if not self.is_public(text[s.start : s.end])]

    def record(self) -> dict[str, Any]:
        """What the lists said, for the manifest."""
        lists = self._lists
        return {
            "declared_public": {e: why for e, why in lists.public.items() if e in self._met},
            "declared_public_not_met": sorted(set(lists.public) - self._met),
            "declared_sensitive": dict(lists.sensitive),
            "aliases": dict(lists.aliases),
        }

    def _add_other_names(self, surface: str, label: str) -> None:
        if self._lists.aliases:
            for name in self.canon.other_names(self.canon(surface)):
                if not self.is_public(name):
                    self._known.add(name, label)


def _first_pass(
    sentences: Iterable[Sentence],
    work: Path,
    detection: Detection,
    linker: _Linker,
    meter: Meter,
    position: Callable[[], int] | None,
) -> int:
    """Write sentences and hits; collect the surfaces to look for elsewhere."""
    writer = SentenceWriter(work)
    with RowWriter(work / "hits.arrow", _HITS) as rows:
        for batch, found in parallel.detect(sentences, detection.detectors, detection.workers):
            for sentence, hits in zip(batch, found, strict=True):
                for span, propagates in hits:
                    surface = sentence.text[span.start : span.end]
                    if category_of(span.label) not in detection.categories:
                        continue
                    if linker.is_public(surface):
                        continue
                    rows.append(writer.sentences, *span)
                    linker.learn(surface, span.label, propagates)
                writer.append(sentence)
            meter.advance(len(batch), position() if position else None)
    writer.close()
    return writer.sentences


def _second_pass(
    work: Path, count: int, detection: Detection, linker: _Linker, meter: Meter
) -> tuple[int, int]:
    """Write every mention with its canonical form; how many sentences and mentions there are."""
    hits = grouped(read_table(work / "hits.arrow", _HITS), count, ("start", "end", "label"), Span)
    rewritten = work / "normalised"
    if detection.normalised:
        rewritten.mkdir()
        writer = SentenceWriter(rewritten)
    kept = mentions = 0
    with RowWriter(work / "linked.arrow", _LINKED) as rows:
        for sentence, spans in zip(_metered(read_sentences(work), meter), hits, strict=True):
            text = sentence.text
            spans = sorted({*spans, *linker.find(text)})
            names = [linker.canon(text[span.start : span.end]) for span in spans]
            moved: Sequence[Span | None] = spans
            if detection.normalised:
                shorter, moved = _normalised(sentence, spans)
                if shorter is None:
                    continue
                writer.append(shorter)
                text = shorter.text
            for span, name in zip(moved, names, strict=True):
                if span is not None:
                    start, end, label = span
                    category = _CATEGORY_NUMBER[category_of(label)]
                    rows.append(kept, start, end, label, category, name, text[start:end])
                    mentions += 1
            kept += 1
    if detection.normalised:
        writer.close()
        for name in ("sentences.arrow", "users.arrow"):
            (rewritten / name).replace(work / name)
        rewritten.rmdir()
    return kept, mentions


def _normalised(
    sentence: Sentence, spans: Sequence[Span]
) -> tuple[Sentence | None, Sequence[Span | None]]:
    """The sentence normalised and its mentions moved along; None if nothing is left."""
    text, moved = normalise(sentence.text, [*sentence.marks, *spans])
    if not text:
        return None, []
    marks = tuple(span for span in moved[: len(sentence.marks)] if span)
    return replace(sentence, text=text, marks=marks), moved[len(sentence.marks) :]


def _metered(sentences: Iterable[Sentence], meter: Meter) -> Iterator[Sentence]:
    for number, sentence in enumerate(sentences, 1):
        yield sentence
        if number % 1000 == 0:
            meter.advance(1000)


def _number_and_count(work: Path, meter: Meter) -> tuple[int, int]:
    """Number entities by first mention, write the final tables and the incidence."""
    linked = read_table(work / "linked.arrow", _LINKED)
    names = linked["name"].dictionary_encode()
    numbers = [np.asarray(chunk.indices, dtype=np.int32) for chunk in names.chunks]
    entity = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int32)
    # ids grow with first appearance, so a new one is where the running maximum rises
    highest = np.maximum.accumulate(entity) if len(entity) else entity
    first = np.flatnonzero(np.diff(highest, prepend=-1) > 0)
    with (
        RowWriter(work / "entities.arrow", ENTITIES) as entities,
        RowWriter(work / "mentions.arrow", MENTIONS) as mentions,
    ):
        done = 0
        for batch in linked.to_batches():
            here = slice(done, done + batch.num_rows)
            columns = [batch.column(name) for name in MENTIONS.names[:-1]]
            mentions.write(pa.record_batch([*columns, pa.array(entity[here])], schema=MENTIONS))
            new = first[np.searchsorted(first, here.start) : np.searchsorted(first, here.stop)]
            entities.write(batch.select(ENTITIES.names).take(pa.array(new - done)))
            done = here.stop
            meter.advance(batch.num_rows)
    users = read_table(work / "users.arrow", USERS).num_rows
    incidence = Incidence.build(
        read_table(work / "sentences.arrow", SENTENCES)["user"].to_numpy(),
        linked["sentence"].to_numpy(),
        entity,
        users,
        len(first),
    )
    incidence.save(work / FOLDER)
    return users, len(first)


def _region(detectors: Sequence[str]) -> str:
    """Where phone numbers without a country code belong: what `patterns:REGION` says."""
    for name in detectors:
        kind, _, argument = name.partition(":")
        if kind == "patterns" and argument:
            return argument.upper()
    return "US"
