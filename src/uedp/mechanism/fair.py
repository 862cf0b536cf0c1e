"""Fair shares: all who mention an entity divide its share (`docs/privacy.md`, section 5).

Every sentence has a weight, the part of an entity's share that it may use. Nothing is lent: all
selected sentences of a drawn user are used in every round, each clipped to its weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from uedp.accounting.planning import ALIGNMENT, Supply, expected_square
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.lending import Mask, check_rule
from uedp.mechanism.sampling import Floats, first_of_each, rounded_down, selection_order


@dataclass(frozen=True)
class Sharing:
    """The public settings that weights may depend on: entity share, sentences of a user."""

    entity_share: float
    per_user: int | None = None


class SharingRule(Protocol):
    """A function of the incidence, public settings and a key that gives each sentence a weight.

    It may read nothing else: no text, no random state, no earlier call and, above all, not who was
    drawn. The theorem conditions on the weights and needs the draw to be independent of them; the
    key may therefore be public. A weight of 0 leaves a sentence out.

    Guarantees (required of every rule, verified by `check_sharing_rule`):
      - the weights, rounded down (`rounded_down`), of all sentences that mention an entity, of all
        users together, add up to at most 1; every weight lies in 0..1
      - no user has more than `per_user` sentences with a weight
      - the result depends on the incidence, the settings and the key alone
      - the incidence is left unchanged
    """

    def __call__(self, incidence: Incidence, sharing: Sharing, key: int, /) -> Floats:
        """One weight per sentence."""


def fair_shares(incidence: Incidence, sharing: Sharing, key: int) -> Floats:
    """The rule in use: the weights of all selected sentences rise together.

    A sentence stops when it reaches 1, when one of its entities is used up, or when the update of
    its user is expected to reach the clipping norm: more would be clipped, and others need it.

    Guarantees:
      - those of every `SharingRule`
      - max-min fair: a selected sentence below 1 mentions an entity of which it has as much as any
        other sentence and nothing is left, or has as much as any sentence of a user whose expected
        update is as long as the clipping norm; but for rounding
      - every selected sentence has a weight
    """
    selected = select_for_all(incidence, sharing, key)
    return rounded_down(_filled(incidence, selected, sharing.entity_share))


def fair_supply(incidence: Incidence, sharing: Sharing, extended_rate: float = 1.0) -> Supply:
    """For planning: the expected weights of each user's sentences."""
    weights = fair_shares(incidence, sharing, 0)
    expected = weights * np.where(incidence.extended, extended_rate, 1.0)
    used = int((weights > 0).sum())
    return Supply.of_weights(incidence.users, incidence.sentence_user, expected, used)


def select_for_all(incidence: Incidence, sharing: Sharing, key: int) -> Mask:
    """Of each user at most `per_user` sentences, at random by the key."""
    order = selection_order(np.arange(incidence.sentences), key)
    all_ = np.ones(incidence.sentences, dtype=np.bool_)
    return first_of_each(incidence.sentence_user, order, all_, sharing.per_user)


