"""Readers: files of text with owners become a stream of sentences.

Every reader names the file and the line in its errors, and holds one record in memory at a time
(but for `presidio-research`, whose format is a single JSON array).
"""

import csv
import re
import reprlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from uedp.corpus.records import Columns, blank, json_value, listed, sentence_from, wanted
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source
from uedp.errors import UserError
from uedp.strict import parse_json

__all__ = [
    "READERS",
    "WITHOUT_USERS",
    "Columns",
    "OnError",
    "Skipped",
    "Source",
    "csv_records",
    "fail",
    "read",
    "reader_named",
]

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is shorter than a long e-mail thread
_ROWS = 256  # rows of a columnar file held at once; a row may be a whole document

# What to do with a bad record: raise, or note it and go on.
OnError = Callable[[UserError], None]
Reader = Callable[[Source, Columns, OnError], Iterator[Sentence]]


def fail(error: UserError) -> None:
    """The strict choice: the first bad record ends the reading."""
    raise error


class Skipped:
    """The lenient choice: bad records are counted, and the first is remembered."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: UserError) -> None:
        self.first = self.first or str(error)
        self.count += 1


def read_jsonl(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, line in source.lines():
        if not line.strip():
            continue
        where = f"{source.path}:{number}"
        try:
            fields = json_value(where, source.decoded(number, line).rstrip())
            if not isinstance(fields, dict):
                raise UserError(
                    f"{where}: a JSON {type(fields).__name__} where an object with fields belongs"
                )
            sentence = sentence_from(where, fields, columns)
        except UserError as error:
            on_error(error)
        else:
            yield sentence


def read_csv(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, fields in csv_records(source, columns, on_error):
        yield from _one(f"{source.path}:{number}", fields, columns, on_error)


_AG_HEADERS = (
    ["label", "text"],
    ["class index", "title", "description"],
    ["class", "title", "description"],
)


def read_ag(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """AG's news: `label,text`, or the original `class,title,description`; the latter also bare."""
    rows = _csv_rows(source, on_error)
    first = next(rows, None)
    if first is None:
        return
    header = [name.strip().lower() for name in first[1]]
    expected = len(header) if header in _AG_HEADERS else 3
    for number, row in rows if header in _AG_HEADERS else chain([first], rows):
        where = f"{source.path}:{number}"
        if len(row) != expected:
            problem = f"{len(row)} fields where AG has {expected}; quote those with commas"
        elif not row[0].strip().isdecimal():
            problem = f"class {row[0]!r} is not a number; AG's are 1 to 4"
        else:
            fields = {"label": row[0], "text": " ".join(row[1:])}
            yield from _one(where, fields, Columns(user=None, label="label"), on_error)
            continue
        on_error(UserError(f"{where}: {problem}"))


