"""Readers: files of text with owners become a stream of sentences.

Every reader names the file and the line in its errors, and holds one record in memory at a time
(but for `presidio-research`, whose format is a single JSON array).
"""

import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from uedp.corpus.records import Columns, blank, json_value, sentence_from, wanted
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source
from uedp.errors import UserError

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
        names = wanted(str(source.path), table.schema_arrow.names, columns)
        batches = table.iter_batches(batch_size=_ROWS, columns=names)
        yield from _from_batches(source, batches, table.metadata.num_rows, columns, on_error)


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
    names = wanted(str(source.path), loaded.column_names, columns)
    batches = loaded.select_columns(names).with_format("arrow").iter(batch_size=_ROWS)
    yield from _from_batches(source, batches, len(loaded), columns, on_error)


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


def _from_batches(
    source: Source, batches: Any, rows: int, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    number = 0
    for batch in _undamaged(source, batches):
        for fields in _records(source, number, batch, on_error):
            number += 1
            if fields is not None:
                yield from _one(f"{source.path}: row {number}", fields, columns, on_error)
        source.reached(number / max(rows, 1))


def _undamaged(source: Source, batches: Any) -> Iterator[Any]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{source.path}: damaged data ({_first_line(error)}); copy or export it anew"
        ) from None


def _records(
    source: Source, done: int, batch: Any, on_error: OnError
) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch as fields by name; None for one that is not UTF-8."""
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for row in range(batch.num_rows):
        try:
            (fields,) = batch.slice(row, 1).to_pylist()
        except UnicodeDecodeError:
            where = f"{source.path}: row {done + row + 1}"
            on_error(UserError(f"{where}: invalid UTF-8 in a string; mend the export"))
            fields = None
        yield fields


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


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
