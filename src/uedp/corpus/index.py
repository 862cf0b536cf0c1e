"""An index of one epoch: where its words stand, its names, and what is known of its surfaces.

So that what is new can be looked up in what is old without reading it. A file of SQLite, which is
written once and never changed. It holds texts' words: it is as private as they are.
"""

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from uedp.errors import UserError
from uedp.incidence import Ints

_TABLES = """
CREATE TABLE words (word TEXT PRIMARY KEY, sentences BLOB) WITHOUT ROWID;
CREATE TABLE users (name TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID;
CREATE TABLE entities (name TEXT PRIMARY KEY, id INTEGER, label TEXT) WITHOUT ROWID;
CREATE TABLE lengths (first TEXT PRIMARY KEY, lengths TEXT) WITHOUT ROWID;
CREATE TABLE surfaces (key TEXT PRIMARY KEY, evidence TEXT) WITHOUT ROWID;
CREATE TABLE own (key TEXT, user INTEGER, evidence TEXT, PRIMARY KEY (key, user)) WITHOUT ROWID;
"""
_SEPARATOR = "\x1f"  # between the words of a surface; no word contains it
_AT_ONCE = 500  # values in one question

Key = tuple[str, ...]


class WordPlaces:
    """Collects the sentences in which each word stands; four to eight bytes a place."""

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {}

    def add(self, sentence: int, words: Iterable[str]) -> None:
        """The words of a sentence; sentences come in rising order."""
        for word in set(words):
            self._places.setdefault(word, array("q")).append(sentence)

    @property
    def words(self) -> Iterable[str]:
        return self._places.keys()

    def rows(self) -> Iterator[tuple[str, bytes]]:
        for word in sorted(self._places):
            yield word, np.asarray(self._places[word], dtype="<i8").tobytes()


def write_index(
    path: Path,
    words: WordPlaces,
    users: Iterable[tuple[str, int]],
    entities: Iterable[tuple[str, int, str]],
    surfaces: Mapping[Key, Any],
    own: Mapping[tuple[int, Key], Any],
) -> None:
    """Write the index of an epoch; `surfaces` and `own` map to values of JSON."""
    lengths: dict[str, set[int]] = {}
    for key in surfaces:
        lengths.setdefault(key[0], set()).add(len(key))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_TABLES}")
        connection.execute("BEGIN")
        put = connection.executemany
        put("INSERT INTO words VALUES (?, ?)", words.rows())
        put("INSERT INTO users VALUES (?, ?)", sorted(users))
        put("INSERT INTO entities VALUES (?, ?, ?)", sorted(entities))
        put(
            "INSERT INTO lengths VALUES (?, ?)",
            ((first, json.dumps(sorted(each))) for first, each in sorted(lengths.items())),
        )
        put(
            "INSERT INTO surfaces VALUES (?, ?)",
            sorted((_SEPARATOR.join(key), json.dumps(one)) for key, one in surfaces.items()),
        )
        put(
            "INSERT INTO own VALUES (?, ?, ?)",
            sorted((_SEPARATOR.join(key), u, json.dumps(one)) for (u, key), one in own.items()),
        )
        connection.execute("COMMIT")
    finally:
        connection.close()


class Index:
    """The indexes of all epochs of a corpus, asked as one.

    Guarantees:
      - an answer takes a number of steps that grows with the logarithm of what an epoch holds, and
        with the number of epochs
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: list[sqlite3.Connection] = []

    def __enter__(self) -> Self:
        for path in self._paths:
            if not path.is_file():
                raise _damaged(path)
            # as a URI, since only that can say that nobody writes to it
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._open.append(sqlite3.connect(uri, uri=True))
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def users(self, names: Iterable[str]) -> dict[str, int]:
        """The ids of the users that are known, by name."""
        return dict(self._rows("users", "name, id", "name", names))

    def entities(self, names: Iterable[str]) -> dict[str, tuple[int, str]]:
        """The id and a label of the entities that are known, by canonical form."""
        rows = self._rows("entities", "name, id, label", "name", names)
        return {name: (number, label) for name, number, label in rows}

    def sentences(self, key: Key) -> Ints:
        """The sentences in which all words of a surface stand, in rising order."""
        found = []
        for number, path in enumerate(self._paths):
            places: Ints | None = None
            for word in sorted(set(key), key=len, reverse=True):
                row = self._ask(number, "SELECT sentences FROM words WHERE word = ?", (word,))
                if not row:
                    places = None
                    break
                if len(row[0][0]) % 8:
                    raise _damaged(path)
                these = np.frombuffer(row[0][0], dtype="<i8")
                places = these if places is None else np.intersect1d(places, these, True)
            if places is not None:
                found.append(places)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def lengths(self, first: Iterable[str]) -> dict[str, frozenset[int]]:
        """For words that surfaces begin with, the numbers of words of these surfaces."""
        result: dict[str, frozenset[int]] = {}
        for word, lengths in self._rows("lengths", "first, lengths", "first", first):
            result[word] = result.get(word, frozenset()) | frozenset(json.loads(lengths))
        return result

    def surfaces(self, keys: Iterable[Key]) -> Iterator[tuple[Key, Any]]:
        """What is known of surfaces, once for every epoch that knows something."""
        joined = (_SEPARATOR.join(key) for key in keys)
        for key, evidence in self._rows("surfaces", "key, evidence", "key", joined):
            yield tuple(key.split(_SEPARATOR)), json.loads(evidence)

    def own(self, pairs: Iterable[tuple[int, Key]]) -> Iterator[tuple[int, Key, Any]]:
        """The same of surfaces in the text of a user."""
        for user, key in pairs:
            for number in range(len(self._open)):
                rows = self._ask(
                    number,
                    "SELECT evidence FROM own WHERE key = ? AND user = ?",
                    (_SEPARATOR.join(key), user),
                )
                for (evidence,) in rows:
                    yield user, key, json.loads(evidence)

    def _rows(
        self, table: str, columns: str, key: str, values: Iterable[str]
    ) -> Iterator[tuple[Any, ...]]:
        asked = list(dict.fromkeys(values))
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            question = f"SELECT {columns} FROM {table} WHERE {key} IN ({marks})"
            for number in range(len(self._open)):
                yield from self._ask(number, question, some)

    def _ask(self, number: int, question: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with _refusing_damaged(self._paths[number]):
            return self._open[number].execute(question, values).fetchall()


@contextmanager
def _refusing_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error:
        raise _damaged(path) from None


def _damaged(path: Path) -> UserError:
    return UserError(f"{path}: missing or damaged; restore it from a copy")
