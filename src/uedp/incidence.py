"""Who mentions what, with every name taken out: all that the mechanism may read.

The incidence is the pair of maps of `docs/privacy.md` section 1: which user a sentence belongs
to, and which entities it mentions. Users, sentences and entities are integers here. A sentence
that mentions no detected entity is its own extended entity and needs no id of its own.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from uedp.errors import UserError

FOLDER = "incidence"  # beside the corpus it was made from

Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Rows:
    """A ragged table in CSR form: row `i` is `values[offsets[i]:offsets[i + 1]]`.

    Guarantees:
      - the values of a row are sorted and distinct
    """

    offsets: Ints
    values: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def counts(self) -> Ints:
        """How many values each row has."""
        return np.diff(self.offsets)

    def row_of_value(self) -> Ints:
        """For each value, the row it is in."""
        return np.repeat(np.arange(len(self)), self.counts)

    def take(self, rows: Ints) -> "Rows":
        """These rows, in this order."""
        starts, counts = self.offsets[rows], self.offsets[np.asarray(rows) + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return Rows(offsets, self.values[places])

    def where(self, kept: npt.NDArray[np.bool_]) -> "Rows":
        """The rows for which `kept` is true."""
        return self.take(np.flatnonzero(kept))


@dataclass(frozen=True, eq=False)
class Incidence:
    """Users, sentences and entities as integers, and how they touch.

    Guarantees:
      - holds no text and no name: only counts and integer ids
      - entity ids follow the order of first mention, so they carry nothing of the names
      - `holders[e]` are exactly the users with a sentence that mentions `e`
    """

    sentence_user: Ints
    sentence_entities: Rows
    user_sentences: Rows
    entity_sentences: Rows
    holders: Rows

    @property
    def users(self) -> int:
        return len(self.user_sentences)

    @property
    def sentences(self) -> int:
        return len(self.sentence_user)

    @property
    def entities(self) -> int:
        return len(self.holders)

    @property
    def extended(self) -> npt.NDArray[np.bool_]:
        """Which sentences mention no detected entity (the paper's set S)."""
        return np.equal(self.sentence_entities.counts, 0)

    @cached_property
    def digest(self) -> str:
        """A hash of the incidence: runs with the same digest add up to one guarantee."""
        state = hashlib.sha256()
        state.update(json.dumps([self.users, self.sentences, self.entities]).encode())
        for array, width in (
            (self.sentence_user, np.int32),
            (self.sentence_entities.offsets, np.int64),
            (self.sentence_entities.values, np.int32),
        ):
            state.update(np.ascontiguousarray(array, dtype=np.dtype(width).newbyteorder("<")).data)
        return state.hexdigest()

    @classmethod
    def build(
        cls,
        sentence_user: Ints,
        mention_sentence: Ints,
        mention_entity: Ints,
        users: int,
        entities: int,
    ) -> "Incidence":
        """From one entry per sentence and one pair per mention, in any order, repeats allowed.

        Time and memory are linear in sentences and mentions.
        """
        sentences = len(sentence_user)
        _within("sentence_user", sentence_user, users)
        _within("mention_sentence", mention_sentence, sentences)
        _within("mention_entity", mention_entity, entities)
        if len(mention_sentence) != len(mention_entity):
            raise ValueError("mention_sentence and mention_entity differ in length")
        owners = np.ascontiguousarray(sentence_user, dtype=np.int32)
        mentioned = _rows(mention_sentence, mention_entity, sentences, entities)
        in_sentences = _transposed(mentioned, entities)
        return cls(
            sentence_user=owners,
            sentence_entities=mentioned,
            user_sentences=_rows(owners, np.arange(sentences, dtype=np.int32), users, sentences),
            entity_sentences=in_sentences,
            holders=_rows(
                np.repeat(np.arange(entities, dtype=np.int32), in_sentences.counts),
                owners[in_sentences.values],
                entities,
                users,
            ),
        )

    def save(self, folder: Path) -> None:
        """One `.npy` file per array, so that loading can map them instead of reading."""
        folder.mkdir(parents=True)
        for name, array in self._arrays().items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def of(cls, corpus: str | Path) -> "Incidence":
        """The incidence of a corpus folder; nothing else in the folder is opened."""
        return cls.load(Path(corpus) / FOLDER)

    @classmethod
    def load(cls, folder: Path) -> "Incidence":
        """A saved incidence, memory-mapped."""

        def array(name: str) -> Ints:
            path = folder / f"{name}.npy"
            try:
                return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
            except (OSError, ValueError, EOFError):
                raise UserError(
                    f"{path}: missing or damaged; make the corpus anew with `uedp detect`"
                ) from None

        def rows(name: str) -> Rows:
            return Rows(array(f"{name}.offsets"), array(f"{name}.values"))

        return cls(
            array("sentence_user"),
            rows("sentence_entities"),
            rows("user_sentences"),
            rows("entity_sentences"),
            rows("holders"),
        )

    def _arrays(self) -> dict[str, Ints]:
        arrays = {"sentence_user": self.sentence_user}
        for name in ("sentence_entities", "user_sentences", "entity_sentences", "holders"):
            table: Rows = getattr(self, name)
            arrays[f"{name}.offsets"] = table.offsets
            arrays[f"{name}.values"] = table.values
        return arrays


def _within(name: str, ids: Ints, count: int) -> None:
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < count):
        raise ValueError(f"{name} must lie in 0..{count - 1}, found {ids.min()}..{ids.max()}")


def _rows(row: Ints, value: Ints, rows: int, values: int) -> Rows:
    """Pairs as a ragged table. SciPy's conversion is a counting sort, hence linear."""
    if rows == 0 or values == 0:
        return Rows(np.zeros(rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    ones = np.ones(len(row), dtype=np.bool_)
    table = sparse.coo_array((ones, (row, value)), shape=(rows, values)).tocsr()
    table.sum_duplicates()
    return Rows(table.indptr.astype(np.int64), table.indices.astype(np.int32, copy=False))


def _transposed(table: Rows, values: int) -> Rows:
    if len(table) == 0 or values == 0:
        return Rows(np.zeros(values + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    ones = np.ones(len(table.values), dtype=np.bool_)
    matrix = sparse.csr_array((ones, table.values, table.offsets), shape=(len(table), values))
    columns = matrix.tocsc()
    return Rows(columns.indptr.astype(np.int64), columns.indices.astype(np.int32, copy=False))
