"""The numbers of the Budget page: what settings guarantee, and the settings a target needs.

Every number comes from the accountant, by the calls that the command line and training make for the
same settings. An epsilon is an upper bound, and so is the success of an attacker.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from itertools import product

from uedp.accounting.attacker import success_bound
from uedp.accounting.calibrate import entity_level_profile, noise_for
from uedp.accounting.limits import FEWEST_USERS, refuse_few_users, refuse_large_delta
from uedp.accounting.missed import MISSED_CASES, missed_words
from uedp.accounting.pld import max_rounds
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import (
    MAX_ROUNDS,
    FairSharesProfile,
    RotationProfile,
    UserLevelProfile,
    guarantee,
)
from uedp.accounting.statement import epsilon_text
from uedp.errors import UserError

METHODS = (RotationProfile.method, FairSharesProfile.method, UserLevelProfile.method)
_LARGEST_SHARE = 2.0
_MOST_USERS = 1_000_000_000


@dataclass(frozen=True)
class Knobs:
    """What a person sets. With a `target`, the noise is solved for, and `noise` is not read."""

    method: str = RotationProfile.method
    users: int = 1000
    user_rate: float = 0.1
    rounds: int = 200
    entity_share: float = 0.3
    noise: float = 1.5
    delta: float = 1e-5
    target: float | None = None

    @classmethod
    def read(cls, values: Mapping[str, str]) -> "Knobs":
        """Of the fields of a form; one that is missing has its default, an empty target is none."""
        given: dict[str, str | int | float] = {}
        for name in (one.name for one in fields(cls)):
            text = values.get(name)
            if text is None or (name == "target" and not text.strip()):
                continue
            given[name] = text if name == "method" else _number(name, text)
        return cls(**given)  # type: ignore[arg-type]

    def check(self) -> None:
        """Refuse what training would refuse before it reads any text.

        Guarantees:
          - the message is the one that training and the accountant give for these settings
        """
        if self.method not in METHODS:
            raise UserError(f"method {self.method!r}: choose one of {', '.join(METHODS)}")
        if not FEWEST_USERS <= self.users <= _MOST_USERS:
            raise UserError(
                f"{self.users:,} users: at least {FEWEST_USERS} are needed to hide among, and at "
                f"most {_MOST_USERS:,} can be computed with"
            )
        if not 0 < self.user_rate <= 1:
            raise UserError(f"privacy.user_rate {self.user_rate:g}: must be above 0, at most 1")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise UserError(f"privacy.rounds {self.rounds}: must lie in 1..{MAX_ROUNDS:,}")
        if not 0 < self.delta < 1:
            raise UserError(f"privacy.delta {self.delta:g}: must be above 0 and below 1")
        if self.protects_entities and not 0 < self.entity_share <= _LARGEST_SHARE:
            raise UserError(
                f"privacy.entity_share {self.entity_share:g}: must be above 0, at most "
                f"{_LARGEST_SHARE:g}"
            )
        self.profile(self.noise)
        refuse_large_delta(self.delta, self.users)
        refuse_few_users(self.user_rate, self.users)

    @property
    def protects_entities(self) -> bool:
        return self.method != UserLevelProfile.method

    def profile(self, noise: float) -> Profile:
        """What the accountant is asked about; user-level DP is an entity share of 0."""
        share = self.entity_share if self.protects_entities else 0.0
        method = self.method if self.protects_entities else RotationProfile.method
        return entity_level_profile(noise, self.user_rate, share, method=method)


def _number(name: str, text: str) -> int | float:
    whole = name in ("users", "rounds")
    try:
        value = float(text)
        if math.isfinite(value) and not (whole and value != int(value)):
            return int(value) if whole else value
    except ValueError:
        pass
    label = name.replace("_", " ")
    raise UserError(f"{label} {text[:40]!r}: must be a {'whole ' if whole else ''}number")


# --- whom an epsilon is for ----------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """Whom or what an epsilon is for."""

    name: str
    words: str
    short: str  # in a legend
    event: Callable[[Profile], PrivacyEvent | None]


def _with_entity(profile: Profile) -> PrivacyEvent | None:
    return profile if profile.protects_entities else None


def _missed(profile: Profile, users: int, sentences: int | None) -> PrivacyEvent | None:
    return profile.missed(users, sentences)


USER = Unit("user", "one user", "user", lambda profile: profile.user_alone())
ENTITY = Unit("entity", "one user together with one entity", "user and entity", _with_entity)
MISSED = tuple(
    Unit(
        f"missed-{place}",
        f"an entity missed in {missed_words(users, sentences)}",
        f"missed in {missed_words(users, sentences)}",
        partial(_missed, users=users, sentences=sentences),
    )
    for place, (users, sentences) in enumerate(MISSED_CASES)
)
# a mention missed in texts of many users takes ten times as long as others
SLOWEST = max(MISSED, key=lambda unit: MISSED_CASES[MISSED.index(unit)][0])
UNITS = (USER, ENTITY, *MISSED)


@dataclass(frozen=True)
class EpsilonBound:
    """What is proven for one unit: never below the truth.

    `success` bounds how often an attacker is right who guesses between two equally likely worlds,
    with these texts and without them. It follows from the whole privacy curve, of which epsilon is
    one point, and is therefore below what epsilon alone says.
    """

    epsilon: float
    delta: float
    success: float

    @property
    def text(self) -> str:
        return epsilon_text(self.epsilon)

    @property
    def success_by_epsilon(self) -> float:
        """What epsilon and delta alone say of the attacker."""
        return success_bound(self.epsilon, self.delta)


def percent(share: float) -> str:
    """A bound as a percentage, never rounded down; close to 100% with more digits."""
    for digits in range(1, _MOST_DIGITS):
        shown = math.ceil(100 * share * 10**digits) / 10**digits
        if shown < 100:
            break
    return f"{min(shown, 100):.{digits}f}".rstrip("0").rstrip(".") + "%"


_MOST_DIGITS = 8


@lru_cache(maxsize=4096)
def bound(event: PrivacyEvent, rounds: int, delta: float) -> EpsilonBound:
    """The accountant's answer; moving a knob asks for most points of a curve again."""
    composed = guarantee([(event, rounds)])
    epsilon = composed.epsilon(delta)
    success = min(success_bound(epsilon, delta), (1 + composed.delta(0.0)) / 2)
    return EpsilonBound(epsilon, delta, success)


