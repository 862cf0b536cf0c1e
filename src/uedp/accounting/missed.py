"""What a guarantee is worth where the detector missed the entity, and what moves it (Theorem 3)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from uedp.accounting.calibrate import noise_for
from uedp.accounting.proven import Missed, Profile, Rotation, epsilon
from uedp.accounting.vocabulary import MissedInVocabulary, VocabularyRelease

# users in whose text the entity was missed, and in how many sentences of each; None: in all
MISSED_CASES: tuple[tuple[int, int | None], ...] = ((1, 1), (5, 1), (1, None))
SENTENCES_PER_USER = (1, 4, 16, None)  # bounds to compare
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 10: "ten"}


def missed_epsilon(
    profile: Rotation,
    rounds: int,
    delta: float,
    users: int,
    sentences: int | None,
    most: int | None = None,
    sentence_share: float | None = None,
    vocabulary: VocabularyRelease | None = None,
) -> float:
    """Epsilon where an entity was missed in `sentences` of each of so many users; None: in all.

    A round uses `most` sentences of a user. Where nothing bounds them, and all were missed, the
    user's update may turn around: a move of 2.

    Guarantees:
      - saying less (no `most`, no `sentence_share`, all sentences) never gives a smaller epsilon
    """
    if sentence_share is None:
        # a missed sentence counts as one without an entity, unless it mentions another
        sentence_share = max(profile.entity_share, profile.extended_share or 0.0)
    selected = most if sentences is None else min(sentences, most or sentences)
    if selected is None:
        selected, sentence_share = 1, 2.0
    missed = Missed(profile, users, selected, sentence_share)
    beside: tuple[tuple[Profile, int], ...] = ()
    if vocabulary is not None:
        beside = ((MissedInVocabulary(vocabulary, users, sentences), 1),)
    return _epsilon(missed, rounds, delta, *beside)


# a table asks for the same rounds under several bounds, and a run for its table more than once
_epsilon = lru_cache(maxsize=256)(epsilon)


def missed_words(users: int, sentences: int | None) -> str:
    """Where the entity was missed, in plain words."""
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
    user_rate: float
    entity_share: float
    sentences_per_user: int | None
    noise: float
    epsilons: tuple[float, ...]  # by `MISSED_CASES`


def neighbours(
    profile: Rotation, rounds: int, delta: float, most: int | None = None
) -> Iterator[Neighbour]:
    """The plan itself, then others around it: how each setting moves missed mentions' epsilon.

    Where the rate or the share is another, the noise is found anew for the plan's own epsilon.
    """
    target = epsilon(profile, rounds, delta)
    rate, share = profile.user_rate, profile.entity_share
    yield _neighbour("this plan", profile, rounds, delta, most)
    changes = [
        ("half the entity share", replace(profile, entity_share=share / 2)),
        ("half the user rate", replace(profile, user_rate=rate / 2)),
    ]
    if 2 * rate < 1:
        changes.append(("twice the user rate", replace(profile, user_rate=2 * rate)))
    if 0 < target < float("inf"):
        for change, other in changes:
            found = _recalibrated(other, rounds, delta, target)
            yield _neighbour(change, found, rounds, delta, most)
    for bound in SENTENCES_PER_USER:
        if bound != most:
            change = "any number of sentences per user"
            if bound is not None:
                change = f"at most {bound} sentence{'s' if bound > 1 else ''} per user"
            yield _neighbour(change, profile, rounds, delta, bound)


def _recalibrated(profile: Rotation, rounds: int, delta: float, target: float) -> Rotation:
    noise = noise_for(target, delta, rounds, lambda z: replace(profile, noise=z))
    return replace(profile, noise=noise)


def _neighbour(
    change: str, profile: Rotation, rounds: int, delta: float, most: int | None
) -> Neighbour:
    found = tuple(missed_epsilon(profile, rounds, delta, *case, most) for case in MISSED_CASES)
    return Neighbour(change, profile.user_rate, profile.entity_share, most, profile.noise, found)
