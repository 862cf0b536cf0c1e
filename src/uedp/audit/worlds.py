"""Worlds an adversary would build: who mentions what, and gradients along one line.

The mechanism's noise is the same in all directions and projections do not expand, so an adversary
loses nothing by putting all gradients on one line (`docs/privacy.md`, the Lemma). A gradient is
then a number, in units of the update clip; large ones let the clips do their work. With a world
comes the exact law of a round's sum on either corpus, which the adversary is granted to know.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from uedp.accounting.divergence import MAX_EPSILON, Floats
from uedp.accounting.pld import PrivacyLossDistribution, compose
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import MissedProfile, RotationProfile, UedpAlgProfile, UserLevelProfile
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.estimators import draw_uedp_alg
from uedp.mechanism.lending import Mask
from uedp.mechanism.sampling import Sampling

Kind = Literal["user", "entity", "user and entity", "missed mention"]

PAPER_ENTITY_RATE = 0.5  # a proof for UeDP-Alg does not use it, so its profile has none

LARGE = 1000.0  # in units of the update clip: whatever is not clipped shows


@dataclass(frozen=True)
class Law:
    """A random sum on a line: values and their chances."""

    values: tuple[float, ...]
    chances: tuple[float, ...]

    @classmethod
    def of(cls, *cases: tuple[float, float]) -> "Law":
        """Values with chances; equal values are added up, those of no chance left out."""
        values: dict[float, float] = {}
        chances: dict[float, float] = {}
        for value, chance in cases:
            # what is told apart is rounded, not what is kept: sums of rounded values would differ
            key = round(value, 8)
            values.setdefault(key, round(value, 12))
            chances[key] = chances.get(key, 0.0) + chance
        kept = sorted((values[key], c) for key, c in chances.items() if c > 0)
        return cls(tuple(v for v, _ in kept), tuple(c for _, c in kept))

    @classmethod
    def binomial(cls, count: int, rate: float, value: float) -> "Law":
        """`count` users drawn independently, each of whom adds `value`."""
        chances = stats.binom.pmf(np.arange(count + 1), count, rate)
        # what is this rare changes no likelihood that matters
        return cls.of(*((n * value, float(c)) for n, c in enumerate(chances) if c > 1e-15))

    def plus(self, other: "Law") -> "Law":
        """The sum of two independent ones."""
        pairs = zip(self.values, self.chances, strict=True)
        return Law.of(
            *(
                (v + w, c * d)
                for v, c in pairs
                for w, d in zip(other.values, other.chances, strict=True)
            )
        )

    def mixed(self, other: "Law", chance: float) -> "Law":
        """The other one with this chance, else this one."""
        ours = [(v, c * (1 - chance)) for v, c in zip(self.values, self.chances, strict=True)]
        theirs = [(v, c * chance) for v, c in zip(other.values, other.chances, strict=True)]
        return Law.of(*ours, *theirs)

    def clipped(self) -> "Law":
        """Every value moved to the nearest one within the update clip."""
        pairs = zip(self.values, self.chances, strict=True)
        return Law.of(*((_within(value), chance) for value, chance in pairs))

    def times(self, count: int) -> "Law":
        """The sum of so many independent ones."""
        return reduce(Law.plus, [self] * count, Law.of((0.0, 1.0)))

    def log_density(self, at: Floats, noise: float) -> Floats:
        """Of the sum plus Gaussian noise, relative to the noise alone."""
        terms = (
            math.log(chance) + value * (2 * at - value) / (2 * noise**2)
            for value, chance in zip(self.values, self.chances, strict=True)
        )
        return reduce(np.logaddexp, terms)


@dataclass(frozen=True, eq=False)
class World:
    """A pair of corpora with the same incidence: one gradient per sentence, some of them emptied.

    Guarantees:
      - sentences are emptied as the adjacency has it: all of one user, all that mention one
        entity, or both; where a mention was missed, those too
      - `emptied` and `full` are the laws of the mechanism's sum before noise; `on_incidence` has
        estimates of them
    """

    name: str
    incidence: Incidence
    gradients: Floats
    empties: Mask
    emptied: Law
    full: Law

    def loss(self, at: Floats, noise: float) -> Floats:
        """The log-likelihood ratio of a round's output: the best there is to tell the two."""
        return self.full.log_density(at, noise) - self.emptied.log_density(at, noise)


_POINTS = 100_000  # of the line, where its laws are evaluated


