"""What a change would do, estimated from the mentions of the corpus as it is.

Nothing is detected or weighed again: mentions are dropped, renamed, or added where the words stand.
What that does to other surfaces (a name inside a longer one) is left out.
"""

import numpy as np
import numpy.typing as npt

from uedp.corpus.store import CATEGORIES
from uedp.entities.canonical import Canon
from uedp.incidence import Incidence
from uedp.studio.browse import View
from uedp.studio.protection import Protection

Ints = npt.NDArray[np.int64]


def estimated_incidence(view: View, applied: Protection, choice: Protection) -> Incidence | None:
    """About the incidence under another choice; None where the change brings hits back.

    What was left out before (a category that was off, an entry that was public) is in no mention.
    """
    old, new = applied.lists, choice.lists
    if (
        choice.categories - applied.categories
        or old.public.keys() - new.public.keys()
        or old.aliases.items() - new.aliases.items()
        or set(old.shipped) != set(new.shipped)
        or choice.propagate != applied.propagate
    ):
        return None
    keep = _kept(view, choice, applied)
    canon = Canon(new.aliases)
    numbers = dict(view.numbers)
    for entity in new.public.keys() - old.public.keys():
        keep &= view.entity != numbers.get(canon(entity), -1)
    for entity in old.sensitive.keys() - new.sensitive.keys():
        keep &= (view.entity != numbers.get(canon(entity), -1)) | (view.detectors != 0)
    entities = view.entity.astype(np.int64)
    for alias in new.aliases.keys() - old.aliases.keys():
        # by its own form, not by the entity it now stands for
        number = numbers.get(Canon(old.aliases)(alias))
        if number is not None:
            entities = np.where(entities == number, _number(numbers, canon(alias)), entities)
    at, of = [view.sentence[keep]], [entities[keep]]
    for added in (*(new.sensitive.keys() - old.sensitive.keys()), *(new.aliases.keys())):
        if added in old.aliases:
            continue
        places = np.flatnonzero(view.contain(added))
        at.append(places)
        of.append(np.full(len(places), _number(numbers, canon(added))))
    incidence = view.corpus.incidence
    return Incidence.build(
        np.asarray(incidence.sentence_user),
        np.concatenate(at),
        np.concatenate(of),
        incidence.users,
        len(numbers),
    )


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))


def _kept(view: View, choice: Protection, applied: Protection) -> npt.NDArray[np.bool_]:
    """The mentions whose category, and one of whose detectors, stay on."""
    chosen = [CATEGORIES.index(name) for name in choice.categories]
    keep = np.isin(view.category, chosen)
    if choice.detectors != applied.detectors:
        bits = sum(
            1 << n for n, name in enumerate(view.corpus.detectors) if name in choice.detectors
        )
        of_entity = np.zeros(view.corpus.incidence.entities, dtype=np.int64)
        np.bitwise_or.at(of_entity, view.entity, view.detectors)
        of_entity = of_entity[view.entity]
        spread = (view.detectors == 0) & ((of_entity == 0) | (of_entity & bits != 0))
        keep &= (view.detectors & bits != 0) | spread
    return keep
