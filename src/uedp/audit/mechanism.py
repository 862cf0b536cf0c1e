"""Attack the mechanism itself: its own draws, clips and noise, on content an adversary chose.

What is attacked is a run's plan. Its rates, limits, clips and weights, the lending, the crowding
rule and the randomness of a round are those that training takes from the same plan, by the same
code. Many runs are played at once by copying a world's incidence side by side: copies share no
user, sentence or entity, so one draw plays one round of all of them, and one call of the noise
gives each its own. With `by_engine` the real `release` clips and adds up too, each copy in a weight
of its own; `by_arithmetic` computes the same two projections on numbers, which is faster. How far
one round of training's own code moves is measured in `uedp.audit.sensitivity`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from uedp.accounting.divergence import Floats
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import UedpAlgProfile
from uedp.audit.bounds import Scores, check_confidence
from uedp.audit.verdict import MechanismAudit, judge
from uedp.audit.worlds import Kind, Law, World
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.clip import Engine
from uedp.mechanism.estimators import Weights, draw_uedp_alg, f_e_plus
from uedp.mechanism.noise import Noise, add_once_
from uedp.mechanism.release import Clips, release
from uedp.mechanism.sampling import Participants, Uniforms
from uedp.methods import ClippedMethod
from uedp.methods.randomness import Randomness
from uedp.progress import SILENT, Meter, Progress
from uedp.training.plan import Plan


@dataclass(frozen=True, eq=False)
class Copies:
    """Many runs of one world side by side, first those on the emptied corpus.

    Guarantees:
      - no user, sentence or entity is in two copies
      - a copy's gradients are the world's, on the emptied corpus with zeros where it is emptied
    """

    incidence: Incidence
    gradients: Floats
    emptied: int
    count: int

    @classmethod
    def of(cls, world: World, emptied: int, full: int) -> "Copies":
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
        """The copy that each user is in."""
        return users // (self.incidence.users // self.count)

    def of_sentences(self, sentences: Ints) -> Ints:
        """The copy that each sentence is in."""
        return sentences // (self.incidence.sentences // self.count)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Who takes part in a round of all copies; how much a sentence counts, its clip, its user."""

    participants: Participants
    weights: Floats
    bounds: Floats
    user_weights: Floats


Rounds = Callable[[int, Uniforms, int], Drawn]
Draw = Callable[[Plan, Incidence], Rounds]
Release = Callable[[Copies, Drawn, Clips, float, Noise], Tensor]


def by_arithmetic(
    copies: Copies, drawn: Drawn, clips: Clips, multiplier: float, noise: Noise
) -> Tensor:
    """The noisy sum of each copy, its clips computed on numbers.

    Guarantees:
      - the sums are those of `by_engine`, up to rounding and its bounds on it, before noise of the
        same deviation
    """
    sums = torch.from_numpy(sums_of(copies, drawn, clips.update, clips.update)).float()
    add_once_(noise, [sums], multiplier * clips.update)
    return sums


def sums_of(copies: Copies, drawn: Drawn, update_clip: float, unit: float = 1.0) -> Floats:
    """Both clips on a line: each copy's sum before noise. Gradients are in units of `unit`."""
    rows = drawn.participants.sentences
    gradients = unit * copies.gradients[rows.values] * drawn.weights
    clipped = np.clip(gradients, -drawn.bounds, drawn.bounds)
    updates = np.bincount(rows.row_of_value(), clipped, minlength=len(rows))
    updates = np.clip(updates, -update_clip, update_clip)
    return np.bincount(
        copies.of_users(drawn.participants.users),
        updates * drawn.user_weights,
        minlength=copies.count,
    ).astype(np.float64)


def by_engine(
    copies: Copies, drawn: Drawn, clips: Clips, multiplier: float, noise: Noise, layers: int = 1
) -> Tensor:
    """The noisy sum of each copy by the real `release`; a gradient is spread over the layers.

    A layer is a table with one weight per copy, which the sentences of that copy alone look up, so
    that a sum per copy comes out of one sum. The adversary reads the outputs along the direction
    that the gradients have.
    """
    model = nn.ModuleList([nn.Embedding(copies.count, 1) for _ in range(layers)])
    gradients = torch.from_numpy(copies.gradients * clips.update / math.sqrt(layers)).float()

    def losses(sentences: Ints) -> Tensor:
        place = torch.from_numpy(copies.of_sentences(np.asarray(sentences)).astype(np.int64))
        weights: Tensor = sum(layer(place[:, None])[:, 0, 0] for layer in model)
        return gradients[torch.from_numpy(np.asarray(sentences, dtype=np.int64))] * weights

    who = drawn.participants
    lengths = np.ones(len(who.sentences.values), int)
    found = release(Engine(model), who, losses, lengths, clips, noise, multiplier, max_tokens=512)
    return torch.stack([table[:, 0] for table in found.sums]).sum(0) / math.sqrt(layers)


