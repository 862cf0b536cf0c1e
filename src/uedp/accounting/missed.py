"""The epsilon for an entity that the detector missed, and the settings that move it (Theorem 3)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from uedp.accounting.calibrate import noise_for
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import epsilon
from uedp.accounting.vocabulary import VocabularyRelease

# users in whose text the entity was missed, and in how many sentences of each; None: in all
MISSED_CASES: tuple[tuple[int, int | None], ...] = ((1, 1), (5, 1), (1, None))
SENTENCES_PER_USER = (1, 4, 16, None)  # bounds to compare
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 10: "ten"}


def missed_epsilon(
    profile: Profile,
    rounds: int,
    delta: float,
    users: int,
    sentences: int | None,
    per_user: int | None = None,
    vocabulary: VocabularyRelease | None = None,
    beside: tuple[tuple[PrivacyEvent, int], ...] = (),
) -> float:
    """Epsilon where an entity was missed in `sentences` of each of so many users; None: in all.

    A round uses `per_user` sentences of a user; None: any number. `beside` are other releases, as
    they are for such an entity.

    Guarantees:
      - saying less (no `per_user`, all sentences) never gives a smaller epsilon
      - infinite where the method makes no promise about missed mentions
    """
    missed = profile.missed(users, sentences, per_user)
    if missed is None:
        return float("inf")
    words = () if vocabulary is None else ((vocabulary.missed(users, sentences), 1),)
    return _epsilon(missed, rounds, delta, *words, *beside)


# a table asks for the same rounds under several bounds, and a run asks for its table twice
_epsilon = lru_cache(maxsize=256)(epsilon)


def missed_words(users: int, sentences: int | None) -> str:
    """Where the entity was missed, in words."""
    count = _NUMBERS.get(users, f"{users:,}")
    if sentences is None:
        return "all sentences of one user" if users == 1 else f"all sentences of {count} users"
    if users == 1:
        many = _NUMBERS.get(sentences, f"{sentences:,}")
        return "one sentence" if sentences == 1 else f"{many} sentences of one user"
    if sentences == 1:
        return f"{count} sentences of {count} users"
    return f"{sentences:,} sentences of each of {count} users"


@dataclass(frozen=True)
class Neighbour:
    """A plan that differs in one setting, at the same epsilon, and what missed mentions cost it."""

    change: str
    profile: Profile
    epsilons: tuple[float, ...]  # by `MISSED_CASES`


def neighbours(
    profile: Profile, rounds: int, delta: float, per_user: int | None = None
) -> Iterator[Neighbour]:
    """The plan itself, then plans around it: how each setting moves the epsilon of missed mentions.

    The noise of a variant of the profile is calibrated to the plan's own epsilon. There are none
    where the method makes no promise about missed mentions.
    """
    if profile.missed(1, 1) is None:
        return
    target = epsilon(profile, rounds, delta)
    yield _neighbour("this plan", profile, rounds, delta, per_user)
    if 0 < target < float("inf"):
        for change, variant in profile.variants().items():
            noise = noise_for(target, delta, rounds, partial(_with_noise, variant))
            yield _neighbour(change, _with_noise(variant, noise), rounds, delta, per_user)
    for bound in SENTENCES_PER_USER:
        if bound != per_user:
            change = "any number of sentences per user"
            if bound is not None:
                change = f"at most {bound} sentence{'s' if bound > 1 else ''} per user"
            yield _neighbour(change, profile, rounds, delta, bound)


def _with_noise(profile: Profile, noise: float) -> Profile:
    return replace(profile, noise=noise)


def _neighbour(
    change: str, profile: Profile, rounds: int, delta: float, per_user: int | None
) -> Neighbour:
    epsilons = tuple(
        missed_epsilon(profile, rounds, delta, *case, per_user) for case in MISSED_CASES
    )
    return Neighbour(change, profile, epsilons)
