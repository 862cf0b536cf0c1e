"""The corpus on disk: Arrow files that are written as a stream and read by memory map.

CORPUS/
  corpus.json      its source, how it was built, and digests of texts and incidence
  sentences.arrow  user, text, label, marks     one row per sentence
  users.arrow      name                         row i is user i
  mentions.arrow   sentence, start, end, label, category, entity
  entities.arrow   name, surface                row i is entity i
  evidence.arrow   hits, places, detectors      row i: how often entity i was found, and by which
  hits.arrow       sentence, start, end, label, detector, propagates
                   every hit of every detector, before lists and categories; private like the
                   texts. Not there if the text was normalised
  incidence/       the opaque structure the mechanism reads (uedp.incidence)
  epochs/          what was added later, and who left (uedp.corpus.epochs)
  ledger*          the budget that runs spent (uedp.accounting.ledger); outlives the rest

Arrow trusts its files: an invalid offset crashes the interpreter. So every table is checked in full
when it is opened, before anything is read from it.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from uedp import files
from uedp.corpus import epochs as growth
from uedp.corpus.digest import TextDigest
from uedp.corpus.records import first_line, user_name
from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.incidence import FOLDER, Incidence, Ints
from uedp.strict import parse_json

T = TypeVar("T")

FORMAT = 2
BATCH = 8192  # rows per record batch: large enough to amortise, small enough to hold many
CHARACTERS = 1 << 24  # and characters, since a row may be a whole document
_MARK_CHARACTERS = 64  # how many a mark counts for

# The `category` of a mention is an index into this: append, never reorder.
# fmt: off
CATEGORIES = (
    "person", "loc", "org", "misc", "gpe", "date", "norp", "fac", "product", "event", "law",
    "language", "work_of_art", "time", "percent", "money", "quantity", "ordinal", "cardinal",
    "contact", "year", "calendar",
)
# fmt: on

_DIGEST = re.compile(r"[0-9a-f]{64}")


def _required(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in types.items()]


_SPAN = _required(start=pa.int32(), end=pa.int32(), label=pa.string())
_MARKS = pa.list_(pa.field("item", pa.struct(_SPAN), nullable=False))
_TEXT = _required(user=pa.int32(), text=pa.string())
SENTENCES = pa.schema([*_TEXT, ("label", pa.string()), *_required(marks=_MARKS)])
USERS = pa.schema(_required(name=pa.string()))
MENTIONS = pa.schema(
    [*_required(sentence=pa.int64()), *_SPAN, *_required(category=pa.int8(), entity=pa.int32())]
)
ENTITIES = pa.schema(_required(name=pa.string(), surface=pa.string()))
# Of the places where an entity's surfaces stand, how many were hit, and by which detectors (bits).
EVIDENCE = pa.schema(_required(hits=pa.int64(), places=pa.int64(), detectors=pa.int64()))
EPOCH_EVIDENCE = pa.schema([*_required(entity=pa.int32()), *EVIDENCE])
MAX_DETECTORS = 63
HITS = pa.schema(
    [
        *_required(sentence=pa.int64()),
        *_SPAN,
        *_required(detector=pa.int8(), propagates=pa.bool_()),
    ]
)


class RowWriter:
    """Rows to one Arrow file, or an open one, a record batch at a time."""

    def __init__(self, path: Path | pa.NativeFile, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pa.ipc.new_file(str(path) if isinstance(path, Path) else path, schema)
        self._columns: list[list[Any]] = [[] for _ in schema]
        self._weights = [
            (number, _MARK_CHARACTERS if pa.types.is_list(field.type) else 1)
            for number, field in enumerate(schema)
            if pa.types.is_string(field.type) or pa.types.is_list(field.type)
        ]
        self._held = 0
        self.rows = 0

    def append(self, *values: Any) -> None:
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        for number, weight in self._weights:
            self._held += weight * len(values[number] or "")
        self.rows += 1
        if len(self._columns[0]) >= BATCH or self._held >= CHARACTERS:
            self._flush()

    def write(self, batch: pa.RecordBatch) -> None:
        self._flush()
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self.close()
        else:  # the file is lost; an error in closing it must not hide the first one
            with suppress(OSError):
                self._writer.close()

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [
                pa.array(column, type=field.type)
                for column, field in zip(self._columns, self._schema, strict=True)
            ]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._columns = [[] for _ in self._schema]
            self._held = 0


class SentenceWriter:
    """Sentences and their users to disk; users are numbered in order of appearance.

    Args:
        known: the number of a user who has one already, None of anybody else.
        first: the number of the first user who has none.
    """

    def __init__(
        self, folder: Path, known: Callable[[str], int | None] = lambda name: None, first: int = 0
    ) -> None:
        self._folder, self._known, self._first = folder, known, first
        self._rows = RowWriter(folder / "sentences.arrow", SENTENCES)
        self._users: dict[str, int] = {}

    def append(self, sentence: Sentence) -> None:
        name = user_name(sentence.user)
        user = self._known(name)
        if user is None:
            user = self._users.setdefault(name, self._first + len(self._users))
        marks = [mark._asdict() for mark in sentence.marks]
        self._rows.append(user, sentence.text, sentence.label, marks)

    @property
    def sentences(self) -> int:
        return self._rows.rows

    def close(self) -> None:
        self._rows.close()
        with RowWriter(self._folder / "users.arrow", USERS) as names:
            for name in self._users:
                names.append(name)


class Corpus:
    """A corpus folder, memory-mapped: opening is instant and takes no memory.

    Guarantees:
      - a table is returned only after all of it was checked: its schema, Arrow's own structure,
        UTF-8, every id within its range, every span inside its text
      - opened at an epoch, it is as it was then; by default all epochs are in it
    """

    def __init__(self, folder: str | Path, epoch: int | None = None) -> None:
        self.folder = Path(folder)
        manifest = self.folder / "corpus.json"
        if not self.folder.exists():  # a killed process may have been replacing it
            files.clear_dead(Path(os.path.realpath(self.folder)).parent)
        if not manifest.is_file():
            raise UserError(
                f"{self.folder}: not a corpus (no corpus.json); make one with `build_corpus`"
            )
        self.epochs = growth.read_epochs(self.folder, _manifest(manifest), epoch)
        self.info = growth.merged_info(self.epochs)

    @property
    def left(self) -> frozenset[int]:
        """The users who left: their sentences are in no round of this epoch."""
        return frozenset(user for epoch in self.epochs[1:] for user in epoch.left)

    def __len__(self) -> int:
        return int(self.info["sentences"])

    @property
    def users(self) -> int:
        return int(self.info["users"])

    @property
    def text_digest(self) -> str:
        """The digest of users, texts and labels when the corpus was written."""
        return str(self.info["text_digest"])

    @property
    def detectors(self) -> tuple[str, ...]:
        """The detectors that found its entities."""
        names = self.info.get("detectors")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged(self.folder / "corpus.json", "no list of detectors")
        return tuple(names)

    @cached_property
    def incidence(self) -> Incidence:
        """Which users mention which entities; refused if it is not as it was written.

        All users and sentences of all epochs are in it; what rounds see is `for_rounds`.
        """
        path, info = self.folder / FOLDER, self.epochs[0].info
        incidence = Incidence.load(path)
        for name in ("users", "sentences", "entities"):
            if getattr(incidence, name) != info[name]:
                raise _damaged(path, f"not of {info[name]:,} {name}")
        if incidence.digest != info["incidence_digest"]:
            raise _damaged(path, "was changed: its digest is not that in corpus.json")
        return incidence if len(self.epochs) == 1 else self._grown(incidence)

    def _grown(self, incidence: Incidence) -> Incidence:
        """The incidence of the first epoch, and what the others add to it, checked."""
        rows = incidence.sentence_entities
        owners, sentence, entity = [incidence.sentence_user], [rows.row_of_value()], [rows.values]
        counts = np.array([incidence.users, incidence.sentences, incidence.entities])
        left: set[int] = set()
        for epoch in self.epochs[1:]:
            before, path = counts, epoch.folder / growth.MANIFEST
            counts = before + [epoch.info[name] for name in ("users", "sentences", "entities")]
            texts = read_arrow(epoch.folder / "sentences.arrow", SENTENCES)
            found = read_arrow(epoch.folder / "mentions.arrow", MENTIONS)
            owners.append(texts["user"].to_numpy())
            sentence.append(found["sentence"].to_numpy())
            entity.append(found["entity"].to_numpy())
            own = growth.incidence_digest(
                [*before, *counts], owners[-1], sentence[-1], entity[-1], epoch.left
            )
            if own != epoch.info["own_incidence_digest"]:
                raise _damaged(path, "its users or mentions were changed: not their digest")
            if not left.isdisjoint(epoch.left) or not set(epoch.left) <= set(range(before[0])):
                raise _damaged(path, "a user who left is not one of those before, or left twice")
            if set(owners[-1]) & (left := left | set(epoch.left)):
                raise _damaged(path, "has text of a user who left")
        users, sentences, entities = map(int, counts)
        try:
            whole = Incidence.build(
                np.concatenate(owners),
                np.concatenate(sentence),
                np.concatenate(entity),
                users,
                entities,
            )
        except ValueError as error:
            raise _damaged(self.folder / growth.FOLDER, str(error)) from None
        each = (whole.user_sentences.counts, whole.holders.counts)
        if whole.sentences != sentences or any(count.min(initial=1) == 0 for count in each):
            raise _damaged(self.folder / growth.FOLDER, "a user or entity without a sentence")
        return whole.known_as(self.epochs[-1].incidence)

    def for_rounds(self) -> tuple[Ints | None, Incidence]:
        """The sentences that rounds may use, None for all of them, and their incidence.

        Guarantees:
          - no sentence of a user who left is among them
          - users, sentences and entities that are left are numbered anew, in the same order
        """
        if not self.left:
            return None, self.incidence
        stays = ~np.isin(self.incidence.sentence_user, np.array(sorted(self.left)))
        kept = np.flatnonzero(stays)
        return kept, self.incidence.restricted(kept).known_as(self.epochs[-1].incidence)

    @cached_property
    def sentences(self) -> pa.Table:
        path = self.folder / "sentences.arrow"
        table = self._table("sentences.arrow", SENTENCES, "sentences")
        for batch in table.to_batches():
            _check_ids(path, batch, "user", self.users)
            marks = batch.column("marks")
            texts = pc.list_parent_indices(marks)
            _check_spans(path, marks.flatten(), pc.utf8_length(batch.column("text")).take(texts))
        return table

    @cached_property
    def user_names(self) -> pa.ChunkedArray:
        path = self.folder / "users.arrow"
        names = self._table("users.arrow", USERS, "users")["name"]
        if pc.count_distinct(names).as_py() != len(names):
            raise _damaged(path, "a user is listed twice")
        return names

    @cached_property
    def entities(self) -> pa.Table:
        table = self._table("entities.arrow", ENTITIES, "entities")
        if len(self.epochs) > 1 and pc.count_distinct(table["name"]).as_py() != table.num_rows:
            raise _damaged(self.folder / growth.FOLDER, "an entity is listed twice")
        return table

    @cached_property
    def mentions(self) -> pa.Table:
        path = self.folder / "mentions.arrow"
        table = self._table("mentions.arrow", MENTIONS, "mentions")
        if len(self.epochs) > 1:  # those that were found late stand with their epoch
            order = np.argsort(table["sentence"].to_numpy(), kind="stable")
            table = table.take(pa.array(order))
        for batch in table.to_batches():
            _check_ids(path, batch, "category", len(CATEGORIES))
            _check_ids(path, batch, "entity", self.info["entities"])
        self._check_places(path, table)
        return table

    @cached_property
    def hits(self) -> pa.Table:
        """The raw hits of all detectors; refused if they are not as they were written."""
        path = self.folder / "hits.arrow"
        if type(self.info.get("hits")) is not int:
            why = (
                "its text was normalised after detection"
                if self.info.get("normalised")
                else "it was made by an earlier version"
            )
            raise UserError(
                f"{self.folder}: keeps no hits ({why}); detect it again from the source"
            )
        table = self._table("hits.arrow", HITS, "hits")
        for batch in table.to_batches():
            _check_ids(path, batch, "detector", len(self.detectors))
        self._check_places(path, table)
        for epoch in self.epochs:
            if file_digest(epoch.folder / "hits.arrow") != epoch.info.get("hits_digest"):
                raise _damaged(
                    epoch.folder / "hits.arrow",
                    "was changed: its digest is not that in corpus.json",
                )
        return table

    @cached_property
    def evidence(self) -> pa.Table | None:
        """How often each entity was found; None in a corpus of an earlier version."""
        path = self.folder / "evidence.arrow"
        if "propagation" not in self.info:
            return None
        table = self._evidence_table()
        hits, places, detectors = (table[name].to_numpy() for name in EVIDENCE.names)
        if not ((hits >= 0) & (hits <= places) & (detectors >= 0)).all():
            raise _damaged(path, "counts that cannot be")
        if len(detectors) and int(detectors.max()) >> len(self.detectors):
            raise _damaged(path, "a detector that is not listed")
        return table

    def _evidence_table(self) -> pa.Table:
        first = self.epochs[0]
        table = read_arrow(first.folder / "evidence.arrow", EVIDENCE)
        if table.num_rows != first.info["entities"]:
            raise _damaged(first.folder / "evidence.arrow", f"{table.num_rows:,} rows")
        if len(self.epochs) == 1:
            return table
        sums = np.zeros((3, self.info["entities"]), dtype=np.int64)
        sums[:, : table.num_rows] = [table[name].to_numpy() for name in EVIDENCE.names]
        for epoch in self.epochs[1:]:
            path = epoch.folder / "evidence.arrow"
            added = read_arrow(path, EPOCH_EVIDENCE)
            for batch in added.to_batches():
                _check_ids(path, batch, "entity", self.info["entities"])
            entity = added["entity"].to_numpy()
            for number, name in enumerate(("hits", "places")):
                np.add.at(sums[number], entity, added[name].to_numpy())
            np.bitwise_or.at(sums[2], entity, added["detectors"].to_numpy())
        return pa.table([pa.array(column) for column in sums], schema=EVIDENCE)

    @cached_property
    def _lengths(self) -> npt.NDArray[np.int32]:
        """The length of every text, in characters."""
        return np.concatenate(
            [pc.utf8_length(chunk).to_numpy() for chunk in self.sentences["text"].chunks]
            or [np.zeros(0, dtype=np.int32)]
        )

    def _check_places(self, path: Path, table: pa.Table) -> None:
        """Refuse spans outside their sentences, or out of the order of sentences."""
        last = 0
        for batch in table.to_batches():
            _check_ids(path, batch, "sentence", len(self))
            sentence = batch.column("sentence").to_numpy()
            if len(sentence) and (sentence[0] < last or (np.diff(sentence) < 0).any()):
                raise _damaged(path, f"{path.stem} are not in the order of sentences")
            last = int(sentence[-1]) if len(sentence) else last
            _check_spans(path, batch, self._lengths[sentence])

    def _table(self, name: str, schema: pa.Schema, counted: str) -> pa.Table:
        """The tables of this name of all epochs, as one."""
        tables = []
        for epoch in self.epochs:
            path, expected = epoch.folder / name, epoch.info[counted]
            table = read_arrow(path, schema)
            if table.num_rows != expected:
                raise _damaged(path, f"{table.num_rows:,} rows for {expected:,} {counted}")
            tables.append(table)
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def check_texts(self) -> None:
        """Refuse texts, labels or users of sentences that are not as they were written."""
        if len(self.epochs) > 1:
            _ = self.user_names, self.entities  # nobody and nothing has two ids
        users, done = self.incidence.sentence_user, 0
        for epoch in self.epochs:
            path, count = epoch.folder / "sentences.arrow", epoch.info["sentences"]
            table = self.sentences.slice(done, count)
            if not np.array_equal(table["user"].to_numpy(), users[done : done + count]):
                raise UserError(
                    f"{path}: its users are not those of the incidence; detect the corpus again"
                )
            if (
                text_digest_of(table)
                != epoch.info["text_digest" if epoch.number == 1 else "own_text_digest"]
            ):
                raise UserError(
                    f"{path}: changed since detection: its digest is not the one in corpus.json; "
                    "detect the corpus again"
                )
            done += count

    def batches(self, columns: Sequence[str] = ("text",)) -> Iterator[pa.RecordBatch]:
        """Record batches in corpus order, with the chosen columns only."""
        yield from self.sentences.select(list(columns)).to_batches()

    def texts(self, sentences: npt.ArrayLike) -> list[str]:
        """The texts of the given sentences, in that order."""
        numbers = np.asarray(sentences, dtype=np.int64)
        chunks = self.sentences["text"].chunks
        ends = np.cumsum([len(chunk) for chunk in chunks])
        # chunk by chunk: Arrow's own `take` over chunks would first copy the whole column
        chunk_of = np.searchsorted(ends, numbers, side="right")
        texts = np.empty(len(numbers), dtype=object)
        for which in np.unique(chunk_of):
            places = np.flatnonzero(chunk_of == which)
            inside = numbers[places] - (ends[which] - len(chunks[which]))
            texts[places] = chunks[which].take(pa.array(inside)).to_pylist()
        return list(texts)

    def __iter__(self) -> Iterator[Sentence]:
        """Sentences in corpus order, users by name."""
        return _as_sentences(self.sentences, self.user_names.to_pylist())

    def spans(self) -> Iterator[list[tuple[Span, int]]]:
        """For each sentence, its mentions as (span, entity)."""
        columns = ("start", "end", "label", "entity")
        return grouped_by_sentence(
            self.mentions, len(self), columns, lambda *row: (Span(*row[:3]), row[3])
        )


def written_sentences(folder: Path) -> Iterator[Sentence]:
    """The sentences that a `SentenceWriter` wrote to a folder."""
    names = read_arrow(folder / "users.arrow", USERS)["name"].to_pylist()
    return _as_sentences(read_arrow(folder / "sentences.arrow", SENTENCES), names)


def _as_sentences(table: pa.Table, names: Sequence[str]) -> Iterator[Sentence]:
    for batch in table.to_batches():
        columns = (batch.column(name).to_pylist() for name in SENTENCES.names)
        for user, text, label, marks in zip(*columns, strict=True):
            yield Sentence(names[user], text, label, tuple(Span(**mark) for mark in marks))


def grouped_by_sentence(
    table: pa.Table, sentences: int, columns: Sequence[str], make: Callable[..., T]
) -> Iterator[list[T]]:
    """Rows of a table sorted by `sentence`: one list per sentence, empty ones included."""

    def rows() -> Iterator[tuple[int, Any]]:
        for batch in table.to_batches():
            values = (batch.column(name).to_pylist() for name in ("sentence", *columns))
            for sentence, *row in zip(*values, strict=True):
                yield sentence, make(*row)

    groups = groupby(rows(), key=itemgetter(0))
    following = next(groups, None)
    for sentence in range(sentences):
        if following is not None and following[0] == sentence:
            yield [row for _, row in following[1]]
            following = next(groups, None)
        else:
            yield []


def read_arrow(path: Path, schema: pa.Schema) -> pa.Table:
    """An Arrow file as a table over a memory map, checked in full.

    Guarantees:
      - its schema is `schema`, and no required value is missing
      - offsets, lengths and UTF-8 are valid, so that reading stays inside the file
    """
    reader = open_arrow(path, schema)
    batches = range(reader.num_record_batches)
    return pa.Table.from_batches(
        [checked_batch(reader, number, path, schema) for number in batches], schema=schema
    )


def open_arrow(path: Path, schema: pa.Schema) -> Any:
    """A reader of the record batches of an Arrow file of this schema, over a memory map."""
    with _refusing_damaged(path):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if not reader.schema.equals(schema):
            raise _damaged(path, "not the columns of a corpus")
        return reader


def checked_batch(reader: Any, number: int, path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch, checked in full; see `read_arrow`."""
    with _refusing_damaged(path):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        if not batch.schema.equals(schema) or not all(map(_complete, schema, batch.columns)):
            raise _damaged(path, "a value is missing")
        return batch


