"""Next words but those of surrogates, so that no invented name is learned."""

import numpy as np

from uedp.mechanism.fixed.token_loss import IGNORED
from uedp.methods.base import Rounds
from uedp.training.build import Assembly, build_method
from uedp.training.datasets import Texts
from uedp.training.tasks import NextWord
from uedp.training.token_store import Ids


class SurrogateTask(NextWord):
    """Predicts every token that is not one of a surrogate.

    Passes of one shape count all tokens, so rounds go through the engine.
    """

    tokens_of = None  # type: ignore[assignment]  # not `EndToEnd`

    def labels_of(self, sentence: int) -> Ids:
        begin = self._ids.offsets[sentence] + 1
        labels = np.asarray(super().labels_of(sentence), dtype=np.int64)
        return np.where(self._codes[begin : begin + len(labels)] != 0, IGNORED, labels)


def without_surrogates(texts: Texts, assembly: Assembly) -> Rounds:
    """The method of a run, on a task that leaves surrogates out."""
    task = SurrogateTask(
        texts.texts, assembly.tokenizer, assembly.max_tokens, mentions=texts.mentions
    )
    return build_method(assembly.plan, assembly.incidence, assembly.model, task, assembly.autocast)