def attainable(world: World, noise: float, rounds: int, delta: float) -> float:
    """The epsilon of a world itself: what attacks on it come to, given runs enough.

    By numerical integration, without the care of a proof: it tells slack in what is proven from
    slack for want of runs.
    """
    ends = [v for law in (world.emptied, world.full) for v in law.values]
    line = np.linspace(min(ends) - 9 * noise, max(ends) + 9 * noise, _POINTS)
    bare = -((line / noise) ** 2) / 2
    logs = [law.log_density(line, noise) for law in (world.full, world.emptied)]
    if not np.any(logs[0] - logs[1]):
        return 0.0
    found = []
    for ours, theirs in (logs, logs[::-1]):
        masses = np.exp(ours + bare)
        masses /= masses.sum()
        losses = np.clip(ours - theirs, -MAX_EPSILON, MAX_EPSILON)
        step = math.sqrt(float(masses @ losses**2)) / 100
        bins = np.round(losses / step).astype(np.int64)
        lowest = int(bins.min())
        binned: Floats = np.bincount(bins - lowest, masses).astype(np.float64)
        part = PrivacyLossDistribution(step, lowest, binned, 0.0)
        found.append(compose([(part, rounds)]).epsilon(delta))
    return max(found)


class _Rest(NamedTuple):
    """What a user adds beside the sentences under attack."""

    sentences: int
    each: float


@dataclass
class _Corpus:
    """A corpus under construction. Entity 0 is the one under attack."""

    users: int = 0
    owners: list[int] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    empties: list[bool] = field(default_factory=list)
    mentions: list[tuple[int, int]] = field(default_factory=list)
    mentions_by_coin: bool = False
    """Whether sentences that only have to be there mention an entity of their own."""

    def user(self) -> int:
        self.users += 1
        return self.users - 1

    def add(self, owner: int, gradient: float, emptied: bool, entities: Sequence[int] = ()) -> None:
        self.mentions.extend((len(self.owners), entity) for entity in entities)
        self.owners.append(owner)
        self.gradients.append(gradient)
        self.empties.append(emptied)

    def add_usual(self, owner: int, gradient: float, emptied: bool) -> None:
        """One that is used as often as any can be."""
        self.add(owner, gradient, emptied, [self.own_entity()] if self.mentions_by_coin else [])

    @staticmethod
    def rest_of(value: float, share: float, most: float) -> "_Rest":
        """Sentences that add up to `value`, none of which the sentence clip touches; at most so
        many, which may not get as far."""
        count = math.ceil(abs(value) / share - 1e-9)
        kept = int(min(count, max(most, 0)))
        return _Rest(
            kept, 0.0 if kept == 0 else math.copysign(min(abs(value) / kept, share), value)
        )

    def add_rest(self, owner: int, rest: "_Rest") -> None:
        for _ in range(rest.sentences):
            self.add_usual(owner, rest.each, emptied=False)

    def own_entity(self) -> int:
        """One that nobody mentioned before."""
        return 1 + max((entity for _, entity in self.mentions), default=0)

    def world(self, name: str, emptied: Law, full: Law) -> World:
        pairs: Ints = np.array(self.mentions, dtype=np.int64).reshape(-1, 2)
        entities = int(pairs[:, 1].max(initial=0)) + 1
        incidence = Incidence.build(
            np.array(self.owners, dtype=np.int64), pairs[:, 0], pairs[:, 1], self.users, entities
        )
        return World(
            name, incidence, np.array(self.gradients), np.array(self.empties), emptied, full
        )


def worlds(profile: PrivacyEvent, kind: Kind, per_user: int | None = None) -> list[World]:
    """The worst worlds known for what a profile claims; which is worst depends on the noise.

    `per_user` is how many sentences of a user a round selects at most.
    """
    if isinstance(profile, UserLevelProfile) and kind == "user":
        return [_rotated(_all_sentences(profile), "user", "user", per_user=per_user)]
    if isinstance(profile, RotationProfile) and kind != "missed mention":
        if kind == "user":
            return [_rotated(profile, kind, "towards", per_user=per_user)]
        names: tuple[Rest, ...] = ("towards", "against", "alone")
        found = [_rotated(profile, kind, name, per_user=per_user) for name in names]
        if profile.extended_rate > profile.entity_rate:  # a sentence without entities shows more
            found += [
                _rotated(profile, kind, name, per_user=per_user, extended=True) for name in names
            ]
        return found
    if isinstance(profile, MissedProfile) and kind == "missed mention":
        ways: tuple[Rest, ...] = ("towards", "against", "half way")
        return [
            _rotated(profile.rotation, kind, name, missed=profile, per_user=per_user)
            for name in ways
        ]
    if isinstance(profile, UedpAlgProfile) and kind != "missed mention":
        return [paper(profile, kind)]
    raise UserError(f"{type(profile).__name__} promises nothing for the pair {kind!r}")


def strongest(among: Sequence[World], noise: float, rounds: int, delta: float) -> World:
    """The one of largest epsilon, to spend all runs on."""
    return max(among, key=lambda world: attainable(world, noise, rounds, delta))


