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
from typing import Literal

import numpy as np
from scipy import stats

from uedp.accounting.divergence import LARGEST, Floats
from uedp.accounting.losses import Losses, compose
from uedp.accounting.proven import Alg, Missed, Profile, Rotation, UserLevel
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.draw import Mask, Sampling, draw_alg

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
        chances: dict[float, float] = {}
        for value, chance in cases:
            value = round(value, 9)
            chances[value] = chances.get(value, 0.0) + chance
        kept = sorted((v, c) for v, c in chances.items() if c > 0)
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
        losses = np.clip(ours - theirs, -LARGEST, LARGEST)
        step = math.sqrt(float(masses @ losses**2)) / 100
        bins = np.round(losses / step).astype(np.int64)
        lowest = int(bins.min())
        binned: Floats = np.bincount(bins - lowest, masses).astype(np.float64)
        part = Losses(step, lowest, binned, 0.0)
        found.append(compose([(part, rounds)]).epsilon(delta))
    return max(found)


@dataclass
class _Corpus:
    """A corpus under construction. Entity 0 is the one under attack."""

    users: int = 0
    owners: list[int] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    empties: list[bool] = field(default_factory=list)
    mentions: list[tuple[int, int]] = field(default_factory=list)

    def user(self) -> int:
        self.users += 1
        return self.users - 1

    def add(self, owner: int, gradient: float, emptied: bool, entities: Sequence[int] = ()) -> None:
        self.mentions.extend((len(self.owners), entity) for entity in entities)
        self.owners.append(owner)
        self.gradients.append(gradient)
        self.empties.append(emptied)

    def rest(self, owner: int, value: float, share: float) -> None:
        """Sentences that add up to `value`, none of which the sentence clip touches."""
        count = math.ceil(abs(value) / share - 1e-9)
        for _ in range(count):
            self.add(owner, value / count, emptied=False)

    def world(self, name: str, emptied: Law, full: Law) -> World:
        pairs: Ints = np.array(self.mentions, dtype=np.int64).reshape(-1, 2)
        entities = int(pairs[:, 1].max(initial=0)) + 1
        incidence = Incidence.build(
            np.array(self.owners, dtype=np.int64), pairs[:, 0], pairs[:, 1], self.users, entities
        )
        return World(
            name, incidence, np.array(self.gradients), np.array(self.empties), emptied, full
        )


def worlds(profile: Profile, kind: Kind) -> list[World]:
    """The worst worlds known for what a profile claims; which is worst depends on the noise."""
    if isinstance(profile, UserLevel) and kind == "user":
        return [_rotated(_all_sentences(profile), "user", "user")]
    if isinstance(profile, Rotation) and kind != "missed mention":
        names: tuple[Rest, ...] = ("towards", "against", "alone")
        return [_rotated(profile, kind, name) for name in (names if kind != "user" else names[:1])]
    if isinstance(profile, Missed) and kind == "missed mention":
        ways: tuple[Rest, ...] = ("towards", "against", "half way")
        return [_rotated(profile.rotation, kind, name, missed=profile) for name in ways]
    if isinstance(profile, Alg) and kind != "missed mention":
        return [paper(profile, kind)]
    raise UserError(f"{type(profile).__name__} promises nothing for the pair {kind!r}")


def strongest(among: Sequence[World], noise: float, rounds: int, delta: float) -> World:
    """The one of largest epsilon, to spend all runs on."""
    return max(among, key=lambda world: attainable(world, noise, rounds, delta))


def crowd(profile: Rotation, holders: int) -> World:
    """An entity that many mention, and nothing else: lending must let only one of them use it."""
    return _rotated(profile, "user and entity", "alone", holders=holders)


Rest = Literal["towards", "against", "half way", "alone", "user"]


def _rest(name: Rest, reach: float) -> float:
    """What a user adds without the entity, which then moves it by `reach`.

    Theorem 2's worlds: `1 - s` ends at the update clip, and -1 makes the emptied corpus show on
    the other side.
    """
    ends = {"towards": 1 - reach, "against": -1.0, "half way": -reach / 2}
    return ends.get(name, 0.0)


def _rotated(
    profile: Rotation, kind: Kind, name: Rest, *, missed: Missed | None = None, holders: int = 1
) -> World:
    """`u'` adds 1 if drawn; a holder its rest, and the entity's sentence on top if lent to it."""
    if profile.extended_rate != 1:
        raise UserError(
            f"extended rate {profile.extended_rate}: the worlds need sentences that are always "
            "used; audit at an extended rate of 1"
        )
    corpus, share, rate = _Corpus(), profile.entity_share, profile.user_rate
    others = (profile.extended_share, missed and missed.sentence_share)
    if any(other is not None and other != share for other in others):
        raise UserError("an audit is of one sentence clip: all shares must be the entity share")
    emptied = full = Law.of((0.0, 1.0))
    attacked = corpus.user()
    if kind != "entity":
        for _ in range(2 * math.ceil(1 / share)):  # twice what fills the update clip
            corpus.add(attacked, LARGE, emptied=True)
        full = Law.of((0.0, 1 - rate), (1.0, rate))
    if kind != "user":
        rest = _rest(name, share)
        for holder in (corpus.user() for _ in range(holders)):
            corpus.rest(holder, rest, share)
            corpus.add(holder, LARGE, emptied=True, entities=[0])
        used, moved = rate * profile.entity_rate, _within(rest + share)
        lent = Law.of((0.0, 1 - rate), (rest, rate - used), (moved, used))
        emptied = Law.binomial(holders, rate, rest)
        full = full.plus(Law.binomial(holders - 1, rate, rest)).plus(lent)
    if missed is not None:
        reach = min(2.0, missed.per_user * missed.sentence_share)
        rest = _rest(name, reach)
        for holder in (corpus.user() for _ in range(missed.holders)):
            corpus.rest(holder, rest, share)
            for _ in range(missed.per_user):
                corpus.add(holder, LARGE, emptied=True)
        emptied = emptied.plus(Law.binomial(missed.holders, rate, rest))
        full = full.plus(Law.binomial(missed.holders, rate, _within(rest + reach)))
    corpus.user()  # a bystander: drawn like all others, with nothing to give
    title = name if holders == 1 else f"{holders} holders"
    return corpus.world(title, emptied, full)


def _all_sentences(profile: UserLevel) -> Rotation:
    """User-level privacy, whose sentence clip is as wide as it may be."""
    return Rotation(profile.noise, profile.user_rate, 2.0)


def paper(profile: Alg, kind: Kind = "user and entity") -> World:
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
    never = (1 - PAPER_ENTITY_RATE) ** (_BESIDE + 1)
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
    incidence: Incidence, user_rate: float, entity: int, kind: Kind = "user and entity"
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
    emptied, full = (_averaged(incidence, side, user_rate) for side in sides)
    name = f"{holders} other holders in the corpus"
    return World(name, incidence, gradients, empties, emptied, full)


_COIN_DRAWS = 300


def _averaged(incidence: Incidence, gradients: Floats, user_rate: float) -> Law:
    """The law of UeDP-Alg's sum, averaged over draws of the entities' coins.

    Given the coins, everyone's update is known, and users are drawn independently: so each coin
    draw is one round with everyone in it.
    """
    rng, everyone = np.random.default_rng(0), Sampling(1.0, PAPER_ENTITY_RATE)
    seen: Counter[tuple[tuple[float, int], ...]] = Counter()
    for _ in range(_COIN_DRAWS):
        found = draw_alg(incidence, everyone, rng, np.ones(incidence.entities))
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
