"""Readers: files of text with users become a stream of sentences.

Every reader names the file and the line in its errors, and holds one record in memory at a time
(except `presidio-research`, whose format is a single JSON array).
"""

import csv
import re
import reprlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from uedp.corpus.records import Columns, blank, first_line, json_value, listed, sentence_from
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source, TableSource
from uedp.errors import UserError
from uedp.strict import parse_json

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is shorter than a long e-mail thread
_ROWS = 256  # rows of a columnar file held at once; a row may be a whole document

# Arrow's exceptions for damaged data: most are its own, but not all.
_BROKEN: tuple[type[Exception], ...] = (pa.ArrowException, OSError, ValueError, TypeError)
_BROKEN += (LookupError, ArithmeticError, MemoryError)

# Called with the error of each invalid record: raises it, or returns to skip the record.
OnError = Callable[[UserError], None]
Reader = Callable[[Source, Columns, OnError], Iterator[Sentence]]


def raise_error(error: UserError) -> None:
    """Stop at the first invalid record."""
    raise error


class SkippedRecords:
    """Skip invalid records; count them, and keep the first error."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: UserError) -> None:
        self.first = self.first or str(error)
        self.count += 1


@contextmanager
def _reported_to(on_error: OnError) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        on_error(error)


def read_jsonl(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, line in source.lines():
        if not line.strip():
            continue
        where = f"{source}:{number}"
        with _reported_to(on_error):
            fields = json_value(where, source.decoded(number, line).rstrip())
            if not isinstance(fields, dict):
                raise UserError(f"{where}: a JSON {type(fields).__name__}, not an object")
            yield sentence_from(where, fields, columns)


def read_csv(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, fields in csv_records(source, columns.require, on_error):
        with _reported_to(on_error):
            yield sentence_from(f"{source}:{number}", fields, columns)


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
        where = f"{source}:{number}"
        with _reported_to(on_error):
            if len(row) != expected:
                raise UserError(
                    f"{where}: {len(row)} fields, AG has {expected}; quote those with commas"
                )
            if not row[0].strip().isdecimal():
                raise UserError(f"{where}: class {row[0]!r} is not a number; AG's are 1 to 4")
            fields = {"label": row[0], "text": " ".join(row[1:])}
            yield sentence_from(where, fields, Columns(user=None, label="label"))


def read_parquet(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    with ExitStack() as stack:
        opened: Any = str(source.path)
        if source.path.suffix == ".gz":
            # Parquet needs random access, so the whole file is unpacked first, into a file without
            # a name: it disappears with this process
            opened = stack.enter_context(tempfile.TemporaryFile())
            with source.open() as packed:
                shutil.copyfileobj(packed, opened)
        try:
            table = pq.ParquetFile(opened)
            schema, rows = table.schema_arrow, table.metadata.num_rows
            names = schema.names
        except _BROKEN as error:
            raise UserError(
                f"{source}: not a Parquet file ({first_line(error)}); check `reader=...`"
            ) from None
        names = _checked_columns(str(source), schema, names, columns)
        batches = table.iter_batches(batch_size=_ROWS, columns=names)
        yield from _from_batches(source, batches, columns, on_error, rows)


def read_hf(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A Hugging Face data set saved with `save_to_disk`.

    Its Arrow files are read here and not by that library, which does not check them.
    """
    yield from _from_batches(source, _hf_batches(source.path, columns), columns, on_error)


def _hf_batches(folder: Path, columns: Columns) -> Iterator[Any]:
    for path in _hf_files(folder):
        try:
            reader = pa.ipc.open_stream(pa.memory_map(str(path)))
            schema, names = reader.schema, reader.schema.names
        except _BROKEN as error:
            raise UserError(f"{path}: not an Arrow stream ({first_line(error)})") from None
        names = _checked_columns(str(path), schema, names, columns)
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
        # only files in the folder: a name could lead anywhere on the disk
        if not isinstance(name, str) or Path(name).name != name or not _is_file(folder / name):
            raise UserError(f"{problem} (no file {reprlib.repr(name)} in it)")
        files.append(folder / name)
    return files


