"""The white-box attack on canaries: the attacker sees the noisy sum of every round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from uedp.accounting.divergence import Floats
from uedp.audit.canaries import CANARY_KINDS, Canaries, CanaryKind
from uedp.eval_mode import evaluating
from uedp.incidence import Incidence, Ints
from uedp.methods import SentenceTask
from uedp.training.plan import Plan

_MAX_BYTES = {"cuda": 32 << 30, "cpu": 1 << 30}  # of rows
_MAX_VALUES = {"cuda": 1 << 30, "cpu": 1 << 26}  # of rows computed at a time
_MOST_AT_ONCE = 128
_MEDIAN = 0.6745  # of the absolute value of a standard Gaussian
_LEAST_WIDTH = 0.2  # gradients are some rounds old, and users clipped: no estimate is closer
_REFRESHES = 20  # in a run
_FAINT = 0.05  # of a canary: the least noise assumed, for what the rows do not explain


class Gradients:
    """Gradients of canaries, and of some other texts, as rows.

    Of a model too large for memory, a random subset of the weights: the attack is then weaker, and
    no less valid.
    """

    def __init__(self, model: nn.Module, task: SentenceTask, rows: int) -> None:
        self._model, self._task, self._rows = model, task, rows
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        first = next(iter(self._trained.values()))
        self._device = first.device
        self._size = sum(p.numel() for p in self._trained.values())
        kind = first.device.type
        most = max(1, _MAX_BYTES.get(kind, _MAX_BYTES["cpu"]) // (4 * rows))
        self._kept: Tensor | None = None
        if self._size > most:
            chosen = np.random.default_rng(0).choice(self._size, most, replace=False)
            self._kept = torch.from_numpy(np.sort(chosen)).to(self._device)
        at_once = _MAX_VALUES.get(kind, _MAX_VALUES["cpu"]) // self._size
        self._at_once = max(1, min(_MOST_AT_ONCE, at_once))
        self._together = True

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """The weights that are kept, of tensors in the order of the parameters."""
        whole = torch.cat([part.flatten() for part in parts])
        return whole if self._kept is None else whole[self._kept]

    def now(self) -> tuple[Tensor, Tensor]:
        """A row per text at the current weights, and the norms of the whole gradients."""
        width = self._size if self._kept is None else len(self._kept)
        gradients = torch.empty(self._rows, width, device=self._device)
        norms = torch.empty(self._rows, device=self._device)
        with evaluating(self._model):
            start = 0
            while start < self._rows:
                end = min(start + self._at_once, self._rows)
                try:
                    part = self._some(np.arange(start, end))
                except torch.OutOfMemoryError:
                    if self._at_once == 1:
                        raise
                    self._at_once //= 2
                    torch.cuda.empty_cache()
                    continue
                part[~torch.isfinite(part).all(dim=1)] = 0  # ignored, as in training
                norms[start:end] = part.norm(dim=1)
                gradients[start:end] = part if self._kept is None else part[:, self._kept]
                start = end
        return gradients, norms

    def _some(self, rows: Ints) -> Tensor:
        if self._together:
            try:
                return self._side_by_side(rows)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # torch.func cannot transform it; a real fault occurs again below
                self._together = False
        return torch.stack([self._one(row) for row in rows])

    def _side_by_side(self, rows: Ints) -> Tensor:
        def loss(values: dict[str, Tensor], sentence: dict[str, Tensor]) -> Tensor:
            def forward(*arguments: Any, **named: Any) -> Any:
                return functional_call(self._model, values, arguments, named)

            batch = {name: tensor[None] for name, tensor in sentence.items()}
            return self._task.sentence_losses(forward, batch)[0]

        values = {name: p.detach() for name, p in self._trained.items()}
        batch = _batch(self._task, rows, self._device)
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels cannot be transformed
            gradients = vmap(grad(loss), in_dims=(None, 0))(values, batch)
        return torch.cat([gradients[name].flatten(1) for name in self._trained], 1)

    def _one(self, row: int) -> Tensor:
        with torch.enable_grad():
            total = sentence_losses(self._model, self._task, np.array([row])).sum()
        parts = torch.autograd.grad(total, list(self._trained.values()), materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])


def sentence_losses(model: nn.Module, task: SentenceTask, rows: Ints) -> Tensor:
    """The losses of sentences, one row each."""
    return task.sentence_losses(model, _batch(task, rows, next(model.parameters()).device))


def _batch(task: SentenceTask, rows: Ints, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in task.batch(rows).items()}


@dataclass(frozen=True, eq=False)
class Decoder:
    """Estimates how much of each canary is in a noisy sum.

    Ridge regression: texts have gradients in common, and a component that others explain must not
    count for a canary. `spread` is the noise of the sum, `variance` the prior variance of each
    row's share in it. A canary's estimate is scaled to rise by one when the canary is added once.
    """

    rows: Tensor
    inverse: Floats
    gain: Floats
    deviation: Floats

    @classmethod
    def of(cls, rows: Tensor, variance: Floats, spread: float) -> "Decoder":
        products = (rows @ rows.T).double().cpu().numpy()
        inverse = np.linalg.inv(products + np.diag(spread**2 / variance))
        gain = np.maximum((inverse * products).sum(1), 1e-12)
        noise = spread * np.sqrt(np.maximum(((inverse @ products) * inverse).sum(1), 0.0))
        return cls(rows, inverse, gain, noise / gain)

    def read(self, released: Tensor) -> Floats:
        shares: Floats = self.inverse @ (self.rows @ released).double().cpu().numpy() / self.gain
        return shares


def evidence(estimates: Floats, deviations: Floats, participation: Mapping[int, float]) -> Floats:
    """The evidence of a round that a canary is in: the logarithm of a likelihood ratio.

    `participation` is the distribution of how often a canary that is in takes part in a round.
    Estimates are centred at their median and scaled by their scatter: most take no part.
    """
    apart = estimates - np.median(estimates)
    scatter = np.median(np.abs(apart) / np.maximum(deviations, 1e-12)) / _MEDIAN
    width = np.maximum(deviations * scatter, _LEAST_WIDTH)
    times = np.array(list(participation))[:, None]
    chances = np.array(list(participation.values()))[:, None]
    ratios: Floats = special.logsumexp((times * apart - times**2 / 2) / width**2, axis=0, b=chances)
    return ratios


class WhiteBox:
    """The evidence for each canary, round by round.

    `task` has the texts of all canaries, in and out, and after them some of the corpus, which
    explain what canaries have in common with other texts. Gradients are recomputed every few
    rounds: they change slowly.
    """

    def __init__(
        self,
        plan: Plan,
        incidence: Incidence,
        model: nn.Module,
        task: SentenceTask,
        canaries: Canaries,
        every: int | None = None,
    ) -> None:
        self._plan, self._canaries = plan, canaries
        self._every = every or max(1, plan.rounds // _REFRESHES)
        self._gradients = Gradients(model, task, len(task.lengths))
        self._clipped = plan.profile is not None
        # what the output of a round was divided by
        self._divisor = (
            plan.expected_users if self._clipped else plan.sampling.user_rate * incidence.sentences
        )
        self._participations = {kind: self._participation(kind) for kind in CANARY_KINDS}
        self._updates: tuple[Tensor, float] | None = None
        self._decoder: Decoder | None = None

    def _participation(self, kind: CanaryKind) -> dict[int, float]:
        """How often a canary that is in takes part in a round, with probabilities."""
        profile, sampling = self._plan.profile, self._plan.sampling
        rate, lent = sampling.user_rate, profile is not None and profile.protects_entities
        if kind == "entity" and not lent:
            times = np.arange(self._canaries.holders + 1)
            chances = np.asarray(stats.binom.pmf(times, self._canaries.holders, rate))
            return dict(zip(times.tolist(), chances.tolist(), strict=True))
        if kind == "entity":  # lent to one of its holders
            rate *= sampling.entity_rate
        return {0: 1 - rate, 1: rate}

    def before_round(self, number: int) -> bool:
        """Recompute gradients if they are due, at the weights that the round starts from."""
        if self._updates is not None and number % self._every:
            return False
        self._updates = self._decoder = None  # frees their memory first
        self._updates = self._updates_now()
        return True

    def after_round(self, output: Sequence[Tensor]) -> Floats:
        """The evidence of the round for each canary."""
        released = self._gradients.flat(output) * self._divisor
        if self._decoder is None:
            self._decoder = self._decoder_for(released)
        estimates, deviations = self._decoder.read(released), self._decoder.deviation
        ratios = np.zeros(len(self._canaries.canaries))
        for kind in CANARY_KINDS:
            if len(own := self._canaries.of(kind)):
                ratios[own] = evidence(estimates[own], deviations[own], self._participations[kind])
        return ratios

    def _updates_now(self) -> tuple[Tensor, float]:
        """The update that each text would add to a round, and its median norm over canaries."""
        rows, norms = self._gradients.now()
        times = torch.ones(len(rows), device=rows.device)
        times[torch.from_numpy(self._canaries.of("user"))] = self._canaries.copies
        times[torch.from_numpy(self._canaries.of("entity"))] = self._canaries.mentions
        if self._clipped:
            clips = self._plan.clips
            sentence = _factor(norms, clips.share * clips.update)
            times = times * sentence * _factor(norms * sentence * times, clips.update)
        rows *= times[:, None]
        return rows, float((norms * times)[: len(self._canaries.canaries)].median())

    def _decoder_for(self, released: Tensor) -> Decoder:
        """For the noise observed on most weights, not the noise that is claimed."""
        assert self._updates is not None  # computed before the round
        rows, size = self._updates
        noise = float(released.abs().median()) / _MEDIAN
        rate = self._plan.sampling.user_rate
        variance = np.full(len(rows), rate / 2)
        # the reference texts stand for the whole corpus
        variance[len(self._canaries.canaries) :] = rate * self._plan.shape.users
        return Decoder.of(rows, variance, max(noise, _FAINT * size, 1e-12))


def _factor(norms: Tensor, bound: float) -> Tensor:
    return (bound / norms.clamp(min=1e-30)).clamp(max=1)