def by_training(plan: Plan, incidence: Incidence) -> Rounds:
    """The draws, lending, selection and clips of training's own rounds."""
    plan = plan.on(incidence)
    assert issubclass(plan.method, ClippedMethod)
    draw = plan.method.sampler(plan.round_settings, incidence)

    def drawn(number: int, uniforms: Uniforms, key: int) -> Drawn:
        who = draw(number, uniforms, key)
        bounds = plan.clips.of_sentences(who.crowding).double().numpy()
        return Drawn(who, np.ones(len(bounds)), bounds, np.ones(len(who.users)))

    return drawn


@dataclass(frozen=True)
class Mechanism:
    """The code under attack, part by part, so that a test can put a broken part in its place.

    `multiplier` is the noise in units of the update clip.
    """

    plan: Plan
    multiplier: float
    clips: Clips
    draw: Draw = by_training
    release: Release = by_arithmetic

    @classmethod
    def of(cls, plan: Plan) -> "Mechanism":
        """What a run of this plan does: rotation or user-level privacy."""
        if plan.profile is None:
            raise UserError(f"{plan.config.privacy.method}: has no guarantee to audit")
        if isinstance(plan.profile, UedpAlgProfile):
            return cls.of_alg(plan, plan.profile)
        # on numbers nothing is rounded: the adversary is granted the margin for it
        clips = replace(plan.clips, margin=0.0)
        return cls(replace(plan, clips=clips), plan.noise, clips)

    @classmethod
    def of_alg(cls, plan: Plan, profile: UedpAlgProfile) -> "Mechanism":
        """UeDP-Alg at a plan's rates, with as many users and as much noise as the profile has."""
        weights = Weights(np.ones(profile.users), np.ones(1), 1.0, 0)
        estimator = f_e_plus(plan.sampling, weights, 1.0, profile.noise)
        return cls(plan, estimator.noise_in_updates, Clips(1.0, 2.0), _draw_alg)

    def seeded(self, seed: int | None) -> "Mechanism":
        """The same with repeatable rounds; without a seed, with fresh ones."""
        return replace(self, plan=self.plan.seeded(seed))

    def play(
        self,
        copies: Copies,
        rounds: int,
        numbers: Iterator[int],
        noise: Noise | None = None,
    ) -> Floats:
        """The outputs of all copies in units of the update clip, one row per round.

        `numbers` are those of rounds not played yet: with a seed, a round's randomness depends on
        them alone. `noise` stands in for the noise of the plan's own rounds.
        """
        outputs = np.empty((rounds, copies.count))
        drawn, randomness = (
            self.draw(self.plan, copies.incidence),
            Randomness(self.plan.config.privacy.seed),
        )
        for row, number in zip(outputs, numbers, strict=False):
            with randomness.of_round(number, _CPU) as (uniforms, key, own):
                who = drawn(number, uniforms, key)
                total = self.release(copies, who, self.clips, self.multiplier, noise or own)
            row[:] = total.double().numpy() / self.clips.update
        return outputs

    @property
    def noise_source(self) -> str:
        with Randomness(self.plan.config.privacy.seed).of_round(0, _CPU) as (_, _, noise):
            return noise.source


_CPU = torch.device("cpu")


def _draw_alg(plan: Plan, incidence: Incidence) -> Rounds:
    def drawn(number: int, uniforms: Uniforms, key: int) -> Drawn:
        found = draw_uedp_alg(incidence, plan.sampling, uniforms, np.ones(incidence.entities))
        ones = np.ones(len(found.weights), int)
        who = Participants(found.users, found.sentences, ones)
        return Drawn(who, found.weights, np.full(len(ones), np.inf), np.ones(len(found.users)))

    return drawn


# --- scores --------------------------------------------------------------------------------------


def likelihood(world: World, outputs: Floats, noise: float) -> Floats:
    """The log-likelihood ratio of each run: no score tells the corpora better, if all is right."""
    total: Floats = sum((world.loss(row, noise) for row in outputs), np.zeros(outputs.shape[1]))
    return total


_EXACT = 4e-6  # float32 rounds outputs by less than this


