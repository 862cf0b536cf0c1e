"""Worst-case worlds: who mentions what, and the gradients an adversary would choose.

The mechanism's noise is the same in all directions and projections do not expand, so an adversary
loses nothing by putting all gradients on one line (`docs/privacy.md`, the Lemma). A gradient is
then a number, in units of the update clip; large ones put the clips to work. A world comes with the
exact distribution of a round's sum on either corpus, which the adversary is granted to know.

`@worst_case_worlds(ProfileType)` registers the worlds of a profile, from any file.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.pld import PrivacyLossDistribution, compose
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import (
    FairMissedProfile,
    FairSharesProfile,
    MissedProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
)
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.fair import Sharing, fair_shares
from uedp.mechanism.lending import Mask
from uedp.mechanism.sampling import Sampling

Rest = Literal["towards", "against", "half way", "nothing else"]
Target = Literal["user", "entity", "user and entity", "missed mention"]
TARGETS: tuple[Target, ...] = ("user", "entity", "user and entity")

LARGE = 1000.0  # in units of the update clip: an unclipped gradient is unmistakable

_POINTS = 100_000  # where distributions are evaluated
_HOLDERS = 10  # of a rotated entity: enough to expose lending that depends on who was drawn
_BESIDE = 6  # entities beside the one under attack in UeDP-Alg's worlds


@dataclass(frozen=True)
class Distribution:
    """A random sum on a line: its values and their probabilities."""

    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, *outcomes: tuple[float, float]) -> "Distribution":
        """Values with probabilities; equal values are merged, impossible ones left out."""
        values: dict[float, float] = {}
        probabilities: dict[float, float] = {}
        for value, probability in outcomes:
            # only the key is rounded this coarsely: sums of rounded values would drift apart
            key = round(value, 8)
            values.setdefault(key, round(value, 12))
            probabilities[key] = probabilities.get(key, 0.0) + probability
        kept = sorted((values[key], p) for key, p in probabilities.items() if p > 0)
        return cls(tuple(v for v, _ in kept), tuple(p for _, p in kept))

    @classmethod
    def binomial(cls, count: int, rate: float, value: float) -> "Distribution":
        """`count` users drawn independently, each of whom adds `value`."""
        chances = stats.binom.pmf(np.arange(count + 1), count, rate)
        # rarer outcomes change no likelihood that matters
        return cls.of(*((n * value, float(p)) for n, p in enumerate(chances) if p > 1e-15))

    @property
    def outcomes(self) -> list[tuple[float, float]]:
        return list(zip(self.values, self.probabilities, strict=True))

    def plus(self, other: "Distribution") -> "Distribution":
        """The sum of two independent variables."""
        pairs = ((v + w, p * q) for v, p in self.outcomes for w, q in other.outcomes)
        return Distribution.of(*pairs)

    def mixed(self, other: "Distribution", probability: float) -> "Distribution":
        """The other variable with this probability, else this one."""
        ours = [(v, p * (1 - probability)) for v, p in self.outcomes]
        return Distribution.of(*ours, *((v, p * probability) for v, p in other.outcomes))

    def clipped(self) -> "Distribution":
        """Every value moved to the nearest one within the update clip."""
        return Distribution.of(*((min(1.0, max(-1.0, v)), p) for v, p in self.outcomes))

    def times(self, count: int) -> "Distribution":
        """The sum of `count` independent copies."""
        return reduce(Distribution.plus, [self] * count, ZERO)

    def log_density(self, at: Floats, noise: float) -> Floats:
        """Of the sum plus Gaussian noise, relative to the noise by itself."""
        terms = (math.log(p) + v * (2 * at - v) / (2 * noise**2) for v, p in self.outcomes)
        return reduce(np.logaddexp, terms)


ZERO = Distribution((0.0,), (1.0,))


@dataclass(frozen=True, eq=False)
class World:
    """A pair of corpora with the same incidence: one gradient per sentence, some of them emptied.

    Guarantees:
      - sentences are emptied as the adjacency has it: all of one user, all that mention one
        entity, or both; where a mention was missed, those too
      - `emptied` and `full` are the distributions of the mechanism's sum before noise
    """

    name: str
    incidence: Incidence
    gradients: Floats
    empties: Mask
    emptied: Distribution
    full: Distribution

    def loss(self, at: Floats, noise: float) -> Floats:
        """The log-likelihood ratio of a round's output: the most powerful test of the two."""
        return self.full.log_density(at, noise) - self.emptied.log_density(at, noise)


