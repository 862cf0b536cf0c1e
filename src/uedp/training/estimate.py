"""What a run will cost, before any work: time, memory, signal and every epsilon."""

import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from uedp.accounting import statement
from uedp.accounting.ledger import Budget, CorpusLedger, CorpusTotal
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses, Packing, loss_values
from uedp.mechanism.release import max_tokens_on
from uedp.mechanism.sampling import Sampling, supply_of
from uedp.methods import Method, RoundSettings, SentenceTask, method_named
from uedp.progress import SILENT, Progress
from uedp.training import optimise
from uedp.training.build import Assembly, Prepared, set_up_for_training
from uedp.training.plan import Plan

_ENOUGH_SECONDS = 1.5  # a round that takes so long is measured well
_SENTENCES = 4  # of each user that is measured
_SAMPLED = 4096  # sentences, for the mean length and the batches


@dataclass(frozen=True)
class Pace:
    """How fast a model trains here, in seconds: a round, each of its batches, and each token.

    `evaluated` is the seconds per token of an evaluation. `memory` is the peak in bytes
    with `measured_tokens` in a batch, `memory_per_token` what each further one adds; `batch` is the
    most tokens in a batch.
    """

    per_round: float
    per_batch: float
    per_token: float
    evaluated: float
    tokens_per_sentence: float
    memory: float
    memory_per_token: float
    measured_tokens: int
    batch: int
    held_out_tokens: int = 0

    def round_seconds(self, sentences: float) -> float:
        tokens = sentences * self.tokens_per_sentence
        batches = max(1.0, tokens / self.batch)
        return self.per_round + self.per_batch * batches + self.per_token * tokens

    def evaluation_seconds(self, rounds: int, every: int) -> float:
        """Before training, every few rounds, and after it."""
        return (2 + (rounds - 1) // every) * self.evaluated * self.held_out_tokens

    def peak_memory(self, sentences: float) -> float:
        """With batches as large as a round of so many sentences fills them."""
        largest = min(self.batch, sentences * self.tokens_per_sentence)
        return self.memory + self.memory_per_token * max(0.0, largest - self.measured_tokens)


class _Subset:
    """Some sentences of a task, numbered from 0."""

    def __init__(self, task: SentenceTask, sentences: Ints) -> None:
        self._task, self._sentences = task, sentences
        self.lengths = task.lengths[sentences]
        self.sentence_losses = task.sentence_losses

    def packing_for(self, model: nn.Module) -> Packing:
        return self._task.packing_for(model)

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        return self._task.batch(self._sentences[sentences])

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing) -> Tensor | PackedLosses:
        return self._task.losses(model, self._sentences[sentences], packing)


def measure_pace(ready: Prepared, progress: Progress = SILENT) -> Pace:
    """Time rounds of a few sentences, on the path that the rounds of a run take.

    Guarantees:
      - nothing is released, no ledger is touched, and weights, gradients and random numbers of the
        caller are as before
    """
    rng = np.random.default_rng(0)  # which sentences are timed is no secret and releases nothing
    task, device = ready.task, next(ready.model.parameters()).device
    order = rng.permutation(len(task.lengths))[:_SAMPLED]
    lengths = task.lengths[order]
    batch = ready.config.run.tokens_at_once or max_tokens_on(device)
    training = ready.model.training
    generators = [] if device.type == "cpu" else [device]
    with (
        torch.random.fork_rng(devices=generators),
        set_up_for_training(ready.model, ready.config.task.kind),
        progress.stage("measuring the speed of a round", None, "rounds") as meter,
    ):
        ready.model.train()
        measured: list[tuple[int, float, float]] = []  # tokens, seconds, memory
        counts = [0, *(2 * 4**power for power in range(12))]
        for count in (min(count, len(order)) for count in counts):
            try:
                method = _unchecked(ready, cast(SentenceTask, _Subset(task, order[:count])), count)
            except UserError:
                if count:
                    raise
                measured.append((0, 0.0, _peak_memory(device)))  # it has no round without text
                continue
            if len(measured) < 2:
                method.round(0)  # the first one sets things up
            tokens = int(lengths[:count].sum())
            seconds = _timed(partial(method.round, 1), device)
            meter.advance(1)
            measured.append((tokens, seconds, _peak_memory(device)))
            long = seconds >= _ENOUGH_SECONDS and len(measured) > 2
            if count == len(order) or tokens >= batch or long:
                break
        step = _timed(_optimiser_step(ready, method.parameters), device)
        evaluated = _evaluated(ready, _Subset(task, order[:count]), lengths[:count], device)
    ready.model.train(training)
    (_, empty, _), (few, quick, less), (tokens, seconds, memory) = measured[0], *measured[-2:]
    each = max(seconds - empty, 0.0) / tokens  # of a token, if batches cost nothing
    per_token = min(each, max((seconds - quick) / max(tokens - few, 1), 0.1 * each))
    return Pace(
        per_round=empty + step,
        per_batch=(each - per_token) * tokens,
        per_token=per_token,
        evaluated=evaluated,
        tokens_per_sentence=float(lengths.mean()),
        memory=memory,
        memory_per_token=max(0.0, memory - less) / max(tokens - few, 1),
        measured_tokens=tokens,
        batch=batch,
        held_out_tokens=0 if ready.held_out is None else int(ready.held_out.lengths.sum()),
    )


