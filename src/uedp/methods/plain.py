"""Baselines without a guarantee: no clipping, no noise."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from uedp.incidence import Ints
from uedp.mechanism.packing import Packing, loss_values
from uedp.mechanism.release import ClipStats, max_tokens_on
from uedp.mechanism.sampling import draw_whole
from uedp.methods.base import (
    UNATTENDED,
    Attempt,
    Autocast,
    Gradient,
    Method,
    SentenceTask,
    register_method,
)
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
            means, _ = mean_gradient(
                self.model,
                self.task,
                sentences,
                self.packing,
                self.autocast,
                self.settings.max_tokens,
                attempt.batch_done,
            )
        attempt.enter()
        return Gradient(means, 0.0, stats)


def mean_gradient(
    model: nn.Module,
    task: SentenceTask,
    sentences: Ints,
    packing: Packing,
    autocast: Autocast,
    max_tokens: int | None = None,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Tensor], float]:
    """The mean gradient over sentences, for the parameters that train, and the mean loss."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    means = [torch.zeros_like(p) for p in parameters]
    total = torch.zeros((), device=parameters[0].device)
    most = max_tokens or max_tokens_on(parameters[0].device)
    batches = _batches(sentences, task.lengths[sentences], most, packing)
    for done, batch in enumerate(batches):
        batch_done(done, len(batches))
        with autocast():
            loss = loss_values(task.losses(model, batch, packing)).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        total += loss.detach()
        for mean, gradient in zip(means, gradients, strict=True):
            if gradient is not None:
                mean.add_(gradient, alpha=1 / len(sentences))
    return means, float(total) / max(len(sentences), 1)


def _batches(sentences: Ints, lengths: Ints, max_tokens: int, packing: Packing) -> list[Ints]:
    """Batches of about equal numbers of tokens, with padding unless sentences share rows."""
    if not len(sentences):
        return []
    order = np.argsort(lengths, kind="stable")
    tokens = packing.tokens(lengths[order])
    return np.array_split(sentences[order], min(len(order), -(-tokens // max_tokens)))


@register_method
class Deidentified(Noiseless):
    """Noiseless training on texts whose entities are replaced."""

    name = "deidentified"
    deidentifies = True