def attainable(world: World, noise: float, rounds: int, delta: float) -> float:
    """The epsilon of a world itself: the limit of attacks on it, given enough runs.

    By numerical integration, without the rigour of a proof. It tells slack in the proof from
    slack due to too few runs.
    """
    ends = [v for side in (world.emptied, world.full) for v in side.values]
    line = np.linspace(min(ends) - 9 * noise, max(ends) + 9 * noise, _POINTS)
    bare = -((line / noise) ** 2) / 2
    logs = [side.log_density(line, noise) for side in (world.full, world.emptied)]
    if not np.any(logs[0] - logs[1]):
        return 0.0
    epsilons = []
    for ours, theirs in (logs, logs[::-1]):
        masses = np.exp(ours + bare)
        masses /= masses.sum()
        losses = np.clip(ours - theirs, -MAX_EPSILON, MAX_EPSILON)
        order = np.argsort(losses)
        one = PrivacyLossDistribution(losses[order], masses[order], 0.0)
        epsilons.append(compose([(one, rounds)]).epsilon(delta))
    return max(epsilons)


class Threat(NamedTuple):
    """What is emptied, the profile that is claimed for it, and the worlds to attack it in."""

    target: Target
    profile: PrivacyEvent
    worlds: Sequence[World]


P = TypeVar("P", bound=PrivacyEvent)
Threats = Callable[[P, Sampling], Iterator[Threat]]
_THREATS: dict[type, Threats[Any]] = {}


def worst_case_worlds(profile: type[P]) -> Callable[[Threats[P]], Threats[P]]:
    """Register what a function yields as the threats to a type of profile."""

    def register(build: Threats[P]) -> Threats[P]:
        _THREATS[profile] = build
        return build

    return register


def threats(profile: PrivacyEvent, sampling: Sampling) -> list[Threat]:
    """The worst worlds known for everything a profile protects; none if nobody registered any.

    Which of several worlds is worst depends on the noise.
    """
    build = _THREATS.get(type(profile))
    return [] if build is None else list(build(profile, sampling))


@worst_case_worlds(UserLevelProfile)
def _user_level(profile: UserLevelProfile, sampling: Sampling) -> Iterator[Threat]:
    """RotationProfile whose sentence clip is as wide as it may be."""
    whole = RotationProfile(profile.noise, profile.user_rate, 2.0)
    yield Threat("user", profile, [_rotated(whole, "user", "nothing else", sampling)])


@worst_case_worlds(RotationProfile)
def _rotation(profile: RotationProfile, sampling: Sampling) -> Iterator[Threat]:
    yield Threat("user", profile, [_rotated(profile, "user", "towards", sampling)])
    rests: tuple[Rest, ...] = ("towards", "against", "nothing else")
    # a sentence without entities shows more where its coin comes up more often
    kinds = (False, True) if profile.extended_rate > profile.entity_rate else (False,)
    for target in TARGETS[1:]:
        several = itertools.product(kinds, rests)
        worlds = [_rotated(profile, target, rest, sampling, extended=e) for e, rest in several]
        if target == "user and entity":
            worlds.append(_rotated(profile, target, "nothing else", sampling, holders=_HOLDERS))
        yield Threat(target, profile, worlds)
    yield from _missed(MissedProfile(profile, 1, 1, profile.entity_share), sampling)


@worst_case_worlds(MissedProfile)
def _missed(profile: MissedProfile, sampling: Sampling) -> Iterator[Threat]:
    rests: tuple[Rest, ...] = ("towards", "against", "half way")
    target: Target = "missed mention"
    worlds = [_rotated(profile.rotation, target, rest, sampling, missed=profile) for rest in rests]
    yield Threat(target, profile, worlds)


