"""What there is to audit: each method with the pairs it protects, and the paper's own setting."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uedp.accounting import published
from uedp.accounting.calibrate import noise_for
from uedp.accounting.profile import PrivacyEvent
from uedp.accounting.proven import MissedProfile, RotationProfile, UedpAlgProfile, UserLevelProfile
from uedp.audit.mechanism import Mechanism, audit
from uedp.audit.verdict import MechanismAudit
from uedp.audit.worlds import (
    PAPER_ENTITY_RATE,
    Kind,
    World,
    crowd,
    most_held,
    on_incidence,
    paper,
    worlds,
)
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, f_e_plus
from uedp.mechanism.sampling import Sampling
from uedp.training.config import load_config, parse_config
from uedp.training.plan import Plan, build_plan
from uedp.training.run_dir import CONFIG

METHODS = ("rotation", "user-level", "uedp-alg")

CONLL = published.PublishedSetting(
    946, 50, entity_rate=PAPER_ENTITY_RATE, sensitive=11_176, sentences=14_040
)
CONLL_HOLDERS = 112  # of its most common entity
PAPER_NOISE = 2.0
PAPER_RATE = CONLL.users_per_round / CONLL.users
_PAPER_CLIP = 0.1
_SECONDS = 3e-8  # for a user, sentence or mention and a round
_FEWEST, _MOST = 300, 1_000_000
_CROWD = 10  # holders: enough for a lending that looks at who was drawn to show


@dataclass(frozen=True)
class Setting:
    """How the methods are run. A target `epsilon` is turned into noise for each of them.

    Left out, epsilon is 8 for rotation and user-level privacy, and UeDP-Alg has the noise of the
    paper's experiments, its `z`; likewise the user rate is 0.1, or the paper's. All else is as in
    a config that does not say.
    """

    rounds: int = 50
    delta: float = 1e-5
    entity_share: float = 0.3
    user_rate: float | None = None
    epsilon: float | None = None
    noise: float | None = None
    entity_rate: float = PAPER_ENTITY_RATE
    """Of UeDP-Alg, whose proof does not use it."""

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

    def plan(self, method: str) -> Plan:
        """What training would make of this setting."""
        noise = self.noise
        if method == "uedp-alg" and noise is None:
            noise = PAPER_NOISE
        default = PAPER_RATE if method == "uedp-alg" else 0.1
        rate = default if self.user_rate is None else self.user_rate
        target = None if noise is not None else 8.0 if self.epsilon is None else self.epsilon
        privacy = {
            "method": method,
            "rounds": self.rounds,
            "delta": self.delta,
            "entity_share": self.entity_share,
            "user_rate": rate,
            "noise": noise,
            "epsilon": target,
        }
        if method == "uedp-alg":
            privacy["entity_rate"] = self.entity_rate
        config = parse_config({"privacy": privacy, "data": {"train": "-"}, "model": {"name": "-"}})
        return build_plan(config, _crowd_of(int(np.ceil(_FEWEST_DRAWN / rate))))


_FEWEST_DRAWN = 6  # users in a round: fewer is not planned


def _crowd_of(users: int) -> Incidence:
    """A corpus that stands in for one: worlds have their own."""
    nothing = np.zeros(0, dtype=np.int64)
    return Incidence.build(np.arange(users), nothing, nothing, users, 0)


def read_plan(path: Path, changes: Sequence[str] = ()) -> tuple[Plan, Incidence]:
    """The plan of a config file, or of the folder of a run, and what it is to be run on."""
    config = load_config(path / CONFIG if path.is_dir() else path, changes)
    if config.privacy.method not in METHODS:
        raise UserError(
            f"{path}: privacy.method {config.privacy.method} has no guarantee to audit; choose one "
            f"of {', '.join(METHODS)}"
        )
    incidence = Incidence.of(Corpus(config.data.train).folder)
    return build_plan(config, incidence), incidence


@dataclass(frozen=True, eq=False)
class Case:
    """A method, a pair it protects, and the worlds to attack it in."""

    method: str
    pair: Kind
    mechanism: Mechanism
    profile: PrivacyEvent
    rounds: int
    delta: float
    against: Sequence[World]
    published: float | None = None

    @property
    def measurable(self) -> bool:
        """Whether `uedp.audit.sensitivity` can measure its rounds."""
        return not isinstance(self.profile, UedpAlgProfile)

    def runs_in(self, seconds: float) -> int:
        """About how many runs one core plays in so many seconds."""
        sizes = sum(
            one.users + one.sentences + len(one.sentence_entities.values)
            for one in (world.incidence for world in self.against)
        )
        return int(np.clip(seconds / (_SECONDS * sizes * self.rounds), _FEWEST, _MOST))

    def audit(self, **options: Any) -> MechanismAudit:
        """Attack it; `options` are those of `uedp.audit.mechanism.audit`."""
        found = audit(
            self.mechanism,
            self.profile,
            self.pair,
            self.rounds,
            self.delta,
            self.against,
            published=self.published,
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
    for method in ("rotation", "user-level"):
        if method in methods:
            found += plan_cases(setting.plan(method))
    if "uedp-alg" in methods:
        found += alg_cases(setting, incidence)
        found += alg_cases(setting, incidence, released_code=True) if released_code else ()
    return found


def plan_cases(plan: Plan, incidence: Incidence | None = None) -> Iterator[Case]:
    """The pairs that a run protects; UeDP-Alg's on the incidence it is planned for."""
    privacy = plan.config.privacy
    if isinstance(plan.profile, UedpAlgProfile):
        setting = Setting(
            privacy.rounds,
            privacy.delta,
            user_rate=privacy.user_rate,
            noise=privacy.noise,
            entity_rate=privacy.entity_rate,
        )
        yield from alg_cases(setting, incidence)
        return
    profile, per_user = plan.profile, plan.sampling.per_user
    mechanism = Mechanism.of(plan)

    def case(pair: Kind, claimed: PrivacyEvent, against: Sequence[World]) -> Case:
        rounds, delta = privacy.rounds, privacy.delta
        return Case(privacy.method, pair, mechanism, claimed, rounds, delta, against)

    if isinstance(profile, UserLevelProfile):
        yield case("user", profile, worlds(profile, "user", per_user))
        return
    assert isinstance(profile, RotationProfile)
    pairs: tuple[Kind, ...] = ("user", "entity", "user and entity")
    for pair in pairs:
        against = worlds(profile, pair, per_user)
        if pair == "user and entity":
            against.append(crowd(profile, _CROWD, per_user))
        yield case(pair, profile, against)
    missed = MissedProfile(profile, holders=1, per_user=1, sentence_share=profile.entity_share)
    yield case("missed mention", missed, worlds(missed, "missed mention", per_user))


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

    plan = setting.plan("uedp-alg")

    def profile(z: float) -> UedpAlgProfile:
        return UedpAlgProfile(z, rate, users, others)

    noise = plan.noise
    if setting.epsilon is not None:
        noise = noise_for(setting.epsilon, setting.delta, setting.rounds, profile)
    claimed = published.epsilon(
        rate * setting.entity_rate * sensitive / sentences, noise, setting.rounds, setting.delta
    )
    method = "uedp-alg"
    if released_code:
        sampling = Sampling(rate, setting.entity_rate)
        estimator = f_e_plus(sampling, weights, _PAPER_CLIP, noise)
        noise *= estimator.released_code_deviation / estimator.deviation
        method += ", released code"
    pairs: tuple[Kind, ...] = ("user", "entity", "user and entity")
    for pair in pairs:
        # what is proven of a user alone is that of an entity nobody else mentions
        attacked = UedpAlgProfile(noise, rate, users, 0 if pair == "user" else others)
        if incidence is None or entity is None:
            against = [paper(attacked, pair, setting.entity_rate)]
        else:
            against = [on_incidence(incidence, rate, entity, pair, setting.entity_rate)]
        mechanism = Mechanism.of_alg(plan, attacked)
        yield Case(
            method, pair, mechanism, attacked, setting.rounds, setting.delta, against, claimed
        )
