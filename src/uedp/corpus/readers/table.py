"""Columnar files and tables: Parquet, Hugging Face data sets, tables in memory."""

import reprlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, first_line, listed, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.errors import UserError
from uedp.strict import parse_json

_ROWS = 256  # rows of a columnar file held at once; a row may be a whole document

# Arrow's exceptions for damaged data: most are its own, but not all.
_BROKEN: tuple[type[Exception], ...] = (pa.ArrowException, OSError, ValueError, TypeError)
_BROKEN += (LookupError, ArithmeticError, MemoryError)


@register_reader("parquet", ".parquet")
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


@register_reader("hf", reads_folders=True)
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


def read_table(source: TableSource, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A table in memory."""
    names = columns.require(str(source), source.names)

    def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _checked_columns(str(source), batch.schema, names, columns)
            yield batch

    yield from _from_batches(source, checked(source.batches(names, _ROWS)), columns, on_error)


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
                with reported_to(on_error):
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
