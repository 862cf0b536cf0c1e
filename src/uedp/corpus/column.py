"""A column of an Arrow table as a Python sequence, read when it is asked for."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

import numpy as np
import pyarrow as pa

_AT_ONCE = 4096  # values in memory while iterating


class Column(Sequence[Any]):
    """The values of a column, without a Python object for each of them.

    A slice is a view. Comparing equal means: the same values in the same order.
    """

    def __init__(self, values: pa.ChunkedArray) -> None:
        self._values = values
        self._ends = np.cumsum([len(chunk) for chunk in values.chunks], dtype=np.int64)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Column":
        """Texts packed as they are read."""
        remaining, chunks = iter(texts), []
        while some := list(islice(remaining, _AT_ONCE)):
            chunks.append(pa.array(some, pa.string()))
        return cls(pa.chunked_array(chunks, pa.string()))

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return [self[number] for number in range(start, stop, step)]
            return Column(self._values.slice(start, max(stop - start, 0)))
        number = range(len(self))[place]
        chunk = int(np.searchsorted(self._ends, number, side="right"))
        values = self._values.chunk(chunk)
        return values[number - int(self._ends[chunk]) + len(values)].as_py()

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._values.chunks:
            for start in range(0, len(chunk), _AT_ONCE):
                yield from chunk.slice(start, _AT_ONCE).to_pylist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
