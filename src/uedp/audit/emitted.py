"""Names and planted secrets of a corpus that stand in other texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from uedp.audit.people import People, PeopleTest
from uedp.audit.ranks import share
from uedp.audit.secrets import Secret
from uedp.audit.word_runs import Hasher, WordHashes, is_in, surface_hashes
from uedp.corpus.store import CATEGORIES
from uedp.errors import UserError

_LONGEST_NAME = 8  # words


@dataclass(frozen=True)
class Names:
    """Entities of the training part: all, those in the texts, and those that one person named.

    By `category`: how many there are, and how many are in the texts.
    """

    entities: int
    emitted: int
    texts_with: int
    category: dict[str, tuple[int, int]]
    alone: dict[str, float]
    alone_held_out: dict[str, float] | None
    people: PeopleTest | None


@dataclass(frozen=True)
class Planted:
    """Planted secrets in the texts, and secrets like them that were not planted."""

    planted: int
    emitted: dict[str, float]
    left_out: int
    left_out_emitted: dict[str, float]
    by_users: dict[str, tuple[int, int]]
    p_value: float


def names_in(texts: WordHashes, pool: People, hasher: Hasher) -> Names:
    sides = [side for side in (pool.train, pool.held_out) if side is not None]
    emitted = [_written(texts, hasher, side.entities["surface"].to_pylist()) for side in sides]
    names = [side.entities["name"].to_pylist() for side in sides]
    common = set(names[0]).intersection(*names[1:]) if len(sides) > 1 else set()
    alone = []  # per side, the entities that one person of all named
    owners, found = [], []  # the people who did, and those whose are in the texts
    for number, side in enumerate(sides):
        holders = side.incidence.holders
        single = holders.counts == 1
        single &= np.array([name not in common for name in names[number]], dtype=np.bool_)
        alone.append(single)
        first = holders.values[np.minimum(holders.offsets[:-1], max(0, len(holders.values) - 1))]
        owners.append(first[single] + number * pool.trained)
        found.append(first[single & emitted[number]] + number * pool.trained)
    category = np.zeros(len(names[0]), dtype=np.int64)
    entity, where = np.unique(pool.train.mentions["entity"].to_numpy(), return_index=True)
    category[entity] = pool.train.mentions["category"].to_numpy()[where]
    shares = [_shares(hit[single]) for hit, single in zip(emitted, alone, strict=True)]
    surfaces = pool.train.entities["surface"].to_pylist()
    return Names(
        entities=len(names[0]),
        emitted=int(emitted[0].sum()),
        texts_with=_texts_with(texts, hasher, surfaces),
        category={
            CATEGORIES[kind]: (int(own.sum()), int(emitted[0][own].sum()))
            for kind in np.unique(category).tolist()
            if (own := category == kind).any()
        },
        alone=shares[0],
        alone_held_out=shares[1] if len(shares) > 1 else None,
        people=pool.compare(np.unique(np.concatenate(found)), np.unique(np.concatenate(owners))),
    )


def _shares(hits: np.ndarray) -> dict[str, float]:
    """How many of how many, and the share with its exact 95% interval."""
    counted = {"emitted": float(hits.sum()), "of": float(len(hits))}
    return counted | (share(hits.tolist()) if len(hits) else {})


def _written(texts: WordHashes, hasher: Hasher, surfaces: Sequence[str]) -> np.ndarray:
    """Which surfaces stand in any of the texts."""
    found = np.zeros(len(surfaces), dtype=np.bool_)
    for n, hashes in surface_hashes(hasher, surfaces, _LONGEST_NAME).items():
        found |= (hashes != 0) & is_in(hashes, np.unique(texts.ngrams(n)[0]))
    return found


def _texts_with(texts: WordHashes, hasher: Hasher, surfaces: Sequence[str]) -> int:
    """How many texts have any of the surfaces."""
    found = np.zeros(len(texts), dtype=np.bool_)
    for n, hashes in surface_hashes(hasher, surfaces, _LONGEST_NAME).items():
        own, places = texts.ngrams(n)
        found[texts.text_of[places[is_in(own, np.unique(hashes[hashes != 0]))]]] = True
    return int(found.sum())


def secrets_in(texts: WordHashes, hasher: Hasher, secrets: Sequence[Secret]) -> Planted:
    hits = _written(texts, hasher, [secret.secret for secret in secrets])
    planted = np.array([secret.planted for secret in secrets], dtype=np.bool_)
    if planted.all() or not planted.any():
        raise UserError(
            "the secrets are all planted, or none is; name the file that was written when they "
            "were planted"
        )
    by_users: dict[str, tuple[int, int]] = {}
    for repeats in sorted({secret.repeats for secret in secrets if secret.planted}):
        own = np.array([secret.repeats == repeats for secret in secrets])
        by_users[str(repeats)] = (int(hits[own].sum()), int(own.sum()))
    law = stats.hypergeom(len(secrets), int(planted.sum()), int(hits.sum()))
    return Planted(
        planted=int(planted.sum()),
        emitted=_shares(hits[planted]),
        left_out=int((~planted).sum()),
        left_out_emitted=_shares(hits[~planted]),
        by_users=by_users,
        p_value=float(law.sf(int(hits[planted].sum()) - 1)),
    )
