"""Attack the mechanism itself: its own draws, clips and noise, on content an adversary chose.

The target is a run's plan. Its rates, limits, clips and weights, the lending, the weights and the
randomness of a round are those that training takes from the same plan, by the same code. Many
runs are simulated at once by replicating a world's incidence side by side: replicas share no user,
sentence or entity, so one draw gives one round of all of them, and one call of the noise gives each
its own. The two projections are computed on numbers.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from uedp.accounting.divergence import Floats
from uedp.audit.bounds import Scores, check_confidence
from uedp.audit.verdict import Claim, MechanismAudit, judge
from uedp.audit.worlds import Distribution, World, threats
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.estimators import draw_uedp_alg
from uedp.mechanism.noise import Noise, add_once_
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Participants, Uniforms
from uedp.methods import ClippedMethod
from uedp.methods.randomness import Randomness
from uedp.methods.uedp_alg import UedpAlg
from uedp.progress import SILENT, Meter, Progress
from uedp.training.plan import Plan

_CPU = torch.device("cpu")
_AT_ONCE = 100_000  # users, or four times as many sentences: the size of a cache
_SECONDS = 3e-8  # for a user, sentence or mention and a round
_FEWEST, _MOST = 300, 1_000_000  # runs
_MOST_DIFFERENCES = 8
_EXACT = 4e-6  # float32 rounds outputs by less than this


@dataclass(frozen=True, eq=False)
class Replicas:
    """Many runs of one world side by side, first those on the emptied corpus.

    Guarantees:
      - no user, sentence or entity is in two replicas
      - a replica's gradients are the world's, on the emptied corpus with zeros where it is emptied
    """

    incidence: Incidence
    gradients: Floats
    emptied: int
    count: int

    @classmethod
    def of(cls, world: World, emptied: int, full: int) -> "Replicas":
        one, count = world.incidence, emptied + full
        numbers = np.arange(count)[:, None]
        incidence = Incidence.build(
            (one.sentence_user + numbers * one.users).ravel(),
            (one.sentence_entities.row_of_value() + numbers * one.sentences).ravel(),
            (one.sentence_entities.values + numbers * one.entities).ravel(),
            one.users * count,
            one.entities * count,
        )
        left = np.where(world.empties, 0.0, world.gradients)
        gradients = np.concatenate([np.tile(left, emptied), np.tile(world.gradients, full)])
        return cls(incidence, gradients, emptied, count)

    def of_users(self, users: Ints) -> Ints:
        """The replica that each user is in."""
        return users // (self.incidence.users // self.count)


@dataclass(frozen=True, eq=False)
class Draw:
    """The participants of a round of all replicas; weights and clips of their sentences."""

    participants: Participants
    weights: Floats
    bounds: Floats


Draws = Callable[[int, Uniforms, int], Draw]
Release = Callable[[Replicas, Draw, Clips, float, Noise], Tensor]


def noisy_sums(
    replicas: Replicas, draw: Draw, clips: Clips, multiplier: float, noise: Noise
) -> Tensor:
    """The noisy sum of each replica.

    Guarantees:
      - the sums are those of `release`, up to rounding and its bounds on it, before noise of the
        same deviation
    """
    sums = torch.from_numpy(projected_sums(replicas, draw, clips.update, clips.update)).float()
    add_once_(noise, [sums], multiplier * clips.update)
    return sums


def projected_sums(replicas: Replicas, draw: Draw, update_clip: float, unit: float = 1.0) -> Floats:
    """Both clips on a line: each replica's sum before noise. Gradients are in units of `unit`."""
    rows = draw.participants.sentences
    gradients = unit * replicas.gradients[rows.values] * draw.weights
    clipped = np.clip(gradients, -draw.bounds, draw.bounds)
    updates = np.bincount(rows.row_of_value(), clipped, minlength=len(rows))
    updates = np.clip(updates, -update_clip, update_clip)
    owners = replicas.of_users(draw.participants.users)
    return np.bincount(owners, updates, minlength=replicas.count).astype(np.float64)


