"""The entities of a corpus as a table for the person who holds it, and how sure each is.

Names and counts here are private: they are for the terminal, never for a certificate.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from uedp.corpus.store import CATEGORIES, Corpus
from uedp.entities.categories import expand_categories
from uedp.entities.propagation import ordinary, parts

Ints = npt.NDArray[np.int64]
SURE = 0.5  # an entity found in fewer of its places is doubtful


@dataclass(frozen=True)
class Entity:
    """One entity.

    `found` is the share of its places that detectors hit; None if none did, or if the corpus is of
    a release that did not count them.
    """

    surface: str
    category: str
    users: int
    sentences: int
    mentions: int
    found: float | None
    detectors: tuple[str, ...]
    ordinary: bool

    def row(self) -> dict[str, Any]:
        return asdict(self)


class EntityTable:
    """The entities of a corpus, those with the most users first.

    Guarantees:
      - every entity stands in it once
      - `category` is that of most of its mentions; `detectors` are all that hit it somewhere
    """

    def __init__(self, corpus: Corpus) -> None:
        self._surfaces = corpus.entities["surface"]
        self._names = corpus.detectors
        incidence = corpus.incidence
        self._users = incidence.holders.counts
        self._sentences = incidence.entity_sentences.counts
        entity = corpus.mentions["entity"].to_numpy()
        self._mentions = np.bincount(entity, minlength=incidence.entities)
        self._category = _commonest(
            entity, corpus.mentions["category"].to_numpy(), incidence.entities
        )
        evidence = corpus.evidence
        self._found: npt.NDArray[np.float64] | None = None
        self._by = np.zeros(incidence.entities, dtype=np.int64)
        if evidence is not None:
            hits, places = (evidence[name].to_numpy() for name in ("hits", "places"))
            self._found = hits / np.maximum(places, 1)
            self._by = evidence["detectors"].to_numpy()

    def select(
        self, categories: str | None = None, doubtful: bool = False, find: str | None = None
    ) -> Ints:
        """The numbers of the entities that fit, in the order of the table.

        Args:
            doubtful: only those found in less than half of their places, or of ordinary words
            find: only those whose surface contains this text, in any case
        """
        fits = np.ones(len(self._users), dtype=np.bool_)
        if categories is not None:
            chosen = [CATEGORIES.index(name) for name in expand_categories(categories)]
            fits &= np.isin(self._category, chosen)
        if find is not None:
            found = pc.match_substring(self._surfaces, find, ignore_case=True)
            fits &= found.to_numpy().astype(np.bool_)
        if doubtful:
            unsure = self._are_ordinary()
            if self._found is not None:
                unsure |= (self._found < SURE) & (self._by != 0)  # a list is certain
            fits &= unsure
        order = np.lexsort((-self._mentions, -self._sentences, -self._users))
        return order[fits[order]]

    def rows(self, numbers: Sequence[int] | Ints) -> list[Entity]:
        surfaces = self._surfaces.take(np.asarray(numbers, dtype=np.int64)).to_pylist()
        return [
            Entity(
                surface=surface,
                category=CATEGORIES[self._category[number]],
                users=int(self._users[number]),
                sentences=int(self._sentences[number]),
                mentions=int(self._mentions[number]),
                found=self._share(number),
                detectors=tuple(
                    name for bit, name in enumerate(self._names) if self._by[number] >> bit & 1
                ),
                ordinary=ordinary(parts(surface)[0]),
            )
            for number, surface in zip(numbers, surfaces, strict=True)
        ]

    def _share(self, number: int) -> float | None:
        if self._found is None or not self._by[number]:
            return None
        return round(float(self._found[number]), 4)

    def _are_ordinary(self) -> npt.NDArray[np.bool_]:
        surfaces = (s for chunk in self._surfaces.chunks for s in chunk.to_pylist())
        return np.fromiter((ordinary(parts(s)[0]) for s in surfaces), np.bool_, len(self._users))


def _commonest(entity: npt.NDArray[Any], category: npt.NDArray[Any], entities: int) -> Ints:
    """For each entity, the category of most of its mentions; of several, the first."""
    pairs, counts = np.unique(
        entity.astype(np.int64) * len(CATEGORIES) + category, return_counts=True
    )
    owner, kind = np.divmod(pairs, len(CATEGORIES))
    order = np.lexsort((-kind, counts, owner))  # the last of each owner is its commonest
    result = np.zeros(entities, dtype=np.int64)
    result[owner[order]] = kind[order]
    return result
