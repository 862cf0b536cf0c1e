"""Who takes part in a round, and with which sentences (`docs/privacy.md`, section 5).

Everything here reads the incidence and nothing else. The order in which sentences are selected is
a hash of their ids, the same whoever else was drawn.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from uedp.accounting.planning import Supply
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints, Rows
from uedp.mechanism.lending import Mask, Words, lend, random_order

Floats = npt.NDArray[np.float64]


class Uniforms(Protocol):
    """The source of draws and coins: `SecretUniforms` in a private run, a seeded
    `numpy.random.Generator` in a test."""

    def random(self, size: int, /) -> Floats:
        """Independent numbers, uniform in [0, 1)."""


@dataclass(frozen=True)
class Sampling:
    """The sampling rates and limits of a round.

    `per_entity` is how many selected sentences of a user may mention one entity (the `m` of the
    theorem); None lifts the limit, and sentences of one entity divide its share instead (their
    `weights`). `per_user` is the most sentences of a user in a round.
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
    """The drawn users of a round, their sentences (a row each), and each sentence's weight.

    A weight, in 0..1, is the part of an entity's share that a sentence may use: its clip is so much
    of the share.
    """

    users: Ints
    sentences: Rows
    weights: Floats

    def part(self, places: Ints) -> "Participants":
        """Some of the users, by their places, with all that is theirs."""
        everything = Rows(self.sentences.offsets, np.arange(len(self.weights)))
        rows = everything.take(places)
        sentences = Rows(rows.offsets, self.sentences.values[rows.values])
        return Participants(self.users[places], sentences, self.weights[rows.values])


def draw_users(users: int, rate: float, rng: Uniforms) -> Ints:
    """Every user independently with the same probability; none at all is an ordinary outcome."""
    return np.flatnonzero(rng.random(users) < rate)


def select(
    incidence: Incidence, users: Ints, sampling: Sampling, key: int, usable: Mask | None = None
) -> tuple[Ints, Ints, Rows]:
    """The sentences of these users that a round may use, before coins.

    Args:
        usable: the result of a lending rule, by this key or another; by default `lend`.

    Returns:
        For each selected sentence its place in `users`, its id, and its entities.

    Guarantees:
      - every entity of a selected sentence is lent to its user
      - no entity is in more than `per_entity` selected sentences, no user has more than
        `per_user`
      - the selection of a user is the same whichever other users are asked for
    """
    own = incidence.user_sentences.take(users)
    kept = (lend(incidence, key) if usable is None else usable)[own.values]
    place, sentences = own.row_of_value()[kept], own.values[kept]
    mentions = incidence.sentence_entities.take(sentences)
    order = selection_order(sentences, key)
    chosen = _at_most(mentions, order, sampling.per_entity)
    chosen = first_of_each(place, order, chosen, sampling.per_user)
    return place[chosen], sentences[chosen], mentions.where(chosen)


def supply_of(incidence: Incidence, draws: int = 4) -> Supply:
    """For planning: each user's sentences that are usable, averaged over `draws` lendings."""
    everyone, unlimited = np.arange(incidence.users), Sampling(1.0, per_entity=None)
    usable = np.zeros(incidence.users)
    for key in range(draws):
        place, _, _ = select(incidence, everyone, unlimited, key)
        usable += np.bincount(place, minlength=incidence.users)
    owners = np.asarray(incidence.sentence_user)[incidence.extended]
    extended = np.bincount(owners, minlength=incidence.users).astype(np.float64)
    return Supply(incidence.users, usable / draws, extended, incidence.sentences)


def usable_share(incidence: Incidence, draws: int = 4) -> float:
    """The share of sentences that a round can use: those whose entities are lent to their user."""
    if not incidence.sentences:
        return 1.0
    return float(supply_of(incidence, draws).sentences_per_user.sum() / incidence.sentences)