def clipped_draws(plan: Plan, incidence: Incidence) -> Draws:
    """The draws, lending, selection and clips of training's own rounds."""
    plan = plan.on(incidence)
    assert issubclass(plan.method, ClippedMethod)
    sample = plan.method.sampler(plan.round_settings, incidence)

    def draw(number: int, uniforms: Uniforms, key: int) -> Draw:
        who = sample(number, uniforms, key)
        bounds = plan.clips.of_sentences(who.weights).double().numpy()
        return Draw(who, np.ones(len(bounds)), bounds)

    return draw


def local_update_draws(plan: Plan, incidence: Incidence) -> Draws:
    """UeDP-Alg's draws: sentences are weighted by their sampled entities, not clipped."""

    def draw(number: int, uniforms: Uniforms, key: int) -> Draw:
        drawn = draw_uedp_alg(incidence, plan.sampling, uniforms, np.ones(incidence.entities))
        ones = np.ones(len(drawn.weights))
        who = Participants(drawn.users, drawn.sentences, ones)
        return Draw(who, drawn.weights, np.full(len(ones), np.inf))

    return draw


DRAWS: dict[type, Callable[[Plan, Incidence], Draws]] = {
    ClippedMethod: clipped_draws,
    UedpAlg: local_update_draws,
}
"""How the rounds of a type of method are drawn; methods inherit it."""


@dataclass(frozen=True)
class Mechanism:
    """The code under attack, part by part, so that a test can put a broken part in its place.

    `multiplier` is the noise in units of the update clip.
    """

    plan: Plan
    multiplier: float
    clips: Clips
    draws: Callable[[Plan, Incidence], Draws]
    release: Release = noisy_sums

    @classmethod
    def of(cls, plan: Plan) -> "Mechanism":
        """The mechanism that a run of this plan uses."""
        draws = next((DRAWS[kind] for kind in plan.method.__mro__ if kind in DRAWS), None)
        if plan.profile is None or draws is None:
            raise UserError(f"{plan.method.name}: has no guarantee to audit by simulation")
        # on numbers nothing is rounded: the adversary is granted the margin for it
        clips = replace(plan.clips, margin=0.0)
        multiplier = plan.method.noise_per_update(plan.round_settings)
        return cls(replace(plan, clips=clips), multiplier, clips, draws)

    def seeded(self, seed: int | None) -> "Mechanism":
        """The same with repeatable rounds; without a seed, with fresh ones."""
        return replace(self, plan=self.plan.seeded(seed))

    def simulate(self, replicas: Replicas, rounds: int, numbers: Iterator[int]) -> Floats:
        """The outputs of all replicas in units of the update clip, one row per round.

        `numbers` are those of rounds not simulated yet: with a seed, a round's randomness depends
        on them alone.
        """
        outputs = np.empty((rounds, replicas.count))
        draws = self.draws(self.plan, replicas.incidence)
        randomness = Randomness(self.plan.config.privacy.seed)
        for row, number in zip(outputs, numbers, strict=False):
            with randomness.of_round(number, _CPU) as (uniforms, key, noise):
                draw = draws(number, uniforms, key)
                total = self.release(replicas, draw, self.clips, self.multiplier, noise)
            row[:] = total.double().numpy() / self.clips.update
        return outputs

    @property
    def noise_source(self) -> str:
        with Randomness(self.plan.config.privacy.seed).of_round(0, _CPU) as (_, _, noise):
            return noise.source


def likelihood(world: World, outputs: Floats, noise: float) -> Floats:
    """The log-likelihood ratio of each run: the most powerful score if the mechanism is correct."""
    total: Floats = sum((world.loss(row, noise) for row in outputs), np.zeros(outputs.shape[1]))
    return total


def repeats(world: World, outputs: Floats, noise: float) -> Floats:
    """How many pairs of a run's rounds differ exactly as only sums of the full corpus can.

    None where noise is fresh; where rounds share it, their difference is that of their sums.
    """
    score = np.zeros(outputs.shape[1])
    revealing = _differences(world.full) - _differences(world.emptied)
    if len(revealing) > _MOST_DIFFERENCES:
        return score
    for lag in range(1, len(outputs)):
        apart = np.abs(outputs[lag:] - outputs[:-lag])
        for difference in revealing:
            score += (np.abs(apart - difference) < _EXACT).sum(axis=0)
    return score


def _differences(sums: Distribution) -> set[float]:
    values = np.array(sums.values)
    return set(np.unique(np.abs(values[:, None] - values).round(9)).tolist()) - {0.0}


