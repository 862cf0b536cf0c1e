"""Shards: pieces of a source that are read, split and detected by themselves, and what they give.

A shard is a file of a folder, or a block of records that the command itself has read. Which shards
there are follows from the source alone, and so do their digests. What a shard gives is kept in a
file under its digest until the corpus is complete: whoever detects the same texts again with the
same settings takes it from there.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import uedp
from uedp import files
from uedp.corpus import readers, store
from uedp.corpus.normalise import Splitter
from uedp.corpus.readers import SkippedRecords, raise_error
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source
from uedp.entities.detectors import Detector, detector_version, package_version, source_files
from uedp.entities.parallel import Hits, in_batches, run_detectors
from uedp.entities.reading import in_blocks, split_texts
from uedp.errors import UserError

FILE_BYTES = 1 << 24  # a larger file of a folder is read by the command, in blocks

_MARKS = store.SENTENCES.field("marks")
_HIT = pa.struct(
    [*_MARKS.type.value_type, store.HITS.field("detector"), store.HITS.field("propagates")]
)
_HITS = pa.list_(pa.field("item", _HIT, nullable=False))
RECORDS = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),  # by name
        *(store.SENTENCES.field(name) for name in ("text", "label", "marks")),
    ]
)
DETECTED = pa.schema([*RECORDS, pa.field("hits", _HITS, nullable=False)])


@dataclass(frozen=True)
class ShardSettings:
    """All that decides, beside its text, what a shard gives."""

    detectors: tuple[str, ...]
    language: str | None
    reader: str
    columns: Columns
    encoding: str | None = None
    delimiter: str | None = None
    skip_invalid: bool = False

    def digest(self) -> str:
        """Equal for equal settings, versions of the detectors, and files they are loaded from."""
        versions = {
            "uedp": uedp.__version__,
            "python": list(sys.version_info[:3]),
            "libraries": [package_version(name) for name in ("sentencex", "pyarrow")],
            "detectors": [[name, detector_version(name)] for name in self.detectors],
            "files": [_stamp(path) for path in source_files(self.detectors)],
        }
        return _hash(json.dumps([asdict(self), versions], sort_keys=True).encode())


@dataclass(frozen=True)
class Shard:
    """A file, or the records of a block as Arrow; `size` is its part of the source, in bytes."""

    digest: str
    size: int
    path: Path | None = None
    records: bytes | None = None


@dataclass
class ShardCounts:
    """What is counted in a shard: records read and skipped, texts split, passages left out."""

    records: int = 0
    skipped: int = 0
    first_skipped: str = ""
    split: dict[str, Any] | None = None
    dropped: dict[str, int] = field(default_factory=dict)


def file_shard(path: Path) -> Shard:
    content = files.sha256_of(path)
    return Shard(_hash(f"file\0{path.name}\0{content}".encode()), path.stat().st_size, path=path)


def block_shard(records: Sequence[Sentence], size: int) -> Shard:
    rows = [(each.user, each.text, each.label, _as_rows(each.marks)) for each in records]
    packed = _packed(RECORDS, rows)
    return Shard(_hash(b"block\0" + packed), size, records=packed)


def detect_shard(shard: Shard, settings: ShardSettings, detectors: Sequence[Detector]) -> bytes:
    """Read, split and detect a shard.

    Guarantees:
      - depends on nothing but its text and the settings
    """
    counts, skipped = ShardCounts(), SkippedRecords()
    divide = Splitter(settings.language) if settings.language else None
    source = None
    if shard.path is not None:
        source = Source(shard.path, settings.encoding, settings.delimiter)
        on_error = skipped if settings.skip_invalid else raise_error
        texts = readers.read_part(source, settings.reader, settings.columns, on_error, True)
    else:
        texts = _unpacked(shard.records or b"")

    def counted() -> Iterator[Sentence]:
        for text in texts:
            counts.records += 1
            yield text

    rows = []
    for batch in in_batches(split_texts(in_blocks(counted()), divide)):
        for sentence, hits in zip(batch, run_detectors(detectors, batch), strict=True):
            marks = _as_rows(sentence.marks)
            found = [(*span, number, propagates) for span, number, propagates in hits]
            rows.append((sentence.user, sentence.text, sentence.label, marks, found))
    if shard.path is not None and file_shard(shard.path).digest != shard.digest:
        raise UserError(f"{shard.path}: changed while it was read; run it again")
    counts.skipped, counts.first_skipped = skipped.count, skipped.first
    counts.split = divide.counts() if divide else None
    counts.dropped = dict(source.dropped) if source else {}
    return json.dumps(asdict(counts)).encode() + b"\n" + _packed(DETECTED, rows)


class ShardFolder:
    """The finished shards of a corpus that is not complete yet, in a folder beside it.

    Guarantees:
      - only its owner can read it, and only one process writes to it at a time
      - a shard is found only if it was written in full, for these settings, and not changed since
      - shards of other settings are removed when it is opened
    """

    def __init__(self, corpus: Path, settings: str, say: Callable[[str], None]) -> None:
        target = Path(os.path.realpath(corpus))
        name = target.name  # cut, so that the longest name allowed still fits
        if len(name) > 40:
            name = f"{name[:40]}-{_hash(os.fsencode(name))[:8]}"
        self.folder = target.with_name(f".{name}.shards")
        self._corpus, self._prefix, self._say = corpus, settings[:16], say
        self._found: set[str] = set()
        self._used: set[str] = set()

    @contextmanager
    def opened(self) -> Iterator[Self]:
        self._make()
        with open(self.folder / _LOCK, "wb", opener=files.private_opener) as lock:
            files.lock_file(
                lock,
                f"{self._corpus}: another process is writing shards of it; wait for it, or stop it",
            )
            self._look()
            try:
                yield self
            finally:
                if kept := len(list(self.folder.glob(f"*{_SUFFIX}"))):
                    self._say(
                        f"{self.folder}: keeps {kept:,} finished shards, which are private; the "
                        "same command continues with them, or remove that folder"
                    )
                elif self.folder.exists():
                    (self.folder / _LOCK).unlink()
                    files.remove_empty([self.folder])

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # in a folder of many accounts, somebody else may have made it, or a link
        if self.folder.is_symlink() or self.folder.stat().st_uid != os.getuid():
            raise UserError(f"{self.folder}: is not a folder of yours; remove it")
        self.folder.chmod(0o700)

    def _look(self) -> None:
        """Find what is finished; remove what is of other settings."""
        others = 0
        for path in list(self.folder.glob(f"*{_SUFFIX}")):
            if path.name.startswith(f"{self._prefix}-"):
                self._found.add(path.stem.partition("-")[2])
            else:
                others += 1
                path.unlink()
        for path in list(self.folder.glob(f"*{_SUFFIX}.partial")):
            path.unlink()
        if others:
            self._say(
                f"{self._corpus}: {others:,} finished shards are of other settings or detectors; "
                "they are discarded"
            )

    def has(self, digest: str) -> bool:
        """Whether a shard is finished; one that was damaged is removed."""
        if digest not in self._found:
            return False
        self._used.add(digest)
        path = self._path(digest)
        try:
            _body(path, digest)
        except ValueError:
            self._found.discard(digest)
            path.unlink(missing_ok=True)
            self._say(f"{self._corpus}: a finished shard is damaged; it is made again")
            return False
        return True

    def put(self, digest: str, body: bytes) -> None:
        """Keep what a shard gave."""
        path = self._path(digest)
        partial = files.partial_path(path)
        with open(partial, "wb", opener=files.private_opener) as file:
            file.write(_checksum(digest, body) + b"\n" + body)
            files.fsync_file(file)
        partial.replace(path)
        self._found.add(digest)
        self._used.add(digest)

    def read(self, digest: str) -> tuple[ShardCounts, Iterator[tuple[list[Sentence], Hits]]]:
        """What was counted in a finished shard, and its sentences with their hits."""
        path = self._path(digest)
        try:
            head, _, packed = _body(path, digest).partition(b"\n")
            return ShardCounts(**json.loads(head)), _detected(path, packed)
        except (ValueError, TypeError):
            raise UserError(f"{path}: is damaged; run it again") from None

    def say_unused(self) -> None:
        """Say how many finished shards were of text that is not there any more."""
        if unused := len(self._found - self._used):
            self._say(
                f"{self._corpus}: {unused:,} finished shards are of text that has changed; they "
                "are discarded"
            )

    def move_into(self, scratch: Path) -> None:
        """Give the folder to one that is removed, whatever happens."""
        self.folder.rename(scratch / "shards")

    def _path(self, digest: str) -> Path:
        return self.folder / f"{self._prefix}-{digest}{_SUFFIX}"


_LOCK, _SUFFIX = "lock", ".shard"


def _body(path: Path, digest: str) -> bytes:
    try:
        check, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ValueError(error.strerror) from None
    if check != _checksum(digest, body):
        raise ValueError("not what was written")
    return body


def _checksum(digest: str, body: bytes) -> bytes:
    return hashlib.sha256(digest.encode() + body).hexdigest().encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stamp(path: Path) -> list[Any]:
    """The state of a file, or of all files in a folder."""
    if path.is_file():
        return [str(path), files.sha256_of(path)]
    inner = sorted(each for each in path.rglob("*") if each.is_file())
    return [str(path), [[str(p.relative_to(path)), *_size_and_time(p)] for p in inner]]


def _size_and_time(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _as_rows(spans: Iterable[Span]) -> list[dict[str, Any]]:
    return [span._asdict() for span in spans]


def _packed(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> bytes:
    sink = pa.BufferOutputStream()
    with store.RowWriter(sink, schema) as writer:
        for row in rows:
            writer.append(*row)
    return bytes(sink.getvalue())


def _batches(packed: bytes, schema: pa.Schema, path: Path) -> Iterator[Iterable[tuple[Any, ...]]]:
    reader = pa.ipc.open_file(pa.BufferReader(packed))
    for number in range(reader.num_record_batches):
        batch = store.checked_batch(reader, number, path, schema)
        yield zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _unpacked(packed: bytes) -> Iterator[Sentence]:
    for rows in _batches(packed, RECORDS, Path()):
        for user, text, label, marks in rows:
            yield Sentence(user, text, label, tuple(Span(**mark) for mark in marks))


def _detected(path: Path, packed: bytes) -> Iterator[tuple[list[Sentence], Hits]]:
    for rows in _batches(packed, DETECTED, path):
        sentences: list[Sentence] = []
        found: Hits = []
        for user, text, label, marks, hits in rows:
            spans = tuple(Span(**mark) for mark in marks)
            sentences.append(Sentence(user, text, label, spans))
            found.append(
                [
                    (Span(h["start"], h["end"], h["label"]), h["detector"], h["propagates"])
                    for h in hits
                ]
            )
        yield sentences, found
