"""The corpus on disk: Arrow files that are written as a stream and read by memory map.

CORPUS/
  corpus.json      where it came from, how it was made, and digests of texts and incidence
  sentences.arrow  user, text, label, marks     one row per sentence
  users.arrow      name                         row i is user i
  mentions.arrow   sentence, start, end, label, category, entity
  entities.arrow   name, surface                row i is entity i
  incidence/       the opaque structure the mechanism reads (uedp.incidence)
  ledger*          what runs on it spent (uedp.accounting.ledger); outlives the rest

Arrow trusts its files: an offset that points elsewhere crashes the interpreter. So every table is
checked in full as it is opened, before anything is read from it.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from uedp import files
from uedp.corpus.digest import TextDigest
from uedp.corpus.records import user_name
from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.signals import deferred
from uedp.strict import parse_json

FORMAT = 2
BATCH = 8192  # rows per record batch: large enough to amortise, small enough to hold many
CHARACTERS = 1 << 24  # and characters, since a row may be a whole document
_MARK_CHARACTERS = 64  # what a mark weighs against them

# The `category` of a mention is an index into this: append, never reorder.
# fmt: off
CATEGORIES = (
    "person", "loc", "org", "misc", "gpe", "date", "norp", "fac", "product", "event", "law",
    "language", "work_of_art", "time", "percent", "money", "quantity", "ordinal", "cardinal",
    "contact",
)
# fmt: on

LEDGERS = "ledger*"  # files of a corpus that stay when it is replaced

_DIGEST = re.compile(r"[0-9a-f]{64}")


def _required(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in types.items()]


MARK = pa.struct(_required(start=pa.int32(), end=pa.int32(), label=pa.string()))
SENTENCES = pa.schema(
    [
        *_required(user=pa.int32(), text=pa.string()),
        ("label", pa.string()),
        *_required(marks=pa.list_(pa.field("item", MARK, nullable=False))),
    ]
)
USERS = pa.schema(_required(name=pa.string()))
MENTIONS = pa.schema(
    _required(
        sentence=pa.int64(),
        start=pa.int32(),
        end=pa.int32(),
        label=pa.string(),
        category=pa.int8(),
        entity=pa.int32(),
    )
)
ENTITIES = pa.schema(_required(name=pa.string(), surface=pa.string()))


class RowWriter:
    """Rows to one Arrow file, a record batch at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pa.ipc.new_file(str(path), schema)
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
        else:  # the file is lost; writing its end could only hide what went wrong
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
    """Sentences and their users to disk; users are numbered in order of appearance."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = RowWriter(folder / "sentences.arrow", SENTENCES)
        self._users: dict[str, int] = {}

    def append(self, sentence: Sentence) -> None:
        user = self._users.setdefault(user_name(sentence.user), len(self._users))
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
    """A corpus folder, memory-mapped: opening is instant and costs no memory.

    Guarantees:
      - a table is handed out only once all of it was checked: its schema, Arrow's own structure,
        UTF-8, every id within its range, every span inside its text
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = self.folder / "corpus.json"
        if not self.folder.exists():  # a command that was killed may have been replacing it
            files.clear_dead(Path(os.path.realpath(self.folder)).parent)
        if not manifest.is_file():
            raise UserError(
                f"{self.folder}: not a corpus (no corpus.json); make one with `uedp detect`"
            )
        self.info = _manifest(manifest)

    def __len__(self) -> int:
        return int(self.info["sentences"])

    @property
    def users(self) -> int:
        return int(self.info["users"])

    @property
    def text_digest(self) -> str:
        """The digest of users, texts and labels when the corpus was written."""
        return str(self.info["text_digest"])

    def computed_text_digest(self) -> str:
        """The digest of users, texts and labels as they are now."""
        return _text_digest(self.sentences)

    @cached_property
    def incidence(self) -> Incidence:
        """Who mentions what; refused if it is not the one the corpus was written with."""
        found = Incidence.of(self.folder)
        for name in ("users", "sentences", "entities"):
            if getattr(found, name) != self.info[name]:
                raise _damaged(self.folder / "incidence", f"not of {self.info[name]:,} {name}")
        if found.digest != self.info["incidence_digest"]:
            raise _damaged(
                self.folder / "incidence", "was changed: its digest is not that in corpus.json"
            )
        return found

    @cached_property
    def sentences(self) -> pa.Table:
        path = self.folder / "sentences.arrow"
        table = self._table(path, SENTENCES, "sentences")
        for batch in table.to_batches():
            _check_ids(path, batch, "user", self.users)
            marks = batch.column("marks")
            texts = pc.list_parent_indices(marks)
            _check_spans(path, marks.flatten(), pc.utf8_length(batch.column("text")).take(texts))
        return table

    @cached_property
    def _texts(self) -> pa.ChunkedArray:
        return self.sentences["text"]

    @cached_property
    def user_names(self) -> pa.ChunkedArray:
        path = self.folder / "users.arrow"
        names = self._table(path, USERS, "users")["name"]
        if pc.count_distinct(names).as_py() != len(names):
            raise _damaged(path, "one user twice")
        return names

    @cached_property
    def entities(self) -> pa.Table:
        return self._table(self.folder / "entities.arrow", ENTITIES, "entities")

    @cached_property
    def mentions(self) -> pa.Table:
        path = self.folder / "mentions.arrow"
        table = self._table(path, MENTIONS, "mentions")
        lengths = np.concatenate(
            [pc.utf8_length(chunk).to_numpy() for chunk in self._texts.chunks]
            or [np.zeros(0, dtype=np.int32)]
        )
        last = 0
        for batch in table.to_batches():
            for column, count in (
                ("sentence", len(self)),
                ("category", len(CATEGORIES)),
                ("entity", int(self.info["entities"])),
            ):
                _check_ids(path, batch, column, count)
            sentence = batch.column("sentence").to_numpy()
            if len(sentence) and (sentence[0] < last or (np.diff(sentence) < 0).any()):
                raise _damaged(path, "mentions are not in the order of sentences")
            last = int(sentence[-1]) if len(sentence) else last
            _check_spans(path, batch, lengths[sentence])
        return table

    def _table(self, path: Path, schema: pa.Schema, counted: str) -> pa.Table:
        table = read_table(path, schema)
        if table.num_rows != self.info[counted]:
            raise _damaged(path, f"{table.num_rows:,} rows for {self.info[counted]:,} {counted}")
        return table

    def batches(self, columns: Sequence[str] = ("text",)) -> Iterator[pa.RecordBatch]:
        """Record batches in corpus order, with the chosen columns only."""
        yield from self.sentences.select(list(columns)).to_batches()

    def texts(self, sentences: npt.ArrayLike) -> list[str]:
        """The texts of the given sentences, in that order."""
        wanted = np.asarray(sentences, dtype=np.int64)
        chunks = self._texts.chunks
        ends = np.cumsum([len(chunk) for chunk in chunks])
        # chunk by chunk: Arrow's own `take` over chunks would first copy the whole column
        which = np.searchsorted(ends, wanted, side="right")
        texts: list[str] = [""] * len(wanted)
        for number in np.unique(which):
            places = np.flatnonzero(which == number)
            inside = wanted[places] - (ends[number] - len(chunks[number]))
            found = chunks[number].take(pa.array(inside)).to_pylist()
            for place, text in zip(places.tolist(), found, strict=True):
                texts[place] = text
        return texts

    def __iter__(self) -> Iterator[Sentence]:
        """Sentences in corpus order, users by name."""
        return _as_sentences(self.sentences, self.user_names.to_pylist())

    def spans(self) -> Iterator[list[tuple[Span, int]]]:
        """For each sentence, its mentions as (span, entity)."""
        return grouped(self.mentions, len(self), ("start", "end", "label", "entity"), _as_mention)


