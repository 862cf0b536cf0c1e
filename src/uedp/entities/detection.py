"""From a stream of sentences to a corpus on disk: detect, propagate, link, count.

Pass one runs the detectors over the stream and writes sentences and hits. Pass two reads them
back, finds every other mention of what was hit, applies the lists and gives each mention its
canonical form. Then entities are numbered and the incidence is built. Text is held a batch at a
time throughout; what grows with the corpus in memory is the table of users, the table of
distinct entities, and a few bytes per sentence and mention.
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
    ENTITIES,
    MENTIONS,
    Corpus,
    RowWriter,
    SentenceWriter,
    grouped,
    new_folder,
    read_table,
    write_manifest,
)
from uedp.entities import parallel
from uedp.entities.canonical import Canon
from uedp.entities.categories import BASE, category_of
from uedp.entities.lists import Lists
from uedp.entities.parallel import Hit
from uedp.entities.propagation import KnownSurfaces
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence
from uedp.progress import SILENT, Progress

_CATEGORY_NUMBER = {name: number for number, name in enumerate(BASE)}
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
            raise UserError("--detector: name at least one detector")
        if self.workers < 1:
            raise UserError(f"--workers {self.workers}: at least one is needed")


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
        propagation and the deny-list add, less what the allow-list declares public
      - mentions with the same canonical form are one entity, whoever wrote them
      - `out` appears complete or not at all
    """
    with new_folder(Path(out), overwrite) as work:
        known = _known_from(detection.lists)
        with progress.stage("detecting", total, "sentences") as meter:
            count, dropped = _first_pass(sentences, work, detection, known, meter, position)
        with progress.stage("linking", count, "sentences") as meter:
            used_public = _second_pass(work, count, detection, known, meter)
        with progress.stage("counting", None, "mentions"):
            users, entities, mentions = _number_and_count(work)
        (work / "hits.arrow").unlink()
        (work / "linked.arrow").unlink()
        write_manifest(
            work,
            {
                "uedp": uedp.__version__,
                "users": users,
                "sentences": count,
                "entities": entities,
                "mentions": mentions,
                "source": origin or {},
                "detectors": list(detection.detectors),
                "categories": sorted(detection.categories),
                "propagated": detection.propagate,
                "normalised": detection.normalised,
                "empty_after_normalising": dropped,
                "declared_public": used_public,
            },
        )
    return Corpus(out)


def _first_pass(
    sentences: Iterable[Sentence],
    work: Path,
    detection: Detection,
    known: KnownSurfaces,
    meter: Any,
    position: Callable[[], int] | None,
) -> tuple[int, int]:
    """Write sentences and hits; collect the surfaces to look for elsewhere."""
    dropped = 0
    writer = SentenceWriter(work)
    with RowWriter(work / "hits.arrow", _HITS) as rows:
        for batch, found in parallel.detect(sentences, detection.detectors, detection.workers):
            for original, hits in zip(batch, found, strict=True):
                chosen = [h for h in hits if category_of(h.span.label) in detection.categories]
                sentence: Sentence | None = original
                if detection.normalised:
                    sentence, chosen = _normalised(original, chosen)
                if sentence is None:
                    dropped += 1
                    continue
                for span, propagates in chosen:
                    rows.append(writer.sentences, *span)
                    if propagates and detection.propagate:
                        known.add(sentence.text[span.start : span.end], span.label)
                writer.append(sentence)
            meter.advance(len(batch), position() if position else None)
    writer.close()
    return writer.sentences, dropped


def _normalised(sentence: Sentence, hits: Sequence[Hit]) -> tuple[Sentence | None, list[Hit]]:
    """Normalised after detection, which needs case and punctuation; None if nothing is left."""
    spans = [*sentence.marks, *(hit.span for hit in hits)]
    text, moved = normalise(sentence.text, spans)
    if not text:
        return None, []
    marks = tuple(span for span in moved[: len(sentence.marks)] if span)
    kept = [
        Hit(span, hit.propagates)
        for span, hit in zip(moved[len(sentence.marks) :], hits, strict=True)
        if span
    ]
    return replace(sentence, text=text, marks=marks), kept


def _second_pass(
    work: Path, count: int, detection: Detection, known: KnownSurfaces, meter: Any
) -> dict[str, str]:
    """Write every mention with its canonical form; return the public entities met, with reasons."""
    canon = Canon(detection.lists.aliases, _region(detection.detectors))
    public = {canon(entity): (entity, why) for entity, why in detection.lists.public.items()}
    met: dict[str, str] = {}
    hits = grouped(read_table(work / "hits.arrow"), count, ("start", "end", "label"), Span)
    with RowWriter(work / "linked.arrow", _LINKED) as rows:
        for number, (text, spans) in enumerate(zip(_texts(work, meter), hits, strict=True)):
            if known:
                spans = [*spans, *known.find(text, spans)]
            for start, end, label in sorted(set(spans)):
                surface = text[start:end]
                name = canon(surface)
                if name in public:
                    entity, why = public[name]
                    met[entity] = why
                else:
                    category = _CATEGORY_NUMBER[category_of(label)]
                    rows.append(number, start, end, label, category, name, surface)
    return met


def _texts(work: Path, meter: Any) -> Iterator[str]:
    for batch in read_table(work / "sentences.arrow").select(["text"]).to_batches():
        yield from batch.column(0).to_pylist()
        meter.advance(batch.num_rows)


def _number_and_count(work: Path) -> tuple[int, int, int]:
    """Number entities by first mention, write the final tables and the incidence."""
    linked = read_table(work / "linked.arrow")
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
    users = read_table(work / "users.arrow").num_rows
    incidence = Incidence.build(
        read_table(work / "sentences.arrow")["user"].to_numpy(),
        linked["sentence"].to_numpy(),
        entity,
        users,
        len(first),
    )
    incidence.save(work / FOLDER)
    return users, len(first), len(entity)


def _known_from(lists: Lists) -> KnownSurfaces:
    known = KnownSurfaces()
    for entity, category in lists.sensitive.items():
        known.add(entity, category, any_case=True)
    return known


def _region(detectors: Sequence[str]) -> str:
    """Where phone numbers without a country code belong: what `patterns:REGION` says."""
    for name in detectors:
        kind, _, argument = name.partition(":")
        if kind == "patterns" and argument:
            return argument.upper()
    return "US"
