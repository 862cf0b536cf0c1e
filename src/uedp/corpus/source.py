"""A file being read: decompressed on the way, its lines numbered."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from uedp.errors import UserError

_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)


class Source:
    """A file or folder being read: knows how far along it is, decompresses `.gz` on the way."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        self.path = path
        self.size = path.stat().st_size if path.is_file() else 0
        self._raw: BinaryIO | None = None
        self._reached = 0

    @property
    def rereadable(self) -> bool:
        """Whether it can be read from the start again; a pipe cannot."""
        return self.path.is_file() or self.path.is_dir()

    @property
    def position(self) -> int:
        """Bytes of the file consumed so far, compressed bytes for a `.gz`."""
        return self._raw.tell() if self._raw and not self._raw.closed else self._reached

    def reached(self, share: float) -> None:
        """For readers that do not go through the file byte by byte: this much of it is done."""
        self._reached = round(share * self.size)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if self.path.is_dir():
            raise UserError(
                f"{self.path}: is a folder; give a file, or use --reader hf for a data set"
            )
        with self.path.open("rb") as raw:
            self._raw = raw
            if self.path.suffix == ".gz":
                try:
                    with gzip.GzipFile(fileobj=raw) as stream:
                        yield stream  # type: ignore[misc]
                except _DAMAGED as error:
                    raise self._damaged(str(self.path), error) from None
            else:
                yield raw

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered lines, line ends kept, a byte order mark dropped.

        They are bytes so that one that is not UTF-8 is an error of that line alone.
        """
        number = 0
        with self.open() as stream:
            try:
                for number, line in enumerate(stream, 1):
                    yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            except _DAMAGED as error:
                raise self._damaged(f"{self.path}:{number + 1}", error) from None

    def decoded(self, number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{self.path}:{number}: invalid UTF-8 at byte {error.start}; "
                "convert the file to UTF-8 (for example with iconv)"
            ) from None

    def _damaged(self, where: str, error: BaseException) -> UserError:
        return UserError(f"{where}: damaged gzip data ({error}); compress or copy it anew")