def read_sentences(folder: Path) -> Iterator[Sentence]:
    """The sentences that a `SentenceWriter` just wrote to a folder."""
    names = read_table(folder / "users.arrow", USERS)["name"].to_pylist()
    return _as_sentences(read_table(folder / "sentences.arrow", SENTENCES), names)


def _as_sentences(table: pa.Table, names: Sequence[str]) -> Iterator[Sentence]:
    for batch in table.to_batches():
        columns = (batch.column(name).to_pylist() for name in SENTENCES.names)
        for user, text, label, marks in zip(*columns, strict=True):
            yield Sentence(names[user], text, label, tuple(Span(**mark) for mark in marks))


def _as_mention(start: int, end: int, label: str, entity: int) -> tuple[Span, int]:
    return Span(start, end, label), entity


def grouped(
    table: pa.Table, sentences: int, columns: Sequence[str], make: Any
) -> Iterator[list[Any]]:
    """Rows of a table sorted by `sentence`, gathered into one list per sentence."""

    def rows() -> Iterator[tuple[int, Any]]:
        for batch in table.to_batches():
            values = (batch.column(name).to_pylist() for name in columns)
            for sentence, *row in zip(batch.column("sentence").to_pylist(), *values, strict=True):
                yield sentence, make(*row)

    stream = rows()
    ahead = next(stream, None)
    for sentence in range(sentences):
        found = []
        while ahead is not None and ahead[0] == sentence:
            found.append(ahead[1])
            ahead = next(stream, None)
        yield found


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """An Arrow file as a table over a memory map, checked in full.

    Guarantees:
      - nothing but `schema` is accepted, nor a missing value where it allows none
      - offsets, lengths and UTF-8 are valid, so that reading cannot leave the file
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if not reader.schema.equals(schema):
            raise _damaged(path, "other columns than a corpus has")
        batches = []
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            if not batch.schema.equals(schema) or not all(map(_complete, schema, batch.columns)):
                raise _damaged(path, "a value is missing")
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=schema)
    except FileNotFoundError:
        raise _damaged(path, "missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _damaged(path, _first_line(error)) from None


def _complete(field: pa.Field, column: pa.Array) -> bool:
    """Whether nothing is missing where nothing may be."""
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
    """Whether spans (columns `start` and `end`) lie inside texts of these lengths."""
    column = spans.field if isinstance(spans, pa.StructArray) else spans.column
    start, end = (column(name).to_numpy() for name in ("start", "end"))
    if not ((start >= 0) & (start < end) & (end <= np.asarray(lengths))).all():
        raise _damaged(path, "a span outside its text")


def _text_digest(sentences: pa.Table) -> str:
    digest = TextDigest()
    for batch in sentences.select(["user", "text", "label"]).to_batches():
        user, text, label = batch.columns
        digest.update(user.to_numpy(), text.to_pylist(), label.to_pylist())
    return digest.hexdigest()


def _manifest(path: Path) -> dict[str, Any]:
    try:
        info = parse_json(path.read_bytes())
    except ValueError as error:
        raise _damaged(path, f"not JSON ({_first_line(error)})") from None
    if not isinstance(info, dict):
        raise _damaged(path, "not an object")
    if info.get("format") != FORMAT:
        raise UserError(f"{path}: format {info.get('format')!r}, not {FORMAT}; detect it anew")
    for name in ("users", "sentences", "entities", "mentions"):
        if type(info.get(name)) is not int or info[name] < 0:
            raise _damaged(path, f"no number of {name}")
    for name in ("text_digest", "incidence_digest"):
        if not _DIGEST.fullmatch(str(info.get(name))):
            raise _damaged(path, f"no {name}")
    return info


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path}: {how}; the corpus is damaged, make it anew with `uedp detect`")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def write_manifest(folder: Path, info: Mapping[str, Any]) -> None:
    """What is to be known of a corpus whose tables and incidence are written; seals them."""
    digests = {
        "text_digest": _text_digest(read_table(folder / "sentences.arrow", SENTENCES)),
        "incidence_digest": Incidence.of(folder).digest,
    }
    whole = {"format": FORMAT, **info, **digests}
    (folder / "corpus.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder that appears at `path` only if the block succeeds.

    A link is followed: what it leads to is made or replaced.

    Guarantees:
      - an existing `path` is refused before any work and again after it, or with `overwrite`
        replaced at the end; only a corpus is ever replaced
      - the ledger of a corpus that is replaced, and all files of that name, stay as they are
      - a failure, Ctrl-C included, leaves `path` as it was and nothing beside it
      - at no time is `path` a corpus in part; whenever the process is killed, the old corpus or the
        new one is there the next time it is opened
      - only its owner can read it, whatever the umask
    """
    target = Path(os.path.realpath(path))
    files.clear_dead(target.parent)  # it may put the corpus back that is to be replaced
    _refuse_existing(path, target, overwrite)
    with files.scratch_dir(target) as work:
        new = work / "new"
        new.mkdir(mode=0o700)
        yield new
        _refuse_existing(path, target, overwrite)
        with deferred(), ExitStack() as stack:
            try:
                replaces = overwrite and target.exists()
                if replaces:
                    stack.enter_context(_ledger_held(target))
                    _carry_ledgers(target, new)
                files.make_private(new)
                files.fsync_tree(new)  # or the name could reach the disk before what it names
                if replaces:
                    files.replace_dir(new, target, work)
                    for left in (new, work / files.REPLACED):
                        _carry_ledgers(left, target)  # what was begun in the meantime
                else:
                    new.rename(target)  # fails on what stands there, but for an empty folder
                files.fsync_path(target.parent)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be put in place ({error.strerror}); another command may be "
                    "writing there, choose another `out=...`"
                ) from None


@contextmanager
def _ledger_held(corpus: Path) -> Iterator[None]:
    """Keep runs from writing to the ledger of a corpus while it moves."""
    with ExitStack() as stack:
        for path in sorted(corpus.glob(LEDGERS)):
            file = stack.enter_context(path.open("rb"))
            files.lock_file(
                file, f"{path}: another process is writing this ledger; wait for it, or stop it"
            )
        yield


def _carry_ledgers(old: Path, new: Path) -> None:
    """Give one corpus the ledger files of another that it does not have."""
    for path in old.glob(LEDGERS):
        if not (new / path.name).exists():
            try:
                # the same file, not a copy: what a run that has it open writes is in both
                os.link(path, new / path.name)
            except OSError:  # a disk without links
                shutil.copy2(path, new / path.name)


def _refuse_existing(path: Path, target: Path, overwrite: bool) -> None:
    if os.path.lexists(target):
        if not overwrite:
            raise UserError(
                f"{path}: exists already; choose another `out=...`, or use `overwrite=True`"
            )
        if not (target / "corpus.json").is_file():
            raise UserError(
                f"{path}: exists and is not a corpus; it is not overwritten, move it away"
            )