def _unchecked(ready: Prepared, task: SentenceTask, sentences: int) -> Method:
    """The method on some sentences without entities, all of them drawn.

    Without the comparison with the reference, which takes longer than what is measured: nothing is
    learned here.
    """
    config = ready.config
    named = method_named(config.privacy.method)
    kind: Any = type(named.__name__, (named,), {"_check": lambda self: None})
    users = max(1, -(-sentences // _SENTENCES))
    none = np.zeros(0, dtype=np.int64)
    everyone = Incidence.build(np.arange(sentences) // _SENTENCES, none, none, users, 0)
    settings = RoundSettings(
        sampling=Sampling(1.0, per_entity=config.privacy.sentences_per_entity),
        clips=named.clips(config.privacy, 0.0),
        noise=0.0 if named.profile_type is None else 1.0,
        users=users,
        max_tokens=config.run.tokens_at_once,
        half_precision=ready.precision == "bfloat16",
        options=config.method_options,
    )
    method: Method = kind(settings, everyone, ready.model, task, ready.autocast)
    if sentences and method.packing != ONE_PER_ROW:
        try:
            method.round(0)
        except (UserError, RuntimeError, NotImplementedError):
            method.packing = ONE_PER_ROW  # as the comparison would have found
    return method


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _optimiser_step(ready: Prepared, parameters: list[nn.Parameter]) -> Callable[[], None]:
    copies = [p.detach().clone() for p in parameters]
    optimiser = optimise.build_optimiser(ready.config.optimiser, copies)
    zeros = [torch.zeros_like(p) for p in copies]
    return lambda: optimiser.step(zeros, 1e-3, 0.0)


@torch.no_grad()
def _evaluated(ready: Prepared, task: _Subset, lengths: Ints, device: torch.device) -> float:
    """Seconds per token of a forward pass."""
    if ready.held_out is None:
        return 0.0
    ready.model.eval()
    longest = max(1, int(lengths.max()))
    rows = np.arange(min(len(lengths), max(1, (1 << 12) // longest)))

    def forward() -> None:
        with ready.autocast():
            loss_values(task.losses(ready.model, rows, ONE_PER_ROW))

    forward()
    return _timed(forward, device) / int(lengths[rows].sum())


def _peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(kilobytes) * (1 if sys.platform == "darwin" else 1024)


# --- the whole run -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """What a run will take and give. Epsilons are None where there is no finite one."""

    parameters: int
    users_per_round: float
    sentences_per_round: float
    tokens_per_round: float
    seconds_per_round: float
    seconds: float
    memory_bytes: float
    signal_to_noise: float | None
    epsilon: float | None
    epsilon_user_alone: float | None
    delta: float
    missed_mentions: Mapping[str, float | None] = field(default_factory=dict)
    corpus_total: CorpusTotal | None = None


def sentences_per_round(plan: Plan, incidence: Incidence) -> float:
    """The sentences that a round is expected to use."""
    privacy = plan.config.privacy
    if plan.profile is not None and plan.profile.protects_entities:
        supply = supply_of(incidence)
        usable = supply.sentences_per_user
        if supply.extended_per_user is not None:
            usable = usable - (1 - privacy.extended_rate) * supply.extended_per_user
    else:
        usable = np.bincount(incidence.sentence_user, minlength=incidence.users).astype(float)
    if privacy.sentences_per_user is not None:
        usable = np.minimum(usable, privacy.sentences_per_user)
    return privacy.user_rate * float(usable.sum())


def estimate(plan: Plan, assembly: Assembly, pace: Pace, ledger: CorpusLedger) -> Estimate:
    """Put together the cost of a run; refuse it if the budget of its corpus would.

    Guarantees:
      - the ledger of the corpus is read, never written
    """
    privacy, settings = plan.config.privacy, plan.config.run
    parameters = sum(p.numel() for p in assembly.method.parameters)
    sentences = sentences_per_round(plan, assembly.incidence)
    each = pace.round_seconds(sentences)
    evaluations = pace.evaluation_seconds(plan.rounds, settings.evaluate_every)
    alone, missed = None, {}
    if plan.private and plan.profile is not None:
        words = () if plan.vocabulary is None else ((plan.vocabulary.user_alone(), 1),)
        alone = epsilon(plan.profile.user_alone(), plan.rounds, privacy.delta, *words)
        table = statement.missed_table(
            plan.profile, plan.rounds, privacy.delta, plan.setup(), plan.vocabulary
        )
        missed = {row.words: row.epsilon for row in table}
    planned = plan.planned("this run")
    if privacy.corpus_budget is not None:
        ledger.refuse_over_budget(planned, Budget(privacy.corpus_budget, privacy.delta))
    ratio = plan.signal_to_noise(parameters)
    return Estimate(
        parameters=parameters,
        users_per_round=plan.expected_users,
        sentences_per_round=sentences,
        tokens_per_round=sentences * pace.tokens_per_sentence,
        seconds_per_round=each,
        seconds=plan.rounds * each + evaluations,
        memory_bytes=pace.peak_memory(sentences),
        signal_to_noise=ratio if ratio < math.inf else None,
        epsilon=plan.epsilon if plan.private else None,
        epsilon_user_alone=alone,
        delta=privacy.delta,
        missed_mentions=missed,
        corpus_total=ledger.total_after(planned, privacy.delta),
    )
