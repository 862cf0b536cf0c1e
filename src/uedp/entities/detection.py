"""From a stream of sentences to a corpus on disk: detect, propagate, link, count.

Pass one runs the detectors over the stream and writes sentences and hits. Pass two reads them
back, finds the other mentions of the same surfaces, gives each mention its canonical form, and
normalises the text if asked: last, because the steps before need case and punctuation. Then
entities are numbered and the incidence is built. Text is held a batch at a time; memory grows only
with the users, the distinct entities, and a few bytes per sentence and mention.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import uedp
from uedp.corpus import store
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.normalise import normalise
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import ENTITIES, MENTIONS, Corpus, RowWriter, SentenceWriter, read_arrow
from uedp.entities.canonical import Canon, strict_form
from uedp.entities.categories import DEFAULT, category_of
from uedp.entities.detectors import detector_version
from uedp.entities.lists import Lists
from uedp.entities.parallel import detect_batches
from uedp.entities.propagation import KnownSurfaces
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence
from uedp.progress import SILENT, Meter, Progress

_CATEGORY_NUMBER = {name: number for number, name in enumerate(store.CATEGORIES)}
_HITS = pa.schema([MENTIONS.field(name) for name in ("sentence", "start", "end", "label")])
_LINKED = pa.schema([*list(MENTIONS)[:-1], *ENTITIES])


@dataclass(frozen=True)
class Detection:
    """The detectors, and how their hits are used."""

    detectors: tuple[str, ...]
    categories: frozenset[str] = DEFAULT
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

    Args:
        origin: recorded in the manifest as the source
        position, total: for the progress bar, the bytes of the source read so far and in all

    Guarantees:
      - a sentence's mentions are all hits of any detector in the chosen categories, and what
        propagation, the deny-list and aliases add, less those whose surface is on the allow-list
      - mentions with the same canonical form are one entity, whoever wrote them
      - `out` appears complete or not at all
    """
    linker = _Linker(detection)
    with new_corpus_folder(Path(out), overwrite) as work:
        with progress.stage("detecting", total, "sentences") as meter:
            count = _first_pass(sentences, work, detection, linker, meter, position)
        with progress.stage("linking", count, "sentences") as meter:
            kept, mentions = _second_pass(work, count, detection, linker, meter)
        with progress.stage("counting", mentions, "mentions") as meter:
            users, entities = _number_and_count(work, meter)
        (work / "hits.arrow").unlink()
        (work / "linked.arrow").unlink()
        store.write_manifest(
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
                **linker.lists_used(),
            },
        )
    return Corpus(out)


class _Linker:
    """The entities known while a corpus is built: surfaces to find, lists, canonical forms."""

    def __init__(self, detection: Detection) -> None:
        lists = detection.lists
        self.canon = Canon(lists.aliases, _region(detection.detectors))
        self._lists = lists
        self._propagate = detection.propagate
        self._public = {strict_form(entity): entity for entity in lists.public}
        self._met: set[str] = set()
        self._known = KnownSurfaces()
        for entity, category in lists.sensitive.items():
            self._known.add(entity, category, always=True)
            self._add_aliases(entity, category)

    def is_public(self, surface: str) -> bool:
        entity = self._public.get(strict_form(surface)) if self._public else None
        if entity is not None:
            self._met.add(entity)
        return entity is not None

    def add_hit(self, surface: str, label: str, propagates: bool) -> None:
        """A surface was hit: look for it, and for its aliases, elsewhere."""
        if self._propagate and propagates:
            self._known.add(surface, label)
        self._add_aliases(surface, label)

    def find(self, text: str) -> list[Span]:
        """Mentions of known surfaces that are not public."""
        if not self._known:
            return []
        return [s for s in self._known.find(text) if not self.is_public(text[s.start : s.end])]

    def lists_used(self) -> dict[str, Any]:
        """The lists, for the manifest."""
        lists = self._lists
        return {
            "declared_public": {e: why for e, why in lists.public.items() if e in self._met},
            "declared_public_not_met": sorted(set(lists.public) - self._met),
            "declared_sensitive": dict(lists.sensitive),
            "aliases": dict(lists.aliases),
        }

    def _add_aliases(self, surface: str, label: str) -> None:
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
    """Write sentences and hits, and collect the surfaces to look for elsewhere."""
    writer = SentenceWriter(work)
    with RowWriter(work / "hits.arrow", _HITS) as rows:
        batches = detect_batches(sentences, detection.detectors, detection.workers)
        for batch, hits_of_batch in batches:
            for sentence, hits in zip(batch, hits_of_batch, strict=True):
                for span, propagates in hits:
                    surface = sentence.text[span.start : span.end]
                    chosen = category_of(span.label) in detection.categories
                    if chosen and not linker.is_public(surface):
                        rows.append(writer.sentences, *span)
                        linker.add_hit(surface, span.label, propagates)
                writer.append(sentence)
            meter.advance(len(batch), position() if position else None)
    writer.close()
    return writer.sentences


