"""Gaps: mentions taken out of their sentences, and alternatives of the same category."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from uedp.entities.categories import BASE
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus  # imported lazily: it needs Arrow

ENTITIES, OTHERS = 1000, 100  # ranked from each corpus, and among how many others

_LONGEST = 400  # characters of a sentence with a gap


@dataclass(frozen=True)
class Gap:
    """A mention taken out of its sentence, and others of its category to put there.

    `member` says that the entity is in the training corpus; `users` is how many mention it.
    """

    before: str
    truth: str
    after: str
    others: tuple[str, ...]
    category: str
    member: bool
    users: int


def entity_gaps(
    train: "Corpus",
    held_out: "Corpus",
    *,
    most: int = ENTITIES,
    others: int = OTHERS,
    seed: int = 0,
) -> list[Gap]:
    """Gaps for entities that only one of two corpora mentions, about `most` from each.

    Guarantees:
      - per category, as many gaps from the one corpus as from the other
      - the others in a gap are drawn alike for all: as many from the one corpus as from the other,
        never the entity itself
      - the same seed gives the same gaps
    """
    rng = np.random.default_rng(seed)
    sides = [_mentioned(train, True, rng), _mentioned(held_out, False, rng)]
    common = sides[0].keys() & sides[1].keys()
    by_category: dict[str, tuple[list[Gap], list[Gap]]] = {}
    for side, mentioned in enumerate(sides):
        for name, gap in mentioned.items():
            if name not in common:
                by_category.setdefault(gap.category, ([], []))[side].append(gap)
    usable = {name: both for name, both in by_category.items() if min(map(len, both)) > 1}
    if not usable:
        raise UserError(
            f"{train.folder} and {held_out.folder}: no category has two entities that only the "
            "first mentions and two that only the second mentions; hold out more users"
        )
    share = min(1.0, most / sum(min(map(len, both)) for both in usable.values()))
    gaps: list[Gap] = []
    for category in sorted(usable):
        both = usable[category]
        fewest = min(map(len, both))
        each = min(others // 2, fewest - 1)
        for own in both:
            for place in rng.permutation(len(own))[: max(1, round(share * fewest))]:
                drawn: list[str] = []
                for pool in both:
                    free = np.delete(np.arange(len(pool)), place if pool is own else [])
                    drawn += (pool[i].truth for i in rng.choice(free, each, replace=False))
                gaps.append(replace(own[place], others=tuple(drawn)))
    return gaps


def _mentioned(corpus: "Corpus", member: bool, rng: np.random.Generator) -> dict[str, Gap]:
    """For each entity a random mention of it, unless its sentence is very long."""
    table = corpus.mentions
    columns = (
        table[name].to_numpy() for name in ("entity", "sentence", "start", "end", "category")
    )
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns])
    rows = rows[:, rng.permutation(rows.shape[1])]
    entities, first = np.unique(rows[0], return_index=True)
    users = corpus.incidence.holders.counts
    names = corpus.entities["name"].to_pylist()
    kinds = list(BASE)
    gaps = {}
    for entity, text, (start, end, category) in zip(
        entities.tolist(), corpus.texts(rows[1, first]), rows[2:, first].T.tolist(), strict=True
    ):
        if len(text) <= _LONGEST:
            gaps[names[entity]] = Gap(
                text[:start],
                text[start:end],
                text[end:],
                (),
                kinds[category],
                member,
                int(users[entity]),
            )
    return gaps
