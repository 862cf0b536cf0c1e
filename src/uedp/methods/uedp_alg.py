"""UeDP-Alg: the paper's sampling, local updates, estimator and noise (section 2 of privacy.md)."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from uedp.accounting.profile import Profile
from uedp.accounting.proven import UedpAlgProfile
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, f_e, f_e_plus
from uedp.mechanism.local_update import LocalUpdate, Steps, shuffled
from uedp.mechanism.noise import add_once_
from uedp.mechanism.release import ClipStats, max_tokens_on
from uedp.methods.base import (
    UNATTENDED,
    Attempt,
    Count,
    Gradient,
    Method,
    MethodOptions,
    Positive,
    PrivacySettings,
    RoundSettings,
    register_method,
)
from uedp.methods.randomness import Randomness


class UedpAlgOptions(MethodOptions):
    """Options of the paper's mechanism."""

    estimator: Literal["f_E", "f_E+"] = Field(
        default="f_E+",
        description="The paper's estimator of the mean update. f_E+, which it recommends.",
    )
    local_rate: Positive = Field(
        default=0.1, description="The learning rate of local steps. A common one for SGD."
    )
    local_batch: Count = Field(
        default=8, description="Sentences in a local step. Few, since users have few."
    )
    user_cap: Count = Field(
        default=1, description="The cap on a user's weight; at 1 all users count the same."
    )
    entity_cap: Count = Field(
        default=1, description="The cap on an entity's weight; at 1 all entities count the same."
    )
    literal_line: bool = Field(
        default=False,
        description="Take every local step from the round's start, as the paper's pseudocode "
        "reads. By default each step continues from the one before, as in federated averaging.",
    )


@register_method
class UedpAlg(Method):
    """A round estimates the mean local update with noise; its negative is the gradient."""

    name = "uedp-alg"
    profile_type = UedpAlgProfile
    options_type = UedpAlgOptions

    @classmethod
    def check(cls, privacy: PrivacySettings) -> None:
        super().check(privacy)
        if privacy.noise is None:
            raise ValueError("uedp-alg takes the paper's z as noise, and epsilon follows from it")
        if privacy.sentences_per_entity or privacy.sentences_per_user:
            raise ValueError(
                "uedp-alg uses all sentences it samples; leave out sentences_per_entity and "
                "sentences_per_user"
            )

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        # a sentence without entities counts as an entity that its user holds: at least 1
        holders = int(incidence.holders.counts.max(initial=1))
        return UedpAlgProfile(noise, privacy.user_rate, incidence.users, holders)

    @classmethod
    def noise_per_update(cls, settings: RoundSettings) -> float:
        return settings.noise * (settings.expected_users + 1)

    def _set_up(self) -> None:
        super()._set_up()
        settings, task = self.settings, self.task
        options, clip = settings.options, settings.clips.update
        assert isinstance(options, UedpAlgOptions)
        estimator = f_e if options.estimator == "f_E" else f_e_plus
        weights = Weights.of(self.incidence, options.user_cap, options.entity_cap)
        self._estimator = estimator(settings.sampling, weights, clip, settings.noise)
        batch_tokens = options.local_batch * max(1, int(task.lengths.max(initial=1)))
        max_tokens = settings.max_tokens or max_tokens_on(self.parameters[0].device)
        steps = Steps(
            options.local_rate,
            options.local_batch,
            clip,
            divisor=options.local_batch,
            from_start=options.literal_line,
        )
        self._local = LocalUpdate(
            self.model,
            task.sentence_losses,
            steps,
            users_at_once=max(1, max_tokens // batch_tokens),
        )

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        estimator, clips = self._estimator, self.settings.clips
        device = self.parameters[0].device
        randomness = Randomness(self.settings.seed, attempt.take_key())
        with randomness.of_round(number, device) as (uniforms, _, noise):
            drawn = estimator.draw(self.incidence, uniforms)
            sums = [torch.zeros_like(p, dtype=torch.float32) for p in self.parameters]
            norms = np.zeros(len(drawn.users))
            if len(drawn.sentences.values):
                with self.autocast():  # outside: vmap and autocast clash inside
                    local = self._local.weighted_sum(
                        self.task.batch(drawn.sentences.values),
                        shuffled(drawn.sentences, uniforms),
                        torch.from_numpy(drawn.weights).float(),
                        torch.from_numpy(estimator.weights.users[drawn.users]).float(),
                    )
                sums = [local.updates[p].float() for p in self.parameters]
                norms = np.nan_to_num(local.norms.cpu().numpy() / clips.update)
            attempt.enter()
            # the noise of the paper's lemma, on the sum before the division
            margin = 1 + clips.margin  # rounding depends on the batch
            add_once_(noise, sums, estimator.deviation_of_sum * margin)
        torch._foreach_mul_(sums, -1 / estimator.denominator)
        stats = ClipStats.of(np.zeros(len(drawn.sentences.values), dtype=np.bool_), norms)
        return Gradient(sums, estimator.deviation * margin, stats)
