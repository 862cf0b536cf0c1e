"""A plan ties sampling, clipping, noise and accounting together, so that they cannot drift apart.

Everything a run does that privacy depends on is read from here; the noise is found from the same
profile the ledger and the certificate are made from.
"""

from dataclasses import dataclass

import numpy as np

from uedp.accounting import certificate as certificates
from uedp.accounting.calibrate import noise_for
from uedp.accounting.proven import Alg, Profile, Rotation, UserLevel, epsilon
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.draw import Floats, Sampling
from uedp.mechanism.release import Clips
from uedp.training.config import Config

_FEW = 5  # users a round; with fewer, noise drowns everything


@dataclass(frozen=True)
class Plan:
    """One run, fixed before it begins.

    Guarantees:
      - `profile` describes the rounds that `sampling`, `clips` and `noise` make
      - its epsilon over `rounds` is at most the config's, where the config asks for one
    """

    config: Config
    profile: Profile | None
    epsilon: float
    noise: float
    sampling: Sampling
    clips: Clips
    weights: Floats
    shape: certificates.Shape

    @property
    def rounds(self) -> int:
        return self.config.privacy.rounds

    @property
    def expected_weight(self) -> float:
        """The expected sum of the drawn users' weights: what a noisy sum is divided by."""
        return self.sampling.user_rate * float(self.weights.sum())

    @property
    def statement(self) -> str:
        """The guarantee in one sentence."""
        privacy = self.config.privacy
        if self.profile is None:
            return f"{privacy.method}: this run will have no privacy guarantee."
        private = self.epsilon < float("inf") and privacy.seed is None
        return certificates.statement(privacy.method, self.epsilon, privacy.delta, private)

    def describe(self) -> dict[str, float | str | None]:
        privacy = self.config.privacy
        return {
            "method": privacy.method,
            "epsilon": None if self.profile is None else self.epsilon,
            "delta": privacy.delta,
            "noise": self.noise,
            "rounds": self.rounds,
            "user rate": privacy.user_rate,
            "users per round": privacy.user_rate * self.shape.users,
            "entity share": self.clips.share,
            "update clip": self.clips.update,
        }

    def setup(self) -> certificates.Setup:
        """What the certificate has to be told."""
        privacy = self.config.privacy
        stated = certificates.Setup(
            noise_source="fixed seed" if privacy.seed is not None else privacy.noise_source,
            sentences_per_user=privacy.sentences_per_user,
        )
        if privacy.chosen_by:
            stated = stated.model_copy(update={"chosen_by": privacy.chosen_by})
        return stated


def build(config: Config, incidence: Incidence) -> Plan:
    """Calibrate, and refuse what cannot work, before anything is loaded or trained."""
    privacy = config.privacy
    if incidence.users * privacy.user_rate < _FEW and privacy.method != "noiseless":
        needed = min(1.0, _FEW / max(incidence.users, 1))
        raise UserError(
            f"privacy.user_rate {privacy.user_rate:g}: of {incidence.users:,} users a round would "
            f"draw {incidence.users * privacy.user_rate:.2g}, too few to hide among; choose at "
            f"least {needed:.2g}"
        )
    share = privacy.entity_share if privacy.method == "rotation" else 2.0

    def profile(noise: float) -> Profile:
        if privacy.method == "rotation":
            return Rotation(
                noise, privacy.user_rate, share, privacy.entity_rate, None, privacy.extended_rate
            )
        if privacy.method == "user-level":
            return UserLevel(noise, privacy.user_rate)
        return Alg(noise, privacy.user_rate, incidence.users, _other_holders(incidence))

    described: Profile | None = None
    noise, spent = 0.0, float("inf")
    if privacy.method in ("rotation", "user-level", "uedp-alg"):
        if privacy.noise is not None:
            noise = privacy.noise
        else:
            assert privacy.epsilon is not None  # the config has one of the two
            noise = noise_for(privacy.epsilon, privacy.delta, privacy.rounds, profile)
        described = profile(noise)
        spent = epsilon(described, privacy.rounds, privacy.delta)
    return Plan(
        config=config,
        profile=described,
        epsilon=spent,
        noise=noise,
        sampling=Sampling(
            privacy.user_rate,
            privacy.entity_rate,
            privacy.extended_rate,
            privacy.sentences_per_entity,
            privacy.sentences_per_user,
        ),
        clips=Clips(privacy.update_clip, share),
        weights=np.ones(incidence.users),
        shape=certificates.Shape(
            digest=incidence.digest,
            users=incidence.users,
            sentences=incidence.sentences,
            entities=incidence.entities,
        ),
    )


def _other_holders(incidence: Incidence) -> int:
    """Most users, beside a protected one who may not hold it, that mention one entity."""
    return min(int(incidence.holders.counts.max(initial=0)), incidence.users - 1)
