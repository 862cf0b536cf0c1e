"""What a run will cost, before any work: time, memory, signal and every epsilon."""

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uedp.accounting.ledger import Budget, CorpusLedger, CorpusTotal
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.incidence import Incidence, Ints, Rows
from uedp.mechanism.packing import ONE_PER_ROW, PackedLosses, Packing
from uedp.mechanism.release import FixedPasses, chunks_of, max_tokens_on
from uedp.mechanism.sampling import Participants, Sampling
from uedp.methods import ClippedMethod, Method, RoundSettings, SentenceTask, method_named
from uedp.methods.base import EndToEnd
from uedp.methods.randomness import Randomness
from uedp.progress import SILENT, Progress
from uedp.training import optimise
from uedp.training.build import Assembly, Prepared, set_up_for_training
from uedp.training.plan import Plan

_FIRST_TOKENS = 128  # of the first round that is timed; each further one has four times as many
_ENOUGH_SECONDS = 2.0  # a round that takes so long is measured well
_REPEATS = 3  # of a shorter one; the shortest counts, since others were disturbed
_SAMPLED = 4096  # sentences, for the mean length and the batches
_USER_TOKENS = 512  # of each user that is timed
_PASSES = 3  # of one shape, at least, in the longest round that is timed


@dataclass(frozen=True)
class Pace:
    """How fast a model trains here, in seconds: a round, each of its batches, and each token.

    Tokens are those that are computed, with padding. `evaluated` is the seconds per token of an
    evaluation. `memory` is the peak in bytes with `measured_tokens` in a batch, `memory_per_token`
    what each further one adds; `batch` is the most tokens in a batch.
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
    public_seconds: float = 0.0  # of all steps on public text, which come before the rounds
    padding: tuple[tuple[float, float], ...] = ()
    """Tokens computed for each token of a round, by its number of sentences, in order."""

    def computed_tokens(self, sentences: float) -> float:
        """The tokens of a round of so many sentences, padding included."""
        tokens = sentences * self.tokens_per_sentence
        if not self.padding:
            return tokens
        sizes, padding = zip(*self.padding, strict=True)
        return tokens * float(np.interp(np.log(max(sentences, 1)), np.log(sizes), padding))

    def round_seconds(self, sentences: float) -> float:
        tokens = self.computed_tokens(sentences)
        batches = max(1.0, tokens / self.batch)
        return self.per_round + self.per_batch * batches + self.per_token * tokens

    def evaluation_seconds(self, rounds: int, every: int) -> float:
        """Before training, after public text, every few rounds, and at the end."""
        times = 2 + (self.public_seconds > 0) + (rounds - 1) // every
        return times * self.evaluated * self.held_out_tokens

    def peak_memory(self, sentences: float) -> float:
        """With batches as large as a round of so many sentences fills them."""
        largest = min(self.batch, self.computed_tokens(sentences))
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


class _EndToEndSubset(_Subset):
    """The same of a task whose sentences can lie end to end."""

    def __init__(self, task: Any, sentences: Ints) -> None:
        super().__init__(task, sentences)
        self.longest, self._end_to_end = task.longest, task

    def tokens_of(self, sentences: Ints) -> tuple[Ints, Ints]:
        ids, lengths = self._end_to_end.tokens_of(self._sentences[sentences])
        return ids, lengths


def measure_pace(ready: Prepared, progress: Progress = SILENT) -> Pace:
    """Time rounds of a few users, on the path that the rounds of a run take.

    Guarantees:
      - nothing is released, no ledger is touched, and weights, gradients and random numbers of the
        caller are as before
    """
    rng = np.random.default_rng(0)  # which sentences are timed is no secret and releases nothing
    task, device = ready.task, next(ready.model.parameters()).device
    users = _sampled_users(ready, rng)
    lengths = task.lengths[rng.permutation(len(task.lengths))[:_SAMPLED]]
    batch = ready.config.run.tokens_at_once or max_tokens_on(device)
    training = ready.model.training
    generators = [] if device.type == "cpu" else [device]
    with (
        torch.random.fork_rng(devices=generators),
        set_up_for_training(ready.model, ready.config.task.kind),
        progress.stage("measuring the speed of a round", None, "rounds") as meter,
    ):
        ready.model.train()
        earlier: Method | None = None
        measured = [_Timing(0, 0.0, _peak_memory(device))]  # some methods have no empty round
        for count in _sizes(users, task.lengths):
            try:
                method = _unchecked(ready, users[:count], earlier)
            except UserError:
                if count:
                    raise
                continue
            if count:
                earlier = method
                batch = _pass_tokens(method) or batch
            if not count or device.type == "cuda":
                method.round(0)  # the first one sets things up
            seconds = _timed(partial(method.round, 1), device)
            meter.advance(1)
            packing = method.packing if count else ONE_PER_ROW
            tokens = _computed(users[:count], task.lengths, batch, packing)
            timing = _Timing(tokens, seconds, _peak_memory(device))
            measured = [timing] if not count else [*measured, timing]
            long = seconds >= _ENOUGH_SECONDS and len(measured) > 2
            # passes of one shape cost the same however full they are: several are needed
            enough = batch if _pass_tokens(method) is None else _PASSES * batch
            if count and (tokens >= enough or long):
                break
        step = _timed(_optimiser_step(ready, method.parameters), device)
        draw = _timed(_draw(ready), device) + _timed(_bookkeeping(ready), device)
        evaluated = _evaluated(ready, device)
    ready.model.train(training)
    empty, few, many = measured[0], *measured[-2:]
    each = max(many.seconds - empty.seconds, 0.0) / many.tokens  # if batches cost nothing
    grown = max(many.tokens - few.tokens, 1)
    per_token = min(each, max((many.seconds - few.seconds) / grown, 0.1 * each))
    return Pace(
        per_round=empty.seconds + step + draw,
        per_batch=(each - per_token) * many.tokens,
        per_token=per_token,
        evaluated=evaluated,
        tokens_per_sentence=float(lengths.mean()),
        memory=many.memory,
        memory_per_token=max(0.0, many.memory - few.memory) / grown,
        measured_tokens=many.tokens,
        batch=batch,
        held_out_tokens=0 if ready.held_out is None else int(ready.held_out.lengths.sum()),
        padding=_padding(users, task.lengths, batch, packing),
    )


@dataclass(frozen=True)
class _Timing:
    """Of a round: the tokens that it computed, padding included, and the peak in bytes so far."""

    tokens: int
    seconds: float
    memory: float


def _sampled_users(ready: Prepared, rng: np.random.Generator) -> list[Ints]:
    """The sentences of users in random order, of each as many as a round would use at most."""
    most = ready.config.privacy.sentences_per_user
    owner = ready.incidence.sentence_user
    by_user = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[by_user], np.arange(ready.incidence.users), side="right")
    users: list[Ints] = []
    left = _SAMPLED
    for user in rng.permutation(ready.incidence.users).tolist():
        own = by_user[ends[user - 1] if user else 0 : ends[user]]
        own = rng.permutation(own)[:most]
        fits = int(np.searchsorted(np.cumsum(ready.task.lengths[own]), _USER_TOKENS, "right"))
        own = own[: max(1, min(fits, left))]
        if len(own):
            users.append(own)
            left -= len(own)
        if left <= 0:
            break
    return users


def _sizes(users: Sequence[Ints], lengths: Ints) -> Iterator[int]:
    """Numbers of users for the rounds to time: none, then for four times the tokens each time."""
    tokens = np.cumsum([int(lengths[own].sum()) for own in users])
    yield 0
    count = 0
    for power in range(12):
        enough = int(np.searchsorted(tokens, _FIRST_TOKENS * 4**power)) + 1
        if enough > count:
            count = min(enough, len(users))
            yield count
        if count == len(users):
            return


def _drawn(users: Sequence[Ints]) -> Participants:
    """All of these users as the participants of a round, their sentences numbered from 0."""
    offsets = np.cumsum([0, *(len(own) for own in users)])
    numbers = np.arange(int(offsets[-1]))
    return Participants(np.arange(len(users)), Rows(offsets, numbers), np.ones(len(numbers)))


def _computed(users: Sequence[Ints], lengths: Ints, batch: int, packing: Packing) -> int:
    """The tokens that a round of these users computes, padding included."""
    if not users:
        return 0
    own = lengths[np.concatenate(users)]
    chunks = chunks_of(_drawn(users), own, batch, packing)
    return sum(packing.tokens(own[chunk]) for chunk in chunks)


def _padding(
    users: Sequence[Ints], lengths: Ints, batch: int, packing: Packing
) -> tuple[tuple[float, float], ...]:
    """Tokens computed for each token, for rounds of few and of many users."""
    if packing.shares_rows:
        return ()
    found = {}
    count = 1
    while count <= len(users):
        own = np.concatenate(users[:count])
        computed = _computed(users[:count], lengths, batch, packing)
        found[float(len(own))] = computed / int(lengths[own].sum())
        count *= 2
    return tuple(sorted(found.items()))


def _pass_tokens(method: Method) -> int | None:
    """The tokens of a pass, where all passes have one shape."""
    fixed = getattr(method, "_fixed", None)
    return None if fixed is None else int(fixed.one.tokens)


def _unchecked(ready: Prepared, users: Sequence[Ints], earlier: Method | None) -> Method:
    """The method on some users' sentences without entities, all of them drawn.

    Without the comparison with the reference, which takes longer than what is measured: nothing is
    learned here. Packing and passes are those of an earlier one; without it, a round is tried.
    """
    config = ready.config
    named = method_named(config.privacy.method)
    changed: dict[str, Any] = {"_check": lambda self: None}
    if earlier is not None or not users:
        changed["_fixed_passes"] = lambda self: _passes_of(earlier, self.task)
    kind: Any = type(named.__name__, (named,), changed)
    none = np.zeros(0, dtype=np.int64)
    owners = np.repeat(np.arange(len(users)), [len(own) for own in users])
    count = max(1, len(users))
    everyone = Incidence.build(owners, none, none, count, 0)
    settings = RoundSettings(
        sampling=Sampling(1.0, per_entity=config.privacy.sentences_per_entity),
        clips=named.clips(config.privacy, 0.0),
        noise=0.0 if named.profile_type is None else 1.0,
        users=count,
        max_tokens=config.run.tokens_at_once,
        half_precision=ready.precision != "float32",
        options=config.method_options,
    )
    sentences = np.concatenate([none, *users])
    whole = ready.task
    task: Any = (_EndToEndSubset if isinstance(whole, EndToEnd) else _Subset)(whole, sentences)
    method: Method = kind(settings, everyone, ready.model, task, ready.autocast)
    if earlier is not None:
        method.packing = earlier.packing
    elif len(sentences):
        try:
            method.round(0)
        except (UserError, RuntimeError, NotImplementedError):
            if method.packing == ONE_PER_ROW:
                raise
            method.packing = ONE_PER_ROW  # as the comparison would have found
            method.round(0)
    return method


def _passes_of(earlier: Method | None, task: Any) -> FixedPasses | None:
    fixed = getattr(earlier, "_fixed", None)
    return None if fixed is None else FixedPasses(fixed.one, task.tokens_of)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    """The shortest time of a few repeats, of fewer where one takes long."""
    taken: list[float] = []
    while not taken or (len(taken) < _REPEATS and sum(taken) < _ENOUGH_SECONDS / 2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _optimiser_step(ready: Prepared, parameters: list[nn.Parameter]) -> Callable[[], None]:
    copies = [p.detach().clone() for p in parameters]
    optimiser = optimise.build_optimiser(ready.config.optimiser, copies)
    zeros = [torch.zeros_like(p) for p in copies]
    optimiser.step(zeros, 1e-3, 0.0)  # the first one fills its memory
    return lambda: optimiser.step(zeros, 1e-3, 0.0)


def _draw(ready: Prepared) -> Callable[[], Any]:
    """A draw of participants from the whole corpus."""
    privacy = ready.config.privacy
    named = method_named(privacy.method)
    if not issubclass(named, ClippedMethod):
        return lambda: None
    settings = RoundSettings(
        named.sampling(privacy), named.clips(privacy, 0.0), 1.0, ready.incidence.users
    )
    draw = named.sampler(settings, ready.incidence)

    def drawn() -> None:
        with Randomness(None).of_round(1, torch.device("cpu")) as (uniforms, key, _):
            draw(1, uniforms, key)

    return drawn


def _bookkeeping(ready: Prepared) -> Callable[[], None]:
    """As many writes as enter a round and its key in their files."""

    def written() -> None:
        if method_named(ready.config.privacy.method).profile_type is not None:
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(_WRITES):
                    write_atomically(Path(folder) / "file", "a line")

    return written


_WRITES = 5  # flushed to disk, one after the other


@torch.no_grad()
def _evaluated(ready: Prepared, device: torch.device) -> float:
    """Seconds per token of an evaluation."""
    held_out = ready.held_out
    if held_out is None:
        return 0.0
    ready.model.eval()
    every = max(1, int(held_out.lengths.sum()) // _EVALUATED_TOKENS)
    some = np.argsort(held_out.lengths, kind="stable")[every // 2 :: every]
    work = partial(held_out.evaluate_some, ready.model, some, ready.autocast)
    if device.type == "cuda":
        work()
    return _timed(work, device) / int(held_out.lengths[some].sum())


_EVALUATED_TOKENS = 512  # of a timed evaluation


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
    public_seconds: float  # that are among these
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
    if issubclass(plan.method, ClippedMethod):
        usable = plan.method.supply(privacy, incidence).sentences_per_user.sum()
    else:
        counts = np.bincount(incidence.sentence_user, minlength=incidence.users)
        usable = np.minimum(counts, privacy.sentences_per_user or incidence.sentences).sum()
    return privacy.user_rate * float(usable)


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
        runs = plan.planned("this run").model_runs
        first, *others = [event for run in runs for event in run.events_user_alone]
        alone = epsilon(*first, privacy.delta, *others)
        missed = {row.words: row.epsilon for row in plan.missed_table}
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
        seconds=pace.public_seconds + plan.rounds * each + evaluations,
        public_seconds=pace.public_seconds,
        memory_bytes=pace.peak_memory(sentences),
        signal_to_noise=ratio if ratio < math.inf else None,
        epsilon=plan.epsilon if plan.private else None,
        epsilon_user_alone=alone,
        delta=privacy.delta,
        missed_mentions=missed,
        corpus_total=ledger.total_after(planned, privacy.delta),
    )
