"""Lending against the sequential rule that `docs/privacy.md` section 5 states."""

import numpy as np

from uedp.incidence import Incidence
from uedp.mechanism import draw as module
from uedp.mechanism.draw import lend


def sequential(incidence, key):
    """Sentences one by one: take all entities, unless another user has one of them."""
    borrower, usable = {}, np.zeros(incidence.sentences, dtype=bool)
    for sentence in np.argsort(module._hash(np.arange(incidence.sentences), key)).tolist():
        user = int(incidence.sentence_user[sentence])
        entities = incidence.sentence_entities[sentence].tolist()
        if all(borrower.get(entity, user) == user for entity in entities):
            borrower.update(dict.fromkeys(entities, user))
            usable[sentence] = True
    return usable


def test_lending_is_the_sequential_rule():
    """A later sentence may not take an entity because an earlier, doomed one of its user wants it.

    In order: 0 (user 1) has f; 1 (user 0) has e, f; 2 (user 1) has e; 3 (user 0) has e. One by one
    sentence 1 is out, so e goes to user 1. The vectorised reading lends e to user 0.
    """
    owners = np.array([1, 0, 1, 0])
    mentions = np.array([(0, 1), (1, 0), (1, 1), (2, 0), (3, 0)])
    incidence = Incidence.build(owners, mentions[:, 0], mentions[:, 1], 2, 2)
    for key in range(100):
        assert lend(incidence, key).tolist() == sequential(incidence, key).tolist(), key