@contextmanager
def _refusing_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _damaged(path, "missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _damaged(path, first_line(error)) from None


def _complete(field: pa.Field, column: pa.Array) -> bool:
    """Whether no required value is missing."""
    if not field.nullable and column.null_count:
        return False
    if pa.types.is_list(field.type):
        return _complete(field.type.value_field, column.flatten())
    if pa.types.is_struct(field.type):
        return all(_complete(inner, column.field(inner.name)) for inner in field.type)
    return True


def _check_ids(path: Path, batch: pa.RecordBatch, column: str, count: int) -> None:
    ids = batch.column(column).to_numpy()
    if len(ids) and not (ids.min() >= 0 and ids.max() < count):
        raise _damaged(path, f"{column} {ids.min()}..{ids.max()} outside 0..{count - 1}")


def _check_spans(path: Path, spans: Any, lengths: Any) -> None:
    """Refuse spans (columns `start` and `end`) that leave texts of these lengths."""
    column = spans.field if isinstance(spans, pa.StructArray) else spans.column
    start, end = (column(name).to_numpy() for name in ("start", "end"))
    if not ((start >= 0) & (start < end) & (end <= np.asarray(lengths))).all():
        raise _damaged(path, "a span outside its text")


def text_digest_of(sentences: pa.Table) -> str:
    digest = TextDigest()
    for batch in sentences.select(["user", "text", "label"]).to_batches():
        user, text, label = batch.columns
        digest.update(user.to_numpy(), text.to_pylist(), label.to_pylist())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest(path: Path) -> dict[str, Any]:
    try:
        info = parse_json(path.read_bytes())
    except ValueError as error:
        raise _damaged(path, f"not JSON ({first_line(error)})") from None
    if not isinstance(info, dict):
        raise _damaged(path, "not an object")
    if info.get("format") != FORMAT:
        raise UserError(f"{path}: format {info.get('format')!r}, not {FORMAT}; build it again")
    for name in ("users", "sentences", "entities", "mentions"):
        if type(info.get(name)) is not int or info[name] < 0:
            raise _damaged(path, f"no number of {name}")
    for name in ("text_digest", "incidence_digest"):
        if not _DIGEST.fullmatch(str(info.get(name))):
            raise _damaged(path, f"no {name}")
    return info


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path}: {how}; the corpus is damaged, build it again")


def write_manifest(folder: Path, info: Mapping[str, Any]) -> None:
    """Write the manifest of a corpus, with digests of its tables and incidence."""
    digests = {
        "text_digest": text_digest_of(read_arrow(folder / "sentences.arrow", SENTENCES)),
        "incidence_digest": Incidence.of(folder).digest,
    }
    if (folder / "hits.arrow").exists():
        digests["hits_digest"] = file_digest(folder / "hits.arrow")
    whole = {"format": FORMAT, **info, **digests}
    (folder / "corpus.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
