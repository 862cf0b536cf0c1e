"""Baselines without a guarantee: no clipping, no noise."""

import numpy as np
import torch
from torch import Tensor

from uedp.incidence import Ints
from uedp.mechanism.packing import loss_values
from uedp.mechanism.release import ClipStats, max_tokens_on
from uedp.mechanism.sampling import draw_whole
from uedp.methods.base import UNATTENDED, Attempt, Gradient, Method, register_method
from uedp.methods.randomness import Randomness


@register_method
class Noiseless(Method):
    """The mean gradient over the drawn users' sentences."""

    name = "noiseless"
    abandonable = True

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        sampling, device = self.settings.sampling, self.parameters[0].device
        randomness = Randomness(self.settings.seed, attempt.take_key())
        with randomness.of_round(number, device) as (uniforms, key, _):
            drawn = draw_whole(self.incidence, sampling, uniforms, key)
            sentences = drawn.sentences.values
            stats = ClipStats(len(drawn.users), len(sentences), 0.0, 0.0, 0.0)
            means = self._mean_gradient(sentences, attempt)
        attempt.enter()
        return Gradient(means, 0.0, stats)

    def _mean_gradient(self, sentences: Ints, attempt: Attempt) -> list[Tensor]:
        means = [torch.zeros_like(p) for p in self.parameters]
        batches = self._batches(sentences)
        for done, batch in enumerate(batches):
            attempt.batch_done(done, len(batches))
            with self.autocast():
                losses = self.task.losses(self.model, batch, self.packing)
            gradients = torch.autograd.grad(
                loss_values(losses).sum(), self.parameters, allow_unused=True
            )
            for mean, gradient in zip(means, gradients, strict=True):
                if gradient is not None:
                    mean.add_(gradient, alpha=1 / len(sentences))
        return means

    def _batches(self, sentences: Ints) -> list[Ints]:
        """Batches of about equal numbers of tokens, with padding unless sentences share rows."""
        if not len(sentences):
            return []
        max_tokens = self.settings.max_tokens or max_tokens_on(self.parameters[0].device)
        ordered = sentences[np.argsort(self.task.lengths[sentences], kind="stable")]
        tokens = self.packing.tokens(self.task.lengths[ordered])
        return np.array_split(ordered, min(len(ordered), -(-tokens // max_tokens)))


@register_method
class Deidentified(Noiseless):
    """Noiseless training on texts whose entities are replaced."""

    name = "deidentified"
    deidentifies = True
