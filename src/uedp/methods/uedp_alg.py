"""UeDP-Alg as a method: the paper's sampling, local updates, estimator and noise."""

import numpy as np
import torch
from torch import nn

from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, f_e, f_e_plus
from uedp.mechanism.local_update import LocalUpdate, Steps, shuffled
from uedp.mechanism.noise import Noise, add_once_
from uedp.mechanism.release import ClipStats, max_tokens_on
from uedp.mechanism.sampling import Floats, Uniforms
from uedp.methods.base import Gradient, Randomness
from uedp.training.plan import Plan
from uedp.training.tasks import Precision, Task


class UedpAlg:
    """Each round is a noisy estimate of how far the users moved; minus that is the gradient."""

    def __init__(
        self,
        plan: Plan,
        incidence: Incidence,
        model: nn.Module,
        task: Task,
        precision: Precision,
    ) -> None:
        settings, clip = plan.config.alg, plan.clips.update
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._incidence, self._task = incidence, task
        self._randomness = Randomness(plan)
        kind = f_e if settings.estimator == "f_E" else f_e_plus
        weights = Weights.of(incidence, settings.user_cap, settings.entity_cap)
        self._estimator = kind(plan.sampling, weights, clip, plan.noise)
        self._precision = precision
        self._local = LocalUpdate(
            model,
            task.sentence_losses,
            Steps(
                settings.local_rate,
                settings.local_batch,
                clip,
                divisor=settings.local_batch,
                from_start=settings.literal_line,
            ),
            users_at_once=_fitting(plan, task, settings.local_batch, self.parameters[0].device),
        )
        self._clip = clip
        self._larger = 1 + plan.clips.margin  # for rounding that differs with the batch

    def round(self, number: int) -> Gradient:
        with self._randomness.of(number, self.parameters[0].device) as (uniforms, _, noise):
            return self._round(uniforms, noise)

    def _round(self, uniforms: Uniforms, noise: Noise) -> Gradient:
        estimator = self._estimator
        who = estimator.draw(self._incidence, uniforms)
        user_weights = torch.from_numpy(estimator.weights.users[who.users]).float()
        sums = [torch.zeros(p.shape, device=p.device) for p in self.parameters]
        norms = np.zeros(len(who.users))
        if len(who.sentences.values):
            with self._precision():  # around all of it: inside, vmap and autocast clash
                found = self._local.weighted_sum(
                    self._task.batch(who.sentences.values),
                    shuffled(who.sentences, uniforms),
                    torch.from_numpy(who.weights).float(),
                    user_weights,
                )
            sums = [found.updates[p].float() for p in self.parameters]
            norms = np.nan_to_num(found.norms.cpu().numpy() / self._clip)
        # the noise of the paper's lemma, on the sum before it is divided
        add_once_(noise, sums, estimator.deviation_of_sum * self._larger)
        torch._foreach_mul_(sums, -1 / estimator.denominator)
        deviation = estimator.deviation * self._larger
        return Gradient(sums, deviation, _stats(len(who.sentences.values), norms))


def _fitting(plan: Plan, task: Task, batch: int, device: torch.device) -> int:
    """How many users may step side by side, by the tokens that are held at once."""
    max_tokens = plan.config.run.tokens_at_once or max_tokens_on(device)
    return max(1, max_tokens // (batch * max(1, int(task.lengths.max(initial=1)))))


def _stats(sentences: int, norms: Floats) -> ClipStats:
    some = bool(len(norms))
    return ClipStats(
        users=len(norms),
        sentences=sentences,
        sentences_clipped=0.0,
        users_clipped=float((norms > 1).mean()) if some else 0.0,
        mean_update=float(np.minimum(norms, 1).mean()) if some else 0.0,
    )
