"""The processes that compute the sum of a round together.

Drawn users are divided among them; each clips and adds up the updates of its own. The draw, the
noise and the ledger belong to one process, the lead, so that noise is added once.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from uedp.incidence import Ints
from uedp.mechanism.lending import Mask
from uedp.mechanism.sampling import Floats, Participants

MaskKey = Callable[[int], bytes]
"""Gives the secret key of a process' dropout masks, by its number."""


@dataclass(frozen=True, eq=False)
class PartialSum:
    """The sum of some users' clipped updates, before noise.

    `clipped` says which of their sentences were clipped; `updates` are the norms of their updates,
    in units of the update clip.
    """

    total: Tensor
    clipped: Mask
    updates: Floats


class Processes(Protocol):
    """Divides a round among processes; used by the lead.

    Guarantees (required of every implementation):
      - each drawn user is the part of exactly one process
      - `add_up` returns the sum over all processes, or raises: a sum that lacks a process' part
        is never returned
      - a round whose context is left before `add_up` is abandoned by all processes
    """

    def sharing(
        self, drawn: Participants, lengths: Ints, mask_key: MaskKey
    ) -> AbstractContextManager[Participants]:
        """A context that gives the part of this process; `lengths` are tokens of sentences."""

    def add_up(self, own: PartialSum) -> PartialSum:
        """The sum of all parts."""


class OneProcess:
    """A round that this process computes by itself."""

    @contextmanager
    def sharing(
        self, drawn: Participants, lengths: Ints, mask_key: MaskKey
    ) -> Iterator[Participants]:
        yield drawn

    def add_up(self, own: PartialSum) -> PartialSum:
        return own


ALONE = OneProcess()


def divide(drawn: Participants, lengths: Ints, processes: int) -> list[Ints]:
    """The places of the drawn users of each process, with about as many tokens for each.

    The largest users come first, each to the process with the fewest tokens so far. A user's text
    is thus never divided, and a process may have no user at all.

    Guarantees:
      - every drawn user is in exactly one part, and parts are in ascending order
      - no part exceeds another by more than the largest user
    """
    sizes = np.bincount(drawn.sentences.row_of_value(), lengths, minlength=len(drawn.users))
    loads = np.zeros(processes)
    parts: list[list[int]] = [[] for _ in range(processes)]
    for user in np.argsort(-sizes, kind="stable").tolist():
        least = int(np.argmin(loads))
        loads[least] += sizes[user]
        parts[least].append(user)
    return [np.array(sorted(part), dtype=np.int64) for part in parts]