def _second_pass(
    work: Path, count: int, detection: Detection, linker: _Linker, meter: Meter
) -> tuple[int, int]:
    """Write every mention with its canonical form; return the numbers of sentences and mentions."""
    hits = store.grouped_by_sentence(
        read_arrow(work / "hits.arrow", _HITS), count, ("start", "end", "label"), Span
    )
    writer = None
    if detection.normalised:
        (work / "normalised").mkdir()
        writer = SentenceWriter(work / "normalised")
    kept = 0
    with RowWriter(work / "linked.arrow", _LINKED) as rows:
        sentences = _metered(store.written_sentences(work), meter)
        for sentence, spans in zip(sentences, hits, strict=True):
            text = sentence.text
            spans = sorted({*spans, *linker.find(text)})
            names = [linker.canon(text[span.start : span.end]) for span in spans]
            moved: Sequence[Span | None] = spans
            if writer:
                marks = len(sentence.marks)
                text, both = normalise(text, [*sentence.marks, *spans])
                if not text:
                    continue
                moved = both[marks:]
                writer.append(replace(sentence, text=text, marks=tuple(filter(None, both[:marks]))))
            for span, name in zip(moved, names, strict=True):
                if span is not None:
                    category = _CATEGORY_NUMBER[category_of(span.label)]
                    rows.append(kept, *span, category, name, text[span.start : span.end])
            kept += 1
    if writer:
        writer.close()
        for path in (work / "normalised").iterdir():
            path.replace(work / path.name)
        (work / "normalised").rmdir()
    return kept, rows.rows


def _metered(sentences: Iterable[Sentence], meter: Meter) -> Iterator[Sentence]:
    for number, sentence in enumerate(sentences, 1):
        yield sentence
        if number % 1000 == 0:
            meter.advance(1000)


def _number_and_count(work: Path, meter: Meter) -> tuple[int, int]:
    """Number entities by first mention; write the final tables and the incidence."""
    linked = read_arrow(work / "linked.arrow", _LINKED)
    names = linked["name"].dictionary_encode()
    numbers = [np.asarray(chunk.indices, dtype=np.int32) for chunk in names.chunks]
    entity = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int32)
    # ids are in order of first appearance: a new one is where the running maximum rises
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
    users = read_arrow(work / "users.arrow", store.USERS).num_rows
    incidence = Incidence.build(
        read_arrow(work / "sentences.arrow", store.SENTENCES)["user"].to_numpy(),
        linked["sentence"].to_numpy(),
        entity,
        users,
        len(first),
    )
    incidence.save(work / FOLDER)
    return users, len(first)


def _region(detectors: Sequence[str]) -> str:
    """The region of phone numbers without a country code: that of `patterns:REGION`."""
    for name in detectors:
        kind, _, argument = name.partition(":")
        if kind == "patterns" and argument:
            return argument.upper()
    return "US"
