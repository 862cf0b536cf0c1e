"""Where text comes from: a file with numbered lines, or a table in memory."""

import codecs
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa

from uedp.corpus.records import listed
from uedp.errors import UserError

_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


class Source:
    """A file or folder being read: knows its position, decompresses `.gz`, decodes text.

    Args:
        encoding: of the text; by default UTF-8, or what a byte order mark says
        delimiter: between the fields of a CSV file; by default recognised
    """

    def __init__(
        self, path: Path, encoding: str | None = None, delimiter: str | None = None
    ) -> None:
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        self.path = path
        self.encoding = _known_encoding(encoding)
        self.delimiter = _known_delimiter(delimiter)
        self.dropped: Counter[str] = Counter()  # what a reader left out on purpose
        self.size = path.stat().st_size if path.is_file() else 0
        self.files: tuple[Path, ...] = ()  # of a folder of files
        self._raw: BinaryIO | None = None
        self._reached = 0
        self._part: Source | None = None

    def __str__(self) -> str:
        return str(self.path)

    @property
    def suffix(self) -> str:
        """The suffix that names the format, in lower case; `.gz` is ignored."""
        path = Path(self.path.stem) if self.path.suffix == ".gz" else self.path
        return path.suffix.lower()

    @property
    def rereadable(self) -> bool:
        """Whether it can be read from the start again; a pipe cannot."""
        return self.path.is_file() or self.path.is_dir()

    @property
    def position(self) -> int:
        """Bytes of the file consumed so far; compressed bytes for a `.gz`."""
        if self._part is not None:
            return self._reached + self._part.position
        return self._raw.tell() if self._raw and not self._raw.closed else self._reached

    def reached(self, share: float) -> None:
        """Set the position of a file that is not read byte by byte."""
        self._reached = round(share * self.size)

    def read_as(self, files: Sequence[Path]) -> None:
        """Read these files of the folder, one after another."""
        self.files, self.size = tuple(files), sum(path.stat().st_size for path in files)

    def parts(self) -> Iterator["Source"]:
        """What is read: this file, or the files of the folder. What they drop counts here."""
        if not self.files:
            yield self
            return
        self._reached, self._part = 0, None
        for path in self.files:
            part = Source(path, self.encoding, self.delimiter)
            part.dropped = self.dropped
            self._part = part
            yield part
            self._reached, self._part = self._reached + part.size, None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if self.path.is_dir():
            raise UserError(
                f"{self.path}: is a folder; give a file, or use `reader='hf'` for a data set, "
                "`reader='eml'` for mail"
            )
        with self.path.open("rb") as raw:
            self._raw = raw
            if self.path.suffix == ".gz":
                try:
                    with gzip.GzipFile(fileobj=raw) as stream:
                        yield stream  # type: ignore[misc]
                except _BAD_GZIP as error:
                    raise self._bad_gzip(str(self.path), error) from None
            else:
                yield raw

    def close(self) -> None:
        """Close the file that is being read; an error keeps the generators of its readers alive."""
        for one in (self, self._part):
            if one is not None and one._raw is not None:
                one._raw.close()

    def lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Numbered lines in UTF-8, line ends kept, a byte order mark dropped.

        They are bytes, so that one that is not UTF-8 is an error of that line only.
        """
        number = 0
        with self.open() as stream:
            try:
                encoding = self._encoding_of(stream)
                lines = stream if encoding == _UTF_8 else _recoded(stream, encoding)
                for number, line in enumerate(lines, 1):
                    yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            except _BAD_GZIP as error:
                raise self._bad_gzip(f"{self.path}:{number + 1}", error) from None
            except UnicodeError as error:
                raise self._undecodable(f"{self.path}:{number + 1}", error) from None

    @contextmanager
    def characters(self) -> Iterator[TextIO]:
        """The text as a stream of characters, a byte order mark dropped."""
        with self.open() as stream:
            encoding = self._encoding_of(stream)
            name = "utf-8-sig" if encoding == _UTF_8 else encoding
            with _decoding(stream, name) as text:
                try:
                    yield text
                except UnicodeError as error:
                    raise self._undecodable(str(self.path), error) from None

    def decoded(self, number: int, line: bytes) -> str:
        """A line from `lines` as text."""
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise self._undecodable(f"{self.path}:{number}", error) from None

    def _encoding_of(self, stream: Any) -> str:
        if self.encoding:
            return self.encoding
        opening = stream.peek(64)[:64]
        for mark, name in _BYTE_ORDER_MARKS:
            if opening.startswith(mark):
                return name
        zeros = opening.count(0)
        if 4 * zeros >= len(opening) > 8:
            raise UserError(
                f"{self.path}: every other byte is zero, as in UTF-16 without a byte order mark; "
                "use `encoding='utf-16-le'`, or check `reader=...`"
            )
        return _UTF_8

    def _undecodable(self, where: str, error: UnicodeError) -> UserError:
        if self.encoding:
            return UserError(f"{where}: not text in `encoding={self.encoding!r}`; choose another")
        name = getattr(error, "encoding", "UTF-8").upper()
        at = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        return UserError(
            f"{where}: invalid {name}{at}; if the file is in Latin-1 or from Windows, use "
            "`encoding='cp1252'`"
        )

    def _bad_gzip(self, where: str, error: BaseException) -> UserError:
        return UserError(f"{where}: damaged gzip data ({error}); compress or copy it again")


_UTF_8 = "utf-8"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, _UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@contextmanager
def _decoding(stream: BinaryIO, encoding: str) -> Iterator[TextIO]:
    text = io.TextIOWrapper(stream, encoding, newline="\n")
    try:
        yield text
    finally:
        with suppress(ValueError):
            text.detach()  # or it would close the stream, which has an owner


def _recoded(stream: BinaryIO, encoding: str) -> Iterator[bytes]:
    """Lines of another encoding, in UTF-8."""
    with _decoding(stream, encoding) as text:
        for line in text:
            yield line.encode()


def _known_encoding(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        "a".encode(name)
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UserError(
            f"`encoding={name!r}`: unknown; common ones are utf-8, utf-16, cp1252, latin-1"
        ) from None
    return "utf-8" if known == "utf-8-sig" else known


def _known_delimiter(name: str | None) -> str | None:
    if name is None:
        return None
    delimiter = "\t" if name in ("tab", "\\t") else name
    if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        raise UserError(f"`delimiter={name!r}`: give one character such as ; or the word tab")
    return delimiter


class TableSource:
    """A table in memory, known by its methods: no library for tables is imported.

    A pandas DataFrame, a `datasets.Dataset`, or anything with Arrow's C stream (a polars
    DataFrame, a `pyarrow.Table`).
    """

    size = position = 0
    rereadable = True

    def __init__(self, table: Any) -> None:
        self._table = table
        self._name = type(table).__name__
        if isinstance(table, Mapping):
            raise UserError(f"{self._name}: holds {listed(map(str, table))}; give one of them")
        self._is_frame = hasattr(table, "iloc")
        self._is_dataset = not self._is_frame and hasattr(table, "select_columns")
        if not (self._is_frame or self._is_dataset or hasattr(table, "__arrow_c_stream__")):
            raise UserError(
                f"{self._name}: give a path, a pandas or polars DataFrame, or a datasets.Dataset"
            )

    def __str__(self) -> str:
        return self._name

    @property
    def names(self) -> list[str]:
        if self._is_frame:
            names = self._table.columns
        elif self._is_dataset:
            names = self._table.column_names
        else:
            names = pa.RecordBatchReader.from_stream(self._table).schema.names
        return [name for name in names if isinstance(name, str)]

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The named columns as record batches; of a frame or data set, of at most `rows` rows."""
        if self._is_frame:
            try:
                table = pa.Table.from_pandas(self._table[list(names)], preserve_index=False)
            except (pa.ArrowException, TypeError, ValueError) as error:
                # the message quotes a value; only the name of the column is repeated
                column = re.search(r"column (.+?) with type", str(error))
                which = f"column {column[1]!r}" if column and column[1] in names else "a column"
                raise UserError(
                    f"{self}: {which} mixes types; convert it to text or numbers"
                ) from None
            yield from table.to_batches(rows)
        elif self._is_dataset:
            for part in self._table.select_columns(names).with_format("arrow").iter(rows):
                yield from part.to_batches()
        else:
            for batch in pa.RecordBatchReader.from_stream(self._table):
                yield _without_views(batch.select(list(names)))


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch, its string views as plain strings."""
    columns = [
        column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, names=batch.schema.names)