def _hf_json(problem: str, path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{problem} ({path.name}: {error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{problem} ({path.name}: {first_line(error)})") from None
    if not isinstance(value, dict):
        raise UserError(f"{problem} ({path.name} is not an object)")
    return value


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
    invalid = False  # an error of the sentence was reported; its other lines are skipped
    for number, raw in chain(source.lines(), [(0, b"")]):
        line = raw.strip(b" \t\r\n")  # no other white space: a token may consist of it
        if line and not _DOCSTART.match(line):
            if invalid:
                continue
            where = f"{source}:{number}"
            invalid = True
            with _reported_to(on_error):
                tokens.append(layout.token_and_tag(where, source.decoded(number, line)))
                if not user and columns.user is not None:
                    raise UserError(
                        f"{where}: a sentence before any -DOCSTART- line; add one per user, "
                        "or use `assign_users=...`"
                    )
                invalid = False
            continue
        if tokens and not invalid:
            sentence = _conll_sentence(user, tokens)
            if blank(sentence.text):
                on_error(UserError(f"{where}: the sentence ends without visible text; drop it"))
            else:
                yield sentence
        tokens, invalid = [], False
        if line:
            documents += 1
            user = f"doc-{documents:05d}"


def read_presidio_research(
    source: Source, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """presidio-research's JSON array of texts with character spans; each record is its own user."""
    with source.open() as stream:
        records = json_value(str(source), stream.read())
    if not isinstance(records, list):
        raise UserError(f"{source}: not a JSON array of records; check `reader=...`")
    for number, record in enumerate(records, 1):
        where = f"{source}: record {number}"
        with _reported_to(on_error):
            if not isinstance(record, dict):
                raise UserError(f"{where}: not an object; each needs `full_text` and `spans`")
            fields = {**record, "user": f"record-{number:06d}"}
            yield sentence_from(where, fields, Columns(text="full_text", marks="spans"))


def read_table(source: TableSource, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A table in memory."""
    names = columns.require(str(source), source.names)

    def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _checked_columns(str(source), batch.schema, names, columns)
            yield batch

    yield from _from_batches(source, checked(source.batches(names, _ROWS)), columns, on_error)


READERS: Mapping[str, Reader] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
    "hf": read_hf,
    "conll": read_conll,
    "ag": read_ag,
    "presidio-research": read_presidio_research,
}

# Readers whose records never name a user, so that users must be assigned.
WITHOUT_USERS = frozenset({"ag"})

_BY_SUFFIX = {f".{name}": name for name in ("jsonl", "csv", "parquet")}
_BY_SUFFIX |= {".ndjson": "jsonl", ".tsv": "csv"}


def choose_reader(name: str, source: Source) -> str:
    """`name` if it is a reader; for `auto`, the reader of the file's suffix."""
    if name in READERS:
        return name
    known = ", ".join(READERS)
    if name != "auto":
        raise UserError(f"`reader={name!r}`: unknown reader; choose among {known}")
    if source.path.is_dir():
        return "hf"
    if source.suffix not in _BY_SUFFIX:
        raise UserError(f"{source}: no known suffix; name the format by `reader=...`: {known}")
    return _BY_SUFFIX[source.suffix]


def read_sentences(
    source: Source | TableSource | Path | str,
    reader: str = "auto",
    columns: Columns = Columns(),  # noqa: B008 - frozen
    on_error: OnError = raise_error,
) -> Iterator[Sentence]:
    """The sentences of a source.

    Guarantees:
      - every sentence has text that is not blank and, unless `columns.user` is None, a user
      - every mark lies within its text
      - a record that breaks this goes to `on_error` with file, line and remedy
      - a source without sentences is an error
    """
    if isinstance(source, TableSource):
        sentences = read_table(source, columns, on_error)
    else:
        source = source if isinstance(source, Source) else Source(Path(source))
        sentences = READERS[choose_reader(reader, source)](source, columns, on_error)
    empty = True
    for sentence in sentences:
        empty = False
        yield sentence
    if empty:
        raise UserError(f"{source}: holds no sentences; check the data and `reader=...`")


# --- shared by the readers ---------------------------------------------------------------------


def _csv_rows(source: Source, on_error: OnError) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line they begin on; an error in the first, perhaps the header, is raised."""
    line = 0
    undecodable: list[UserError] = []  # errors of the current row

    def text(numbered: tuple[int, bytes]) -> str:
        nonlocal line
        line, raw = numbered
        try:
            return source.decoded(line, raw)
        except UserError as error:
            undecodable.append(error)
            return raw.decode(errors="replace")  # not used, but shows where the row ends

    delimiter = "\t" if source.suffix == ".tsv" else ","
    report: OnError = raise_error
    with closing(source.lines()) as lines:  # or an error would keep the file open
        # strict: a stray quote is an error, not a field that silently swallows the rest of the file
        rows = csv.reader(map(text, lines), delimiter=delimiter, strict=True)
        while True:
            first = line + 1
            undecodable.clear()
            try:
                row = next(rows, None)
            except csv.Error as error:
                ends = f" on line {line}" if line > first else ""
                invalid = UserError(f"{source}:{first}: {error}{ends}; correct the quoting")
                # only after a row of one line is it clear where the next row begins
                (raise_error if ends else report)(invalid)
                continue
            if row is None:
                return
            if undecodable:
                report(undecodable[0])
            elif row:
                yield first, row
                report = on_error


def csv_records(
    source: Source,
    check_header: Callable[[str, list[str]], object],
    on_error: OnError = raise_error,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered rows of a CSV file with a header, as fields by name.

    Args:
        check_header: called with the place and the names in the header; raises if one is missing
    """
    rows = _csv_rows(source, on_error)
    header = next(rows, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    check_header(f"{source}:{header[0]}", names)
    for number, row in rows:
        with _reported_to(on_error):
            if len(row) != len(names):
                raise UserError(
                    f"{source}:{number}: {len(row)} fields, the header has {len(names)}; "
                    "quote fields that hold commas or line ends"
                )
            yield number, dict(zip(names, row, strict=True))


def _checked_columns(where: str, schema: Any, names: Sequence[str], columns: Columns) -> list[str]:
    """The columns to read, if they hold text, numbers, or lists and objects of them."""
    chosen = columns.require(where, names)
    for name in chosen:
        kind = schema.field(name).type
        if not _is_plain(kind):
            raise UserError(
                f"{where}: column {name!r} holds {first_line(kind)}; store it as text or numbers"
            )
    return chosen


def _is_plain(kind: Any) -> bool:
    if types.is_struct(kind):
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type) and _is_plain(kind.value_type)
    numbers = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in (*numbers, *texts))


def _from_batches(
    source: Source | TableSource,
    batches: Iterable[pa.RecordBatch],
    columns: Columns,
    on_error: OnError,
    rows: int = 0,
) -> Iterator[Sentence]:
    """The sentences of record batches; of `rows` rows in all, for the position in the source."""
    number = 0
    for batch in _undamaged(source, batches):
        for fields in _undamaged(source, _records(source, number, batch, on_error)):
            number += 1
            if fields is not None:
                with _reported_to(on_error):
                    yield sentence_from(f"{source}: row {number}", fields, columns)
        if isinstance(source, Source):
            source.reached(number / max(rows, 1))


def _undamaged(source: Source | TableSource, items: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from items
    except _BROKEN as error:
        raise UserError(
            f"{source}: damaged data ({first_line(error)}); copy or export it again"
        ) from None


def _records(
    source: Source | TableSource, done: int, batch: Any, on_error: OnError
) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch as fields by name; None for one that is not UTF-8.

    All offsets are checked before any is followed; Arrow itself does not check them.
    """
    undecoded: list[str] = []
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        undecoded = [field.name for field in batch.schema if types.is_string(field.type)]
        kept = [c.view(pa.binary()) if types.is_string(c.type) else c for c in batch.columns]
        batch = pa.record_batch(kept, names=batch.schema.names)
        batch.validate(full=True)  # only strings are invalid: decode them row by row
    for start in range(0, batch.num_rows, _ROWS):
        for row, fields in enumerate(batch.slice(start, _ROWS).to_pylist(), done + start + 1):
            try:
                yield {**fields, **{name: _decoded(fields[name]) for name in undecoded}}
            except UnicodeDecodeError:
                on_error(
                    UserError(f"{source}: row {row}: invalid UTF-8 in a string; export it again")
                )
                yield None


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


class _Layout:
    """The separator and the number of fields of a column file, taken from its first token line."""

    def __init__(self) -> None:
        self._separator = ""
        self._width = 0

    def token_and_tag(self, where: str, line: str) -> tuple[str, str]:
        separator = self._separator or ("\t" if "\t" in line else " ")
        fields = line.split(separator)
        if separator == " ":  # columns may be padded; between tabs an empty field counts
            fields = [field for field in fields if field]
        if len(fields) < 2:
            raise UserError(f"{where}: one field, {line!r}; a token and its tag are needed")
        if self._width and len(fields) != self._width:
            raise UserError(
                f"{where}: {len(fields)} fields, the lines before have {self._width}; "
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