def crowd(profile: RotationProfile, holders: int, per_user: int | None = None) -> World:
    """An entity that many mention, and nothing else: lending must let only one of them use it."""
    return _rotated(profile, "user and entity", "alone", holders=holders, per_user=per_user)


Rest = Literal["towards", "against", "half way", "alone", "user"]


def _rest(name: Rest, reach: float) -> float:
    """What a user adds without the entity, which then moves it by `reach`.

    Theorem 2's worlds: `1 - s` ends at the update clip, and -1 makes the emptied corpus show on
    the other side.
    """
    ends = {"towards": 1 - reach, "against": -1.0, "half way": -reach / 2}
    return ends.get(name, 0.0)


def _rotated(
    profile: RotationProfile,
    kind: Kind,
    name: Rest,
    *,
    missed: MissedProfile | None = None,
    holders: int = 1,
    per_user: int | None = None,
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
    corpus = _Corpus()
    corpus.mentions_by_coin = profile.entity_rate > profile.extended_rate
    often = max(profile.entity_rate, profile.extended_rate)
    most = math.inf if per_user is None else per_user
    nothing = Law.of((0.0, 1.0))
    emptied = full = nothing
    attacked = corpus.user()
    if kind != "entity":
        wanted = math.ceil(2 * math.ceil(1 / share) / often)  # twice what fills the update clip
        selected = int(min(wanted, most))
        for _ in range(wanted if wanted <= most else selected + 1):
            corpus.add_usual(attacked, LARGE, emptied=True)
        own = Law.binomial(selected, often, share).clipped()
        full = nothing.mixed(own, rate)
    if kind != "user":
        coin = profile.extended_rate if extended else profile.entity_rate
        rest = corpus.rest_of(_rest(name, share), share, most - 1)
        times = 1 if extended else int(min(math.ceil(2 / share - 1e-9), most - rest.sentences))
        for holder in (corpus.user() for _ in range(holders)):
            corpus.add_rest(holder, rest)
            for number in range(times):
                beside = [corpus.own_entity()] if coin == 1 and number % 2 else []
                corpus.add(holder, LARGE, emptied=True, entities=[] if extended else [0, *beside])
        without = Law.binomial(rest.sentences, often, rest.each)
        lent = without.plus(nothing.mixed(Law.of((share, 1.0)), coin))
        bare = nothing.mixed(without.clipped(), rate)
        emptied = bare.times(holders)
        full = full.plus(bare.times(holders - 1)).plus(nothing.mixed(lent.clipped(), rate))
    if missed is not None:
        reach = min(2.0, missed.per_user * missed.sentence_share)
        rest = corpus.rest_of(_rest(name, reach), share, most - missed.per_user)
        for holder in (corpus.user() for _ in range(missed.holders)):
            corpus.add_rest(holder, rest)
            for _ in range(missed.per_user):
                corpus.add(holder, LARGE, emptied=True)
        without = Law.binomial(rest.sentences, often, rest.each)
        shown = Law.binomial(missed.per_user, profile.extended_rate, share)
        bare = nothing.mixed(without.clipped(), rate)
        moved = nothing.mixed(without.plus(shown).clipped(), rate)
        emptied = emptied.plus(bare.times(missed.holders))
        full = full.plus(moved.times(missed.holders))
    corpus.user()  # a bystander: drawn like all others, with nothing to give
    title = name if holders == 1 else f"{holders} holders"
    return corpus.world(f"{title}, a sentence" if extended else title, emptied, full)


def _all_sentences(profile: UserLevelProfile) -> RotationProfile:
    """User-level privacy, whose sentence clip is as wide as it may be."""
    return RotationProfile(profile.noise, profile.user_rate, 2.0)


def paper(
    profile: UedpAlgProfile, kind: Kind = "user and entity", entity_rate: float = PAPER_ENTITY_RATE
) -> World:
    """UeDP-Alg's worst: every holder drawn goes from -1 to +1 by the entity under attack.

    The sentence that mentions it mentions six more, so that it is used unless seven coins fail,
    and the rest of a holder's update is a sentence without entities, which always is.
    """
    corpus, rate = _Corpus(), profile.user_rate
    attacked, user = corpus.user(), Law.of((0.0, 1.0))
    if kind != "entity":
        corpus.add(attacked, LARGE, emptied=True)
        user = Law.of((0.0, 1 - rate), (1.0, rate))
    holders = profile.holders if kind != "user" else 0
    for holder in (corpus.user() for _ in range(holders)):
        corpus.add(holder, -1.0, emptied=False)
        corpus.add(holder, LARGE, emptied=True, entities=range(_BESIDE + 1))
    while corpus.users < profile.users:
        corpus.user()
    down, up = (Law.binomial(holders, rate, sign) for sign in (-1.0, 1.0))
    never = (1 - entity_rate) ** (_BESIDE + 1)
    name = f"{holders} other holders"
    return corpus.world(name, down, up.mixed(down, never).plus(user))


_BESIDE = 6  # entities beside the one under attack


# --- UeDP-Alg on the incidence of a corpus -------------------------------------------------------


def most_held(incidence: Incidence) -> int:
    """The entity that most users mention."""
    if not incidence.entities:
        raise UserError("the corpus has no entities: detect some, or audit without a corpus")
    return int(np.argmax(incidence.holders.counts))


def beside(incidence: Incidence, entity: int) -> int:
    """A user to attack together with an entity.

    One who does not mention it, if there is such a one, so that all its holders count; and one
    with a sentence without entities, which is used whenever its user is drawn.
    """
    holds = np.zeros(incidence.users, dtype=np.bool_)
    holds[incidence.holders[entity]] = True
    surely = np.zeros(incidence.users, dtype=np.bool_)
    surely[incidence.sentence_user[incidence.extended]] = True
    return int(np.lexsort((-incidence.user_sentences.counts, ~surely, holds))[0])


def on_incidence(
    incidence: Incidence,
    user_rate: float,
    entity: int,
    kind: Kind = "user and entity",
    entity_rate: float = PAPER_ENTITY_RATE,
) -> World:
    """UeDP-Alg's worst content on who mentions what in a real corpus.

    A sentence of the user under attack, or with the entity under attack, pushes its user's update
    up to the clip, however much else there is; all other sentences of the entity's holders push it
    down to the clip. Nobody else has a gradient.

    Which sentences are used depends on coins that entities share, so the laws of the sum are
    averages over some hundred draws of the mechanism's own coins. They only guide the attack: what
    it proves does not depend on them.
    """
    if kind == "missed mention":
        raise UserError("UeDP-Alg promises nothing for the pair 'missed mention'")
    empties = np.zeros(incidence.sentences, dtype=np.bool_)
    gradients = np.zeros(incidence.sentences)
    holders = 0
    if kind != "user":
        mentioning, owners = incidence.entity_sentences[entity], incidence.sentence_user
        holds = np.zeros(incidence.users, dtype=np.bool_)
        holds[owners[mentioning]] = True
        rest = holds[owners]
        rest[mentioning] = False
        gradients[rest] = -1.0
        times = np.maximum(incidence.sentence_entities.counts, 1)  # a sentence counts so often
        against = np.bincount(owners[rest], times[rest], minlength=incidence.users)
        gradients[mentioning] = LARGE + against[owners[mentioning]]
        empties[mentioning] = True
        holders = int(holds.sum())
    if kind != "entity":
        attacked = beside(incidence, entity)
        own = incidence.user_sentences[attacked]
        gradients[own], empties[own] = LARGE, True
        holders -= int(kind != "user" and attacked in incidence.holders[entity])
    sides = np.where(empties, 0.0, gradients), gradients
    emptied, full = (_averaged(incidence, side, user_rate, entity_rate) for side in sides)
    name = f"{holders} other holders in the corpus"
    return World(name, incidence, gradients, empties, emptied, full)


_COIN_DRAWS = 300


def _averaged(incidence: Incidence, gradients: Floats, user_rate: float, entity_rate: float) -> Law:
    """The law of UeDP-Alg's sum, averaged over draws of the entities' coins.

    Given the coins, everyone's update is known, and users are drawn independently: so each coin
    draw is one round with everyone in it.
    """
    rng, everyone = np.random.default_rng(0), Sampling(1.0, entity_rate)
    seen: Counter[tuple[tuple[float, int], ...]] = Counter()
    for _ in range(_COIN_DRAWS):
        found = draw_uedp_alg(incidence, everyone, rng, np.ones(incidence.entities))
        rows = found.sentences
        moves = np.bincount(
            rows.row_of_value(), gradients[rows.values] * found.weights, minlength=len(rows)
        )
        values, counts = np.unique(np.clip(moves, -1.0, 1.0), return_counts=True)
        seen[tuple(zip(values.tolist(), counts.tolist(), strict=True))] += 1
    cases: list[tuple[float, float]] = []
    for updates, times in seen.items():
        law = Law.of((0.0, 1.0))
        for value, count in updates:
            if value:
                law = law.plus(Law.binomial(count, user_rate, value))
        cases += [
            (v, c * times / _COIN_DRAWS) for v, c in zip(law.values, law.chances, strict=True)
        ]
    return Law.of(*cases)


def _within(value: float) -> float:
    return min(1.0, max(-1.0, value))
