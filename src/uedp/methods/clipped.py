"""The round of methods that clip each drawn user's update and add noise to the sum."""

import gc
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from uedp.accounting.planning import Supply
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.clip import Engine, trainable_layers
from uedp.mechanism.clip.engine import Losses
from uedp.mechanism.clip.shared import shared_masks
from uedp.mechanism.fixed.fixed_pass import (
    FEWEST_TOKENS,
    FixedPass,
    NoFixedPassError,
    Sentences,
    fixed_pass,
)
from uedp.mechanism.fixed.trial import refuse_difference, refuse_other_norms
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses
from uedp.mechanism.processes import ALONE, PartialSum, Processes
from uedp.mechanism.release import FixedPasses, clipped_sum, release
from uedp.mechanism.sampling import Participants
from uedp.mechanism.secret import bytes_under, secret_masks
from uedp.methods.base import (
    UNATTENDED,
    Attempt,
    Draw,
    EndToEnd,
    Gradient,
    Method,
    PrivacySettings,
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

    version = 1  # 0 did not charge for rounding; rotation also lent in other orders
    noises_gradients = True
    abandonable = True
    processes: Processes = ALONE
    """Who computes a round's sum."""

    @classmethod
    @abstractmethod
    def sampler(cls, settings: RoundSettings, incidence: Incidence) -> Draw:
        """A function that draws the users and sentences of a round, without reading any text."""

    @classmethod
    def supply(cls, privacy: PrivacySettings, incidence: Incidence) -> Supply:
        """For planning: the sentences of a round in which everyone is drawn, and their weights."""
        whole = cls.sampling(privacy)
        rng, most, count = np.random.default_rng(0), incidence.users, 0
        for per_user in (None, whole.per_user):
            sampling = replace(whole, user_rate=1.0, per_user=per_user)
            settings = RoundSettings(sampling, cls.clips(privacy, 0.0), 0.0, most, seed=0)
            drawn = cls.sampler(settings, incidence)(0, rng, 0)
            usable, count = count, len(drawn.weights)
        # a limit on users' sentences leaves none out for good
        sentences = incidence.sentences * count / max(usable, 1)
        owners = drawn.users[drawn.sentences.row_of_value()]
        return Supply.of_weights(incidence.users, owners, drawn.weights, sentences)

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
        self._fixed = self._fixed_passes()

    def _fixed_passes(self) -> FixedPasses | None:
        """Passes of one shape, if they compute what the engine does."""
        try:
            if not (isinstance(self.task, EndToEnd) and self.packing.shares_rows):
                raise NoFixedPassError("sentences of this task or model cannot lie end to end")
            one = self._tried_passes(self.task)
        except UserError as error:
            if self.settings.fixed_passes:
                raise UserError(
                    "run.precision bfloat16-fixed: this model cannot be computed in passes of one "
                    f"shape, which takes plain adapters on an accelerator ({error}); set it to "
                    "float32"
                ) from error
            usual = isinstance(error, NoFixedPassError)  # a processor, or another kind of model
            level = logging.INFO if usual else logging.WARNING
            _log.log(level, "rounds are not computed in passes of one shape: %s", error)
            return None
        return FixedPasses(one, self.task.tokens_of, self.settings.fixed_passes)

    def _tried_passes(self, task: EndToEnd) -> FixedPass:
        """Passes in this precision; raises `UserError` unless they pass for the engine's.

        Half precision is too coarse to tell a wrong pass from a rounded one, so that the same
        passes are compared in float32 first.
        """
        probed, _ = self._probed()
        ids, lengths = task.tokens_of(probed)
        owners = np.arange(len(probed)) // 2
        batch = Sentences(ids, lengths, owners, torch.ones(len(probed)))

        def tried(tokens: int | None, dtype: torch.dtype) -> FixedPass:
            one = fixed_pass(self.model, tokens, task.longest, dtype)
            if not one.fits(lengths):
                raise UserError("they are too small")
            refuse = refuse_difference if dtype == torch.float32 else refuse_other_norms
            refuse(one, self._engine, self._whole(probed), batch)
            return one

        if not self.settings.half_precision:
            return tried(self.settings.max_tokens, torch.float32)
        tried(max(FEWEST_TOKENS, int(lengths.sum())), torch.float32)
        gc.collect()  # its graph has memory of its own
        return tried(self.settings.max_tokens, torch.bfloat16)

    def _check(self) -> None:
        """Compare the engine with the reference on a few sentences.

        Where passes of one shape compute the rounds, the engine is what those are compared with, in
        float32.
        """
        probed, losses = self._probed()
        if self.settings.fixed_passes:
            self._engine.check(self._whole(probed), len(probed))
        else:
            self._engine.check(losses, len(probed), self.settings.half_precision)

    def _probed(self) -> tuple[Ints, Losses]:
        """A few sentences, and their losses by their places among them."""
        probed = probe_sentences(self.task, _PROBED_LENGTHS)
        return probed, lambda which: self._losses(probed[list(which)])

    def _whole(self, probed: Ints) -> Losses:
        """Losses of some sentences by their places, in float32."""
        return lambda which: self.task.losses(self.model, probed[list(which)], self.packing)

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
        fixed = self._current_fixed_passes()
        randomness = Randomness(settings.seed, attempt.take_key())
        mask_key = partial(randomness.mask_key, number)
        with randomness.of_round(number, device) as (uniforms, key, noise):
            drawn = self._draw(number, uniforms, key)
            lengths = self.task.lengths[drawn.sentences.values]
            with self.processes.sharing(drawn, lengths, mask_key) as own:
                sums, stats = release(
                    self._engine,
                    own,
                    self._losses,
                    self.task.lengths[own.sentences.values],
                    settings.clips,
                    noise,
                    settings.noise,
                    settings.max_tokens,
                    self.packing,
                    fixed,
                    attempt.enter,
                    attempt.batch_done,
                    self.processes.add_up,
                )
        scale = 1 / settings.expected_users
        torch._foreach_mul_(sums, scale)
        deviation = settings.noise * settings.clips.unit_of_noise * scale
        return Gradient(sums, deviation, stats)

    def part_of_round(self, own: Participants, mask_key: bytes) -> PartialSum:
        """The sum of some drawn users' updates, for the process that draws and adds noise."""
        if any(mask.drops for mask in shared_masks(self.model)):
            raise UserError(
                "model.dropout: this model drops weights for all sentences of a round at once, "
                "which several processes cannot agree on; set it to 0, or use one process"
            )
        fixed = self._current_fixed_passes()
        with secret_masks(self.parameters[0].device, bytes_under(mask_key)):
            return clipped_sum(
                self._engine,
                own,
                self._losses,
                self.task.lengths[own.sentences.values],
                self.settings.clips,
                self.settings.max_tokens,
                self.packing,
                fixed,
            )

    def _current_fixed_passes(self) -> FixedPasses | None:
        """The passes of one shape, recorded again if the model's tensors were replaced."""
        if self._fixed is not None and not self._fixed.one.is_current():
            self._fixed = None  # its memory is needed
            self._fixed = self._fixed_passes()
        return self._fixed
