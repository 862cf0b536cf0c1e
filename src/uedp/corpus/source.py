"""Where text comes from: a file with numbered lines, or a table in memory."""

import codecs
import gzip
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from uedp.corpus.records import first_line, listed
from uedp.errors import UserError

_BAD_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


class Source:
    """A file or folder being read: knows its position, decompresses `.gz`."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        self.path = path
        self.size = path.stat().st_size if path.is_file() else 0
        self._raw: BinaryIO | None = None
        self._reached = 0

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
        return self._raw.tell() if self._raw and not self._raw.closed else self._reached

    def reached(self, share: float) -> None:
        """Set the position of a file that is not read byte by byte."""
        self._reached = round(share * self.size)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if self.path.is_dir():
            raise UserError(
                f"{self.path}: is a folder; give a file, or use `reader='hf'` for a data set"
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

    def lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Numbered lines, line ends kept, a byte order mark dropped.

        They are bytes, so that one that is not UTF-8 is an error of that line only.
        """
        number = 0
        with self.open() as stream:
            try:
                for number, line in enumerate(stream, 1):
                    yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            except _BAD_GZIP as error:
                raise self._bad_gzip(f"{self.path}:{number + 1}", error) from None

    def decoded(self, number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.path}:{number}: invalid UTF-8 at byte {error.start}; "
                "convert the file to UTF-8 (for example with iconv)"
            ) from None

    def _bad_gzip(self, where: str, error: BaseException) -> UserError:
        return UserError(f"{where}: damaged gzip data ({error}); compress or copy it again")


class TableSource:
    """A pandas DataFrame or a `datasets.Dataset`, known by its methods: neither is imported."""

    size = position = 0
    rereadable = True

    def __init__(self, table: Any) -> None:
        self._table = table
        self._name = type(table).__name__
        if isinstance(table, Mapping):
            raise UserError(f"{self._name}: holds {listed(map(str, table))}; give one of them")
        self._is_frame = hasattr(table, "iloc")
        if not self._is_frame and not hasattr(table, "select_columns"):
            raise UserError(f"{self._name}: give a path, a pandas DataFrame or a datasets.Dataset")

    def __str__(self) -> str:
        return self._name

    @property
    def names(self) -> list[str]:
        names = self._table.columns if self._is_frame else self._table.column_names
        return [name for name in names if isinstance(name, str)]

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The named columns as record batches of at most `rows` rows."""
        if self._is_frame:
            try:
                table = pa.Table.from_pandas(self._table[list(names)], preserve_index=False)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise UserError(
                    f"{self}: a column mixes types ({first_line(error)}); convert it to text or "
                    "numbers"
                ) from None
            yield from table.to_batches(rows)
        else:
            for part in self._table.select_columns(names).with_format("arrow").iter(rows):
                yield from part.to_batches()
