"""How records are read: from a file, a folder or a table, with users who are named or formed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from uedp.corpus import readers, users
from uedp.corpus.normalise import Splitter
from uedp.corpus.readers import OnError, SkippedRecords, raise_error
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.errors import UserError
from uedp.progress import Progress

_AUTO, _NONE, _DEFAULT_LANGUAGE = "auto", "none", "en"

# A batch of sentences ends with a file, and with a block of records of it. Whatever divides the
# work divides it there, so that detectors are given the same batches.
BLOCK = 4096  # records in a block,
BLOCK_CHARACTERS = 1 << 22  # fewer if they are documents

Groups = tuple[float, float]  # mean and standard deviation of the sizes of users


@dataclass(frozen=True)
class Reading:
    """A source, and how its records are read.

    Args:
        groups: users are formed at random, of these sizes
        skipped: counts invalid records; None raises the first error
    """

    source: Source | TableSource
    kind: str
    columns: Columns
    groups: Groups | None = None
    seed: int = 0
    skipped: SkippedRecords | None = None

    @property
    def total(self) -> int | None:
        """For the progress bar, the bytes of the source."""
        return self.source.size or None

    @property
    def position(self) -> Callable[[], int] | None:
        """For the progress bar, what tells how many of them were read."""
        return (lambda: self.source.position) if self.source.size else None

    @property
    def origin(self) -> dict[str, Any]:
        """For the manifest of the corpus."""
        return {
            "file": self.source.path.name if isinstance(self.source, Source) else None,
            "reader": self.kind,
            "assigned_users": "{:g},{:g}".format(*self.groups) if self.groups else None,
        }

    def records(self, progress: Progress) -> Iterator[Sentence]:
        """All records, with their users."""
        if not self.groups:
            return self._read(self.skipped or raise_error)
        users.check_groups(*self.groups, self.seed)
        if not self.source.rereadable:
            raise UserError(f"{self.source}: a pipe; users are formed in two readings, give a file")
        count = self._count(progress)
        formed = users.random_groups(count, *self.groups, self.seed)
        return users.assign_users(self._read(self.skipped or raise_error), formed)

    def parts(self) -> Iterator[Iterator[Sentence]]:
        """The records of each file in turn, with the users that they name."""
        on_error = self.skipped or raise_error
        if isinstance(self.source, TableSource):
            yield readers.read_table(self.source, self.columns, on_error)
            return
        in_folder = bool(self.source.files)
        for part in self.source.parts():
            yield readers.read_part(part, self.kind, self.columns, on_error, in_folder)

    def no_sentences(self) -> UserError:
        return readers.no_sentences(self.source)

    def _read(self, on_error: OnError) -> Iterator[Sentence]:
        return readers.read_sentences(self.source, self.kind, self.columns, on_error)

    def _count(self, progress: Progress) -> int:
        source, count = self.source, 0
        skip = raise_error if self.skipped is None else SkippedRecords()
        with progress.stage("counting records", source.size or None, "records") as meter:
            for _ in self._read(skip):
                count += 1
                meter.advance(1, source.position if source.size else None)
        if isinstance(source, Source):
            source.dropped.clear()  # it is counted again
        return count


def open_reading(
    source: Any,
    *,
    reader: str,
    encoding: str | None,
    delimiter: str | None,
    columns: Columns,
    detectors: Sequence[str],
    groups: Callable[[str], Groups | None],
    seed: int,
    skip_invalid: bool | SkippedRecords,
    otherwise: object = None,
) -> Reading:
    """How a path or a table is read.

    Args:
        detectors: `labels` needs marks, and finds them in the column `marks` if none is named
        groups: the sizes of users, if a format's are formed at random
        otherwise: the reader of a file whose name does not tell its format
    """
    opened: Source | TableSource
    if isinstance(source, str | Path):
        opened, kind = _open(Path(source), reader, encoding, delimiter, otherwise)
    else:
        opened = TableSource(source)
        kind = str(opened)
    sizes = groups(kind)
    marks = "marks" if columns.marks is None and "labels" in detectors else columns.marks
    user = None if sizes else columns.user
    skipped = SkippedRecords() if skip_invalid is True else skip_invalid or None
    columns = Columns(user, columns.text, columns.label, marks)
    return Reading(opened, kind, columns, sizes, seed, skipped)


def _open(
    path: Path, reader: str, encoding: str | None, delimiter: str | None, otherwise: object
) -> tuple[Source, str]:
    try:
        return readers.open_source(path, reader, encoding, delimiter)
    except UserError:
        if reader == _AUTO and otherwise in readers.READERS and not path.is_dir():
            return readers.open_source(path, str(otherwise), encoding, delimiter)
        raise


def language_of(split: str | None, kind: str) -> str | None:
    """The language to split by; None for no splitting."""
    if split == _AUTO:
        return None if kind in readers.WITH_SENTENCES else _DEFAULT_LANGUAGE
    if split in (None, _NONE):
        return None
    Splitter(split)  # refuses what is no language
    return split


@dataclass
class InputTexts:
    """What detection reads: records, and the language by whose rules they are split.

    Args:
        records: of the reading, with users formed at random or some of them left out; None for all
            of them as they are read
        origin: for the manifest; what was split and dropped is entered at the end
        metered: whether the progress bar shows how much of the source was read
    """

    reading: Reading
    language: str | None
    origin: dict[str, Any] = field(default_factory=dict)
    records: Iterable[Sentence] | None = None
    metered: bool = True

    @property
    def position(self) -> Callable[[], int] | None:
        return self.reading.position if self.metered else None

    def sentences(self) -> Iterator[Sentence | None]:
        """The sentences of all texts, with None where a batch ends."""
        divide = Splitter(self.language) if self.language else None
        for part in self._parts():
            yield from split_texts(in_blocks(part), divide)
            yield None
        self.finish(divide.counts() if divide else None)

    def _parts(self) -> Iterator[Iterable[Sentence]]:
        if self.records is not None:
            yield self.records
            return
        empty = True
        for part in self.reading.parts():
            first = next(part, None)
            if first is not None:
                empty = False
                yield chain([first], part)
        if empty:
            raise self.reading.no_sentences()

    def finish(self, counts: dict[str, Any] | None) -> None:
        """Enter in the origin what was split and dropped."""
        self.origin["split"] = counts
        source = self.reading.source
        if isinstance(source, Source) and source.dropped:
            self.origin["dropped"] = dict(source.dropped)


def in_blocks(records: Iterable[Sentence]) -> Iterator[Sentence | None]:
    """The records, with None behind each block of them."""
    count = characters = 0
    for record in records:
        yield record
        count += 1
        characters += len(record.text)
        if count >= BLOCK or characters >= BLOCK_CHARACTERS:
            yield None
            count = characters = 0


def split_texts(
    texts: Iterable[Sentence | None], divide: Splitter | None
) -> Iterator[Sentence | None]:
    """The sentences of texts; None stays where it is."""
    for each in texts:
        if each is None or divide is None:
            yield each
        else:
            yield from divide(each)