def _rotated(
    profile: RotationProfile,
    target: Target,
    rest: Rest,
    sampling: Sampling,
    *,
    missed: MissedProfile | None = None,
    holders: int = 1,
    extended: bool = False,
) -> World:
    """`u'` adds 1 if drawn; a holder its rest, and the entity's sentences on top if lent to it.

    The entity stands in so many sentences of each holder that, were their clips not divided by
    how many they are, they would turn an update around; every other one names someone else too.
    With `extended` it is a sentence without entities instead. Sentences that only have to be there
    are of the kind whose coin comes up more often.
    """
    share, rate = profile.entity_share, profile.user_rate
    if missed is not None and missed.sentence_share != share:
        raise UserError("an audit is of one sentence clip: all shares must be the entity share")
    often = max(profile.entity_rate, profile.extended_rate)
    most = math.inf if sampling.per_user is None else sampling.per_user
    corpus = _Corpus(filler_has_entity=profile.entity_rate > profile.extended_rate)
    emptied = full = ZERO
    attacked = corpus.user()
    if target != "entity":
        wanted = math.ceil(2 * math.ceil(1 / share) / often)  # twice what fills the update clip
        selected = int(min(wanted, most))
        corpus.fill(attacked, wanted if wanted <= most else selected + 1, LARGE, emptied=True)
        full = ZERO.mixed(Distribution.binomial(selected, often, share).clipped(), rate)
    if target != "user":
        coin = profile.extended_rate if extended else profile.entity_rate
        filler, each = _rest(rest, share, share, most - 1)
        times = 1 if extended else int(min(math.ceil(2 / share - 1e-9), most - filler))
        for holder in (corpus.user() for _ in range(holders)):
            corpus.fill(holder, filler, each)
            for number in range(times):
                beside = [corpus.new_entity()] if coin == 1 and number % 2 else []
                corpus.add(holder, LARGE, emptied=True, entities=[] if extended else [0, *beside])
        without = Distribution.binomial(filler, often, each)
        lent = without.plus(ZERO.mixed(Distribution.of((share, 1.0)), coin))
        bare = ZERO.mixed(without.clipped(), rate)
        emptied = bare.times(holders)
        full = full.plus(bare.times(holders - 1)).plus(ZERO.mixed(lent.clipped(), rate))
    if missed is not None:
        shift = min(2.0, missed.per_user * missed.sentence_share)
        filler, each = _rest(rest, shift, share, most - missed.per_user)
        for holder in (corpus.user() for _ in range(missed.holders)):
            corpus.fill(holder, filler, each)
            for _ in range(missed.per_user):
                corpus.add(holder, LARGE, emptied=True)
        without = Distribution.binomial(filler, often, each)
        shown = Distribution.binomial(missed.per_user, profile.extended_rate, share)
        bare = ZERO.mixed(without.clipped(), rate)
        emptied = emptied.plus(bare.times(missed.holders))
        full = full.plus(ZERO.mixed(without.plus(shown).clipped(), rate).times(missed.holders))
    corpus.user()  # a bystander: drawn like all others, with nothing to give
    title = rest if holders == 1 else f"{holders} holders"
    return corpus.world(f"{title}, a sentence" if extended else title, emptied, full)


@worst_case_worlds(FairSharesProfile)
def _fair_shares(profile: FairSharesProfile, sampling: Sampling) -> Iterator[Threat]:
    yield Threat("user", profile, [_shared(profile, "user", "nothing else", 0, sampling)])
    rests: tuple[Rest, ...] = ("towards", "against", "nothing else")
    for target in TARGETS[1:]:
        several = [*itertools.product((1, 2), rests), (_HOLDERS, "nothing else")]
        worlds = [_shared(profile, target, rest, count, sampling) for count, rest in several]
        yield Threat(target, profile, worlds)
    yield from _fair_missed(FairMissedProfile(profile, 1, profile.entity_share), sampling)


@worst_case_worlds(FairMissedProfile)
def _fair_missed(profile: FairMissedProfile, sampling: Sampling) -> Iterator[Threat]:
    rests: tuple[Rest, ...] = ("towards", "against", "half way")
    target: Target = "missed mention"
    worlds = [_shared(profile.fair, target, rest, 1, sampling, profile) for rest in rests]
    yield Threat(target, profile, worlds)


def _shared(
    profile: FairSharesProfile,
    target: Target,
    rest: Rest,
    holders: int,
    sampling: Sampling,
    missed: FairMissedProfile | None = None,
) -> World:
    """`u'` adds 1 if drawn; each holder its rest, and its part of the entity's share on top.

    As in rotation's worlds, the entity stands in many sentences of each. Weights, and with them the
    sums, are those of `fair_shares`, by which a holder with much else has less of the entity.
    """
    share = profile.entity_share
    most = math.inf if sampling.per_user is None else sampling.per_user
    corpus = _Corpus(filler_has_entity=True)
    attacked = corpus.user()
    if target != "entity":
        corpus.fill(attacked, int(min(2 * math.ceil(1 / share), most)), LARGE, emptied=True)
    for holder in (corpus.user() for _ in range(holders)):
        filler, each = _rest(rest, share / holders, share, most - 1)
        corpus.fill(holder, filler, each)
        for number in range(int(min(math.ceil(2 / share - 1e-9), most - filler))):
            beside = [corpus.new_entity()] if number % 2 else []
            corpus.add(holder, LARGE, emptied=True, entities=[0, *beside])
    if missed is not None:
        sentences = max(1, round(missed.moves / share))
        for holder in (corpus.user() for _ in range(missed.users)):
            filler, each = _rest(rest, missed.moves, share, most - sentences)
            corpus.fill(holder, filler, each)
            for _ in range(sentences):
                corpus.add(holder, LARGE, emptied=True)
    corpus.user()  # a bystander
    bare = corpus.world("", ZERO, ZERO)
    weights = fair_shares(bare.incidence, Sharing(share, sampling.per_user), 0)
    left = np.where(bare.empties, 0.0, bare.gradients)
    sums = [
        _sum_of(bare.incidence, np.clip(some, -share * weights, share * weights), profile)
        for some in (left, bare.gradients)
    ]
    return corpus.world(rest if holders <= 1 else f"{rest}, {holders} holders", *sums)


