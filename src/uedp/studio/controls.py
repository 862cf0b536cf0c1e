"""The knobs of the Budget page: their names, ranges, and what each does, in plain words."""

from dataclasses import dataclass

from uedp.accounting.proven import FairSharesProfile, RotationProfile, UserLevelProfile
from uedp.accounting.statement import EXACT_ARITHMETIC


@dataclass(frozen=True)
class Control:
    """A slider with a number beside it. The number may be outside of the slider's range."""

    name: str
    label: str
    low: float
    high: float
    words: str
    log: bool = True
    whole: bool = False


CONTROLS = (
    Control(
        "users",
        "Users",
        100,
        1_000_000,
        "How many people wrote the text. Epsilon does not depend on it. More users can share the "
        "same noise, so more is learned.",
        whole=True,
    ),
    Control(
        "user_rate",
        "User sampling rate",
        0.001,
        1,
        "The probability that a user is drawn in a round. Nobody can be sure to be in a round, and "
        "a smaller rate hides each user better. But then fewer users share the noise.",
    ),
    Control(
        "rounds",
        "Rounds",
        1,
        10_000,
        "How many noisy updates the model gets. Each reveals a little, so epsilon grows with them, "
        "slower than their number.",
        whole=True,
    ),
    Control(
        "entity_share",
        "Entity share",
        0.01,
        1,
        "How far one entity, such as a name or a phone number, may move the model in a round, "
        "compared with one user. A smaller share protects entities better, and limits what a "
        "missed mention costs. It also shortens what is learned from each sentence.",
    ),
    Control(
        "noise",
        "Noise multiplier",
        0.2,
        20,
        "The random noise in every update, compared with the most that one user can move it. "
        "More noise protects better and teaches less.",
    ),
    Control(
        "delta",
        "Delta",
        1e-10,
        1e-3,
        "A small probability that epsilon leaves out. It must be far below one over the number of "
        "users; otherwise publishing one person's text would count as private.",
    ),
    Control(
        "target",
        "Epsilon to hold",
        0.1,
        20,
        "The accountant solves for the least noise that keeps epsilon at or below this, for all "
        "that the method protects.",
    ),
)

METHOD_WORDS = {
    RotationProfile.method: (
        "Rotation",
        "Protects users together with entities. Each entity is lent to one of its users at a time; "
        "other sentences that name it wait.",
    ),
    FairSharesProfile.method: (
        "Fair shares",
        "Protects users together with entities. All sentences that name an entity share what it "
        "may move; none waits. " + EXACT_ARITHMETIC,
    ),
    UserLevelProfile.method: (
        "User-level",
        "Protects users only. A name that several users mention is not protected.",
    ),
}
