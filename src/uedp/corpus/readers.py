"""Readers: files of text with owners become a stream of sentences.

Every reader names the file and the line in its errors, and holds one record in memory at a time
(but for `presidio-research`, whose format is a single JSON array).
"""

import csv
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is shorter than a long e-mail thread


@dataclass(frozen=True)
class Columns:
    """Which fields of a record hold what. `user=None`: the records carry no user."""

    user: str | None = "user"
    text: str = "text"
    label: str | None = None
    marks: str | None = None


class Source:
    """A file or folder being read: knows how far along it is, decompresses `.gz` on the way."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        self.path = path
        self.size = path.stat().st_size if path.is_file() else 0
        self._raw: BinaryIO | None = None

    @property
    def position(self) -> int:
        """Bytes of the file consumed so far, compressed bytes for a `.gz`."""
        return self._raw.tell() if self._raw and not self._raw.closed else 0

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if self.path.is_dir():
            raise UserError(
                f"{self.path}: is a folder; give a file, or use --reader hf for a data set"
            )
        with self.path.open("rb") as raw:
            self._raw = raw
            if self.path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield stream  # type: ignore[misc]
            else:
                yield raw

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines, line ends kept, decoded one by one so that a bad byte has a line."""
        number = 0
        try:
            with self.open() as stream:
                for number, line in enumerate(stream, 1):
                    try:
                        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    except UnicodeDecodeError as error:
                        raise UserError(
                            f"{self.path}:{number}: invalid UTF-8 at byte {error.start}; "
                            "convert the file to UTF-8 (for example with iconv)"
                        ) from None
                    yield number, text
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(
                f"{self.path}:{number + 1}: damaged gzip data ({error}); compress or copy it anew"
            ) from None


# What to do with a bad record: raise, or note it and go on.
OnError = Callable[[UserError], None]
Reader = Callable[[Source, Columns, OnError], Iterator[Sentence]]


def fail(error: UserError) -> None:
    """The strict choice: the first bad record ends the reading."""
    raise error


