"""Membership inference by groups of members, as the extraction benchmark reports it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from uedp.audit.ranks import Roc, membership_rates


def membership(curve: Roc, groups: Sequence[str]) -> dict[str, Any]:
    """Membership inference, overall and by group: `groups` names the group of each member.

    Guarantees:
      - at a false positive rate, every group is judged by the same threshold
      - intervals are Clopper and Pearson's (1934) at 95%, given that threshold
      - `above` is `Roc.above`, sorted: every other number here can be recomputed from it
    """
    above = curve.above()
    inside = {name: np.array([group == name for group in groups]) for name in dict.fromkeys(groups)}
    return {
        "others": len(curve.others),
        **membership_rates(curve),
        "groups": {
            name: membership_rates(Roc(curve.members[own], curve.others))
            | {"above": np.sort(above[own]).tolist()}
            for name, own in inside.items()
        },
    }
