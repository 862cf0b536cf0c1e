"""How far one round of training's own code moves when what is protected is emptied.

A proof bounds the shift of a round's sum with all its randomness fixed (Theorem 1): by the update
clip where the user was drawn, by the share where the entity was used, by nothing anywhere else.
That can be measured without statistics. A round of the plan's own method is played on a corpus and
on one with a user, an entity or both emptied, with the same seed and without noise: draws, lending,
coins and masks are the same, and what is left of the difference is the shift. The adversary chooses
the content after it has seen the draws.

Beside the shifts, three rules that no single shift shows: what is selected for a user, and how its
clips are divided, is the same whoever else was drawn and however coins fall; an emptied corpus
gives nothing; and the noise that rounds add is as large as was planned.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from uedp.accounting.divergence import Floats
from uedp.accounting.proven import RotationProfile, UserLevelProfile
from uedp.audit.worlds import LARGE
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.lending import Mask
from uedp.mechanism.packing import ONE_PER_ROW, Packing
from uedp.mechanism.release import max_tokens_on
from uedp.mechanism.sampling import Participants
from uedp.methods import Autocast, ClippedMethod, Method
from uedp.methods.randomness import Randomness
from uedp.progress import SILENT, Progress
from uedp.training.build import build_method
from uedp.training.plan import Plan

Moved = Literal["user", "entity", "user and entity"]
_MOVED: tuple[Moved, ...] = ("user", "entity", "user and entity")
ROUNDING = 1e-4  # in units of the update clip: what float32 may add to a shift


# --- a corpus an adversary fills -----------------------------------------------------------------


class Line(nn.Module):
    """A model whose gradient is its input; in two layers, so that both must be clipped as one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList([nn.Linear(width // 2, 1, bias=False) for _ in range(2)])

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = sum(
            half(part) for half, part in zip(self.halves, vectors.chunk(2, -1), strict=True)
        )
        return found


class Chosen:
    """A task whose sentences have the gradients an adversary chose; an emptied one has none."""

    def __init__(self, sentences: int, width: int, tokens: int) -> None:
        self.vectors = torch.zeros(sentences, width)
        self.emptied = torch.zeros(sentences, dtype=torch.bool)
        self.lengths: Ints = np.full(sentences, tokens)

    def packing_for(self, model: nn.Module) -> Packing:
        return ONE_PER_ROW

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        which = torch.from_numpy(np.asarray(sentences, dtype=np.int64))
        left = self.vectors[which].masked_fill(self.emptied[which, None], 0.0)
        return {"vectors": left[:, None, :]}

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing = ONE_PER_ROW) -> Tensor:
        return self.sentence_losses(model, self.batch(sentences))

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        found: Tensor = model(batch["vectors"])
        return found[:, 0, 0]

    def evaluate(
        self, model: nn.Module, autocast: Autocast, max_tokens: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        return {}


_WIDTH = 16


def tangle(share: float, user_rate: float, per_user: int | None = None) -> Incidence:
    """Who mentions what, with all that makes a round difficult, over and over.

    A user with more sentences than are selected or fit in memory at a time; one who names the same
    entity in so many that they could turn its update around; an entity that a dozen users name,
    some of them beside others; sentences of several entities and of none; users with one sentence.
    So many users that a round draws a few.
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


_BLOCK, _ENTITIES = 20, 13  # users and entities of which a tangle is made
_HOLDERS = 12  # of the entity that many name
_DRAWN = 6  # users a round should draw


# --- what is found -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shift:
    """The largest shift of a kind, in units of the update clip, and the most that is allowed."""

    found: float
    allowed: float
    excess: float
    """By how much a shift exceeded what was allowed of it, at worst; 0 where none did."""


@dataclass(frozen=True)
class Sensitivity:
    """What rounds of a plan's own code were seen to do, beside what the proof allows.

    `noise` is how large the noise was that rounds added, in units of what was planned, and
    `noise_wrong` the chance of one as small if it is right. `broken` says in words which rule was
    seen broken.
    """

    method: str
    on: str
    rounds: int
    draws: int
    shifts: dict[str, Shift]
    noise: float
    noise_wrong: float
    broken: list[str]

    @property
    def holds(self) -> bool:
        return not self.broken

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Sensitivity":
        """What was saved, as an object again."""
        shifts = {name: Shift(**shift) for name, shift in saved["shifts"].items()}
        return cls(**{**saved, "shifts": shifts})


def check(
    plan: Plan,
    incidence: Incidence | None = None,
    *,
    seed: int | None = None,
    rounds: int = 12,
    scanned: int = 100,
    chance: float = 1e-3,
    progress: Progress = SILENT,
) -> Sensitivity:
    """Measure what rounds of a plan do, in a tangle of a corpus or on an incidence.

    Of `scanned` draws, the `rounds` that can show most are played. `chance` is that of a false
    alarm, which only the size of the noise can raise.

    Guarantees:
      - the rounds are those of the method that training builds from the plan
      - a shift beyond what Theorem 1 allows for the draws at hand is reported as broken
    """
    if not isinstance(plan.profile, RotationProfile | UserLevelProfile):
        raise UserError(
            f"{plan.config.privacy.method}: only rounds of rotation and user-level can be measured"
        )
    rounds_seed = int(np.random.default_rng(seed).integers(2**62))
    rng = np.random.default_rng(rounds_seed)
    on = "a tangle" if incidence is None else "the corpus"
    if incidence is None:
        incidence = tangle(plan.clips.share, plan.sampling.user_rate, plan.sampling.per_user)
    noiseless = replace(plan.profile, noise=0.0)
    silent = replace(plan, profile=noiseless).on(incidence).seeded(rounds_seed)
    task = Chosen(incidence.sentences, _WIDTH, _tokens(plan, incidence))
    method = build_method(silent, incidence, Line(_WIDTH), task, nullcontext)
    draws = [_drawn(silent, incidence, number) for number in range(scanned)]
    broken = _selection(silent, incidence, draws)
    found: dict[Moved, Shift] = {}
    played = _telling(incidence, draws, rounds)
    with progress.stage("measuring rounds", len(played), "rounds") as meter:
        for number in played:
            one = _Round(silent, incidence, method, task, number, draws[number], rng)
            for moved, shift in one.shifts():
                found[moved] = _larger(found.get(moved), shift)
            if (left := one.of_nothing()) > 0:
                broken.append(f"a corpus without content moved the sum by {left:.3g} clips")
            meter.advance(1)
    names = {"user": "a user", "entity": "an entity", "user and entity": "a user and an entity"}
    for moved, shift in found.items():
        if shift.excess > ROUNDING:
            broken.append(
                f"emptying {names[moved]} moved a round's sum by {shift.excess:.3g} update clips "
                "more than the proof allows"
            )
    size, wrong = noise_of(plan, seed)
    if wrong < chance:
        broken.append(f"rounds add {size:.3g} of the noise that was planned")
    return Sensitivity(
        method=plan.config.privacy.method,
        on=on,
        rounds=len(played),
        draws=len(draws),
        shifts={moved: found[moved] for moved in _MOVED if moved in found},
        noise=size,
        noise_wrong=wrong,
        broken=list(dict.fromkeys(broken)),
    )


def _larger(one: Shift | None, other: Shift) -> Shift:
    if one is None:
        return other
    return Shift(
        max(one.found, other.found),
        max(one.allowed, other.allowed),
        max(one.excess, other.excess),
    )


def _tokens(plan: Plan, incidence: Incidence) -> int:
    """Of a sentence: so many that large users come in pieces, unless rounds would take long."""
    max_tokens = plan.config.run.tokens_at_once or max_tokens_on(torch.device("cpu"))
    drawn = plan.sampling.user_rate * incidence.sentences
    return max(1, math.ceil(max_tokens / max(_AT_ONCE, drawn / _CHUNKS)))


_AT_ONCE = 4  # sentences that fit in memory at a time
_CHUNKS = 20  # of a round, about, at most


# --- draws ---------------------------------------------------------------------------------------


def _drawn(plan: Plan, incidence: Incidence, number: int) -> Participants:
    with Randomness(plan.config.privacy.seed).of_round(number, torch.device("cpu")) as (
        uniforms,
        key,
        _,
    ):
        method = plan.method
        assert issubclass(method, ClippedMethod)
        return method.sampler(plan.round_settings, incidence)(number, uniforms, key)


def _telling(incidence: Incidence, draws: Sequence[Participants], count: int) -> list[int]:
    """Rounds that show most: crowded ones, those with large users, with few users, with many."""
    some = [number for number, who in enumerate(draws) if len(who.sentences.values)]
    orders = [
        sorted(some, key=lambda number: -int(_times(incidence, draws[number]).max(initial=0))),
        sorted(some, key=lambda number: -int(draws[number].sentences.counts.max())),
        sorted(some, key=lambda number: len(draws[number].users)),
        sorted(some, key=lambda number: -len(draws[number].users)),
    ]
    chosen = dict.fromkeys(itertools.chain.from_iterable(zip(*orders, strict=True)))
    return list(itertools.islice(chosen, count))


def _times(incidence: Incidence, who: Participants) -> Ints:
    """How many used sentences mention each entity: counted here, not taken from the draw."""
    mentions = incidence.sentence_entities.take(who.sentences.values)
    return np.bincount(mentions.values, minlength=incidence.entities)


def _selection(plan: Plan, incidence: Incidence, draws: Sequence[Participants]) -> list[str]:
    """Whether who else was drawn, or a coin, decides over what a user's sentences are and weigh.

    Each round is drawn again with everyone in it and all coins up, which shows what was selected
    for every user: of that, the round must have used all but what its coins took out.
    """
    every = replace(plan.sampling, user_rate=1.0, entity_rate=1.0, extended_rate=1.0)
    everyone = replace(plan, sampling=every)
    broken = []
    for number, who in enumerate(draws):
        whole = _drawn(everyone, incidence, number)
        crowding = np.zeros(incidence.sentences, dtype=np.int64)
        crowding[whole.sentences.values] = whole.crowding
        used = who.sentences.values
        if not crowding[used].all():
            broken.append("who else was drawn decided which sentences of a user were used")
        elif (crowding[used] != who.crowding).any():
            broken.append(
                "who else was drawn, or a coin, decided how the clips of sentences were divided"
            )
        elif not _by_coins(plan, incidence, who, crowding > 0):
            broken.append("sentences of a drawn user were left out by something other than coins")
    return broken


def _by_coins(plan: Plan, incidence: Incidence, who: Participants, selected: Mask) -> bool:
    """Whether each sentence that was left out has a coin that may have failed."""
    up = np.zeros(incidence.entities, dtype=np.bool_)
    up[incidence.sentence_entities.take(who.sentences.values).values] = True
    drawn = np.zeros(incidence.users, dtype=np.bool_)
    drawn[who.users] = True
    out = selected & drawn[incidence.sentence_user]
    out[who.sentences.values] = False
    left_out = np.flatnonzero(out)
    mentions = incidence.sentence_entities.take(left_out)
    down = np.bincount(mentions.row_of_value()[~up[mentions.values]], minlength=len(left_out)) > 0
    rates = plan.sampling
    may = np.where(mentions.counts == 0, rates.extended_rate < 1, down & (rates.entity_rate < 1))
    return bool(may.all())


# --- shifts --------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    """A user and the sentences of an entity, or one sentence without entities."""

    user: int
    of_user: Mask
    of_entity: Mask


class _Round:
    """One round, played on corpora that differ in what is emptied."""

    def __init__(
        self,
        plan: Plan,
        incidence: Incidence,
        method: Method,
        task: Chosen,
        number: int,
        who: Participants,
        rng: np.random.Generator,
    ) -> None:
        self._plan, self._incidence, self._method, self._task = plan, incidence, method, task
        self._number, self._who, self._rng = number, who, rng
        self._used = np.zeros(incidence.sentences, dtype=np.bool_)
        self._used[who.sentences.values] = True

    def shifts(self) -> Iterator[tuple[Moved, Shift]]:
        for pair in self._pairs():
            for fill in (self._opposing, self._scattered):
                self._task.vectors = fill(pair) * self._plan.clips.update
                full = self._sum(np.zeros_like(self._used))
                for moved in self._protected():
                    gone = np.zeros_like(self._used)
                    if moved != "entity":
                        gone |= pair.of_user
                    if moved != "user":
                        gone |= pair.of_entity
                    found = float((full - self._sum(gone)).norm())
                    allowed = self._allowed(pair, moved)
                    yield moved, Shift(found, allowed, max(0.0, found - allowed))

    def of_nothing(self) -> float:
        return float(self._sum(np.ones_like(self._used)).norm())

    def _protected(self) -> Sequence[Moved]:
        return _MOVED if isinstance(self._plan.profile, RotationProfile) else _MOVED[:1]

    def _allowed(self, pair: _Pair, moved: Moved) -> float:
        """What Theorem 1 allows, given who was drawn and which sentences were used."""
        allowed = 0.0
        if moved != "entity" and pair.user in self._who.users:
            allowed += 1.0
        beside = pair.of_entity if moved == "entity" else pair.of_entity & ~pair.of_user
        if moved != "user" and (self._used & beside).any():
            allowed += self._plan.clips.share
        return allowed

    def _sum(self, emptied: Mask) -> Tensor:
        """What a round gives out, in units of the update clip, before it is divided."""
        self._task.emptied = torch.from_numpy(emptied)
        found = torch.cat([v.detach().flatten() for v in self._method.round(self._number).values])
        return found.double() * (self._plan.expected_users / self._plan.clips.update)

    def _opposing(self, pair: _Pair) -> Tensor:
        """All under attack goes one way, as far as it may; the rest of those users the other."""
        direction = self._rng.normal(size=_WIDTH)
        direction /= np.linalg.norm(direction)
        under_attack = pair.of_user | pair.of_entity
        owners, rest = self._incidence.sentence_user, self._used & ~under_attack
        counts = np.bincount(owners[rest], minlength=self._incidence.users)
        size = np.where(under_attack, LARGE, -1 / np.maximum(counts[owners], 1))
        return torch.from_numpy(size[:, None] * direction).float()

    def _scattered(self, pair: _Pair) -> Tensor:
        """All directions and sizes."""
        count = self._incidence.sentences
        sizes = 10 ** self._rng.uniform(-1, 3, size=(count, 1))
        return torch.from_numpy(sizes * self._rng.normal(size=(count, _WIDTH))).float()

    def _pairs(self) -> Iterator[_Pair]:
        """Users that were drawn and some that were not, with entities that were used and not."""
        incidence, who = self._incidence, self._who
        used, times = who.sentences.values, _times(incidence, who)
        drawn = who.users[np.argsort(-who.sentences.counts, kind="stable")]
        others = np.setdiff1d(np.arange(incidence.users), who.users)
        mentions = incidence.sentence_entities.take(used)
        crowded = np.argsort(-times[mentions.values], kind="stable")
        entities = list(dict.fromkeys(mentions.values[crowded].tolist()))
        extended = self._used & incidence.extended
        for user, entity in itertools.islice(zip(drawn, entities, strict=False), 2):
            yield self._pair(int(user), entity)
        if entities:
            most_held = max(entities, key=lambda entity: len(incidence.holders[entity]))
            yield self._pair(int(self._rng.choice(others if len(others) else drawn)), most_held)
            owner = incidence.sentence_user[used[mentions.row_of_value()[crowded[0]]]]
            yield self._pair(int(owner), entities[0])
        for sentence in self._rng.permutation(np.flatnonzero(extended))[:1]:
            one = np.zeros_like(extended)
            one[sentence] = True
            user = int(drawn[-1])
            yield _Pair(user, incidence.sentence_user == user, one)
        unused = np.setdiff1d(np.arange(incidence.entities), entities)
        if len(unused) and len(others):
            yield self._pair(int(self._rng.choice(others)), int(self._rng.choice(unused)))

    def _pair(self, user: int, entity: int) -> _Pair:
        of_entity = np.zeros(self._incidence.sentences, dtype=np.bool_)
        of_entity[self._incidence.entity_sentences[entity]] = True
        return _Pair(user, self._incidence.sentence_user == user, of_entity)


# --- noise ---------------------------------------------------------------------------------------

_VALUES = 1 << 16


def noise_of(plan: Plan, seed: int | None = None) -> tuple[float, float]:
    """The noise of a round without content, as a part of what was planned; and a chance.

    It is that of noise as small as this, or smaller, if it is Gaussian and as large as was planned.
    Without a seed it is the noise of a run, fresh from its own source.
    """
    nothing = np.zeros(0, dtype=np.int64)
    incidence = Incidence.build(np.arange(8), nothing, nothing, 8, 0)
    fresh = plan.on(incidence).seeded(seed)
    task = Chosen(incidence.sentences, _VALUES, 1)
    found = build_method(fresh, incidence, Line(_VALUES), task, nullcontext).round(0)
    values: Floats = torch.cat([v.flatten() for v in found.values]).double().numpy()
    planned = plan.noise * fresh.clips.unit_of_noise / fresh.expected_users
    if not planned:
        return 1.0, 1.0
    squares = float((values**2).sum()) / planned**2
    return math.sqrt(squares / len(values)), float(stats.chi2.cdf(squares, len(values)))
