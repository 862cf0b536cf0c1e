"""The corpus on disk: Arrow files that are written as a stream and read by memory map.

CORPUS/
  corpus.json      where it came from and how it was made
  sentences.arrow  user, text, label, marks     one row per sentence
  users.arrow      name                         row i is user i
  mentions.arrow   sentence, start, end, label, category, entity
  entities.arrow   name, surface                row i is entity i
  incidence/       the opaque structure the mechanism reads (uedp.incidence)
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.folders import scratch
from uedp.signals import deferred

FORMAT = 1
BATCH = 8192  # rows per record batch: large enough to amortise, small enough to hold many
CHARACTERS = 1 << 24  # and characters, since a row may be a whole document
_MARK_CHARACTERS = 64  # what a mark weighs against them

MARK = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("label", pa.string())])
SENTENCES = pa.schema(
    [
        ("user", pa.int32()),
        ("text", pa.string()),
        ("label", pa.string()),
        ("marks", pa.list_(MARK)),
    ]
)
USERS = pa.schema([("name", pa.string())])
MENTIONS = pa.schema(
    [
        ("sentence", pa.int64()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("label", pa.string()),
        ("category", pa.int8()),
        ("entity", pa.int32()),
    ]
)
ENTITIES = pa.schema([("name", pa.string()), ("surface", pa.string())])


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
        user = self._users.setdefault(sentence.user, len(self._users))
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
    """A corpus folder, memory-mapped: opening is instant and costs no memory."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        manifest = self.folder / "corpus.json"
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

    @cached_property
    def _texts(self) -> pa.ChunkedArray:
        return read_table(self.folder / "sentences.arrow")["text"]

    @cached_property
    def user_names(self) -> pa.ChunkedArray:
        return read_table(self.folder / "users.arrow")["name"]

    @cached_property
    def entities(self) -> pa.Table:
        return read_table(self.folder / "entities.arrow")

    @property
    def mentions(self) -> pa.Table:
        return read_table(self.folder / "mentions.arrow")

    def batches(self, columns: Sequence[str] = ("text",)) -> Iterator[pa.RecordBatch]:
        """Record batches in corpus order, with the chosen columns only."""
        yield from read_table(self.folder / "sentences.arrow").select(list(columns)).to_batches()

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
        return read_sentences(self.folder)

    def spans(self) -> Iterator[list[tuple[Span, int]]]:
        """For each sentence, its mentions as (span, entity)."""
        return grouped(self.mentions, len(self), ("start", "end", "label", "entity"), _as_mention)


def read_sentences(folder: Path) -> Iterator[Sentence]:
    """The sentences that a `SentenceWriter` wrote to a folder."""
    names = read_table(folder / "users.arrow")["name"].to_pylist()
    for batch in read_table(folder / "sentences.arrow").to_batches():
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


def read_table(path: Path) -> pa.Table:
    """An Arrow file as a table over a memory map."""
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        raise _damaged(path, "missing") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, str(error)) from None


def _manifest(path: Path) -> dict[str, Any]:
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path, "not JSON") from None
    if not isinstance(info, dict):
        raise _damaged(path, "not an object")
    if info.get("format") != FORMAT:
        raise UserError(f"{path}: format {info.get('format')!r}, not {FORMAT}; detect it anew")
    for name in ("users", "sentences", "entities", "mentions"):
        if type(info.get(name)) is not int:
            raise _damaged(path, f"no number of {name}")
    return info


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path}: {how}; the corpus is damaged, make it anew with `uedp detect`")


def write_manifest(folder: Path, info: Mapping[str, Any]) -> None:
    (folder / "corpus.json").write_text(json.dumps({"format": FORMAT, **info}, indent=2) + "\n")


@contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder that appears at `path` only if the block succeeds.

    A link is followed: what it leads to is made or replaced.

    Guarantees:
      - an existing `path` is refused before any work and again after it, or with `overwrite`
        replaced at the end; only a corpus is ever replaced
      - a failure, Ctrl-C included, leaves `path` as it was and nothing beside it
      - at no time is `path` a corpus in part
    """
    target = Path(os.path.realpath(path))
    _refuse_existing(path, target, overwrite)
    with scratch(target) as folder:
        new, old = folder / "new", folder / "old"
        new.mkdir()
        yield new
        _refuse_existing(path, target, overwrite)
        with deferred():
            try:
                if overwrite and target.exists():
                    target.rename(old)
                new.rename(target)  # fails on what came to stand there, but for an empty folder
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be put in place ({error.strerror}); another command may be "
                    "writing there, choose another --out"
                ) from None
            finally:
                if old.exists() and not target.exists():
                    old.rename(target)


def _refuse_existing(path: Path, target: Path, overwrite: bool) -> None:
    if os.path.lexists(target):
        if not overwrite:
            raise UserError(f"{path}: exists already; choose another --out, or add --overwrite")
        if not (target / "corpus.json").is_file():
            raise UserError(
                f"{path}: exists and is not a corpus; it is not overwritten, move it away"
            )
