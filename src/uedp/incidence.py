"""Which users mention which entities, without names: all that the mechanism may read.

The incidence is the pair of maps of `docs/privacy.md` section 1: which user a sentence belongs
to, and which entities it mentions. Users, sentences and entities are integers here. A sentence
that mentions no detected entity is its own extended entity and needs no id of its own.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from uedp.errors import UserError

FOLDER = "incidence"  # in the folder of its corpus

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
    """Users, sentences and entities as integers, and the relations between them.

    Guarantees:
      - holds no text and no name: only counts and integer ids
      - entity ids follow the order of first mention, so they do not depend on the names
      - `holders[e]` are exactly the users with a sentence that mentions `e`
      - immutable: every array is read-only
    """

    sentence_user: Ints
    sentence_entities: Rows
    user_sentences: Rows
    entity_sentences: Rows
    holders: Rows
    known: str | None = None  # its digest, where that was chained from epoch to epoch

    def __post_init__(self) -> None:
        tables = (self.sentence_entities, self.user_sentences, self.entity_sentences, self.holders)
        for array in (self.sentence_user, *(a for t in tables for a in (t.offsets, t.values))):
            array.flags.writeable = False

    @property
    def users(self) -> int:
        return len(self.user_sentences)

    @property
    def sentences(self) -> int:
        return len(self.sentence_user)

    @property
    def entities(self) -> int:
        return len(self.holders)

    @cached_property
    def extended(self) -> npt.NDArray[np.bool_]:
        """Which sentences mention no detected entity (the paper's set S)."""
        flags: npt.NDArray[np.bool_] = np.equal(self.sentence_entities.counts, 0)
        flags.flags.writeable = False
        return flags

    @cached_property
    def digest(self) -> str:
        """A hash of the incidence: runs with the same digest share one privacy budget."""
        if self.known is not None:
            return self.known
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
        for name, ids, count in (
            ("sentence_user", sentence_user, users),
            ("mention_sentence", mention_sentence, sentences),
            ("mention_entity", mention_entity, entities),
        ):
            if not _all_within(ids, count):
                raise ValueError(f"{name} must lie in 0..{count - 1}, not {ids.min()}..{ids.max()}")
        if len(mention_sentence) != len(mention_entity):
            raise ValueError("mention_sentence and mention_entity differ in length")
        owners = np.array(sentence_user, dtype=np.int32)  # a copy: it will be read-only
        mentioned = _rows(mention_sentence, mention_entity, sentences, entities)
        return cls._from_maps(owners, mentioned, users, entities)

    @classmethod
    def _from_maps(cls, owners: Ints, mentioned: Rows, users: int, entities: int) -> "Incidence":
        """The other tables follow from the users of the sentences and their mentions."""
        sentences = len(owners)
        entity_sentences = _rows(mentioned.values, mentioned.row_of_value(), entities, sentences)
        return cls(
            sentence_user=owners,
            sentence_entities=mentioned,
            user_sentences=_rows(owners, np.arange(sentences, dtype=np.int32), users, sentences),
            entity_sentences=entity_sentences,
            holders=_rows(
                entity_sentences.row_of_value(), owners[entity_sentences.values], entities, users
            ),
        )

    def known_as(self, digest: str) -> "Incidence":
        """The same incidence, whose digest is one that chains from epoch to epoch."""
        return replace(self, known=digest)

    def restricted(self, sentences: Ints) -> "Incidence":
        """With these sentences only; their users and entities are numbered anew, in order."""
        mentioned = self.sentence_entities.take(sentences)
        users, owners = np.unique(self.sentence_user[sentences], return_inverse=True)
        entities, values = np.unique(mentioned.values, return_inverse=True)
        return self._from_maps(
            owners.astype(np.int32),
            Rows(mentioned.offsets, values.astype(np.int32)),
            len(users),
            len(entities),
        )

    def save(self, folder: Path) -> None:
        """One `.npy` file per array that the digest covers; `load` derives the others from them."""
        folder.mkdir(parents=True)
        arrays = {
            "counts": np.array([self.users, self.entities], dtype=np.int64),
            "sentence_user": self.sentence_user,
            "sentence_entities.offsets": self.sentence_entities.offsets,
            "sentence_entities.values": self.sentence_entities.values,
        }
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def of(cls, corpus: str | Path) -> "Incidence":
        """The incidence of a corpus folder; nothing else in the folder is opened.

        One of several epochs is refused: open it by `Corpus`.
        """
        if (Path(corpus) / "epochs").is_dir():
            raise UserError(f"{corpus}: was extended; its first epoch is not all of it")
        return cls.load(Path(corpus) / FOLDER)

    @classmethod
    def load(cls, folder: Path) -> "Incidence":
        """A saved incidence.

        Guarantees:
          - the tables that sampling uses (`user_sentences`, `entity_sentences`, `holders`) are
            derived from the arrays that the digest covers, never read
          - arrays of another type or shape, ids out of range, rows out of order, users without a
            sentence and entities without a mention are refused
        """

        def array(name: str, kind: type[np.integer[Any]]) -> Ints:
            path = folder / f"{name}.npy"
            values = _read_array(path)
            if values.dtype != np.dtype(kind) or values.ndim != 1:
                raise _damaged(path, f"not one row of {np.dtype(kind).name}")
            return values

        counts = array("counts", np.int64)
        owners = array("sentence_user", np.int32)
        offsets = array("sentence_entities.offsets", np.int64)
        values = array("sentence_entities.values", np.int32)
        # each has a sentence or mention, so the arrays bound what is allocated below
        if len(counts) != 2 or (counts < 0).any() or (counts > [len(owners), len(values)]).any():
            raise _damaged(folder / "counts.npy", "more users or entities than the arrays name")
        users, entities = map(int, counts)
        if problem := _problem(owners, offsets, values, users, entities):
            raise _damaged(folder / f"{problem[0]}.npy", problem[1])
        return cls._from_maps(owners, Rows(offsets, values), users, entities)


def _read_array(path: Path) -> Ints:
    """An array file read into memory, so that it cannot change after it was checked."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on headers of old versions
            # mapped first: that refuses a header that promises more than the file holds
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception:  # NumPy parses the header as Python, with as many ways to fail
        raise _damaged(path, "missing or damaged") from None


def _problem(
    owners: Ints, offsets: Ints, values: Ints, users: int, entities: int
) -> tuple[str, str] | None:
    """The name of an invalid array and the reason, or None."""
    where = "sentence_entities.offsets"
    if len(offsets) != len(owners) + 1:
        return where, f"{len(offsets) - 1:,} rows for {len(owners):,} sentences"
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        return where, "rows do not follow one another"
    if not _all_within(owners, users):
        return "sentence_user", f"a user outside 0..{users - 1}"
    if not _all_within(values, entities):
        return "sentence_entities.values", f"an entity outside 0..{entities - 1}"
    rises = np.ones(len(values) + 1, dtype=np.bool_)
    rises[1:-1] = values[1:] > values[:-1]
    rises[offsets] = True  # the first of a row follows nothing
    if not rises.all():
        return "sentence_entities.values", "a row is not sorted, or names an entity twice"
    if np.bincount(owners, minlength=users).min(initial=1) == 0:
        return "counts", "a user without a sentence"
    if np.bincount(values, minlength=entities).min(initial=1) == 0:
        return "counts", "an entity without a mention"
    return None


def _all_within(ids: Ints, count: int) -> bool:
    return not len(ids) or bool(ids.min() >= 0 and ids.max() < count)


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path}: {how}; build the corpus again")


def _rows(row: Ints, value: Ints, rows: int, values: int) -> Rows:
    """Pairs as a ragged table. SciPy's conversion is a counting sort, hence linear."""
    if rows == 0 or values == 0:
        return Rows(np.zeros(rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    ones = np.ones(len(row), dtype=np.bool_)
    table = sparse.coo_array((ones, (row, value)), shape=(rows, values)).tocsr()
    table.sum_duplicates()
    return Rows(table.indptr.astype(np.int64), table.indices.astype(np.int32, copy=False))
