"""A new epoch of a corpus: more sentences, users and entities, and users who leave.

New text is detected and linked as if all texts had been detected together: what models found in
the epochs before counts as evidence. Older text keeps its mentions, and gets those of surfaces that
count only now. Where these stand is looked up in the index of each epoch (`uedp.corpus.index`);
then the rule that `detect` follows decides, on the sentences found.

The first extension reads the whole corpus once, to make the index of its first epoch.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import uedp
from uedp import files
from uedp.corpus import store
from uedp.corpus.epochs import FORMAT, MANIFEST, Epoch, epoch_folder, incidence_digest
from uedp.corpus.index import Index, WordPlaces, write_index
from uedp.corpus.lookup import SentenceLookup
from uedp.corpus.records import quoted, user_name
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import (
    ENTITIES,
    EPOCH_EVIDENCE,
    HITS,
    MENTIONS,
    SENTENCES,
    Corpus,
    RowWriter,
    SentenceWriter,
    read_arrow,
)
from uedp.entities.categories import category_of
from uedp.entities.detection import (
    CATEGORY_NUMBER,
    LINKED,
    Detection,
    Hit,
    Linker,
    first_pass,
    hits_by_sentence,
    on_this_machine,
)
from uedp.entities.detectors import detector_version
from uedp.entities.propagation import Evidence, Key, parts, runs_of
from uedp.entities.words import words
from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.progress import SILENT, Progress
from uedp.signals import deferred


@dataclass(frozen=True)
class Extension:
    """What an epoch added. `late` are mentions found in older text."""

    corpus: Corpus
    epoch: Epoch
    late: int
    left: int
    left_out: int  # sentences of users who have left


def extend(
    corpus: Corpus,
    sentences: Iterable[Sentence],
    detection: Detection,
    *,
    forget: Sequence[str] = (),
    origin: dict[str, Any] | None = None,
    position: Callable[[], int] | None = None,
    total: int | None = None,
    progress: Progress = SILENT,
) -> Extension:
    """Append sentences to a corpus as its next epoch; users to `forget` leave when it begins.

    `origin` may be filled in while the sentences are read.

    Guarantees:
      - the epoch appears complete or not at all; nothing that is there is changed
      - ids of users, sentences and entities stay; the same name is the same user, and the same
        canonical form the same entity, in all epochs
      - no mention is lost; new text has those of `detect` with all evidence so far
      - time and memory grow with the new text, and with the places of its new surfaces in the old
    """
    _refuse_unfit(corpus, detection)
    number = len(corpus.epochs) + 1
    target = epoch_folder(corpus.folder, number)
    with files.scratch_dir(target) as scratch:
        work = scratch / "new"
        work.mkdir(mode=0o700)
        paths = [_index_path(corpus.folder, epoch.number) for epoch in corpus.epochs]
        if number == 2:
            paths = [work / paths[0].name]
            _index_first(corpus, detection, paths[0], progress)
        with Index(paths) as index:
            builder = _Builder(corpus, detection, index, work, forget)
            with progress.stage("detecting", total, "sentences") as meter:
                builder.read(
                    sentences,
                    lambda texts, writer: first_pass(
                        on_this_machine(texts, detection, position)(meter), work, writer
                    ),
                )
            with progress.stage("linking", builder.count, "sentences") as meter:
                builder.link()
                meter.advance(builder.count)
        manifest = json.dumps(builder.manifest(number, origin or {}), indent=2) + "\n"
        (work / MANIFEST).write_text(manifest, encoding="utf-8")
        with deferred():
            files.make_private(work)
            files.fsync_tree(work)
            try:
                work.rename(target)
            except OSError:
                raise UserError(
                    f"{corpus.folder}: was extended by another process meanwhile; do it again"
                ) from None
            files.fsync_path(target.parent)
            files.fsync_path(corpus.folder)
    grown = Corpus(corpus.folder, number)
    epoch = grown.epochs[-1]
    return Extension(grown, epoch, builder.late, len(epoch.left), builder.left_out)


def _refuse_unfit(corpus: Corpus, detection: Detection) -> None:
    if corpus.info.get("normalised") or type(corpus.info.get("hits")) is not int:
        _ = corpus.hits  # says why
    if "propagation" not in corpus.info:
        raise UserError(f"{corpus.folder}: was made by an earlier version; detect it again")
    if detection.detectors != corpus.detectors:
        raise UserError(f"{corpus.folder}: is extended with the detectors it was made with")


def _index_path(corpus: Path, epoch: int) -> Path:
    return epoch_folder(corpus, max(epoch, 2)) / f"index-{epoch:04d}.sqlite"


def _index_first(corpus: Corpus, detection: Detection, path: Path, progress: Progress) -> None:
    """Index the corpus as it was made: once, in time linear in it."""
    texts, count = corpus.sentences, len(corpus)
    _ = corpus.hits  # checked

    def all_texts() -> Iterator[tuple[int, str, list[Hit]]]:
        hits = hits_by_sentence(corpus.folder, count)
        for batch in texts.select(["user", "text"]).to_batches():
            for user, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield user, text, next(hits)

    linker, places = Linker(detection), WordPlaces()
    with progress.stage("indexing", 2 * count, "sentences") as meter:
        for number, (user, text, hits) in enumerate(all_texts()):
            linker.note(str(user), text, hits)
            places.add(number, (word for word, _, _ in words(text)))
            meter.advance(1)
        for user, text, hits in all_texts():
            linker.count(str(user), text, hits)
            meter.advance(1)
    entity, first = np.unique(corpus.mentions["entity"].to_numpy(), return_index=True)
    labels = corpus.mentions["label"].take(pa.array(first)).to_pylist()
    names = corpus.entities["name"].take(pa.array(entity)).to_pylist()
    _write_index(
        path,
        places,
        ((name, user) for user, name in enumerate(corpus.user_names.to_pylist())),
        zip(names, entity.tolist(), labels, strict=True),
        linker.evidence,
    )


def _write_index(
    path: Path,
    places: WordPlaces,
    users: Iterable[tuple[str, int]],
    entities: Iterable[tuple[str, int, str]],
    evidence: Evidence,
) -> None:
    own = {(int(user), key): forms for (user, key), forms in evidence.own_counts().items()}
    write_index(path, places, users, entities, evidence.counts(), own)


class _Any(Container[Key]):
    def __contains__(self, key: object) -> bool:
        return True


class _Builder:
    """Writes the files of one epoch."""

    def __init__(
        self, corpus: Corpus, detection: Detection, index: Index, work: Path, forget: Sequence[str]
    ) -> None:
        self._corpus, self._detection, self._index, self._work = corpus, detection, index, work
        info = corpus.info
        self._before = [info[name] for name in ("users", "sentences", "entities")]
        self._users: dict[str, int | None] = {}
        self._leaving = self._leavers(forget)
        self._gone = corpus.left | set(self._leaving)
        self.count = self.late = self.left_out = 0
        self._info: dict[str, Any] = {}

    def _leavers(self, names: Sequence[str]) -> list[int]:
        users = []
        for name in dict.fromkeys(map(user_name, names)):
            user = self._user(name)
            if user is None:
                raise UserError(f"`forget={quoted(name, 40)}`: no user of this corpus")
            if user in self._corpus.left:
                raise UserError(f"`forget={quoted(name, 40)}`: has left already")
            users.append(user)
        return sorted(users)

    def _user(self, name: str) -> int | None:
        """The id of a user of an earlier epoch."""
        if name not in self._users:
            self._users[name] = self._index.users([name]).get(name)
        return self._users[name]

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        sentences: Iterable[Sentence],
        detect: Callable[[Iterable[Sentence], SentenceWriter], None],
    ) -> None:
        """Write the sentences of users who have not left, and the hits in them."""

        def staying() -> Iterator[Sentence]:
            for sentence in sentences:
                if self._user(user_name(sentence.user)) in self._gone:
                    self.left_out += 1
                else:
                    yield sentence

        writer = SentenceWriter(self._work, self._user, self._before[0])
        detect(staying(), writer)
        self.count = writer.sentences
        if not self.count and not self._leaving:
            raise UserError("nothing to add: the new data has no sentence, and nobody leaves")

    def _texts(self) -> Iterator[tuple[int, str, list[Hit]]]:
        hits = hits_by_sentence(self._work, self.count)
        table = read_arrow(self._work / "sentences.arrow", SENTENCES)
        for batch in table.select(["user", "text"]).to_batches():
            for user, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield user, text, next(hits)

    # --- linking ---------------------------------------------------------------------------------

    def link(self) -> None:
        """Everything after detection."""
        linker, places = Linker(self._detection), WordPlaces()
        earlier = Linker(self._detection)  # what counted before
        self._add_known_aliases(linker, earlier)
        for number, (user, text, hits) in enumerate(self._texts(), self._before[1]):
            linker.note(str(user), text, hits)
            places.add(number, (word for word, _, _ in words(text)))
        old, added = earlier.evidence, linker.evidence
        self._load_known(old, added, places)
        for user, text, hits in self._texts():
            linker.count(str(user), text, hits)
        self._count_in_old(linker, added, [key for key in added.keys if key not in old.keys])
        linker.evidence = _sum(self._detection, old, added)
        linker.spread()
        earlier.spread()
        before = earlier.known.rules()
        sought = {key for key, rule in linker.known.rules().items() if before.get(key) != rule}
        with RowWriter(self._work / "linked.arrow", LINKED) as rows:
            self.late = self._link_old(linker, sought, rows)
            for number, (user, text, hits) in enumerate(self._texts(), self._before[1]):
                for span, name, mask in zip(*linker.link(text, hits, str(user)), strict=True):
                    surface = text[span.start : span.end]
                    category = CATEGORY_NUMBER[category_of(span.label)]
                    rows.append(number, *span, category, name, surface, mask)
        self._finish(linker, added, places)

    def _add_known_aliases(self, *linkers: Linker) -> None:
        """Other names of the entities that older text mentions."""
        canon = linkers[0].canon
        names = {canon(name): name for name in self._detection.lists.aliases.values()}
        for form, (_, label) in self._index.entities(names).items():
            for linker in linkers:
                linker.add_aliases(names[form], label)

    def _load_known(self, old: Evidence, added: Evidence, places: WordPlaces) -> None:
        """Load what was counted before of the surfaces that the new text hits or contains."""
        lengths = {w: tuple(n) for w, n in self._index.lengths(places.words).items()}
        seen: set[Key] = set()
        of_users: set[tuple[int, Key]] = set()
        for user, text, _ in self._texts():
            for key, _, _ in runs_of(list(words(text)), lengths, _Any()):
                seen.add(key)
                if user < self._before[0]:
                    of_users.add((user, key))
        for key, counts in self._index.surfaces(seen | set(added.keys)):
            old.merge(key, counts)
        for key in seen & set(old.keys):
            added.watch(key)
        of_users |= {(int(user), key) for user, key in added.own_keys}
        for user, key, counts in self._index.own(of_users):
            old.merge_own(str(user), key, counts)
            added.watch(key, str(user))

    def _count_in_old(self, linker: Linker, added: Evidence, new: Sequence[Key]) -> None:
        """Count the places in older text of surfaces that were never hit there.

        Of surfaces that were, they are counted; only, if a user's own text had no hit of one, not
        for that user alone: the share of hits in it then comes out larger, and protects more.
        """
        fresh = Evidence(self._detection.rule)
        for key in new:
            fresh.watch(key)
        for user, key in added.own_keys:
            if key in fresh.keys:
                fresh.watch(key, user)
        for known in self._old_texts(new):
            hits = [Hit(*row) for row in known.hits]
            linker.count(str(known.user), known.text, hits, fresh)
        for key, counts in fresh.counts().items():
            added.merge(key, counts)
        for (user, key), forms in fresh.own_counts().items():
            added.merge_own(user, key, forms)

    def _old_texts(self, keys: Iterable[Key]) -> Iterator[Any]:
        found = [self._index.sentences(key) for key in keys]
        numbers: Ints = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < self._before[1]):
            raise UserError(f"{self._corpus.folder}: an index is damaged; restore it from a copy")
        return SentenceLookup(self._corpus).read(numbers.tolist())

    def _link_old(self, linker: Linker, sought: set[Key], rows: RowWriter) -> int:
        """Mentions in older text of surfaces that count since now, or in more places."""
        late = 0
        for known in self._old_texts(sorted(sought)):
            if known.user in self._gone:
                continue
            text = known.text
            kept = linker.kept(text, [Hit(*row) for row in known.hits], counted=False)
            spans = linker.find(text, kept, str(known.user))
            fits = [s for s in spans if parts(text[s.start : s.end])[0] in sought]
            names = [linker.canon(text[s.start : s.end]) for s in fits]
            ids = self._index.entities(names)
            there = {(start, end, entity) for start, end, _, _, entity in known.mentions}
            for span, name in sorted(zip(fits, names, strict=True)):
                entity = ids[name][0] if name in ids else None
                if (span.start, span.end, entity) in there:
                    continue
                category = CATEGORY_NUMBER[category_of(span.label)]
                surface = text[span.start : span.end]
                rows.append(known.number, *span, category, name, surface, 0)
                late += 1
        return late

    # --- writing ---------------------------------------------------------------------------------

    def _finish(self, linker: Linker, added: Evidence, places: WordPlaces) -> None:
        """Number entities by first mention; write tables and index."""
        work = self._work
        linked = read_arrow(work / "linked.arrow", LINKED)
        names = linked["name"].combine_chunks().dictionary_encode()
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        distinct = names.dictionary.to_pylist()
        known = self._index.entities(distinct)
        ids = np.zeros(len(distinct), dtype=np.int32)
        new: list[int] = []
        for place, name in enumerate(distinct):
            if name in known:
                ids[place] = known[name][0]
            else:
                ids[place] = self._before[2] + len(new)
                new.append(place)
        index = np.asarray(names.indices, dtype=np.int64)
        entity: Ints = ids[index] if len(distinct) else np.zeros(0, dtype=np.int32)
        first = np.zeros(len(distinct), dtype=np.int64)
        first[index[::-1]] = np.arange(len(index))[::-1]
        with RowWriter(work / "mentions.arrow", MENTIONS) as rows:
            done = 0
            for batch in linked.to_batches():
                here = pa.array(entity[done : done + batch.num_rows])
                columns = [batch.column(name) for name in MENTIONS.names[:-1]]
                rows.write(pa.record_batch([*columns, here], schema=MENTIONS))
                done += batch.num_rows
        firsts = linked.select([*ENTITIES.names, "label"]).take(pa.array(first[new]))
        with RowWriter(work / "entities.arrow", ENTITIES) as rows:
            for batch in firsts.select(ENTITIES.names).to_batches():
                rows.write(batch)
        _write_evidence(work / "evidence.arrow", linked, entity)
        self._shift_hits()
        numbers = range(self._before[2], self._before[2] + len(new))
        users = read_arrow(work / "users.arrow", store.USERS)["name"].to_pylist()
        _write_index(
            work / f"index-{len(self._corpus.epochs) + 1:04d}.sqlite",
            places,
            ((name, user) for user, name in enumerate(users, self._before[0])),
            zip(firsts["name"].to_pylist(), numbers, firsts["label"].to_pylist(), strict=True),
            added,
        )
        sentences = read_arrow(work / "sentences.arrow", SENTENCES)
        after = [
            b + n for b, n in zip(self._before, (len(users), self.count, len(new)), strict=True)
        ]
        new_text = linked["sentence"].to_numpy() >= self._before[1]
        self._info = {
            "users": len(users),
            "sentences": self.count,
            "entities": len(new),
            "mentions": linked.num_rows,
            "hits": read_arrow(work / "hits.arrow", HITS).num_rows,
            "late_mentions": self.late,
            "propagation": {
                **linker.report(),
                "mentions_added": int(((linked["detectors"].to_numpy() == 0) & new_text).sum()),
            },
            "own_text_digest": store.text_digest_of(sentences),
            "own_incidence_digest": incidence_digest(
                [*self._before, *after],
                sentences["user"].to_numpy(),
                linked["sentence"].to_numpy(),
                entity,
                self._leaving,
            ),
            "hits_digest": store.file_digest(work / "hits.arrow"),
        }
        (work / "linked.arrow").unlink()

    def _shift_hits(self) -> None:
        """Number the sentences of hits as those of the whole corpus."""
        path, shifted = self._work / "hits.arrow", self._work / "shifted.arrow"
        with RowWriter(shifted, HITS) as rows:
            for batch in read_arrow(path, HITS).to_batches():
                sentence = pa.array(batch.column("sentence").to_numpy() + self._before[1])
                rows.write(pa.record_batch([sentence, *batch.columns[1:]], schema=HITS))
        shifted.replace(path)

    def manifest(self, number: int, origin: dict[str, Any]) -> dict[str, Any]:
        last = self._corpus.epochs[-1]
        return {
            "format": FORMAT,
            "epoch": number,
            "previous": [last.incidence, last.texts],
            "uedp": uedp.__version__,
            **self._info,
            "left": self._leaving,
            "left_out": self.left_out,
            "source": origin,
            "detector_versions": {n: detector_version(n) for n in self._detection.detectors},
        }


def _sum(detection: Detection, *parts_: Evidence) -> Evidence:
    whole = Evidence(detection.rule)
    for part in parts_:
        for key, counts in part.counts().items():
            whole.merge(key, counts)
        for (user, key), forms in part.own_counts().items():
            whole.merge_own(user, key, forms)
    return whole


def _write_evidence(path: Path, linked: pa.Table, entity: Ints) -> None:
    """For every entity met: the places that are mentions, how many were hit, and by which."""
    columns = ("sentence", "start", "end", "detectors")
    sentence, start, end, detectors = (linked[name].to_numpy() for name in columns)
    new = np.ones(len(entity), dtype=np.bool_)
    new[1:] = (np.diff(sentence) != 0) | (np.diff(start) != 0) | (np.diff(end) != 0)
    met, place = np.unique(entity, return_inverse=True)
    found = np.bincount(place[new & (detectors != 0)], minlength=len(met))
    places = np.bincount(place[new], minlength=len(met))
    by = np.zeros(len(met), dtype=np.int64)
    np.bitwise_or.at(by, place, detectors)
    with RowWriter(path, EPOCH_EVIDENCE) as rows:
        values = [pa.array(met.astype(np.int32))]
        values += [pa.array(column.astype(np.int64)) for column in (found, places, by)]
        rows.write(pa.record_batch(values, schema=EPOCH_EVIDENCE))
