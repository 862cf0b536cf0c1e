"""What there is to audit: each method with the pairs it protects, and the paper's own setting."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uedp.accounting import published
from uedp.accounting.calibrate import noise_for
from uedp.accounting.proven import Alg, Missed, Profile, Rotation, UserLevel
from uedp.audit.mechanism import audit
from uedp.audit.verdict import MechanismAudit
from uedp.audit.worlds import Kind, World, crowd, most_held, on_incidence, worlds
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.draw import Sampling
from uedp.mechanism.estimators import Weights, f_e_plus

METHODS = ("rotation", "user-level", "uedp-alg")

CONLL = published.Setting(946, 50, entity_rate=0.5, sensitive=11_176, sentences=14_040)
CONLL_HOLDERS = 112  # of its most common entity
PAPER_NOISE = 2.0
PAPER_RATE = CONLL.users_per_round / CONLL.users
_PAPER_CLIP = 0.1
_SECONDS = 3e-8  # for a user or sentence and a round
_FEWEST, _MOST = 300, 1_000_000
_CROWD = 10  # holders: enough for a lending that looks at who was drawn to show


@dataclass(frozen=True)
class Setting:
    """How the methods are run. A target `epsilon` is turned into noise for each of them.

    Left out, epsilon is 8 for rotation and user-level privacy, and UeDP-Alg has the noise of the
    paper's experiments, its `z`; likewise the user rate is 0.1, or the paper's.
    """

    rounds: int = 50
    delta: float = 1e-5
    entity_share: float = 0.3
    user_rate: float | None = None
    epsilon: float | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.noise is not None:
            raise UserError("an audit is at --epsilon or at --noise: leave one of them out")
        if self.rounds < 1:
            raise UserError(f"rounds {self.rounds}: must be at least 1")
        if not 0 < self.delta < 1:
            raise UserError(f"delta {self.delta}: must lie between 0 and 1")
        if self.user_rate is not None and not 0 < self.user_rate <= 1:
            raise UserError(f"user rate {self.user_rate}: must lie in 0..1, without 0")
        if not 0 < self.entity_share <= 2:
            raise UserError(f"entity share {self.entity_share}: must lie in 0..2, without 0")

    def calibrated(
        self, profile: Callable[[float], Profile], default: float | None = None
    ) -> Profile:
        """The profile at the noise that was given, or that the target needs."""
        if self.noise is not None:
            return profile(self.noise)
        if self.epsilon is None and default is not None:
            return profile(default)
        target = 8.0 if self.epsilon is None else self.epsilon
        return profile(noise_for(target, self.delta, self.rounds, profile))


@dataclass(frozen=True, eq=False)
class Case:
    """A method, a pair it protects, and the worlds to attack it in."""

    method: str
    pair: Kind
    profile: Profile
    rounds: int
    delta: float
    against: Sequence[World]
    published: float | None = None

    def runs_in(self, seconds: float) -> int:
        """About how many runs one core plays in so many seconds."""
        sizes = sum(w.incidence.users + w.incidence.sentences for w in self.against)
        return int(np.clip(seconds / (_SECONDS * sizes * self.rounds), _FEWEST, _MOST))

    def audit(self, **options: Any) -> MechanismAudit:
        """Attack it; `options` are those of `uedp.audit.mechanism.audit`."""
        found = audit(
            self.profile,
            self.pair,
            self.rounds,
            self.delta,
            published=self.published,
            against=self.against,
            title=f"{self.method}, {self.pair}",
            **options,
        )
        return replace(found, method=self.method)


def cases(
    methods: Sequence[str],
    setting: Setting,
    incidence: Incidence | None = None,
    released_code: bool = False,
) -> list[Case]:
    """All there is to audit of these methods; with an incidence, UeDP-Alg on it."""
    for method in methods:
        if method not in METHODS:
            raise UserError(f"method {method!r}: must be one of {', '.join(METHODS)}")
    if (incidence is not None or released_code) and "uedp-alg" not in methods:
        raise UserError("a corpus and the released code are for uedp-alg: audit that method too")
    found: list[Case] = []
    if "rotation" in methods:
        found += _rotation(setting)
    if "user-level" in methods:
        found += _user_level(setting)
    if "uedp-alg" in methods:
        found += alg_cases(setting, incidence)
        found += alg_cases(setting, incidence, released_code=True) if released_code else ()
    return found


def _user_level(setting: Setting) -> Iterator[Case]:
    rate = 0.1 if setting.user_rate is None else setting.user_rate
    profile = setting.calibrated(lambda z: UserLevel(z, rate))
    yield _case("user-level", "user", profile, setting, worlds(profile, "user"))


def _rotation(setting: Setting) -> Iterator[Case]:
    rate = 0.1 if setting.user_rate is None else setting.user_rate
    share = setting.entity_share
    profile = setting.calibrated(lambda z: Rotation(z, rate, share))
    assert isinstance(profile, Rotation)
    pairs: tuple[Kind, ...] = ("user", "entity", "user and entity")
    for pair in pairs:
        against = worlds(profile, pair)
        if pair == "user and entity":
            against.append(crowd(profile, _CROWD))
        yield _case("rotation", pair, profile, setting, against)
    missed = Missed(profile, holders=1, per_user=1, sentence_share=share)
    against = worlds(missed, "missed mention")
    yield _case("rotation", "missed mention", missed, setting, against)


def _case(
    method: str,
    pair: Kind,
    profile: Profile,
    setting: Setting,
    against: Sequence[World],
    claim: float | None = None,
) -> Case:
    return Case(method, pair, profile, setting.rounds, setting.delta, against, claim)


# --- the paper's mechanism -----------------------------------------------------------------------


def alg_cases(
    setting: Setting,
    incidence: Incidence | None = None,
    *,
    holders: int = CONLL_HOLDERS,
    entity: int | None = None,
    released_code: bool = False,
) -> Iterator[Case]:
    """UeDP-Alg for a user, an entity, and both.

    On an incidence, the entity is the one that most users mention, unless it is named; without one
    the world is as large as the paper's CoNLL, with an entity of so many other holders. What was
    published is what the paper's accountant gives for the rates and counts. `released_code` draws
    the noise as the paper's code does, with its variance for a deviation; of that nothing is
    claimed but what the paper says.
    """
    rate = PAPER_RATE if setting.user_rate is None else setting.user_rate
    if incidence is None:
        users, others, sensitive, sentences = CONLL.users, holders, CONLL.sensitive, CONLL.sentences
        weights = Weights(np.ones(users), np.ones(sensitive), 1.0, sentences - sensitive)
    else:
        entity = most_held(incidence) if entity is None else entity
        users, sentences = incidence.users, incidence.sentences
        sensitive = sentences - int(incidence.extended.sum())
        held_by = incidence.holders[entity]
        others = len(held_by)
        weights = Weights.of(incidence)

    def profile(z: float) -> Alg:
        return Alg(z, rate, users, others)

    whole = setting.calibrated(profile, PAPER_NOISE)
    claimed = published.epsilon(
        rate * CONLL.entity_rate * sensitive / sentences, whole.noise, setting.rounds, setting.delta
    )
    noise, method = whole.noise, "uedp-alg"
    if released_code:
        sampling = Sampling(rate, CONLL.entity_rate)
        estimator = f_e_plus(sampling, weights, _PAPER_CLIP, noise)
        noise *= estimator.released_code_deviation / estimator.deviation
        method += ", released code"
    pairs: tuple[Kind, ...] = ("user", "entity", "user and entity")
    for pair in pairs:
        # what is proven of a user alone is that of an entity nobody else mentions
        attacked = Alg(noise, rate, users, 0 if pair == "user" else others)
        if incidence is None or entity is None:
            against = worlds(attacked, pair)
        else:
            against = [on_incidence(incidence, rate, entity, pair)]
        yield _case(method, pair, attacked, setting, against, claimed)