ATTACKS: dict[str, Callable[[World, Floats, float], Floats]] = {
    "likelihood": likelihood,
    "repeats": repeats,
}


def attack(
    mechanism: Mechanism,
    world: World,
    rounds: int,
    runs: int,
    numbers: Iterator[int],
    attacks: Sequence[str] = tuple(ATTACKS),
    meter: Meter | None = None,
) -> list[Scores]:
    """The scores of each attack in `runs` runs on either corpus of a world."""
    parts: dict[str, list[Floats]] = {name: [] for name in attacks}
    size = max(world.incidence.users, world.incidence.sentences // 4)
    each = max(1, min(runs, _AT_ONCE // (2 * size)))
    replicas, left = Replicas.of(world, each, each), runs
    while left:
        if left < each:
            replicas = Replicas.of(world, left, left)
        outputs = mechanism.simulate(replicas, rounds, numbers)
        for name in attacks:
            parts[name].append(ATTACKS[name](world, outputs, mechanism.multiplier))
        left -= replicas.emptied
        if meter:
            meter.advance(replicas.emptied)
    return [
        Scores(
            f"{name} in the world {world.name!r}",
            np.concatenate([part[len(part) // 2 :] for part in scores]),
            np.concatenate([part[: len(part) // 2] for part in scores]),
        )
        for name, scores in parts.items()
    ]


@dataclass(frozen=True, eq=False)
class Case:
    """A claim about a mechanism, and the worlds to attack it in."""

    claim: Claim
    mechanism: Mechanism
    worlds: Sequence[World]

    def runs_in(self, seconds: float) -> int:
        """About how many runs one core simulates in so many seconds."""
        several = (world.incidence for world in self.worlds)
        sizes = sum(i.users + i.sentences + len(i.sentence_entities.values) for i in several)
        return int(np.clip(seconds / (_SECONDS * sizes * self.claim.rounds), _FEWEST, _MOST))

    def audit(
        self,
        *,
        runs: int,
        seed: int | None = None,
        confidence: float = 0.95,
        among: int = 1,
        attacks: Sequence[str] = tuple(ATTACKS),
        fit_curve: bool = True,
        progress: Progress = SILENT,
    ) -> MechanismAudit:
        """Attack the claimed rounds, in `runs` runs on each corpus of each world.

        Draws and noise are fresh, as in a run, unless `seed` makes them repeatable.
        `fit_curve=False` leaves out `curve` and `attainable`, which take some seconds of
        accounting. `among` is how many audits share one chance of a false alarm.

        Guarantees:
          - if the proven epsilon holds, `threshold` exceeds it with a probability of
            `1 - confidence` at most, and so is `excess` above 0
          - of `among` audits of true claims, any raises its alarm with that probability at most
          - the same seed gives the same result
        """
        if runs < 4:
            raise UserError(f"runs {runs}: must be at least 4, to choose an attack and to test it")
        check_confidence(confidence)  # now, not when all runs are done
        # not the seed itself: neighbouring seeds must have nothing in common
        mechanism = self.mechanism.seeded(
            None if seed is None else int(np.random.default_rng(seed).integers(2**62))
        )
        scores: list[Scores] = []
        numbers, rounds = itertools.count(), self.claim.rounds
        title = f"{self.claim.method}, {self.claim.target}"
        with progress.stage(title, runs * len(self.worlds), "runs") as meter:
            for world in self.worlds:
                scores += attack(mechanism, world, rounds, runs, numbers, attacks, meter)
            meter.note("computing bounds")
            return judge(
                scores,
                self.claim,
                confidence=confidence,
                among=among,
                worlds=self.worlds if fit_curve else (),
                multiplier=mechanism.multiplier,
                seed=seed,
                noise_source=mechanism.noise_source,
            )


def cases(plan: Plan) -> list[Case]:
    """A case for every claim of a plan that worlds are known for."""
    if plan.profile is None:
        raise UserError(f"privacy.method {plan.method.name}: has no guarantee to audit")
    name, delta, digest = plan.method.name, plan.config.privacy.delta, plan.digest()
    return [
        Case(
            Claim(name, target, claimed, plan.rounds, delta, plan=digest),
            Mechanism.of(plan),
            worlds,
        )
        for target, claimed, worlds in threats(plan.profile, plan.sampling)
    ]