def read_parquet(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    with ExitStack() as stack:
        opened: Any = str(source.path)
        if source.path.suffix == ".gz":
            # Parquet needs random access, so the whole file is unpacked first; into a file without
            # a name, of which nothing is left if this process is killed
            opened = stack.enter_context(tempfile.TemporaryFile())
            with source.open() as packed:
                shutil.copyfileobj(packed, opened)
        try:
            table = pq.ParquetFile(opened)
            schema, rows = table.schema_arrow, table.metadata.num_rows
            present = schema.names
        except _BROKEN as error:
            raise UserError(
                f"{source.path}: not a Parquet file ({_first_line(error)}); check --reader"
            ) from None
        names = _plain_columns(source.path, schema, present, columns)
        batches = table.iter_batches(batch_size=_ROWS, columns=names)
        yield from _from_batches(source, batches, rows, columns, on_error)


def read_hf(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A Hugging Face data set saved with `save_to_disk`.

    Its Arrow files are read here and not by that library, which trusts what they say.
    """
    yield from _from_batches(source, _hf_batches(source.path, columns), 0, columns, on_error)


def _hf_batches(folder: Path, columns: Columns) -> Iterator[Any]:
    for path in _hf_files(folder):
        try:
            reader = pa.ipc.open_stream(pa.memory_map(str(path)))
            schema, present = reader.schema, reader.schema.names
        except _BROKEN as error:
            raise UserError(f"{path}: not an Arrow stream ({_first_line(error)})") from None
        names = _plain_columns(path, schema, present, columns)
        for batch in reader:
            yield batch.select(names)


def _hf_files(folder: Path) -> list[Path]:
    """The Arrow files of a data set folder, in order."""
    problem = f"{folder}: not a data set saved with save_to_disk"
    if (folder / "dataset_dict.json").is_file():
        splits = _hf_json(problem, folder / "dataset_dict.json").get("splits")
        known = listed(map(str, splits)) if isinstance(splits, list) else "of a data set"
        raise UserError(f"{folder}: holds the splits {known}; give one of the folders inside")
    state = _hf_json(problem, folder / "state.json")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or state.get("_indices_data_files"):
        raise UserError(f"{problem} (state.json names no data files)")
    files = []
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        # only what lies in the folder: a name could lead anywhere on the disk
        if not isinstance(name, str) or Path(name).name != name or not _is_file(folder / name):
            raise UserError(f"{problem} (no file {reprlib.repr(name)} in it)")
        files.append(folder / name)
    return files


def _hf_json(problem: str, path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{problem} ({path.name}: {error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{problem} ({path.name}: {_first_line(error)})") from None
    if not isinstance(found, dict):
        raise UserError(f"{problem} ({path.name} is not an object)")
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a zero in it
        return False


_DOCSTART = re.compile(rb"-DOCSTART-(?=[ \t]|$)")


def read_conll(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """Column files: token first, tag last; a blank line ends a sentence, -DOCSTART- starts a user.

    IOB1 and IOB2 decode alike: `B-` opens an entity, and so does `I-` after another type. A
    sentence with a bad line is left out as a whole.
    """
    user, documents = "", 0
    layout = _Layout()
    tokens: list[tuple[str, str]] = []
    broken = False  # the sentence has had its error; its other lines are passed over
    for number, raw in chain(source.lines(), [(0, b"")]):
        line = raw.strip(b" \t\r\n")  # no other white space: a token may consist of it
        if line and not _DOCSTART.match(line):
            if broken:
                continue
            where = f"{source.path}:{number}"
            try:
                tokens.append(layout.token_and_tag(where, source.decoded(number, line)))
                if not user and columns.user is not None:
                    raise UserError(
                        f"{where}: a sentence before any -DOCSTART- line; add one per user, "
                        "or use --assign-users"
                    )
            except UserError as error:
                on_error(error)
                broken = True
            continue
        if tokens and not broken:
            sentence = _conll_sentence(user, tokens)
            if blank(sentence.text):
                on_error(UserError(f"{where}: the sentence ends without visible text; drop it"))
            else:
                yield sentence
        tokens, broken = [], False
        if line:
            documents += 1
            user = f"doc-{documents:05d}"


def read_presidio_research(
    source: Source, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """presidio-research's JSON array of texts with character spans; each record is its own user."""
    with source.open() as stream:
        records = json_value(str(source.path), stream.read())
    if not isinstance(records, list):
        raise UserError(f"{source.path}: a JSON array of records is expected; check --reader")
    for number, record in enumerate(records, 1):
        where = f"{source.path}: record {number}"
        if isinstance(record, dict):
            fields = {**record, "user": f"record-{number:06d}"}
            yield from _one(where, fields, Columns(text="full_text", marks="spans"), on_error)
        else:
            on_error(
                UserError(f"{where}: not an object; each record needs `full_text` and `spans`")
            )


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


# --- what readers share ------------------------------------------------------------------------


def _one(
    where: str, fields: Mapping[str, Any], columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """The sentence of a record, or none if the record is bad and that is put up with."""
    try:
        sentence = sentence_from(where, fields, columns)
    except UserError as error:
        on_error(error)
    else:
        yield sentence


def _csv_rows(source: Source, on_error: OnError) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line they begin on; a bad first row, perhaps a header, is never put up with."""
    line = 0
    undecodable: list[UserError] = []  # of the row at hand

    def text(numbered: tuple[int, bytes]) -> str:
        nonlocal line
        line, raw = numbered
        try:
            return source.decoded(line, raw)
        except UserError as error:
            undecodable.append(error)
            return raw.decode(errors="replace")  # never used, but the row ends where it ends

    delimiter = "\t" if _suffix(source.path) == ".tsv" else ","
    # strict: a stray quote is an error, not a field that silently swallows the rest of the file
    rows = csv.reader(map(text, source.lines()), delimiter=delimiter, strict=True)
    tolerated: OnError = fail
    while True:
        first = line + 1
        undecodable.clear()
        try:
            row = next(rows, None)
        except csv.Error as error:
            ends = f" on line {line}" if line > first else ""
            bad = UserError(f"{source.path}:{first}: {error}{ends}; mend the quoting")
            # only after a row of one line is it plain where the next row begins
            (fail if ends else tolerated)(bad)
            continue
        if row is None:
            return
        if undecodable:
            tolerated(undecodable[0])
        elif row:
            yield first, row
            tolerated = on_error


def csv_records(
    source: Source, columns: Columns, on_error: OnError = fail
) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered rows of a CSV file with a header, as fields by name."""
    rows = _csv_rows(source, on_error)
    header = next(rows, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    wanted(f"{source.path}:{header[0]}", names, columns)
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


# What Arrow raises on damaged data: most of it its own, but not all.
_BROKEN = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
)


def _plain_columns(where: Path, schema: Any, present: Sequence[str], columns: Columns) -> list[str]:
    """The columns to read, if they hold text, numbers, or lists and objects of them."""
    names = wanted(str(where), present, columns)
    for name in names:
        kind = schema.field(name).type
        if not _is_plain(kind):
            raise UserError(
                f"{where}: column {name!r} holds {_first_line(kind)}; store it as text or numbers"
            )
    return names


def _is_plain(kind: Any) -> bool:
    if types.is_struct(kind):
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type) and _is_plain(kind.value_type)
    return any(
        test(kind)
        for test in (
            types.is_null,
            types.is_boolean,
            types.is_integer,
            types.is_floating,
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
        )
    )


def _from_batches(
    source: Source, batches: Any, rows: int, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    number = 0
    for batch in _undamaged(source, batches):
        for fields in _undamaged(source, _records(source, number, batch, on_error)):
            number += 1
            if fields is not None:
                yield from _one(f"{source.path}: row {number}", fields, columns, on_error)
        source.reached(number / max(rows, 1))


def _undamaged(source: Source, items: Any) -> Iterator[Any]:
    try:
        yield from items
    except _BROKEN as error:
        raise UserError(
            f"{source.path}: damaged data ({_first_line(error)}); copy or export it anew"
        ) from None


def _records(
    source: Source, done: int, batch: Any, on_error: OnError
) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch as fields by name; None for one that is not UTF-8.

    Nothing is read before all offsets were checked: Arrow itself would follow them anywhere.
    """
    undecoded: list[str] = []
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        undecoded = [field.name for field in batch.schema if types.is_string(field.type)]
        kept = [c.view(pa.binary()) if types.is_string(c.type) else c for c in batch.columns]
        batch = pa.record_batch(kept, names=batch.schema.names)
        batch.validate(full=True)  # if all but the strings is in order, it can be told row by row
    for start in range(0, batch.num_rows, _ROWS):
        for row, fields in enumerate(batch.slice(start, _ROWS).to_pylist(), done + start + 1):
            try:
                yield {**fields, **{name: _decoded(fields[name]) for name in undecoded}}
            except UnicodeDecodeError:
                where = f"{source.path}: row {row}"
                on_error(UserError(f"{where}: invalid UTF-8 in a string; mend the export"))
                yield None


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class _Layout:
    """How a column file separates its fields, and how many there are: as its first token line."""

    def __init__(self) -> None:
        self._separator = ""
        self._width = 0

    def token_and_tag(self, where: str, line: str) -> tuple[str, str]:
        separator = self._separator or ("\t" if "\t" in line else " ")
        fields = line.split(separator)
        if separator == " ":  # columns may be padded; between tabs an empty field counts
            fields = [field for field in fields if field]
        if len(fields) < 2:
            raise UserError(f"{where}: one field, {line!r}, where a token and its tag belong")
        if self._width and len(fields) != self._width:
            raise UserError(
                f"{where}: {len(fields)} fields where lines before have {self._width}; "
                "separate them by tabs if a token holds a blank"
            )
        token, tag = fields[0], fields[-1]
        prefix, dash, kind = tag.partition("-")
        if tag != "O" and not (dash and kind and prefix in ("B", "I")):
            raise UserError(
                f"{where}: tag {tag!r} is neither O nor B-TYPE or I-TYPE; is this IOB1 or IOB2?"
            )
        self._separator, self._width = separator, len(fields)
        return token, tag


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


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
