"""Who takes part in a round, and with which sentences (`docs/privacy.md`, section 5).

Everything here reads the incidence and nothing else. A round's work is proportional to what the
drawn users touch, not to the corpus: priorities and selection order are hashes of ids, so they
are the same for a user or sentence whoever else was drawn, and need not be made for all.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uedp.errors import UserError
from uedp.incidence import Incidence, Ints, Rows

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


class Uniforms(Protocol):
    """Where draws and coins come from: `SecretUniforms` in a private run, a seeded
    `numpy.random.Generator` in a test."""

    def random(self, size: int, /) -> Floats:
        """So many independent numbers, uniform in [0, 1)."""


@dataclass(frozen=True)
class Sampling:
    """How a round samples. Rates are probabilities.

    `per_entity` is how many selected sentences of a user may mention one entity (the `m` of the
    theorem); None lifts the limit, and each sentence's clip is divided by its `crowding` instead.
    `per_user` is the most sentences of a user in a round.
    """

    user_rate: float
    entity_rate: float = 1.0
    extended_rate: float = 1.0
    per_entity: int | None = 1
    per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("user_rate", "entity_rate", "extended_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} {getattr(self, name)}: must lie in 0..1")
        for name in ("per_entity", "per_user"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} {value}: must be at least 1")


@dataclass(frozen=True, eq=False)
class Participants:
    """The drawn users of a round and their sentences.

    `sentences[i]` are those of `users[i]`; a drawn user with none has an empty row. For each
    sentence, `crowding` is how many selected sentences of its user mention its most frequent
    entity, at least 1.
    """

    users: Ints
    sentences: Rows
    crowding: Ints


def draw_users(users: int, rate: float, rng: Uniforms) -> Ints:
    """Every user independently with the same probability; none is an ordinary outcome."""
    return np.flatnonzero(rng.random(users) < rate)


def lend(incidence: Incidence, key: int) -> Mask:
    """Which sentences may be used: those whose entities are all lent to their user.

    Sentences come in a random order, and each takes its entities for its user unless another user
    has taken one of them. That is decided many sentences at a time: whoever comes first for all of
    its entities takes them, whoever needs a taken one is out, and the others wait.

    Guarantees:
      - all usable sentences that mention an entity are one user's
      - a sentence that is not usable mentions an entity that is lent to another user
      - depends on nothing but the incidence and the key, never on who was drawn
    """
    usable: Mask = incidence.extended
    sentence, entity = (
        incidence.sentence_entities.row_of_value(),
        incidence.sentence_entities.values,
    )
    order = _hash(np.arange(incidence.sentences), key)
    borrower = np.full(incidence.entities, -1, dtype=np.int32)
    while len(sentence):
        user = incidence.sentence_user[sentence]
        first = np.full(incidence.entities, _LAST)
        np.minimum.at(first, entity, order[sentence])
        taken = borrower[entity]
        free = (taken < 0) & (first[entity] == order[sentence])
        waits = np.zeros(incidence.sentences, dtype=np.bool_)
        waits[sentence[~free & (taken != user)]] = True
        takes = ~waits[sentence]
        borrower[entity[takes]] = user[takes]
        usable[sentence[takes]] = True
        taken = borrower[entity]
        out = np.zeros(incidence.sentences, dtype=np.bool_)
        out[sentence[(taken >= 0) & (taken != user)]] = True
        left = ~takes & ~out[sentence]
        sentence, entity = sentence[left], entity[left]
    return usable


def select(
    incidence: Incidence, users: Ints, sampling: Sampling, key: int, usable: Mask | None = None
) -> tuple[Ints, Ints, Rows]:
    """Sentences of the given users that the round may use, before coins.

    Returns for each selected sentence its place in `users` and its id, and its entities. `usable`
    is what `lend` found for a key, this one or another.

    Guarantees:
      - every entity of a selected sentence is lent to its user
      - no entity is in more than `per_entity` selected sentences, no user has more than
        `per_user`
      - what is selected for a user is the same whichever other users are asked for
    """
    own = incidence.user_sentences.take(users)
    kept = (lend(incidence, key) if usable is None else usable)[own.values]
    place, sentences = own.row_of_value()[kept], own.values[kept]
    mentions = incidence.sentence_entities.take(sentences)
    order = _hash(sentences, key ^ _SELECTION)
    chosen = _at_most(mentions, order, sampling.per_entity)
    chosen = _first_of_each(place, order, chosen, sampling.per_user)
    return place[chosen], sentences[chosen], mentions.where(chosen)


def draw(
    incidence: Incidence,
    sampling: Sampling,
    rng: Uniforms,
    key: int,
    usable: Mask | None = None,
) -> Participants:
    """One round of rotation. `rng` is secret (draws and coins); `key` and `usable` need not be.

    Guarantees:
      - a user is drawn with probability `user_rate`, independently of all else
      - coins are flipped after selection: an entity's coin decides over its selected sentences
        and changes nothing else
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    place, sentences, mentions = select(incidence, users, sampling, key, usable)
    crowding = _crowding(place, mentions)
    heads = _coins(mentions, sampling, rng)
    return _participants(users, place[heads], sentences[heads], crowding[heads])


