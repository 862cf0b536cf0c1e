"""Profiles: everything the accountant needs to know about a method, and their registry.

A profile describes one round of a method: whom it protects, in words, and the dominating pairs of
`docs/privacy.md`. Ledger, certificate, planning, audit and command line know no method by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, Self, TypeVar

from uedp.accounting.divergence import DominatingPair
from uedp.errors import UserError

MIN_NOISE = 1e-6  # less counts as none: its epsilon is beyond all bounds anyway
MAX_NOISE = 1e7


class PrivacyEvent(Hashable, Protocol):
    """One noisy output that reads the corpus: a round, or the release of a vocabulary."""

    @property
    def noise(self) -> float: ...

    @property
    def user_rate(self) -> float: ...

    def pairs(self) -> Mapping[str, DominatingPair]:
        """A dominating pair for each thing that is protected together with a user."""


@dataclass(frozen=True)
class Profile(ABC):
    """One round of a method, as the accountant sees it. Subclasses are frozen dataclasses.

    `noise` is in units of the update clip, unless the method says otherwise; `user_rate` is the
    probability that a user is drawn. Fields of a subclass are numbers: the ledger keeps them.
    """

    method: ClassVar[str]  # the name in configs, ledgers and certificates
    unit: ClassVar[str]  # who or what is protected, to follow "private for"
    # the same where authors are unknown and texts were put into groups at random
    unit_of_groups: ClassVar[str]
    short_unit: ClassVar[str]  # the same for the total of all runs on a corpus
    protects_entities: ClassVar[bool]

    noise: float
    user_rate: float

    def __post_init__(self) -> None:
        check_noise(self.noise)
        check_rates(user_rate=self.user_rate)

    @abstractmethod
    def pairs(self) -> Mapping[str, DominatingPair]:
        """A dominating pair for each thing that is protected together with a user."""

    @abstractmethod
    def user_alone(self) -> "Profile":
        """The same round, for a user without an entity."""

    def missed(
        self, users: int, sentences: int | None, sentences_per_user: int | None = None
    ) -> PrivacyEvent | None:
        """The round for an entity missed in `sentences` of each of `users`; None: in all of them.

        A round uses at most `sentences_per_user`; None: any number. Gives None where the method
        makes no promise about missed mentions.
        """
        return None

    def with_margin(self, margin: float) -> Self:
        """The same round, where rounding lets a text move what others add by up to `margin`.

        That is in units of the update clip. The noise is raised for it, and shares are lowered
        (`uedp.mechanism.release.Clips`), which is all that most methods need.
        """
        return self

    @property
    def pays_for_rounding(self) -> bool:
        """Whether a run has a larger epsilon than its rounds in exact arithmetic."""
        return self.with_margin(1.0) != self.with_margin(0.0)

    def in_some_sentences(self) -> PrivacyEvent:
        """The round where not all sentences that mention the entity are emptied.

        So it is where detections differ, or a corpus grew: some sentences count as missed mentions.
        """
        return self

    def variants(self) -> Mapping[str, Self]:
        """Profiles that differ in one setting, which is the key: what else could be planned."""
        return {}


_P = TypeVar("_P", bound=type[Profile])
_PROFILES: dict[str, type[Profile]] = {}


def register_profile(profile: _P) -> _P:
    """Class decorator: let ledgers and certificates know this profile by its `method`.

    Guarantees:
      - a name that another class has is refused
    """
    known = _PROFILES.setdefault(profile.method, profile)
    if known is not profile:
        raise ValueError(f"method {profile.method!r}: {known.__qualname__} is registered under it")
    return profile


def profile_type(method: str) -> type[Profile]:
    if method not in _PROFILES:
        raise UserError(
            f"method {method!r}: must be one of {', '.join(sorted(_PROFILES))}; import the module "
            "that registers its profile"
        )
    return _PROFILES[method]


def profile_to_record(profile: Profile) -> dict[str, Any]:
    """A profile as plain values.

    Guarantees:
      - `profile_from_record` gives an equal profile
    """
    if _PROFILES.get(getattr(profile, "method", "")) is not type(profile):
        raise TypeError(f"{type(profile).__name__} is not registered: it cannot be recorded")
    return {"method": profile.method, **asdict(profile)}


def profile_from_record(record: Mapping[str, Any]) -> Profile:
    """Guarantees:
    - a record of an earlier release is read, or refused with a remedy: of a field that there is
      no more, null says nothing, and a value is refused
    """
    values = dict(record)
    profile = profile_type(values.pop("method"))
    for name in values.keys() - {field.name for field in fields(profile)}:
        if values.pop(name) is not None:
            raise ValueError(
                f"{profile.method} has no {name}; use the release of uedp that wrote it"
            )
    return profile(**values)


def check_noise(noise: float, name: str = "noise") -> None:
    if not 0 <= noise <= MAX_NOISE:
        raise UserError(f"{name} {noise}: must lie in 0..{MAX_NOISE:g}")


def check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise UserError(f"{name.replace('_', ' ')} {rate}: must lie in 0..1")
