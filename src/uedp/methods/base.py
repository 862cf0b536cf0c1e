"""What a round does, for each method. The loop, the checkpoint and the evaluation are shared."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.incidence import Incidence, Ints
from uedp.mechanism.clip import Engine
from uedp.mechanism.lending import Mask, lend
from uedp.mechanism.noise import Noise, SecureNoise, SeededNoise
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses, Packing, loss_values
from uedp.mechanism.release import ClipStats, max_tokens_on, release
from uedp.mechanism.sampling import Participants, Uniforms, draw, draw_whole
from uedp.mechanism.secret import SecretUniforms, secret_masks
from uedp.training.plan import Plan
from uedp.training.tasks import Precision, Task


@dataclass(frozen=True)
class Gradient:
    """What a round hands to the optimiser, and how far the clips reached (private)."""

    values: list[Tensor]
    deviation: float
    stats: ClipStats


class Method(Protocol):
    """One way to spend a round."""

    parameters: list[nn.Parameter]

    def round(self, number: int) -> Gradient: ...


class Randomness:
    """Draws, coins, masks and noise of each round: fresh from the operating system, never kept.

    Dropout's masks are drawn by PyTorch's own generator, which begins alike in every process. Who
    meets which mask depends on how long others' texts are, so nobody may know the masks. The key
    for lending may be known (the theorems fix what is lent): 62 bits and a hash will do.

    Guarantees:
      - without a seed, no two rounds share anything, over restarts too
      - without a seed, draws and coins, and the noise of a release, each have a key of 256 bits of
        their own, and masks the whole state of their generators
      - with a seed, a round's randomness depends on the seed and its number alone
      - the caller's random numbers are left alone
    """

    def __init__(self, plan: Plan) -> None:
        self._seed = plan.config.privacy.seed

    @contextmanager
    def of(self, number: int, device: torch.device) -> Iterator[tuple[Uniforms, int, Noise]]:
        """For a round: uniform numbers for draws and coins, a key for lending, and noise."""
        if self._seed is None:
            with secret_masks(device):
                yield SecretUniforms(), secrets.randbits(62), SecureNoise()
            return
        generator = np.random.default_rng([self._seed, number])
        key, masks, noise_seed = (int(n) for n in generator.integers(0, 2**62, 3))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(masks)
            yield generator, key, SeededNoise(noise_seed)


class Lending:
    """Which sentences may be used, renewed every few rounds where finding out takes a second.

    What is lent may be known and may stay as it was; draws and coins are fresh in every round.

    Guarantees:
      - with a seed, what a round may use depends on the seed and the round's number alone
    """

    def __init__(self, incidence: Incidence, seed: int | None) -> None:
        self._incidence, self._seed = incidence, seed
        self._rounds = 1 + len(incidence.sentence_entities.values) // _MENTIONS_A_ROUND
        self._found: tuple[int, Mask] | None = None

    def of(self, number: int) -> Mask:
        """For a round."""
        period = number // self._rounds
        if self._found is None or self._found[0] != period:
            key = secrets.randbits(62) if self._seed is None else self._seed * 2**31 + period
            self._found = period, lend(self._incidence, key)
        return self._found[1]


class Drawing:
    """Who takes part in the rounds of a plan, and with which sentences: no text is read."""

    def __init__(self, plan: Plan, incidence: Incidence) -> None:
        self._sampling, self._incidence = plan.sampling, incidence
        rotates = plan.config.privacy.method == "rotation"
        self._lending = Lending(incidence, plan.config.privacy.seed) if rotates else None

    def of(self, number: int, uniforms: Uniforms, key: int) -> Participants:
        """For a round, by its own randomness."""
        if self._lending is None:
            return draw_whole(self._incidence, self._sampling, uniforms, key)
        usable = self._lending.of(number)
        return draw(self._incidence, self._sampling, uniforms, key, usable)


_MENTIONS_A_ROUND = 750_000  # lending them takes a tenth of a second
_QUANTILES = (0.1, 0.4, 0.7, 0.95)  # of lengths


class Clipped:
    """Rotation, and user-level privacy, which is rotation that disregards entities."""

    def __init__(
        self,
        plan: Plan,
        incidence: Incidence,
        model: nn.Module,
        task: Task,
        precision: Precision,
    ) -> None:
        self._plan, self._model = plan, model
        self._task, self._precision = task, precision
        self._engine = Engine(model)
        self._randomness = Randomness(plan)
        self.parameters = self._engine.parameters
        self._drawing = Drawing(plan, incidence)
        self._packing = self._clippable(task.packing_for(model))

    def _clippable(self, packing: Packing) -> Packing:
        """The packing to train with: some layers can be followed only in rows of their own."""
        half = self._plan.provenance.precision == "bfloat16"
        try:
            self._engine.check(self._losses_of_some(packing), len(_QUANTILES), half)
        except UserError:
            if not packing.shares_rows:
                raise
            return self._clippable(ONE_PER_ROW)
        return packing

    def _losses(self, sentences: Ints, packing: Packing) -> Tensor | PackedLosses:
        with self._precision():
            losses = self._task.losses(self._model, sentences, packing)
        if not isinstance(losses, PackedLosses):
            return losses
        recompute = losses.recompute

        def in_same_precision() -> Tensor:
            # a chunk recomputed in another precision would move everybody in it
            with self._precision():
                return recompute()

        return replace(losses, recompute=in_same_precision)

    def _losses_of_some(self, packing: Packing) -> Callable[[Sequence[int]], Tensor | PackedLosses]:
        """Of sentences to try the model with: short ones and long ones, so that some are padded."""
        order = np.argsort(self._task.lengths, kind="stable")
        some = order[[int(quantile * len(order)) for quantile in _QUANTILES]]
        return lambda which: self._losses(some[list(which)], packing)

    def round(self, number: int) -> Gradient:
        plan = self._plan
        with self._randomness.of(number, self.parameters[0].device) as (uniforms, key, noise):
            participants = self._drawing.of(number, uniforms, key)
            found = release(
                self._engine,
                participants,
                lambda sentences: self._losses(sentences, self._packing),
                self._task.lengths[participants.sentences.values],
                plan.clips,
                noise,
                plan.noise,
                plan.config.run.tokens_at_once,
                self._packing,
            )
        scale = 1 / plan.expected_weight
        torch._foreach_mul_(found.sums, scale)
        return Gradient(found.sums, plan.noise * plan.clips.unit_of_noise * scale, found.stats)


class Plain:
    """No clipping, no noise: the mean gradient over the drawn users' sentences."""

    def __init__(
        self,
        plan: Plan,
        incidence: Incidence,
        model: nn.Module,
        task: Task,
        precision: Precision,
    ) -> None:
        self._plan, self._incidence, self._model = plan, incidence, model
        self._task, self._precision = task, precision
        self._randomness = Randomness(plan)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._packing = task.packing_for(model)

    def round(self, number: int) -> Gradient:
        with self._randomness.of(number, self.parameters[0].device) as (uniforms, key, _):
            who = draw_whole(self._incidence, self._plan.sampling, uniforms, key)
            return Gradient(self._mean(who.sentences.values), 0.0, _untouched(who))

    def _mean(self, sentences: Ints) -> list[Tensor]:
        gradients = [torch.zeros_like(p) for p in self.parameters]
        for some in self._pieces(sentences):
            with self._precision():
                total = loss_values(self._task.losses(self._model, some, self._packing)).sum()
            found = torch.autograd.grad(total, self.parameters, allow_unused=True)
            for sum_, part in zip(gradients, found, strict=True):
                if part is not None:
                    sum_.add_(part, alpha=1 / len(sentences))
        return gradients

    def _pieces(self, sentences: Ints) -> list[Ints]:
        """About equally many tokens each: padded ones too, unless sentences share rows."""
        if not len(sentences):
            return []
        max_tokens = self._plan.config.run.tokens_at_once or max_tokens_on(
            self.parameters[0].device
        )
        ordered = sentences[np.argsort(self._task.lengths[sentences], kind="stable")]
        tokens = self._packing.tokens(self._task.lengths[ordered])
        return np.array_split(ordered, min(len(ordered), -(-tokens // max_tokens)))


def _untouched(who: Participants) -> ClipStats:
    return ClipStats(len(who.users), len(who.sentences.values), 0.0, 0.0, 0.0)


@torch.no_grad()
def refuse_mixing(model: nn.Module, task: Task) -> None:
    """Try whether losses of short sentences change beside a long one, in full precision."""
    order = np.argsort(task.lengths, kind="stable")
    some, longest = order[[len(order) * tenth // 10 for tenth in (1, 3, 5)]], order[-1:]
    with evaluating(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
        alone = torch.cat([loss_values(task.losses(model, some[[i]])) for i in range(len(some))])
        beside = loss_values(task.losses(model, np.concatenate([some, longest])))[:-1]
    if not torch.allclose(alone, beside, rtol=_SAME, atol=_SAME):
        raise UserError(
            f"the loss of a sentence changes with the sentences beside it: {type(model).__name__} "
            "looks at them, or at padding; choose a model that does not"
        )


_SAME = 1e-4  # rounding is far below, a model that looks at padding above


def build(
    plan: Plan, incidence: Incidence, model: nn.Module, task: Task, precision: Precision
) -> Method:
    kind = plan.config.privacy.method
    if plan.private:
        refuse_mixing(model, task)
    if kind in ("rotation", "user-level"):
        return Clipped(plan, incidence, model, task, precision)
    if kind == "uedp-alg":
        from uedp.methods.uedp_alg import UedpAlg

        return UedpAlg(plan, incidence, model, task, precision)
    return Plain(plan, incidence, model, task, precision)