def _filled(incidence: Incidence, selected: Mask, share: float) -> Floats:
    """Progressive filling, of many sentences at a time.

    Each entity and each user allows its sentences that still rise a level, which grows while others
    of them stop below it. Where no sentence of an entity or user is held to a lower level by
    another one, all its sentences stop.
    """
    weights = np.zeros(incidence.sentences)
    rising = np.flatnonzero(selected)
    mentions = incidence.sentence_entities.take(rising)
    place, entity = mentions.row_of_value(), mentions.values
    user = incidence.sentence_user[rising]
    left = np.ones(incidence.entities)
    total, squares = np.zeros((2, incidence.users))
    renumber = len(rising)
    while len(rising):
        if len(rising) <= renumber:  # so that little is done for the last ones
            users, user = np.unique(user, return_inverse=True)
            entities, entity = np.unique(entity, return_inverse=True)
            left, total, squares = left[entities], total[users], squares[users]
            renumber = len(rising) // 2
        of_entity = _entity_levels(left, np.bincount(entity, minlength=len(left)))
        of_user = _user_levels(total, squares, np.bincount(user, minlength=len(total)), share)
        level = np.minimum(of_user[user], 1.0)
        np.minimum.at(level, place, of_entity[entity])
        held = np.zeros(len(left), dtype=np.bool_)
        held[entity[level[place] < of_entity[entity]]] = True
        held_user = np.zeros(len(total), dtype=np.bool_)
        held_user[user[level < of_user[user]]] = True
        stops = (level == 1) | ~held_user[user]
        stops[place[~held[entity]]] = True
        weights[rising[stops]] = level[stops]
        total += np.bincount(user[stops], level[stops], minlength=len(total))
        squares += np.bincount(user[stops], level[stops] ** 2, minlength=len(total))
        out = stops[place]
        left -= np.bincount(entity[out], level[place[out]], minlength=len(left))
        place, entity = (np.cumsum(~stops) - 1)[place[~out]], entity[~out]
        rising, user = rising[~stops], user[~stops]
    return weights


def _entity_levels(left: Floats, rising: Ints) -> Floats:
    """How high sentences may rise by what is left of their entity."""
    levels: Floats = np.divide(left, rising, out=np.full(len(left), np.inf), where=rising > 0)
    return levels


def _user_levels(total: Floats, squares: Floats, rising: Ints, share: float) -> Floats:
    """How high sentences may rise until the expected update of their user has norm 1.

    `total` and `squares` are of the sentences that no longer rise. The square of the norm is
    `share^2` times a quadratic of the level (`expected_square`).
    """
    a = expected_square(rising, rising)
    b = ALIGNMENT**2 * total * rising
    c = expected_square(total, squares) - share**-2
    root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
    levels: Floats = np.divide(root - b, a, out=np.full(len(a), np.inf), where=rising > 0)
    return levels


def check_sharing_rule(
    rule: SharingRule,
    incidence: Incidence,
    sharing: Sharing,
    keys: Sequence[int],
    draw: Callable[[], object] = lambda: None,
) -> None:
    """Raise if a rule breaks a guarantee of `SharingRule` on this incidence.

    Called as `check_lending_rule` is, with the settings; the `UserError` names the broken guarantee
    and the key, and the entity or user concerned.
    """
    check_rule(
        "sharing",
        "the incidence, the settings and the key",
        lambda incidence, key: rule(incidence, sharing, key),
        incidence,
        keys,
        draw,
        lambda incidence, weights, key: _refuse_too_much(incidence, sharing, weights, key),
    )


def _refuse_too_much(incidence: Incidence, sharing: Sharing, weights: Floats, key: int) -> None:
    if weights.shape != (incidence.sentences,) or weights.dtype != np.float64:
        raise UserError(
            f"key {key}: the sharing rule gives {weights.dtype} of shape {weights.shape}; it must "
            f"give one float64 per sentence, ({incidence.sentences},)"
        )
    if not ((weights >= 0) & (weights <= 1)).all():
        raise UserError(f"key {key}: the sharing rule gives a weight outside 0..1")
    weights = rounded_down(weights)
    mentions = incidence.sentence_entities
    sums = np.bincount(mentions.values, weights[mentions.row_of_value()])
    for entity in np.flatnonzero(sums > 1)[:1]:
        raise UserError(
            f"key {key}: the sharing rule gives the sentences that mention entity {entity} "
            f"{sums[entity]:.6g} in all; their weights must add up to at most 1"
        )
    used = np.bincount(incidence.sentence_user[weights > 0], minlength=incidence.users)
    if sharing.per_user is not None and (used > sharing.per_user).any():
        raise UserError(
            f"key {key}: the sharing rule gives weights to {used.max()} sentences of user "
            f"{used.argmax()}; it must leave out all but {sharing.per_user}"
        )
