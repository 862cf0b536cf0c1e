"""Lending: which sentences a round may use (`docs/privacy.md`, section 5).

An entity that several users mention is lent to one of them at a time, so that it moves one user's
update only. A sentence is usable while all its entities are lent to its user. Users who share an
entity take turns: the key changes from round to round, or every few rounds.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from uedp.errors import UserError
from uedp.incidence import Incidence, Ints

Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


class LendingRule(Protocol):
    """A function of the incidence and a key that marks the usable sentences.

    It may read nothing else: no text, no random state, no earlier call and, above all, not who was
    drawn. The theorems condition on the lending and need the draw to be independent of it; the key
    may therefore be public.

    Guarantees (required of every rule, verified by `check_lending_rule`):
      - all usable sentences that mention an entity belong to one user
      - the result depends on the incidence and the key alone
      - the incidence is left unchanged
    """

    def __call__(self, incidence: Incidence, key: int, /) -> Mask:
        """One flag per sentence."""


def lend(incidence: Incidence, key: int) -> Mask:
    """The rule in use: sentences in random order, each taking its entities for its user.

    A sentence is usable unless another user has already taken one of its entities. Computed for
    many sentences at a time: a sentence that comes first for all its entities takes them, one that
    needs an entity taken by another user drops out, and the others wait.

    Guarantees:
      - those of every `LendingRule`
      - a sentence that is not usable mentions an entity that is lent to another user
    """
    usable: Mask = incidence.extended.copy()
    mentions = incidence.sentence_entities
    sentence, entity = mentions.row_of_value(), mentions.values
    order = random_order(np.arange(incidence.sentences), key)
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
        open_ = ~takes & ~out[sentence]
        sentence, entity = sentence[open_], entity[open_]
    return usable


_LAST = np.uint64(2**64 - 1)


def random_order(ids: Ints, key: int) -> Words:
    """A fixed random-looking 64-bit word per id and key (the finaliser of SplitMix64).

    The order of an id is the same whichever other ids are asked for.
    """
    with np.errstate(over="ignore"):
        word = ids.astype(np.uint64) + np.uint64((key * 0x9E3779B97F4A7C15) % 2**64)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def check_lending_rule(
    rule: LendingRule,
    incidence: Incidence,
    keys: Sequence[int],
    draw: Callable[[], object] = lambda: None,
) -> None:
    """Raise if a rule breaks a guarantee of `LendingRule` on this incidence.

    For property tests of any rule: call it with many incidences. The rule is called for every key,
    and again in reverse order on a copy of the incidence.

    Args:
        draw: draws the users of a round from whatever generator the rule might hold; called before
            each call of the rule.

    Raises:
        UserError: names the broken guarantee and the key, the entity and the users concerned.
    """
    check_rule(
        "lending", "the incidence and the key", rule, incidence, keys, draw, _refuse_two_borrowers
    )


_Given = TypeVar("_Given", bound=np.generic)


def check_rule(
    kind: str,
    read: str,
    rule: Callable[[Incidence, int], npt.NDArray[_Given]],
    incidence: Incidence,
    keys: Sequence[int],
    draw: Callable[[], object],
    refuse: Callable[[Incidence, npt.NDArray[_Given], int], None],
) -> None:
    """Raise if a rule of some kind gives what `refuse` refuses, or reads more than it may."""
    results: dict[int, npt.NDArray[_Given]] = {}
    before = copy.deepcopy(incidence)
    for key in keys:
        draw()
        results[key] = np.array(rule(incidence, key))
        refuse(before, results[key], key)
    if _arrays_of(incidence) != _arrays_of(before):
        raise UserError(f"the {kind} rule changes the incidence; it may only read it")
    for key in reversed(keys):
        draw()
        if not np.array_equal(rule(before, key), results[key]):
            raise UserError(
                f"key {key}: the {kind} rule gives another result when called again; it must "
                f"depend on {read} alone, never on who was drawn"
            )


def _refuse_two_borrowers(incidence: Incidence, usable: Mask, key: int) -> None:
    if usable.shape != (incidence.sentences,) or usable.dtype != np.bool_:
        raise UserError(
            f"key {key}: the lending rule gives {usable.dtype} of shape {usable.shape}; it must "
            f"give one bool per sentence, ({incidence.sentences},)"
        )
    mentions = incidence.sentence_entities
    lent = usable[mentions.row_of_value()]
    entity, user = mentions.values[lent], incidence.sentence_user[mentions.row_of_value()[lent]]
    borrower = np.full(incidence.entities, -1, dtype=np.int64)
    borrower[entity] = user
    for shared in np.flatnonzero(borrower[entity] != user)[:1]:
        raise UserError(
            f"key {key}: the lending rule lends entity {entity[shared]} to users {user[shared]} "
            f"and {borrower[entity[shared]]} at once; it must lend it to one"
        )


def _arrays_of(incidence: Incidence) -> list[bytes]:
    """All that an incidence holds, to tell whether a rule has changed it."""
    names = ("sentence_entities", "user_sentences", "entity_sentences", "holders")
    tables = [getattr(incidence, name) for name in names]
    arrays = [array for table in tables for array in (table.offsets, table.values)]
    return [array.tobytes() for array in (incidence.sentence_user, *arrays)]
