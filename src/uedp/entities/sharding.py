"""Detection over shards: whoever runs them, in whatever order they end, the result is the same."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from uedp.corpus.normalise import Splitter
from uedp.corpus.readers import SkippedRecords, raise_error, read_part
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.entities import shards
from uedp.entities.detection import Batches
from uedp.entities.parallel import Hits
from uedp.entities.reading import InputTexts, Reading, in_blocks
from uedp.entities.shards import (
    Shard,
    ShardFolder,
    ShardSettings,
    block_shard,
    file_shard,
)
from uedp.progress import Meter

Outcome = bytes | Exception  # what `detect_shard` gave, or raised


class Executor(Protocol):
    """Runs `detect_shard` on shards, several at a time."""

    def run(self, shards: Iterator[tuple[int, Shard]]) -> Iterator[tuple[int, Outcome]]:
        """The outcome of every shard by its number, in any order.

        Shards are taken as they are needed. Nothing is started if there are none.
        """


# Starts an executor for these settings and this many workers.
Start = Callable[[ShardSettings, int], AbstractContextManager[Executor]]


def shard_settings(
    reading: Reading, language: str | None, detectors: tuple[str, ...]
) -> ShardSettings:
    """All that decides, beside its text, what a shard of this source gives."""
    source = reading.source if isinstance(reading.source, Source) else None
    return ShardSettings(
        detectors=detectors,
        language=language,
        reader=reading.kind,
        columns=reading.columns,
        encoding=source.encoding if source else None,
        delimiter=source.delimiter if source else None,
        skip_invalid=reading.skipped is not None,
    )


def over_shards(texts: InputTexts, folder: ShardFolder, executor: Executor) -> Batches:
    """Detect shard by shard; those that are finished are taken from the folder.

    Guarantees:
      - batches, their order, what is counted, and which error is raised do not depend on the
        executor, the order in which shards end, or which of them were finished before
      - a shard that ends is kept, whatever happens later
    """
    return lambda meter: _Detection(texts, folder, executor, meter).batches()


@dataclass
class _Part:
    """What is counted in a part of the source, whose records may be those of several shards."""

    skipped: SkippedRecords = field(default_factory=SkippedRecords)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass
class _Detection:
    texts: InputTexts
    folder: ShardFolder
    executor: Executor
    meter: Meter
    digests: list[tuple[str, _Part | None]] = field(default_factory=list)  # of shards, by number
    parts: list[_Part] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)  # their sizes
    failed: dict[int, Exception] = field(default_factory=dict)
    merged: int = 0  # shards
    records: int = 0
    resumed: int = 0
    reached: int = 0  # bytes of the source

    def batches(self) -> Iterator[tuple[Sequence[Sentence], Hits]]:
        language = self.texts.language
        split = Splitter(language).counts() if language else None
        sizes: dict[int, int] = {}
        for number, outcome in self.executor.run(self._to_do(sizes)):
            if isinstance(outcome, Exception):
                self.failed[number] = outcome
            else:
                self.folder.put(self.digests[number][0], outcome)
                self._end(number, sizes[number])
            yield from self._merge(split)
        yield from self._merge(split)
        self._finish(split)

    def _to_do(self, sizes: dict[int, int]) -> Iterator[tuple[int, Shard]]:
        """The shards that are not finished; none more once one has failed."""
        cut = self._cut()
        while not self.failed:
            number = len(self.digests)
            try:
                shard, part = next(cut, (None, None))
            except Exception as error:  # raised in its turn: an earlier shard may fail, too
                self.failed[number] = error
                return
            if shard is None:
                return
            self.digests.append((shard.digest, part))
            if self.folder.has(shard.digest):
                self.resumed += 1
                self.meter.note(f"{self.resumed:,} shards were finished before")
                self._end(number, shard.size)
            else:
                sizes[number] = shard.size
                yield number, shard

    def _cut(self) -> Iterator[tuple[Shard, _Part | None]]:
        """All shards, those of a folder with the part that they belong to."""
        reading, source = self.texts.reading, self.texts.reading.source
        if self.texts.records is not None:
            yield from self._blocks(self.texts.records, None)
        elif isinstance(source, TableSource) or not source.files:
            for records in reading.parts():
                yield from self._blocks(records, None)
        else:
            for file in source.parts():
                part = _Part()
                self.parts.append(part)
                if file.size <= shards.FILE_BYTES:
                    yield file_shard(file.path), part
                else:
                    file.dropped = part.dropped
                    on_error = raise_error if reading.skipped is None else part.skipped
                    records = read_part(file, reading.kind, reading.columns, on_error, True)
                    yield from self._blocks(records, part)

    def _blocks(
        self, records: Iterable[Sentence], part: _Part | None
    ) -> Iterator[tuple[Shard, _Part | None]]:
        source = self.texts.reading.source
        block: list[Sentence] = []
        before = source.position
        for record in chain(in_blocks(records), [None]):
            if record is not None:
                block.append(record)
            elif block:
                yield block_shard(block, max(source.position - before, 0)), part
                block, before = [], source.position

    def _end(self, number: int, size: int) -> None:
        self.ended[number] = size
        self.reached += size
        self._advance(0)

    def _advance(self, sentences: int) -> None:
        self.meter.advance(sentences, self.reached if self.texts.position else None)

    def _merge(self, split: dict[str, Any] | None) -> Iterator[tuple[Sequence[Sentence], Hits]]:
        """The batches of the shards that are next in order; then the error of one that failed."""
        while self.merged in self.ended:
            digest, part = self.digests[self.merged]
            counts, batches = self.folder.read(digest)
            for batch in batches:
                yield batch
                self._advance(len(batch[0]))
            self.records += counts.records
            if split and counts.split:
                for name in ("texts", "divided", "sentences", "cuts"):
                    split[name] += counts.split[name]
            if part is not None:
                part.skipped.count += counts.skipped
                part.skipped.first = part.skipped.first or counts.first_skipped
                part.dropped.update(counts.dropped)
            del self.ended[self.merged]
            self.merged += 1
        if self.merged in self.failed:
            # kept nowhere else: its frames refer to this object, and hold a file open
            self.failed = {self.merged: self.failed[self.merged]}
            raise self.failed.pop(self.merged)

    def _finish(self, split: dict[str, Any] | None) -> None:
        """Enter what was counted where the local engine does."""
        reading = self.texts.reading
        if not self.records and self.texts.records is None:
            raise reading.no_sentences()
        for part in self.parts:
            if reading.skipped is not None:
                reading.skipped.count += part.skipped.count
                reading.skipped.first = reading.skipped.first or part.skipped.first
            if isinstance(reading.source, Source):
                reading.source.dropped.update(part.dropped)
        self.texts.finish(split)
