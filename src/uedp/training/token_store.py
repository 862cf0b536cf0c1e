"""The token ids of a corpus, in a memory-mapped file."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from uedp.incidence import Ints
from uedp.progress import SILENT, Progress

Ids = npt.NDArray[np.integer[Any]]
Seen = Callable[[Sequence[str], Any, Ints], None]

AT_ONCE = 4096  # texts that are tokenised at a time


@dataclass
class Truncation:
    """How much of the texts was cut at the limit on tokens."""

    sentences: int = 0
    of_sentences: int = 0
    tokens: int = 0
    of_tokens: int = 0

    def warning(self, max_tokens: int) -> str | None:
        """What a person should know of it; None if nothing was cut."""
        if not self.sentences:
            return None
        share = 100 * self.tokens / self.of_tokens
        return (
            f"{self.sentences:,} of {self.of_sentences:,} sentences are longer than {max_tokens} "
            f"tokens: {share:.2g}% of all tokens are cut off and not learned; raise "
            "model.max_tokens, or detect the corpus again with `split=...`"
        )


class TokenStore:
    """Rows of token ids, written as they come to a file that only this process can reach.

    The file is in the folder for temporary files, which `TMPDIR` chooses, and has no name.

    Guarantees:
      - nobody else can open the file, and nothing is left of it when the process ends, however
      - memory holds eight bytes per row and what was read last, which the system may take back
    """

    def __init__(self, rows: Iterable[Sequence[Sequence[int]]], ids: int) -> None:
        """`rows` come in batches; all ids are below `ids`."""
        kind = np.uint16 if ids <= 1 << 16 else np.int32
        counts = [np.zeros(1, dtype=np.int64)]
        with tempfile.TemporaryFile() as file:
            for batch in rows:
                lengths = np.fromiter(map(len, batch), np.int64, len(batch))
                flat = np.fromiter(chain.from_iterable(batch), np.int64, int(lengths.sum()))
                if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < ids:
                    raise ValueError(f"a token id outside 0..{ids - 1}")
                file.write(flat.astype(kind).tobytes())
                counts.append(lengths)
            self._offsets = np.cumsum(np.concatenate(counts))
            file.flush()
            total = int(self._offsets[-1])
            self._ids: Ids = np.zeros(0, dtype=kind)
            if total:  # the map outlives the file
                self._ids = np.memmap(file, kind, "r", shape=(total,))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        return self._ids[self._offsets[row] : self._offsets[row + 1]]

    def end_to_end(self, rows: Ints) -> tuple[Ints, Ints]:
        """The ids of several rows, one after the other, and the number of each one's."""
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        ends = np.cumsum(lengths)
        places = np.repeat(starts - ends + lengths, lengths) + np.arange(lengths.sum())
        return np.asarray(self._ids[places], dtype=np.int64), lengths

    @property
    def offsets(self) -> Ints:
        """Where each row begins, all end to end, and the end of the last."""
        return self._offsets

    @property
    def lengths(self) -> Ints:
        return np.diff(self._offsets)


def tokenised(
    texts: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
    truncation: Truncation,
    finish: Callable[[str, list[int]], list[int]] = lambda text, ids: ids,
    progress: Progress = SILENT,
    seen: Seen | None = None,
    **options: bool,
) -> Iterator[list[list[int]]]:
    """Batches of the ids of texts, each cut at `max_tokens` and then passed through `finish`.

    `seen` is called with the texts of a batch, what the tokenizer gave, and the final lengths.
    """
    with progress.stage("tokenising", len(texts), "sentences") as meter:
        for start in range(0, len(texts), AT_ONCE):
            batch = list(texts[start : start + AT_ONCE])
            encoded = tokenizer(batch, truncation=True, max_length=max_tokens, **options)
            rows: list[list[int]] = encoded["input_ids"]
            for place, ids in enumerate(rows):
                truncation.of_tokens += len(ids)
                if len(ids) >= max_tokens:
                    cut = _cut_tokens(tokenizer, encoded, batch[place], place, options)
                    truncation.sentences += cut > 0
                    truncation.tokens += cut
                    truncation.of_tokens += cut
            truncation.of_sentences += len(batch)
            finished = [finish(text, ids) for text, ids in zip(batch, rows, strict=True)]
            if seen is not None:
                seen(batch, encoded, np.fromiter(map(len, finished), np.int64, len(finished)))
            yield finished
            meter.advance(len(batch))


def _cut_tokens(
    tokenizer: Any, encoded: Any, text: str, place: int, options: Mapping[str, bool]
) -> int:
    """The tokens of a text that were cut off."""
    encodings = getattr(encoded, "encodings", None)
    if encodings:
        return sum(part.special_tokens_mask.count(0) for part in encodings[place].overflowing)
    return len(tokenizer([text], **options)["input_ids"][0]) - len(encoded["input_ids"][place])


def count_ids(tokenizer: Any) -> int:
    """A number above every id that a tokenizer gives."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
