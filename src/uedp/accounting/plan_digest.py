"""The digest of a plan, by which results of audits are matched to the runs that they attacked."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from uedp.accounting.profile import Profile, profile_to_record

# fields of `privacy` that say how the noise was found, or who decided, not what a round does
_NOT_OF_ROUNDS = frozenset(("epsilon", "noise", "seed", "chosen_by", "corpus_budget"))


def plan_digest(
    profile: Profile,
    rounds: int,
    delta: float,
    privacy: Mapping[str, Any],
    options: Mapping[str, Any],
    precision: str | None = None,
) -> str:
    """SHA-256 of everything in a plan that its guarantee depends on, but for the corpus.

    `privacy` and `options` are the sections `privacy` and `method_options` of the resolved config,
    as plain values. `precision` is given where the rounds were computed as a run computes them. The
    margin for rounding follows from it and from the number of users drawn, and is left out: an
    audit that plants canaries draws more of them.

    Guarantees:
      - plans with different profiles, rounds, deltas, clips, rates, limits, options or precisions
        have different digests
    """
    settings = {name: value for name, value in privacy.items() if name not in _NOT_OF_ROUNDS}
    decided = [profile_to_record(profile), rounds, delta, settings, dict(options), precision]
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
