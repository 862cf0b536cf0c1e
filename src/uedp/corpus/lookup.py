"""Single sentences of a corpus, with their hits and mentions, without reading the rest of it.

Only the record batches that hold them are read, and each of these is checked in full.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from uedp.corpus.store import HITS, MENTIONS, SENTENCES, Corpus, checked_batch, open_arrow

_KEPT = 64  # batches


class KnownSentence(NamedTuple):
    """A sentence: `hits` are rows of `HITS`, `mentions` of `MENTIONS`, without the sentence."""

    number: int
    user: int
    text: str
    hits: list[tuple[Any, ...]]
    mentions: list[tuple[Any, ...]]


class SentenceLookup:
    """The sentences of a corpus by their numbers.

    Guarantees:
      - time grows with the batches that hold the sentences asked for; of the others, the number of
        rows is read once
    """

    def __init__(self, corpus: Corpus) -> None:
        self._epochs = corpus.epochs
        self._ends = list(accumulate(epoch.info["sentences"] for epoch in corpus.epochs))
        self._texts = [_Batches(e.folder / "sentences.arrow", SENTENCES) for e in corpus.epochs]
        self._hits = [_Batches(e.folder / "hits.arrow", HITS) for e in corpus.epochs]
        self._mentions = [_Batches(e.folder / "mentions.arrow", MENTIONS) for e in corpus.epochs]

    def read(self, numbers: Iterable[int]) -> Iterator[KnownSentence]:
        for number in numbers:
            epoch = bisect_right(self._ends, number)
            first = self._ends[epoch - 1] if epoch else 0
            user, text = self._texts[epoch].row(number - first, ("user", "text"))
            mentions = [
                row for batches in self._mentions[epoch:] for row in batches.of_sentence(number)
            ]
            hits = list(self._hits[epoch].of_sentence(number))
            yield KnownSentence(number, user, text, hits, mentions)


class _Batches:
    """The record batches of one file, checked as they are read."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._reader: Any = None
        self._ends: list[int] | None = None
        self._batch = lru_cache(_KEPT)(self._read)

    def row(self, number: int, columns: tuple[str, ...]) -> list[Any]:
        """One row, by its number in the file."""
        self._open()
        if self._ends is None:
            batches = range(self._reader.num_record_batches)
            self._ends = list(accumulate(self._reader.get_batch(b).num_rows for b in batches))
        which = bisect_right(self._ends, number)
        inside = number - (self._ends[which - 1] if which else 0)
        batch = self._batch(which)
        return [batch.column(name)[inside].as_py() for name in columns]

    def of_sentence(self, sentence: int) -> Iterator[tuple[Any, ...]]:
        """The rows of a sentence, in a file that is sorted by sentence."""
        self._open()
        count = self._reader.num_record_batches
        batches = range(count)
        which = bisect_left(batches, sentence, key=lambda b: self._batch(b)["sentence"][-1].as_py())
        while which < count:
            batch = self._batch(which)
            numbers = batch["sentence"].to_numpy()
            low, high = (int(numbers.searchsorted(sentence, side)) for side in ("left", "right"))
            rows = batch.slice(low, high - low)
            columns = [rows.column(name).to_pylist() for name in self._schema.names[1:]]
            yield from zip(*columns, strict=True)
            if high < batch.num_rows:
                return
            which += 1

    def _open(self) -> None:
        if self._reader is None:
            self._reader = open_arrow(self._path, self._schema)

    def _read(self, number: int) -> pa.RecordBatch:
        return checked_batch(self._reader, number, self._path, self._schema)