def read_jsonl(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, line in source.lines():
        if not line.strip():
            continue
        where = f"{source.path}:{number}"
        try:
            yield _sentence(where, _json_object(where, line), columns)
        except UserError as error:
            on_error(error)


def read_csv(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, fields in csv_records(source, columns, on_error):
        try:
            yield _sentence(f"{source.path}:{number}", fields, columns)
        except UserError as error:
            on_error(error)


def read_ag(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """AG's news: `label,text` with a header, or the original `class,title,description` without."""
    rows = _csv_rows(source)
    first = next(rows, None)
    if first is None:
        return
    header = [name.strip().lower() for name in first[1]]
    plain = header == ["label", "text"]
    for number, row in rows if plain else _chain(first, rows):
        where = f"{source.path}:{number}"
        try:
            expected = 2 if plain else 3
            if len(row) != expected:
                raise UserError(
                    f"{where}: {len(row)} fields where AG has {expected}; quote those with commas"
                )
            fields = {"user": "", "label": row[0], "text": " ".join(row[1:])}
            yield _sentence(where, fields, Columns(user=None, label="label"))
        except UserError as error:
            on_error(error)


def read_parquet(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    with tempfile.TemporaryDirectory() as folder:
        path = source.path
        if path.suffix == ".gz":  # Parquet needs random access, so the whole file is unpacked first
            path = Path(folder) / "unpacked.parquet"
            with source.open() as packed, path.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        try:
            table = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{source.path}: not a Parquet file ({_first_line(error)}); check --reader"
            ) from None
        wanted = _wanted(str(source.path), table.schema_arrow.names, columns)
        batches = table.iter_batches(batch_size=4096, columns=wanted)
        yield from _from_batches(source.path, batches, columns, on_error)


def read_hf(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A Hugging Face data set saved with `save_to_disk`."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(source.path))
    except Exception as error:
        raise UserError(
            f"{source.path}: not a data set saved with save_to_disk ({_first_line(error)})"
        ) from None
    if isinstance(loaded, datasets.DatasetDict):
        raise UserError(
            f"{source.path}: holds the splits {', '.join(loaded)}; give one of the folders inside"
        )
    wanted = _wanted(str(source.path), loaded.column_names, columns)
    batches = loaded.select_columns(wanted).with_format("arrow").iter(batch_size=4096)
    yield from _from_batches(source.path, batches, columns, on_error)


def read_conll(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """Column files: token first, tag last; a blank line ends a sentence, -DOCSTART- starts a user.

    IOB1 and IOB2 decode alike: `B-` opens an entity, and so does `I-` after another type.
    """
    user, documents = "", 0
    tokens: list[tuple[str, str]] = []
    for number, line in source.lines():
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            where = f"{source.path}:{number}"
            if len(fields) < 2:
                raise UserError(
                    f"{where}: one field, {fields[0]!r}, where a token and its tag belong"
                )
            if not user and columns.user is not None:
                raise UserError(
                    f"{where}: a sentence before any -DOCSTART- line; add one per user, "
                    "or use --assign-users"
                )
            _check_tag(where, fields[-1])
            tokens.append((fields[0], fields[-1]))
            continue
        if tokens:
            yield _conll_sentence(user, tokens)
            tokens = []
        if fields:
            documents += 1
            user = f"doc-{documents:05d}"
    if tokens:
        yield _conll_sentence(user, tokens)


def read_presidio_research(
    source: Source, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """presidio-research's JSON array of texts with character spans; each record is its own user."""
    try:
        with source.open() as stream:
            records = json.loads(stream.read())
    except UnicodeDecodeError as error:
        raise UserError(f"{source.path}: invalid UTF-8 at byte {error.start}; convert it") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{source.path}:{error.lineno}: broken JSON ({error.msg}); mend the file"
        ) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{source.path}: damaged gzip data ({error}); copy it anew") from None
    if not isinstance(records, list):
        raise UserError(f"{source.path}: a JSON array of records is expected; check --reader")
    for number, record in enumerate(records, 1):
        where = f"{source.path}: record {number}"
        try:
            if not isinstance(record, dict):
                raise UserError(
                    f"{where}: not an object; each record needs `full_text` and `spans`"
                )
            fields = {**record, "user": f"record-{number:06d}"}
            yield _sentence(where, fields, Columns(text="full_text", marks="spans"))
        except UserError as error:
            on_error(error)


READERS: Mapping[str, Reader] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
    "hf": read_hf,
    "conll": read_conll,
    "ag": read_ag,
    "presidio-research": read_presidio_research,
}

# Readers whose records never name a user, so that one must be assigned.
WITHOUT_USERS = frozenset({"ag"})

_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


def reader_named(name: str, path: Path) -> str:
    """`name` if it is a reader; for `auto`, the reader that the file's name suggests."""
    if name in READERS:
        return name
    if name != "auto":
        raise UserError(f"--reader {name!r}: unknown reader; choose among {', '.join(READERS)}")
    if path.is_dir():
        return "hf"
    found = _BY_SUFFIX.get(_suffix(path))
    if found is None:
        raise UserError(
            f"{path}: its name does not tell the format; add --reader, one of {', '.join(READERS)}"
        )
    return found


def read(
    source: Source | Path | str,
    reader: str = "auto",
    columns: Columns = Columns(),  # noqa: B008 - frozen
    on_error: OnError = fail,
) -> Iterator[Sentence]:
    """The sentences of a source.

    Guarantees:
      - every sentence has text that is not blank and, unless `columns.user` is None, a user
      - every mark lies within its text
      - a record that breaks this goes to `on_error` with file, line and remedy
      - a source without sentences is an error
    """
    if not isinstance(source, Source):
        source = Source(Path(source))
    reader = reader_named(reader, source.path)
    empty = True
    for sentence in READERS[reader](source, columns, on_error):
        empty = False
        yield sentence
    if empty:
        raise UserError(f"{source.path}: holds no sentences; check the file and --reader {reader}")


# --- records ---------------------------------------------------------------------------------


def _sentence(where: str, fields: Mapping[str, Any], columns: Columns) -> Sentence:
    text = _field(where, fields, columns.text, "--text")
    if not isinstance(text, str) or not text.strip():
        raise UserError(
            f"{where}: empty text in {columns.text!r}; drop the row, or use --skip-invalid"
        )
    _check_encodable(where, text)
    user = ""
    if columns.user is not None:
        value = _field(where, fields, columns.user, "--user")
        user = "" if value is None else str(value).strip()
        if not user:
            raise UserError(
                f"{where}: null user in {columns.user!r}; name the writer, drop the row, "
                "or use --skip-invalid"
            )
        _check_encodable(where, user)
    label = None
    if columns.label is not None:
        value = _field(where, fields, columns.label, "--label")
        label = None if value is None or value == "" else str(value)
    marks: tuple[Span, ...] = ()
    if columns.marks is not None:
        marks = _marks(where, _field(where, fields, columns.marks, "--marks"), text)
    return Sentence(user, text, label, marks)


def _field(where: str, fields: Mapping[str, Any], name: str, option: str) -> Any:
    if name not in fields:
        raise UserError(
            f"{where}: no column {name!r}; the columns are {', '.join(map(str, fields))}; "
            f"choose one with {option}" + _no_user_hint(option)
        )
    return fields[name]


def _no_user_hint(option: str) -> str:
    return " (or --assign-users to form users at random)" if option == "--user" else ""


def _check_encodable(where: str, text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{where}: half a surrogate pair, which no UTF-8 file can hold; mend the text"
            ) from None


_START, _END, _LABEL = (
    ("start", "start_position"),
    ("end", "end_position"),
    ("label", "entity_type"),
)


def _marks(where: str, value: Any, text: str) -> tuple[Span, ...]:
    if value is None:
        return ()
    if isinstance(value, str):  # a CSV cell holds them as JSON
        try:
            value = json.loads(value) if value.strip() else []
        except json.JSONDecodeError:
            raise UserError(f"{where}: marks are not JSON: {value[:40]!r}") from None
    spans = []
    for mark in value:
        try:
            start, end, label = (_first(mark, names) for names in (_START, _END, _LABEL))
            span = Span(int(start), int(end), str(label))
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{where}: a mark needs `start`, `end` and `label`, not {str(mark)[:60]!r}"
            ) from None
        if not 0 <= span.start < span.end <= len(text):
            raise UserError(
                f"{where}: mark {span.start}:{span.end} lies outside its text of {len(text)} "
                "characters; count in Unicode characters from 0, the end exclusive"
            )
        spans.append(span)
    return tuple(sorted(spans))


def _first(mark: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in mark:
            return mark[name]
    raise KeyError(names[0])


def _json_object(where: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: broken JSON at column {error.colno} ({error.msg}); one object per line"
        ) from None
    if not isinstance(value, dict):
        raise UserError(
            f"{where}: a JSON {type(value).__name__} where an object with fields belongs"
        )
    return value


def _csv_rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    delimiter = "\t" if _suffix(source.path) == ".tsv" else ","
    # strict: a stray quote is an error, not a field that silently swallows the rest of the file
    rows = csv.reader((line for _, line in source.lines()), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"{source.path}:{rows.line_num}: {error}; mend the quoting") from None
        if row is None:
            return
        if row:
            yield rows.line_num, row


def csv_records(
    source: Source, columns: Columns, on_error: OnError = fail
) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered rows of a CSV file with a header, as fields by name."""
    rows = _csv_rows(source)
    header = next(rows, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    _wanted(f"{source.path}:{header[0]}", names, columns)
    for number, row in rows:
        if len(row) != len(names):
            on_error(
                UserError(
                    f"{source.path}:{number}: {len(row)} fields where the header has {len(names)}; "
                    "quote fields that hold commas or line ends"
                )
            )
            continue
        yield number, dict(zip(names, row, strict=True))


def _from_batches(
    path: Path, batches: Any, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    number = 0
    for batch in batches:
        for fields in batch.to_pylist():
            number += 1
            try:
                yield _sentence(f"{path}: row {number}", fields, columns)
            except UserError as error:
                on_error(error)


def _wanted(where: str, present: Sequence[str], columns: Columns) -> list[str]:
    """The columns to read; a missing one is named before the first row is touched."""
    chosen = {
        "--user": columns.user,
        "--text": columns.text,
        "--label": columns.label,
        "--marks": columns.marks,
    }
    names = dict.fromkeys(present)
    for option, name in chosen.items():
        if name is not None:
            _field(where, names, name, option)
    return [name for name in chosen.values() if name is not None]


def _conll_sentence(user: str, tokens: Sequence[tuple[str, str]]) -> Sentence:
    text = " ".join(token for token, _ in tokens)
    marks: list[Span] = []
    position, kind, start, end = 0, "", 0, 0
    for token, tag in (*tokens, ("", "O")):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (tag_kind != kind or prefix == "B"):
            marks.append(Span(start, end, kind))
            kind = ""
        if tag_kind and not kind:
            kind, start = tag_kind, position
        end = position + len(token)
        position = end + 1
    return Sentence(user, text, None, tuple(marks))


def _check_tag(where: str, tag: str) -> None:
    prefix, dash, kind = tag.partition("-")
    if tag != "O" and not (dash and kind and prefix in ("B", "I")):
        raise UserError(
            f"{where}: tag {tag!r} is neither O nor B-TYPE or I-TYPE; is this IOB1 or IOB2?"
        )


def _chain(first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]) -> Iterator[Any]:
    yield first
    yield from rest


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
