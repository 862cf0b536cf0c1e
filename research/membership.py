"""Membership inference of planted secrets, as the extraction benchmark reports it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from uedp.accounting.divergence import Floats
from uedp.audit.ranks import Roc, membership_rates
from uedp.audit.scoring import Endings, Question, Scorer
from uedp.audit.secrets import Secret


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


def likelihood(scorer: Scorer, secrets: Sequence[Secret]) -> Floats:
    """The log-likelihood of each secret given its prompt, batched; no alternatives are scored.

    The difference to the model before training is the membership score: it leaves out how likely
    digits and names were already.

    Guarantees:
      - the same as scoring each secret on its own
    """
    if not secrets:
        return np.empty(0)
    whole = scorer.tokens([f"{secret.prompt} {secret.secret}" for secret in secrets])
    questions = []
    for row, prompt in zip(whole, scorer.tokens([s.prompt for s in secrets]), strict=True):
        cut = next((i for i, (a, b) in enumerate(zip(row, prompt, strict=False)) if a != b), None)
        cut = len(prompt) if cut is None else cut  # the last word may be tokenized differently
        questions.append(Question(row[:cut], Endings.of([row[cut:]])))
    chunks = (questions[i : i + 1024] for i in range(0, len(questions), 1024))
    return np.concatenate([answer for chunk in chunks for answer in scorer.answer(chunk)])
