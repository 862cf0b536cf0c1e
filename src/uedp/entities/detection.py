"""From a stream of sentences to a corpus on disk: detect, weigh, link, count.

Pass one runs the detectors over the stream and writes sentences and raw hits. The hits are read
back to count how often each surface was found where it stands (`propagation`), then to link: hits
that are kept and other mentions of the surfaces that passed get their canonical forms, and the text
is normalised if asked: last, because the steps before need case and punctuation. Then entities are
numbered and the incidence is built. Text is held a batch at a time; memory grows only with the
users, the distinct entities, and a few bytes per sentence and mention.

Everything after pass one can be done again without the detectors, with other lists (`relink`).
"""

import shutil
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import uedp
from uedp.corpus import store
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.normalise import normalise
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import (
    ENTITIES,
    EVIDENCE,
    HITS,
    MENTIONS,
    Corpus,
    RowWriter,
    SentenceWriter,
    read_arrow,
)
from uedp.entities.canonical import Canon, strict_form
from uedp.entities.categories import DEFAULT, category_of, expand_categories
from uedp.entities.detectors import detector_version
from uedp.entities.lists import Lists, public_list
from uedp.entities.parallel import Hits, detect_batches
from uedp.entities.propagation import Evidence, KnownSurfaces, Rule
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence
from uedp.progress import SILENT, Meter, Progress

CATEGORY_NUMBER = {name: number for number, name in enumerate(store.CATEGORIES)}
LINKED = pa.schema(
    [*list(MENTIONS)[:-1], *ENTITIES, pa.field("detectors", pa.int64(), nullable=False)]
)


@dataclass(frozen=True)
class Detection:
    """The detectors, and how their hits are used."""

    detectors: tuple[str, ...]
    categories: frozenset[str] = DEFAULT
    propagate: bool = True
    normalised: bool = False
    lists: Lists = field(default_factory=Lists)
    rule: Rule = field(default_factory=Rule)
    workers: int = 1

    def __post_init__(self) -> None:
        if not self.detectors:
            raise UserError("`detectors=...`: name at least one detector")
        if len(self.detectors) > store.MAX_DETECTORS:
            raise UserError(f"`detectors=...`: at most {store.MAX_DETECTORS} of them")
        if self.workers < 1:
            raise UserError(f"`workers={self.workers}`: at least one is needed")