def draw(
    incidence: Incidence, sampling: Sampling, rng: Uniforms, key: int, usable: Mask | None = None
) -> Participants:
    """One round of rotation. `rng` is secret (draws and coins); `key` and `usable` may be public.

    Guarantees:
      - a user is drawn with probability `user_rate`, independently of all else
      - coins are flipped after selection: an entity's coin decides over its selected sentences
        and changes nothing else
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    place, sentences, mentions = select(incidence, users, sampling, key, usable)
    weights = rounded_down(1 / crowding(mentions))
    heads = _coins(mentions, sampling, rng)
    return Participants(users, grouped(users, place[heads], sentences[heads]), weights[heads])


def draw_weighted(
    incidence: Incidence, sampling: Sampling, rng: Uniforms, weights: Floats
) -> Participants:
    """One round of fair shares: all sentences of the drawn users that have a weight.

    Guarantees:
      - a user is drawn with probability `user_rate`, independently of all else
      - a sentence without an entity is left out by a coin of its own, or not at all
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    own = incidence.user_sentences.take(users)
    kept = weights[own.values] > 0
    place, sentences = own.row_of_value()[kept], own.values[kept]
    heads = _coins(incidence.sentence_entities.take(sentences), sampling, rng)
    rows = grouped(users, place[heads], sentences[heads])
    return Participants(users, rows, weights[rows.values])


def draw_whole(incidence: Incidence, sampling: Sampling, rng: Uniforms, key: int) -> Participants:
    """One round of user-level privacy: all sentences of the drawn users, entities disregarded.

    Guarantees:
      - a user is drawn with probability `user_rate`, independently of all else
      - of a user with more than `per_user` sentences, that many at random, the same whichever
        other users are drawn
    """
    users = draw_users(incidence.users, sampling.user_rate, rng)
    own = incidence.user_sentences.take(users)
    place, order = own.row_of_value(), selection_order(own.values, key)
    chosen = first_of_each(place, order, np.ones(len(place), dtype=np.bool_), sampling.per_user)
    rows = grouped(users, place[chosen], own.values[chosen])
    return Participants(users, rows, np.ones(len(rows.values)))


def crowding(mentions: Rows) -> Ints:
    """For each selected sentence, how many mention its most frequent entity; at least 1.

    An entity is lent to one user, so the sentences counted together are that user's.
    """
    result = np.ones(len(mentions), dtype=np.int64)
    if len(mentions.values):
        _, which, counts = np.unique(mentions.values, return_inverse=True, return_counts=True)
        np.maximum.at(result, mentions.row_of_value(), counts[which])
    return result


def rounded_down(weights: Floats) -> Floats:
    """Weights as multiples of 2^-32.

    Guarantees:
      - sums of up to two million of them are exact, so that those that are meant to add up to 1,
        but for rounding, do not add up to more
    """
    return np.floor(weights * _GRID) / _GRID


def grouped(users: Ints, place: Ints, sentences: Ints) -> Rows:
    """Sentences in the order of their users, as a row for each user."""
    counts = np.bincount(place.astype(np.int64), minlength=len(users))
    return Rows(np.concatenate([[0], np.cumsum(counts)]), sentences)


_GRID = 2.0**32


def selection_order(sentences: Ints, key: int) -> Words:
    """The order in which sentences are selected; independent of lending by the same key."""
    return random_order(sentences, key ^ 0x5E1EC7)


def _coins(mentions: Rows, sampling: Sampling, rng: Uniforms) -> Mask:
    """Which selected sentences keep all their coins; one coin per entity and round."""
    entities, which = np.unique(mentions.values, return_inverse=True)
    tails = rng.random(len(entities)) >= sampling.entity_rate
    own_tails = rng.random(len(mentions)) >= sampling.extended_rate
    lost: Mask = (mentions.counts == 0) & own_tails
    lost[mentions.row_of_value()[tails[which]]] = True
    return ~lost


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
    taken[:] = mentions.counts == 0
    open_ = ~taken
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


def first_of_each(place: Ints, order: Words, chosen: Mask, limit: int | None) -> Mask:
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