def _sum_of(incidence: Incidence, clipped: Floats, profile: FairSharesProfile) -> Distribution:
    """The sum of drawn users, each sentence without an entity with a coin of its own."""
    result = ZERO
    for user in range(incidence.users):
        own = incidence.user_sentences[user]
        coins = incidence.extended[own]
        update = Distribution.of((float(clipped[own[~coins]].sum()), 1.0))
        for value in clipped[own[coins]]:
            update = update.plus(Distribution.binomial(1, profile.extended_rate, float(value)))
        result = result.plus(ZERO.mixed(update.clipped(), profile.user_rate))
    return result


def _rest(name: Rest, shift: float, share: float, most: float) -> tuple[int, float]:
    """The rest of a holder's update: how many sentences, at most `most`, and the gradient of each.

    The entity then moves the update by `shift`. Theorem 2's worlds: `1 - s` ends at the update
    clip, and -1 makes the emptied corpus show on the other side. No sentence is clipped.
    """
    value = {"towards": 1 - shift, "against": -1.0, "half way": -shift / 2}.get(name, 0.0)
    count = int(min(math.ceil(abs(value) / share - 1e-9), max(most, 0)))
    return count, math.copysign(min(abs(value) / count, share), value) if count else 0.0


@dataclass
class _Corpus:
    """A corpus under construction. Entity 0 is the one under attack."""

    filler_has_entity: bool = False
    users: int = 0
    owners: list[int] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    empties: list[bool] = field(default_factory=list)
    mentions: list[tuple[int, int]] = field(default_factory=list)

    def user(self) -> int:
        self.users += 1
        return self.users - 1

    def add(
        self, owner: int, gradient: float, emptied: bool = False, entities: Sequence[int] = ()
    ) -> None:
        self.mentions.extend((len(self.owners), entity) for entity in entities)
        self.owners.append(owner)
        self.gradients.append(gradient)
        self.empties.append(emptied)

    def fill(self, owner: int, count: int, gradient: float, emptied: bool = False) -> None:
        """Add sentences of the kind that is used most often."""
        for _ in range(count):
            entities = [self.new_entity()] if self.filler_has_entity else []
            self.add(owner, gradient, emptied, entities)

    def new_entity(self) -> int:
        return 1 + max((entity for _, entity in self.mentions), default=0)

    def world(self, name: str, emptied: Distribution, full: Distribution) -> World:
        pairs: Ints = np.array(self.mentions, dtype=np.int64).reshape(-1, 2)
        owners, entities = np.array(self.owners, dtype=np.int64), pairs[:, 1].max(initial=0) + 1
        incidence = Incidence.build(owners, pairs[:, 0], pairs[:, 1], self.users, int(entities))
        gradients, empties = np.array(self.gradients), np.array(self.empties)
        return World(name, incidence, gradients, empties, emptied, full)


@worst_case_worlds(UedpAlgProfile)
def _uedp_alg(profile: UedpAlgProfile, sampling: Sampling) -> Iterator[Threat]:
    """Every drawn holder goes from -1 to +1 by the entity under attack.

    The sentence that mentions it mentions six more, so that it is used unless seven coins fail:
    coins are those of entities, the same for all holders. The rest of a holder's update is a
    sentence without entities.
    """
    rate, extended = profile.user_rate, profile.user_rate * sampling.extended_rate
    used = 1 - (1 - sampling.entity_rate) ** (_BESIDE + 1)
    for target in TARGETS:
        # the claim for a user is that of an entity nobody else mentions
        claimed = profile.user_alone() if target == "user" else profile
        corpus, user = _Corpus(), ZERO
        attacked = corpus.user()
        if target != "entity":
            corpus.add(attacked, LARGE, emptied=True)
            user = Distribution.binomial(1, extended, 1.0)
        for holder in (corpus.user() for _ in range(claimed.holders)):
            corpus.add(holder, -1.0)
            corpus.add(holder, LARGE, emptied=True, entities=range(_BESIDE + 1))
        corpus.users = max(corpus.users, profile.users)
        low = Distribution.binomial(claimed.holders, extended, -1.0)
        full = low.mixed(Distribution.binomial(claimed.holders, rate, 1.0), used).plus(user)
        world = corpus.world(f"{claimed.holders} other holders", low, full)
        yield Threat(target, claimed, [world])