def detect(
    sentences: Iterable[Sentence],
    out: Path | str,
    detection: Detection,
    *,
    origin: Mapping[str, Any] | None = None,
    position: Callable[[], int] | None = None,
    total: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Corpus:
    """Write the corpus of these sentences to the folder `out`, with mentions and incidence.

    Args:
        origin: recorded in the manifest as the source
        position: for the progress bar, the bytes of the source read so far
        total: the bytes of the source in all

    Guarantees:
      - a sentence's mentions are all hits of any detector in the chosen categories, and what
        propagation, the deny-list and aliases add, less those whose surface is public, and less
        hits of models that are dropped as noise (`propagation.Evidence.dropped`)
      - mentions with the same canonical form are one entity, whoever wrote them
      - `out` appears complete or not at all
    """
    with new_corpus_folder(Path(out), overwrite) as work:
        batches = on_this_machine(sentences, detection, position)
        detect_into(work, batches, detection, origin, total, progress)
    return Corpus(out)


# Batches of sentences in order, with their hits; progress is reported while they are made.
Batches = Callable[[Meter], Iterable[tuple[Sequence[Sentence], Hits]]]


def on_this_machine(
    sentences: Iterable[Sentence | None],
    detection: Detection,
    position: Callable[[], int] | None = None,
) -> Batches:
    """Run the detectors in this process, or in several of this machine; None ends a batch."""

    def batches(meter: Meter) -> Iterator[tuple[Sequence[Sentence], Hits]]:
        for each in detect_batches(sentences, detection.detectors, detection.workers):
            yield each
            meter.advance(len(each[0]), position() if position else None)

    return batches


def detect_into(
    work: Path,
    batches: Batches,
    detection: Detection,
    origin: Mapping[str, Any] | None = None,
    total: int | None = None,
    progress: Progress = SILENT,
) -> None:
    """Write the files of a corpus to a folder, see `detect`.

    `origin` may be filled in while the sentences are read.
    """
    with progress.stage("detecting", total, "sentences") as meter:
        first_pass(batches(meter), work, SentenceWriter(work))
    linked = _link(work, detection, progress)
    versions = {name: detector_version(name) for name in detection.detectors}
    _write_manifest(work, detection, linked, origin or {}, versions)


def relink(
    corpus: Corpus,
    out: Path | str | None = None,
    *,
    lists: Lists | None = None,
    categories: Iterable[str] | None = None,
    propagate: bool | None = None,
    rule: Rule | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Corpus:
    """Link the raw hits of a corpus again, with other lists or categories; no detector runs.

    Args:
        out: a new folder; None replaces the corpus itself. Either way the ledger is the same: the
            texts are, so that what was spent on them stays spent
        lists: instead of those the corpus was made with (see `lists_of` and `Lists.with_more`)
        categories, propagate, rule: None keeps what the corpus was made with

    Guarantees:
      - apart from what a coverage recorded, the result is byte for byte the corpus that `detect`
        writes with these lists, if the detectors find the same again
      - `out` appears complete or not at all; the corpus stays as it was until then
    """
    source, target = corpus.folder, corpus.folder if out is None else Path(out)
    given: dict[str, Any] = {"lists": lists, "categories": categories, "propagate": propagate}
    detection = _settings_of(corpus, **given, rule=rule)
    with new_corpus_folder(target, overwrite or out is None, same_texts_as=source) as work:
        _relink_into(work, corpus, detection, progress)
    return Corpus(target)


def relink_trial(
    work: Path,
    corpus: Corpus,
    *,
    lists: Lists | None = None,
    categories: Iterable[str] | None = None,
    propagate: bool | None = None,
    detectors: Iterable[str] | None = None,
    progress: Progress = SILENT,
) -> Corpus:
    """What `relink` would make of a corpus, in an empty folder to look at. It has no ledger.

    Args:
        detectors: as if only these had run; None for all

    Guarantees:
      - the corpus itself is only read
      - mentions, entities and incidence are those that `detect` finds with these detectors
    """
    detection = _settings_of(corpus, lists=lists, categories=categories, propagate=propagate)
    used = set(corpus.detectors if detectors is None else detectors)
    _relink_into(work, corpus, detection, progress, used)
    return Corpus(work)


def _settings_of(
    corpus: Corpus,
    lists: Lists | None = None,
    categories: Iterable[str] | None = None,
    propagate: bool | None = None,
    rule: Rule | None = None,
) -> Detection:
    """The settings of a corpus with those given instead; what is copied from it is checked."""
    if len(corpus.epochs) > 1:
        raise UserError(
            f"{corpus.folder}: was extended, and the entities of its epochs keep their ids; "
            "correct a corpus before it is extended, or detect all texts anew"
        )
    _ = corpus.hits, corpus.sentences, corpus.user_names
    known = detection_of(corpus)
    return replace(
        known,
        categories=known.categories if categories is None else expand_categories(categories),
        propagate=known.propagate if propagate is None else propagate,
        lists=known.lists if lists is None else lists,
        rule=known.rule if rule is None else rule,
    )


def _relink_into(
    work: Path,
    corpus: Corpus,
    detection: Detection,
    progress: Progress,
    detectors: Container[str] | None = None,
) -> None:
    with _refusing_unreadable(corpus):
        origin = dict(corpus.info["source"])
        versions = dict(corpus.info["detector_versions"])
    for name in ("sentences.arrow", "users.arrow"):
        shutil.copyfile(corpus.folder / name, work / name)
    kept = [detectors is None or name in detectors for name in corpus.detectors]
    if all(kept):
        shutil.copyfile(corpus.folder / "hits.arrow", work / "hits.arrow")
    else:
        with RowWriter(work / "hits.arrow", HITS) as rows:
            for batch in corpus.hits.to_batches():
                chosen = np.array(kept)[batch.column("detector").to_numpy()]
                rows.write(batch.filter(pa.array(chosen)))
    linked = _link(work, detection, progress)
    _write_manifest(work, detection, linked, origin, versions)


def detection_of(corpus: Corpus) -> Detection:
    """The detectors, lists and rules that a corpus was made with."""
    info = corpus.info
    with _refusing_unreadable(corpus):
        return Detection(
            detectors=corpus.detectors,
            categories=expand_categories(info["categories"]),
            propagate=bool(info["propagated"]),
            lists=lists_of(corpus),
            rule=Rule(**info["propagation"]["rule"]),
        )


def lists_of(corpus: Corpus) -> Lists:
    """The lists that a corpus was made with."""
    info = corpus.info
    with _refusing_unreadable(corpus):
        return Lists(
            public={**info["declared_public"], **info["declared_public_not_met"]},
            sensitive=dict(info["declared_sensitive"]),
            aliases=dict(info["aliases"]),
            shipped=tuple(info["public_lists"]),
        )


@contextmanager
def _refusing_unreadable(corpus: Corpus) -> Iterator[None]:
    """Refuse a manifest whose settings are not those that `detect` writes."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        path = corpus.folder / "corpus.json"
        raise UserError(f"{path}: its lists or rules cannot be read; detect it again") from None


class Hit(NamedTuple):
    """A raw hit: the span, the number of its detector, and whether that is a model's."""

    start: int
    end: int
    label: str
    detector: int
    propagates: bool

    @property
    def span(self) -> Span:
        return Span(*self[:3])


def first_pass(
    batches: Iterable[tuple[Sequence[Sentence], Hits]], work: Path, writer: SentenceWriter
) -> None:
    """Write sentences and raw hits."""
    with RowWriter(work / "hits.arrow", HITS) as rows:
        for batch, hits_of_batch in batches:
            for sentence, hits in zip(batch, hits_of_batch, strict=True):
                for span, detector, propagates in hits:
                    rows.append(writer.sentences, *span, detector, propagates)
                writer.append(sentence)
    writer.close()


def _link(work: Path, detection: Detection, progress: Progress) -> dict[str, Any]:
    """Everything after pass one, in a folder with sentences and hits; fields of the manifest."""
    count = read_arrow(work / "sentences.arrow", store.SENTENCES).num_rows
    linker = Linker(detection)
    with progress.stage("weighing", 2 * count, "sentences") as meter:
        linker.weigh(lambda: _texts_with_hits(work, count, meter))
    with progress.stage("linking", count, "sentences") as meter:
        kept, mentions = _write_mentions(work, count, detection, linker, meter)
    with progress.stage("counting", mentions, "mentions") as meter:
        users, entities, added = _number_and_count(work, linker, meter)
    (work / "linked.arrow").unlink()
    hits: int | None = read_arrow(work / "hits.arrow", HITS).num_rows
    if detection.normalised:
        (work / "hits.arrow").unlink()  # they are places in a text that is not kept
        hits = None
    return {
        "users": users,
        "sentences": kept,
        "entities": entities,
        "mentions": mentions,
        "hits": hits,
        "empty_after_normalising": count - kept,
        "propagation": {**linker.report(), "mentions_added": added},
        **linker.lists_used(),
    }


def _write_manifest(
    work: Path,
    detection: Detection,
    linked: Mapping[str, Any],
    origin: Mapping[str, Any],
    versions: Mapping[str, str],
) -> None:
    store.write_manifest(
        work,
        {
            "uedp": uedp.__version__,
            **linked,
            "source": origin,
            "detectors": list(detection.detectors),
            "detector_versions": versions,
            "categories": sorted(detection.categories),
            "propagated": detection.propagate,
            "normalised": detection.normalised,
        },
    )


class Linker:
    """The entities known while a corpus is linked: surfaces to find, lists, canonical forms."""

    def __init__(self, detection: Detection) -> None:
        lists = detection.lists
        self.canon = Canon(lists.aliases, region_of(detection.detectors))
        self._lists = lists
        self._categories = detection.categories
        self._propagate = detection.propagate
        self._public = {strict_form(entity): entity for entity in lists.public}
        self._shipped = lists.shipped_forms()
        self._met: set[str] = set()
        self.evidence = Evidence(detection.rule)
        self.known = KnownSurfaces()
        self._dropped: Counter[str] = Counter()
        for entity, category in sorted(lists.sensitive.items()):
            self.known.add(entity, category, always=True)
            self.add_aliases(entity, category)

    def weigh(self, texts_with_hits: Callable[[], Iterator[tuple[str, str, list[Hit]]]]) -> None:
        """Decide which surfaces to look for, from two readings of all texts and their hits."""
        for user, text, hits in texts_with_hits():
            self.note(user, text, hits)
        for user, text, hits in texts_with_hits():
            self.count(user, text, hits)
        self.spread()

    def note(self, user: str, text: str, hits: Sequence[Hit]) -> None:
        """The first reading of a text: what was hit."""
        candidates = set(self._candidates(text, hits))
        for hit in hits:
            surface = text[hit.start : hit.end]
            if hit not in candidates:
                self.evidence.add_other(surface)
                continue
            if hit.propagates:
                self.evidence.add(surface, hit.label, user)
            self.add_aliases(surface, hit.label)

    def count(
        self, user: str, text: str, hits: Sequence[Hit], evidence: Evidence | None = None
    ) -> None:
        """The second reading of a text: where the surfaces that were hit stand."""
        found = [hit.span for hit in self._candidates(text, hits)]
        (self.evidence if evidence is None else evidence).count(text, found, user)

    def spread(self) -> None:
        """Decide, once everything is counted."""
        if self._propagate:
            self.known.add_evidence(self.evidence)

    def kept(self, text: str, hits: Sequence[Hit], counted: bool = True) -> list[Hit]:
        """The hits that are mentions where they were made; what is dropped is counted."""
        result = []
        for hit in self._candidates(text, hits):
            reason = self.evidence.dropped(text[hit.start : hit.end]) if hit.propagates else None
            if counted:
                self._dropped[reason or ""] += 1
            if reason is None:
                result.append(hit)
        return result

    def find(self, text: str, hits: Sequence[Hit], user: str) -> list[Span]:
        """Mentions of known surfaces in a user's text that are not public."""
        if not self.known:
            return []
        spans = self.known.find(text, [hit.span for hit in hits], user)
        return [s for s in spans if not self._is_public(text, s)]

    def link(
        self, text: str, hits: Sequence[Hit], user: str
    ) -> tuple[list[Span], list[str], list[int]]:
        """The mentions in a user's text: places, canonical forms, and bits of their detectors."""
        hits = self.kept(text, hits)
        spans = sorted({*(hit.span for hit in hits), *self.find(text, hits, user)})
        names = [self.canon(text[span.start : span.end]) for span in spans]
        detectors: dict[tuple[int, int], int] = {}  # bits, by extent
        for hit in hits:
            bits = detectors.get(hit[:2], 0)
            detectors[hit[:2]] = bits | 1 << hit.detector
        return spans, names, [detectors.get(span[:2], 0) for span in spans]

    def unfound(self) -> dict[str, int]:
        """By canonical form: places where an entity's words stand that are no mentions."""
        result: Counter[str] = Counter()
        for surface, places in self.evidence.unfound(self.known):
            result[self.canon(surface)] += places
        return result

    def report(self) -> dict[str, Any]:
        """What became of the hits, for the manifest: counts, no names."""
        dropped = {reason: count for reason, count in sorted(self._dropped.items()) if reason}
        return {
            "rule": asdict(self.evidence.rule),
            "hits": self._dropped.total(),
            "dropped": dropped,
            "surfaces": dict(sorted(self.evidence.outcomes().items())) if self._propagate else {},
        }

    def lists_used(self) -> dict[str, Any]:
        """The lists, for the manifest."""
        lists = self._lists
        public = sorted(lists.public.items())
        return {
            "public_lists": {name: str(public_list(name)) for name in lists.shipped},
            "declared_public": {e: why for e, why in public if e in self._met},
            "declared_public_not_met": {e: why for e, why in public if e not in self._met},
            "declared_sensitive": dict(sorted(lists.sensitive.items())),
            "aliases": dict(sorted(lists.aliases.items())),
        }

    def _candidates(self, text: str, hits: Sequence[Hit]) -> list[Hit]:
        """Hits of the chosen categories that are not public."""
        return [
            hit
            for hit in hits
            if category_of(hit.label) in self._categories and not self._is_public(text, hit.span)
        ]

    def _is_public(self, text: str, span: Span) -> bool:
        surface = text[span.start : span.end]
        if self._declared_public(surface):
            return True
        if not self._shipped or category_of(span.label) == "person":
            return False  # a person called Jordan, April or Chad
        return strict_form(surface).removeprefix("the ") in self._shipped

    def _declared_public(self, surface: str) -> bool:
        entity = self._public.get(strict_form(surface)) if self._public else None
        if entity is not None:
            self._met.add(entity)
        return entity is not None

    def add_aliases(self, surface: str, label: str) -> None:
        if self._lists.aliases:
            for name in self.canon.other_names(self.canon(surface)):
                if not self._declared_public(name):
                    self.known.add(name, label)


def hits_by_sentence(work: Path, count: int) -> Iterator[list[Hit]]:
    table = read_arrow(work / "hits.arrow", HITS)
    return store.grouped_by_sentence(table, count, Hit._fields, Hit)


def _texts_with_hits(work: Path, count: int, meter: Meter) -> Iterator[tuple[str, str, list[Hit]]]:
    hits = hits_by_sentence(work, count)
    names = read_arrow(work / "users.arrow", store.USERS)["name"].to_pylist()
    for batch in read_arrow(work / "sentences.arrow", store.SENTENCES).to_batches():
        users, texts = (batch.column(name).to_pylist() for name in ("user", "text"))
        for user, text in zip(users, texts, strict=True):
            yield names[user], text, next(hits)
        meter.advance(batch.num_rows)


def _write_mentions(
    work: Path, count: int, detection: Detection, linker: Linker, meter: Meter
) -> tuple[int, int]:
    """Write every mention with its canonical form; return the numbers of sentences and mentions."""
    writer = None
    if detection.normalised:
        (work / "normalised").mkdir()
        writer = SentenceWriter(work / "normalised")
    kept = 0
    with RowWriter(work / "linked.arrow", LINKED) as rows:
        sentences = _metered(store.written_sentences(work), meter)
        for sentence, hits in zip(sentences, hits_by_sentence(work, count), strict=True):
            text = sentence.text
            spans, names, masks = linker.link(text, hits, sentence.user)
            moved: Sequence[Span | None] = spans
            if writer:
                marks = len(sentence.marks)
                text, both = normalise(text, [*sentence.marks, *spans])
                if not text:
                    continue
                moved = both[marks:]
                writer.append(replace(sentence, text=text, marks=tuple(filter(None, both[:marks]))))
            for span, name, mask in zip(moved, names, masks, strict=True):
                if span is not None:
                    category = CATEGORY_NUMBER[category_of(span.label)]
                    surface = text[span.start : span.end]
                    rows.append(kept, *span, category, name, surface, mask)
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


def _number_and_count(work: Path, linker: Linker, meter: Meter) -> tuple[int, int, int]:
    """Number entities by first mention; write the final tables and the incidence.

    Returns the numbers of users, of entities, and of mentions that no detector hit.
    """
    linked = read_arrow(work / "linked.arrow", LINKED)
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
    names_in_order = names.unify_dictionaries() if names.num_chunks else names
    known = names_in_order.chunk(0).dictionary.to_pylist() if names.num_chunks else []
    _write_evidence(work / "evidence.arrow", linked, entity, known, linker.unfound())
    users = read_arrow(work / "users.arrow", store.USERS).num_rows
    incidence = Incidence.build(
        read_arrow(work / "sentences.arrow", store.SENTENCES)["user"].to_numpy(),
        linked["sentence"].to_numpy(),
        entity,
        users,
        len(first),
    )
    incidence.save(work / FOLDER)
    return users, len(first), int((linked["detectors"].to_numpy() == 0).sum())


def _write_evidence(
    path: Path,
    linked: pa.Table,
    entity: npt.NDArray[np.int32],
    names: Sequence[str],
    unfound: Mapping[str, int],
) -> None:
    """For every entity: in how many places it was hit, in how many it stands, and by which."""
    sentence, start, end, detectors = (
        linked[name].to_numpy() for name in ("sentence", "start", "end", "detectors")
    )
    # two labels of one place stand next to each other
    new = np.ones(len(entity), dtype=np.bool_)
    new[1:] = (np.diff(sentence) != 0) | (np.diff(start) != 0) | (np.diff(end) != 0)
    found = np.bincount(entity[new & (detectors != 0)], minlength=len(names))
    places = np.bincount(entity[new], minlength=len(names))
    places += np.array([unfound.get(name, 0) for name in names], dtype=places.dtype)
    by = np.zeros(len(names), dtype=np.int64)
    np.bitwise_or.at(by, entity, detectors)
    with RowWriter(path, EVIDENCE) as rows:
        rows.write(
            pa.record_batch([pa.array(c, pa.int64()) for c in (found, places, by)], EVIDENCE)
        )


def region_of(detectors: Sequence[str]) -> str:
    """The region of phone numbers without a country code: that of `patterns:REGION`."""
    for name in detectors:
        kind, _, argument = name.partition(":")
        if kind == "patterns" and argument:
            return argument.upper()
    return "US"
