"""How much of their updates users can fill with the sentences of a round."""

import numpy as np

from uedp.accounting.planning import Supply


def update_norms(supply: Supply, share: float, extended_rate: float = 1.0) -> float:
    """The sum over users of the largest norm their update can have.

    Each usable sentence moves an update by `share` until the clipping norm is reached; of those
    without an entity the expected number counts.
    """
    usable = supply.usable(extended_rate)
    return supply.users * float(np.minimum(1.0, share * usable).mean())