def repeats(world: World, outputs: Floats, noise: float) -> Floats:
    """How many pairs of a run's rounds differ exactly as sums of the full corpus alone can.

    Nothing, where noise is fresh; where rounds share it, their difference is that of their sums.
    """
    score = np.zeros(outputs.shape[1])
    telling = _differences(world.full) - _differences(world.emptied)
    if len(telling) > _MOST_DIFFERENCES:
        return score
    for lag in range(1, len(outputs)):
        apart = np.abs(outputs[lag:] - outputs[:-lag])
        for difference in telling:
            score += (np.abs(apart - difference) < _EXACT).sum(axis=0)
    return score


_MOST_DIFFERENCES = 8


def _differences(law: Law) -> set[float]:
    values = np.array(law.values)
    return set(np.unique(np.abs(values[:, None] - values).round(9)).tolist()) - {0.0}


Attack = Callable[[World, Floats, float], Floats]
ATTACKS: dict[str, Attack] = {"likelihood": likelihood, "repeats": repeats}


# --- the audit -----------------------------------------------------------------------------------

_AT_ONCE = 100_000  # users, or four times as many sentences: what a cache holds


def audit(
    mechanism: Mechanism,
    profile: PrivacyEvent,
    pair: Kind,
    rounds: int,
    delta: float,
    against: Sequence[World],
    *,
    runs: int,
    seed: int | None = None,
    confidence: float = 0.95,
    among: int = 1,
    noise: Noise | None = None,
    published: float | None = None,
    attacks: Sequence[str] = tuple(ATTACKS),
    fit_curve: bool = True,
    progress: Progress = SILENT,
    title: str = "attacking",
) -> MechanismAudit:
    """Attack `rounds` rounds of a mechanism, in `runs` runs on each corpus of each world.

    `profile` is what is claimed of it. Draws and noise are fresh, as in a run, unless `seed` makes
    them repeatable or `noise` is given. `fit_curve=False` leaves out `curve` and `attainable`,
    which take some seconds of accounting. `among` is how many audits share one chance of a false
    alarm.

    Guarantees:
      - if the proven epsilon holds, `threshold` exceeds it with a chance of `1 - confidence` at
        most, and so is `excess` above 0
      - of `among` audits of what holds, any raises its alarm with that chance at most
      - the same seed gives the same result, unless `noise` is a source of its own
    """
    if runs < 4:
        raise UserError(f"runs {runs}: must be at least 4, to choose an attack and to test it")
    check_confidence(confidence)  # now, not when all runs are done
    # not the seed itself: what is derived from neighbouring seeds must have nothing in common
    mechanism = mechanism.seeded(
        None if seed is None else int(np.random.default_rng(seed).integers(2**62))
    )
    scores: list[Scores] = []
    numbers = itertools.count()
    with progress.stage(title, runs * len(against), "runs") as meter:
        for world in against:
            scores += attack(mechanism, world, rounds, runs, numbers, noise, attacks, meter)
        meter.note("computing bounds")
        return judge(
            scores,
            profile,
            pair,
            rounds,
            delta,
            confidence=confidence,
            among=among,
            published=published,
            against=against if fit_curve else (),
            multiplier=mechanism.multiplier,
            seed=seed,
            noise_source=mechanism.noise_source if noise is None else noise.source,
        )


def attack(
    mechanism: Mechanism,
    world: World,
    rounds: int,
    runs: int,
    numbers: Iterator[int],
    noise: Noise | None = None,
    attacks: Sequence[str] = tuple(ATTACKS),
    meter: Meter | None = None,
) -> list[Scores]:
    """What each attack scores in `runs` runs on either corpus of a world."""
    parts: dict[str, list[Floats]] = {name: [] for name in attacks}
    size = max(world.incidence.users, world.incidence.sentences // 4)
    each = max(1, min(runs, _AT_ONCE // (2 * size)))
    copies, left = Copies.of(world, each, each), runs
    while left:
        if left < each:
            copies = Copies.of(world, left, left)
        outputs = mechanism.play(copies, rounds, numbers, noise)
        for name in attacks:
            parts[name].append(ATTACKS[name](world, outputs, mechanism.multiplier))
        left -= copies.emptied
        if meter:
            meter.advance(copies.emptied)
    found = []
    for name, scores in parts.items():
        emptied = np.concatenate([s[: len(s) // 2] for s in scores])
        full = np.concatenate([s[len(s) // 2 :] for s in scores])
        found.append(Scores(f"{name} in the world {world.name!r}", full, emptied))
    return found