def draw_whole(incidence: Incidence, sampling: Sampling, rng: Uniforms, key: int) -> Participants:
    """One round of user-level privacy: all sentences of the drawn users, entities disregarded.

    Guarantees:
      - a user is drawn with probability `user_rate`, independently of all else
      - of a user with more than `per_user` sentences, that many at random, the same whichever
        other users are drawn
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    own = incidence.user_sentences.take(users)
    place, order = own.row_of_value(), _hash(own.values, key ^ _SELECTION)
    chosen = _first_of_each(place, order, np.ones(len(place), dtype=np.bool_), sampling.per_user)
    return _participants(users, place[chosen], own.values[chosen], np.ones(chosen.sum(), int))


def _coins(mentions: Rows, sampling: Sampling, rng: Uniforms) -> Mask:
    """Which selected sentences keep all their coins; one coin per entity and round."""
    entities, which = np.unique(mentions.values, return_inverse=True)
    tails = rng.random(len(entities)) >= sampling.entity_rate
    extended = mentions.counts == 0
    own_tails = extended & (rng.random(len(mentions)) >= sampling.extended_rate)
    kept: Mask = ~(_any_per_row(mentions, tails[which]) | own_tails)
    return kept


# --- UeDP-Alg's own sampling ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WeightedParticipants:
    """Users and sentences of a UeDP-Alg round; a sentence counts once per sampled entity in it."""

    users: Ints
    sentences: Rows
    weights: Floats


def draw_alg(
    incidence: Incidence,
    sampling: Sampling,
    rng: Uniforms,
    entity_weights: Floats,
    extended_weight: float = 1.0,
) -> WeightedParticipants:
    """UeDP-Alg (section 2): a sentence is used if any of its entities was sampled.

    Its weight is the sum of the weights of the sampled entities it mentions; an extended
    sentence's is `extended_weight` if it was sampled.
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    own = incidence.user_sentences.take(users)
    place = np.repeat(np.arange(len(users)), own.counts)
    mentions = incidence.sentence_entities.take(own.values)
    entities, which = np.unique(mentions.values, return_inverse=True)
    sampled = rng.random(len(entities)) < sampling.entity_rate
    value = np.where(sampled, entity_weights[entities], 0.0)
    weights: Floats = np.bincount(
        mentions.row_of_value(), value[which], minlength=len(mentions)
    ).astype(np.float64)
    extended = mentions.counts == 0
    weights[extended] = extended_weight * (rng.random(int(extended.sum())) < sampling.extended_rate)
    used = weights > 0
    chosen = _participants(users, place[used], own.values[used], np.ones(int(used.sum()), int))
    return WeightedParticipants(chosen.users, chosen.sentences, weights[used])


# --- vectors -------------------------------------------------------------------------------------

_SELECTION = 0x5E1EC7
_LAST = np.uint64(2**64 - 1)


def _hash(ids: Ints, key: int) -> Words:
    """A fixed random-looking 64-bit word per id and key (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        word = ids.astype(np.uint64) + np.uint64((key * 0x9E3779B97F4A7C15) % 2**64)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def _any_per_row(rows: Rows, flags: Mask) -> Mask:
    return np.bincount(rows.row_of_value()[flags], minlength=len(rows)) > 0


def _at_most(mentions: Rows, order: Words, limit: int | None) -> Mask:
    """Rows taken in the given order, each value at most `limit` times: sequential, vectorised.

    A row is decided once, for each of its values, the earlier rows that were taken or are still
    open are fewer than the limit (taken), or those that were taken already reach it (left out).
    """
    taken = np.ones(len(mentions), dtype=np.bool_)
    if limit is None or not len(mentions.values):
        return taken
    row = mentions.row_of_value()
    by_value = np.lexsort((order[row], mentions.values))
    row, value = row[by_value], mentions.values[by_value]
    first = np.flatnonzero(np.diff(value, prepend=-1))
    starts = np.repeat(first, np.diff(np.append(first, len(value))))
    open_ = np.ones(len(mentions), dtype=np.bool_)
    taken[:] = mentions.counts == 0
    open_ &= ~taken
    while open_.any():
        taken_before = _count_before(taken[row], starts)
        open_before = _count_before(open_[row], starts)
        full = np.zeros(len(mentions), dtype=np.bool_)
        full[row[taken_before >= limit]] = True
        waiting = np.zeros(len(mentions), dtype=np.bool_)
        waiting[row[taken_before + open_before >= limit]] = True
        taken |= open_ & ~full & ~waiting
        open_ &= waiting & ~full
    return taken


def _count_before(flags: Mask, starts: Ints) -> Ints:
    """For each position, how many flags are set before it in its segment."""
    before: Ints = np.cumsum(flags) - flags
    return before - before[starts]


def _first_of_each(place: Ints, order: Words, chosen: Mask, limit: int | None) -> Mask:
    """Of the chosen, the first `limit` of each place in the given order."""
    if limit is None or not chosen.any():
        return chosen
    inside = np.flatnonzero(chosen)
    sequence = inside[np.lexsort((order[inside], place[inside]))]
    owner = place[sequence]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    rank = np.arange(len(owner)) - np.repeat(first, np.diff(np.append(first, len(owner))))
    kept = np.zeros_like(chosen)
    kept[sequence[rank < limit]] = True
    return kept


def _crowding(place: Ints, mentions: Rows) -> Ints:
    """How often the most frequent entity of each sentence was selected for its user."""
    result = np.ones(len(mentions), dtype=np.int64)
    if len(mentions.values):
        # an entity is lent to one user, so counting by entity is counting by user and entity
        _, which, counts = np.unique(mentions.values, return_inverse=True, return_counts=True)
        np.maximum.at(result, mentions.row_of_value(), counts[which])
    return result


def _participants(users: Ints, place: Ints, sentences: Ints, crowding: Ints) -> Participants:
    counts = np.bincount(place, minlength=len(users)) if len(place) else np.zeros(len(users), int)
    offsets: npt.NDArray[Any] = np.concatenate([[0], np.cumsum(counts)])
    return Participants(users, Rows(offsets, sentences), crowding)