class StoppedError(Exception):
    """Nobody waits for the answer any more."""


Waiting = Callable[[], bool]
"""Whether somebody still waits."""


def solved_noise(knobs: Knobs, waiting: Waiting = lambda: True) -> float:
    """The least noise that meets the target; without one, the noise that was set."""
    if knobs.target is None:
        return knobs.noise
    # by the fields that it depends on: others may change meanwhile
    share = knobs.entity_share if knobs.protects_entities else 0.0
    question = replace(knobs, users=0, noise=0.0, entity_share=share)
    if (known := _SOLVED.get(question)) is not None:
        return known

    def profile(noise: float) -> Profile:
        if not waiting():
            raise StoppedError
        return knobs.profile(noise)

    solved = noise_for(knobs.target, knobs.delta, knobs.rounds, profile)
    if len(_SOLVED) >= _MOST_SOLVED:
        _SOLVED.clear()
    _SOLVED[question] = solved
    return solved


_SOLVED: dict[Knobs, float] = {}
_MOST_SOLVED = 1024


# --- curves --------------------------------------------------------------------------------------


@dataclass
class Curves:
    """Epsilon against one setting, point by point: the points that were computed so far."""

    x: tuple[float, ...]
    units: tuple[Unit, ...]
    total: int
    points: dict[tuple[str, float], float] = field(default_factory=dict)

    def of(self, unit: Unit) -> tuple[list[float], list[float]]:
        """Where it was computed, in order, and the epsilons there."""
        known = [x for x in self.x if (unit.name, x) in self.points]
        return known, [self.points[unit.name, x] for x in known]


def noise_grid(noise: float) -> tuple[float, ...]:
    """Noises around one. They lie on one grid for all, so that most are known when it moves."""
    nearest = round(_PER_DECADE * math.log10(max(noise, _LEAST_NOISE)))
    places = range(nearest - _AROUND, nearest + _AROUND + 1)
    return tuple(float(f"{10 ** (place / _PER_DECADE):.4g}") for place in places)


def rounds_grid(rounds: int) -> tuple[int, ...]:
    """Numbers of rounds around one, on one grid for all; more below it, where runs are stopped."""
    nearest = round(_PER_DECADE / 2 * math.log10(rounds))
    places = range(max(0, nearest - _AROUND - 2), nearest + _AROUND // 2 + 1)
    grid = (round(10 ** (2 * place / _PER_DECADE)) for place in places)
    return tuple(sorted({count for count in grid if count <= MAX_ROUNDS}))


_PER_DECADE, _AROUND = 12, 6
_LEAST_NOISE = 0.3  # below it there is little to see: epsilon is beyond all use


def noise_curves(knobs: Knobs, noise: float) -> tuple[Curves, Iterator[None]]:
    """Epsilon against noise, and the work: each step computes one point."""
    units, grid = _units(knobs, noise), noise_grid(noise)
    order = _coarse_then_fine(units, grid)
    curves = Curves(grid, units, len(order))

    def work() -> Iterator[None]:
        for unit, x in order:
            curves.points[unit.name, x] = _epsilon(unit, knobs, x, knobs.rounds)
            yield

    return curves, work()


def rounds_curves(knobs: Knobs, noise: float) -> tuple[Curves, Iterator[None]]:
    """Epsilon against rounds, and the work: each step computes one point."""
    grid = tuple(n for n in rounds_grid(knobs.rounds) if n <= max_rounds(knobs.delta))
    units = _units(knobs, noise)
    curves = Curves(grid, units, len(grid) * len(units))

    def work() -> Iterator[None]:
        for unit, x in product(units, grid):
            curves.points[unit.name, x] = _epsilon(unit, knobs, noise, x)
            yield

    return curves, work()


def _epsilon(unit: Unit, knobs: Knobs, noise: float, rounds: int) -> float:
    event = unit.event(knobs.profile(noise))
    assert event is not None  # units without one are left out
    return bound(event, rounds, knobs.delta).epsilon


def _units(knobs: Knobs, noise: float) -> tuple[Unit, ...]:
    profile = knobs.profile(noise)
    return tuple(unit for unit in UNITS if unit.event(profile) is not None)


def _coarse_then_fine(units: tuple[Unit, ...], grid: tuple[float, ...]) -> list[tuple[Unit, float]]:
    """Every other point first; of missed mentions no more, and the slowest of them last."""
    coarse, fine = grid[::2], grid[1::2]
    known = [unit for unit in units if unit not in MISSED]
    missed = [unit for unit in units if unit in MISSED and unit is not SLOWEST]
    slow = [unit for unit in units if unit is SLOWEST]
    return [*product((*known, *missed), coarse), *product(known, fine), *product(slow, coarse)]
