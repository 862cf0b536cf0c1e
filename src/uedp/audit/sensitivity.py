"""Measure how far one round of training's own code moves when a protected part is emptied.

Theorem 1 bounds the shift of a round's sum with all its randomness fixed. That can be measured
without statistics: a round of the plan's own method is played on a corpus and on one with a user,
an entity or both emptied, with the same seed and without noise. Selection, an emptied corpus and
the size of the noise are checked too (`docs/audit.md`, "How far rounds move").
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from uedp.accounting.divergence import Floats
from uedp.audit.worlds import LARGE, TARGETS, Target
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.lending import Mask
from uedp.mechanism.packing import ONE_PER_ROW, Packing
from uedp.mechanism.release import max_tokens_on
from uedp.mechanism.sampling import Participants
from uedp.methods import ClippedMethod, Method
from uedp.methods.randomness import Randomness
from uedp.progress import SILENT, Progress
from uedp.training.build import build_method
from uedp.training.plan import Plan

ROUNDING = 1e-4  # in units of the update clip: the most that float32 adds to a shift

_WIDTH = 16  # of gradients
_VALUES = 1 << 16  # of noise
_BLOCK, _ENTITIES = 20, 13  # users and entities of each repetition in the stress corpus
_HOLDERS = 12  # of the entity that many name
_DRAWN = 6  # users a round should draw
_AT_ONCE = 4  # sentences that fit in memory at a time
_CHUNKS = 20  # of a round, about, at most


class LinearModel(nn.Module):
    """A model whose gradient is its input; in two layers, so that both must be clipped as one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList([nn.Linear(width // 2, 1, bias=False) for _ in range(2)])

    def forward(self, vectors: Tensor) -> Tensor:
        parts = zip(self.halves, vectors.chunk(2, -1), strict=True)
        total: Tensor = sum(half(part) for half, part in parts)
        return total


class AdversarialTask:
    """A task whose sentences have the gradients an adversary chose; an emptied one has none."""

    def __init__(self, sentences: int, width: int, tokens: int) -> None:
        self.vectors = torch.zeros(sentences, width)
        self.emptied = torch.zeros(sentences, dtype=torch.bool)
        self.lengths: Ints = np.full(sentences, tokens)

    def packing_for(self, model: nn.Module) -> Packing:
        return ONE_PER_ROW

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        rows = torch.from_numpy(np.asarray(sentences, dtype=np.int64))
        kept = self.vectors[rows].masked_fill(self.emptied[rows, None], 0.0)
        return {"vectors": kept[:, None, :]}

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing = ONE_PER_ROW) -> Tensor:
        return self.sentence_losses(model, self.batch(sentences))

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        losses: Tensor = model(batch["vectors"])
        return losses[:, 0, 0]


def stress_incidence(share: float, user_rate: float, per_user: int | None = None) -> Incidence:
    """An incidence with everything that makes a round difficult, many times over.

    In each block, `large` has more sentences than are selected or fit in memory at a time, and
    `insistent` names an entity so `often` that it could turn its update around.
    """
    rng = np.random.default_rng(0)
    owners: list[int] = []
    mentions: list[tuple[int, int]] = []
    users = entities = 0

    def add(owner: int, named: Sequence[int]) -> None:
        mentions.extend((len(owners), entity) for entity in named)
        owners.append(owner)

    for _ in range(max(1, math.ceil(_DRAWN / (user_rate * _BLOCK)))):
        often, common, *some = range(entities, entities + _ENTITIES)
        own = some[-4:]
        large, insistent, *rest = range(users, users + _BLOCK)
        for number in range(max(24, (per_user or 0) + 8)):
            add(large, [own[number // 2 % 4]] if number % 2 else [])
        for number in range(math.ceil(2 / share)):
            add(insistent, [often, some[number % 2]] if number % 3 else [often])
        for _ in range(math.ceil(1 / share)):
            add(insistent, [])
        for number, user in enumerate(rest):
            if number < _HOLDERS:
                add(user, [common])
                add(user, [common, some[2 + number % 3]])
            for _ in range(1 + number % 3):
                add(user, rng.choice(some[:-4], size=int(rng.integers(3)), replace=False).tolist())
        users, entities = users + _BLOCK, entities + _ENTITIES
    rows, named = np.array(mentions).T
    return Incidence.build(np.array(owners), rows, named, users, entities)


@dataclass(frozen=True)
class Shift:
    """The largest shift of a kind, in units of the update clip, and the most that is allowed.

    `excess` is by how much a shift exceeded what was allowed of it, at worst; 0 where none did.
    """

    found: float
    allowed: float
    excess: float

    def largest(self, other: "Shift") -> "Shift":
        return Shift(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Sensitivity:
    """What rounds of a plan's own code did, beside what the proof allows.

    `plan` is the plan's digest. `noise` is the size of the noise that rounds added, relative to
    what was planned, and `noise_wrong` the probability of noise as small if it is right. `broken`
    says in words which rules were broken.
    """

    method: str
    plan: str
    on: str
    rounds: int
    draws: int
    shifts: dict[str, Shift]
    noise: float
    noise_wrong: float
    broken: list[str]


def measurable(plan: Plan) -> bool:
    """Whether the proof bounds how far one user or entity moves the gradient of a round."""
    return plan.profile is not None and plan.method.noises_gradients


def measure(
    plan: Plan,
    incidence: Incidence | None = None,
    *,
    seed: int | None = None,
    rounds: int = 12,
    scanned: int = 100,
    chance: float = 1e-3,
    progress: Progress = SILENT,
) -> Sensitivity:
    """Measure rounds of a plan, on a stress corpus or on an incidence.

    Of `scanned` draws, the `rounds` that can show most are played. `chance` is that of a false
    alarm, which only the size of the noise can raise.

    Guarantees:
      - the rounds are those of the method that training builds from the plan
      - a shift beyond what Theorem 1 allows for the draws at hand is reported as broken
    """
    if not measurable(plan):
        raise UserError(f"{plan.method.name}: its proof does not bound the shift of single rounds")
    rounds_seed = int(np.random.default_rng(seed).integers(2**62))
    rng = np.random.default_rng(rounds_seed)
    on = "a stress corpus" if incidence is None else "the corpus"
    if incidence is None:
        rates = plan.sampling
        incidence = stress_incidence(plan.clips.share, rates.user_rate, rates.per_user)
    noiseless = replace(plan.profile, noise=0.0)  # type: ignore[type-var]
    silent = replace(plan, profile=noiseless).on(incidence).seeded(rounds_seed)
    task = AdversarialTask(incidence.sentences, _WIDTH, _tokens(plan, incidence))
    method = build_method(silent, incidence, LinearModel(_WIDTH), task)
    draws = [_participants(silent, incidence, number) for number in range(scanned)]
    clipped = issubclass(plan.method, ClippedMethod)
    broken = _selection_faults(silent, incidence, draws) if clipped else []
    shifts: dict[Target, Shift] = {}
    played = _most_revealing(incidence, draws, rounds)
    with progress.stage("measuring rounds", len(played), "rounds") as meter:
        for number in played:
            one = _Round(silent, incidence, method, task, number, draws[number], rng)
            for target, shift in one.shifts():
                shifts[target] = shift.largest(shifts.get(target, shift))
            if (left := one.without_content()) > 0:
                broken.append(f"a corpus without content moved the sum by {left:.3g} clips")
            meter.advance(1)
    names = {"user": "a user", "entity": "an entity", "user and entity": "a user and an entity"}
    broken += [
        f"emptying {names[target]} moved a round's sum by {shift.excess:.3g} update clips more "
        "than the proof allows"
        for target, shift in shifts.items()
        if shift.excess > ROUNDING
    ]
    size, probability = relative_noise(plan, seed)
    if probability < chance:
        broken.append(f"rounds add {size:.3g} of the noise that was planned")
    return Sensitivity(
        method=plan.config.privacy.method,
        plan=plan.digest(),
        on=on,
        rounds=len(played),
        draws=len(draws),
        shifts={target: shifts[target] for target in TARGETS if target in shifts},
        noise=size,
        noise_wrong=probability,
        broken=list(dict.fromkeys(broken)),
    )


def _tokens(plan: Plan, incidence: Incidence) -> int:
    """Per sentence: so many that large users come in pieces, unless rounds would take long."""
    max_tokens = plan.config.run.tokens_at_once or max_tokens_on(torch.device("cpu"))
    drawn = plan.sampling.user_rate * incidence.sentences
    return max(1, math.ceil(max_tokens / max(_AT_ONCE, drawn / _CHUNKS)))


def _participants(plan: Plan, incidence: Incidence, number: int) -> Participants:
    """Who takes part in a round; everyone, where the method does not say."""
    if not issubclass(plan.method, ClippedMethod):
        sentences = incidence.user_sentences
        return Participants(np.arange(incidence.users), sentences, np.ones(incidence.sentences))
    sample = plan.method.sampler(plan.round_settings, incidence)
    randomness = Randomness(plan.config.privacy.seed)
    with randomness.of_round(number, torch.device("cpu")) as (uniforms, key, _):
        return sample(number, uniforms, key)


def _most_revealing(incidence: Incidence, draws: Sequence[Participants], count: int) -> list[int]:
    """Rounds that show most: crowded ones, those with large users, with few users, with many."""
    some = [number for number, who in enumerate(draws) if len(who.sentences.values)]
    orders = [
        sorted(some, key=lambda number: -int(_uses(incidence, draws[number]).max(initial=0))),
        sorted(some, key=lambda number: -int(draws[number].sentences.counts.max())),
        sorted(some, key=lambda number: len(draws[number].users)),
        sorted(some, key=lambda number: -len(draws[number].users)),
    ]
    chosen = dict.fromkeys(itertools.chain.from_iterable(zip(*orders, strict=True)))
    return list(itertools.islice(chosen, count))


def _uses(incidence: Incidence, who: Participants) -> Ints:
    """How many used sentences mention each entity: counted here, not taken from the draw."""
    mentions = incidence.sentence_entities.take(who.sentences.values)
    return np.bincount(mentions.values, minlength=incidence.entities)


def _selection_faults(plan: Plan, incidence: Incidence, draws: Sequence[Participants]) -> list[str]:
    """Whether other draws, or a coin, decide which sentences of a user are used, or their weight.

    Each round is drawn again with everyone in it and all coins up, which shows what was selected
    for every user: of that, the round must have used all but what its coins took out.
    """
    every = replace(plan.sampling, user_rate=1.0, entity_rate=1.0, extended_rate=1.0)
    everyone = replace(plan, sampling=every)
    broken = []
    for number, who in enumerate(draws):
        whole = _participants(everyone, incidence, number)
        weights = np.zeros(incidence.sentences)
        weights[whole.sentences.values] = whole.weights
        used = who.sentences.values
        if not weights[used].all():
            broken.append("who else was drawn decided which sentences of a user were used")
        elif (weights[used] != who.weights).any():
            broken.append(
                "who else was drawn, or a coin, decided how the clips of sentences were divided"
            )
        elif not _explained_by_coins(plan, incidence, who, weights > 0):
            broken.append("sentences of a drawn user were left out by something other than coins")
    return broken


def _explained_by_coins(
    plan: Plan, incidence: Incidence, who: Participants, selected: Mask
) -> bool:
    """Whether each sentence that was left out has a coin that may have failed."""
    up = incidence.sentence_entities.take(who.sentences.values).values
    out = selected & np.isin(incidence.sentence_user, who.users)
    out[who.sentences.values] = False
    left_out = np.flatnonzero(out)
    mentions = incidence.sentence_entities.take(left_out)
    failed = mentions.row_of_value()[~np.isin(mentions.values, up)]
    down = np.bincount(failed, minlength=len(left_out)) > 0
    rates = plan.sampling
    may = np.where(mentions.counts == 0, rates.extended_rate < 1, down & (rates.entity_rate < 1))
    return bool(may.all())


@dataclass(frozen=True, eq=False)
class _Round:
    """One round, played on corpora that differ in what is emptied."""

    plan: Plan
    incidence: Incidence
    method: Method
    task: AdversarialTask
    number: int
    who: Participants
    rng: np.random.Generator

    @cached_property
    def used(self) -> Mask:
        return np.isin(np.arange(self.incidence.sentences), self.who.sentences.values)

    def shifts(self) -> Iterator[tuple[Target, Shift]]:
        protects = self.plan.profile is not None and self.plan.profile.protects_entities
        targets = TARGETS if protects else TARGETS[:1]
        for user, of_entity in self._pairs():
            of_user = self.incidence.sentence_user == user
            for fill in (self._opposing, self._scattered):
                self.task.vectors = fill(of_user | of_entity) * self.plan.clips.update
                full = self._sum(np.zeros_like(self.used))
                for target in targets:
                    emptied = (of_user & (target != "entity")) | (of_entity & (target != "user"))
                    found = float((full - self._sum(emptied)).norm())
                    allowed = self._allowed(target, user, of_user, of_entity)
                    yield target, Shift(found, allowed, max(0.0, found - allowed))

    def without_content(self) -> float:
        return float(self._sum(np.ones_like(self.used)).norm())

    def _allowed(self, target: Target, user: int, of_user: Mask, of_entity: Mask) -> float:
        """The bound of the theorems, given who was drawn and the weights of their sentences."""
        allowed = 1.0 if target != "entity" and user in self.who.users else 0.0
        others = of_entity if target == "entity" else of_entity & ~of_user
        if target != "user":
            part = float(self.who.weights[others[self.who.sentences.values]].sum())
            allowed += self.plan.clips.share * min(1.0, part)
        return allowed

    def _sum(self, emptied: Mask) -> Tensor:
        """The output of the round, in units of the update clip, before it is divided."""
        self.task.emptied = torch.from_numpy(emptied)
        values = torch.cat([v.detach().flatten() for v in self.method.round(self.number).values])
        return values.double() * (self.plan.expected_users / self.plan.clips.update)

    def _opposing(self, attacked: Mask) -> Tensor:
        """All under attack goes one way, as far as it may; the rest of those users the other."""
        direction = self.rng.normal(size=_WIDTH)
        direction /= np.linalg.norm(direction)
        owners, rest = self.incidence.sentence_user, self.used & ~attacked
        counts = np.bincount(owners[rest], minlength=self.incidence.users)
        size = np.where(attacked, LARGE, -1 / np.maximum(counts[owners], 1))
        return torch.from_numpy(size[:, None] * direction).float()

    def _scattered(self, attacked: Mask) -> Tensor:
        """All directions and sizes."""
        count = self.incidence.sentences
        sizes = 10 ** self.rng.uniform(-1, 3, size=(count, 1))
        return torch.from_numpy(sizes * self.rng.normal(size=(count, _WIDTH))).float()

    def _pairs(self) -> Iterator[tuple[int, Mask]]:
        """Users that were drawn and some that were not, with sentences of entities, used or not."""
        incidence, who = self.incidence, self.who
        used, times = who.sentences.values, _uses(incidence, who)
        drawn = who.users[np.argsort(-who.sentences.counts, kind="stable")]
        others = np.setdiff1d(np.arange(incidence.users), who.users)
        mentions = incidence.sentence_entities.take(used)
        crowded = np.argsort(-times[mentions.values], kind="stable")
        entities = list(dict.fromkeys(mentions.values[crowded].tolist()))
        for user, entity in itertools.islice(zip(drawn, entities, strict=False), 2):
            yield int(user), self._of_entity(entity)
        if entities:
            most_held = max(entities, key=lambda entity: len(incidence.holders[entity]))
            other = int(self.rng.choice(others if len(others) else drawn))
            yield other, self._of_entity(most_held)
            owner = incidence.sentence_user[used[mentions.row_of_value()[crowded[0]]]]
            yield int(owner), self._of_entity(entities[0])
        extended = np.flatnonzero(self.used & incidence.extended)
        for sentence in self.rng.permutation(extended)[:1]:
            yield int(drawn[-1]), np.arange(incidence.sentences) == sentence
        unused = np.setdiff1d(np.arange(incidence.entities), entities)
        if len(unused) and len(others):
            yield int(self.rng.choice(others)), self._of_entity(int(self.rng.choice(unused)))

    def _of_entity(self, entity: int) -> Mask:
        sentences = np.arange(self.incidence.sentences)
        return np.isin(sentences, self.incidence.entity_sentences[entity])


def relative_noise(plan: Plan, seed: int | None = None) -> tuple[float, float]:
    """The noise of a round without content, relative to the plan; and a probability.

    It is that of noise as small as this, or smaller, if it is Gaussian and as large as planned.
    Without a seed it is the noise of a run, fresh from its own source.
    """
    nothing = np.zeros(0, dtype=np.int64)
    incidence = Incidence.build(np.arange(8), nothing, nothing, 8, 0)
    fresh = plan.on(incidence).seeded(seed)
    task = AdversarialTask(incidence.sentences, _VALUES, 1)
    gradient = build_method(fresh, incidence, LinearModel(_VALUES), task).round(0)
    values: Floats = torch.cat([v.flatten() for v in gradient.values]).double().numpy()
    planned = plan.noise * fresh.clips.unit_of_noise / fresh.expected_users
    if not planned:
        return 1.0, 1.0
    squares = float((values**2).sum()) / planned**2
    return math.sqrt(squares / len(values)), float(stats.chi2.cdf(squares, len(values)))
