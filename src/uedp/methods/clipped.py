"""The round of methods that clip each drawn user's update and add noise to the sum."""

import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.clip import Engine, trainable_layers
from uedp.mechanism.clip.engine import Losses
from uedp.mechanism.fixed.fixed_pass import Sentences, fixed_pass
from uedp.mechanism.fixed.trial import refuse_difference
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses
from uedp.mechanism.release import FixedPasses, release
from uedp.methods.base import (
    UNATTENDED,
    Attempt,
    Draw,
    EndToEnd,
    Gradient,
    Method,
    RoundSettings,
    probe_sentences,
)
from uedp.methods.randomness import Randomness

_log = logging.getLogger(__name__)
_PROBED_LENGTHS = (0.1, 0.4, 0.7, 1.0)  # quantiles: short and long, so that some are padded


class ClippedMethod(Method):
    """A noisy sum of clipped updates, divided by the expected number of drawn users.

    A subclass defines the sampling (`sampler`), the clipping norms (`clips`) and the accountant's
    profile (`profile`).
    """

    noises_gradients = True
    abandonable = True

    @classmethod
    @abstractmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> Draw:
        """A function that draws the users and sentences of a round, without reading any text."""

    @classmethod
    def check_model(cls, model: nn.Module) -> None:
        super().check_model(model)
        trainable_layers(model)

    def _set_up(self) -> None:
        super()._set_up()
        self._engine = Engine(self.model)
        self.parameters = self._engine.parameters
        self._draw = self.sampler(self.settings, self.incidence)
        try:
            self._check()
        except UserError:
            if self.packing == ONE_PER_ROW:
                raise
            self.packing = ONE_PER_ROW  # the clip rules of some layers need one row per sentence
            self._check()
        self._fixed = self._fixed_passes() if self.packing.shares_rows else None

    def _fixed_passes(self) -> FixedPasses | None:
        """Passes of one shape, if they compute what the engine does."""
        task, settings = self.task, self.settings
        if not isinstance(task, EndToEnd):
            return None
        dtype = torch.bfloat16 if settings.half_precision else torch.float32
        one = fixed_pass(self.model, settings.max_tokens, task.longest, dtype)
        if one is None:
            return None
        probed, losses = self._probed()
        ids, lengths = task.tokens_of(probed)
        owners = np.arange(len(probed)) // 2
        batch = Sentences(ids, lengths, owners, torch.ones(len(probed)))
        try:
            if not one.fits(lengths):
                raise UserError("they are too small")
            refuse_difference(one, self._engine, losses, batch, settings.half_precision)
        except UserError as error:
            _log.warning("rounds are not computed in passes of one shape: %s", error)
            return None
        return FixedPasses(one, task.tokens_of)

    def _check(self) -> None:
        """Compare the engine with the reference on a few sentences."""
        probed, losses = self._probed()
        self._engine.check(losses, len(probed), self.settings.half_precision)

    def _probed(self) -> tuple[Ints, Losses]:
        """A few sentences, and their losses by their places among them."""
        probed = probe_sentences(self.task, _PROBED_LENGTHS)
        return probed, lambda which: self._losses(probed[list(which)])

    def _losses(self, sentences: Ints) -> Tensor | PackedLosses:
        with self.autocast():
            losses = self.task.losses(self.model, sentences, self.packing)
        if not isinstance(losses, PackedLosses):
            return losses
        return replace(losses, recompute=self._in_same_precision(losses.recompute))

    def _in_same_precision(self, recompute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # recomputing a batch in another precision would move all updates in it
        def recomputed() -> Tensor:
            with self.autocast():
                return recompute()

        return recomputed

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        settings, device = self.settings, self.parameters[0].device
        if self._fixed is not None and not self._fixed.one.is_current():
            self._fixed = None  # its memory is needed
            self._fixed = self._fixed_passes()
        randomness = Randomness(settings.seed, attempt.take_key())
        with randomness.of_round(number, device) as (uniforms, key, noise):
            drawn = self._draw(number, uniforms, key)
            sums, stats = release(
                self._engine,
                drawn,
                self._losses,
                self.task.lengths[drawn.sentences.values],
                settings.clips,
                noise,
                settings.noise,
                settings.max_tokens,
                self.packing,
                self._fixed,
                attempt.enter,
                attempt.batch_done,
            )
        scale = 1 / settings.expected_users
        torch._foreach_mul_(sums, scale)
        deviation = settings.noise * settings.clips.unit_of_noise * scale
        return Gradient(sums, deviation, stats)
