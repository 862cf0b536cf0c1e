"""A plan ties sampling, clipping, noise and accounting together, so that they cannot drift apart.

Everything a run does that privacy depends on is read from here; the noise is found from the same
profile the ledger and the certificate are made from.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from uedp.accounting import decisions
from uedp.accounting import statement as statements
from uedp.accounting.calibrate import noise_for
from uedp.accounting.ledger import PlannedRun
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.vocabulary import VocabularyRelease, release_for
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling
from uedp.training.config import PRIVATE, Config
from uedp.training.provenance import Provenance

_TOO_FEW, _FEW = 5, 20  # users a round: refused below the one, doubted below the other
_FAINT = 0.05  # signal to noise over a whole run, from which on little is learned


@dataclass(frozen=True, eq=False)
class Plan:
    """One run, fixed before it begins.

    Guarantees:
      - `profile` describes the rounds that `sampling`, `clips` and `noise` make
      - its epsilon over `rounds` is at most the config's, where the config asks for one
    """

    config: Config
    profile: Profile | None
    epsilon: float
    sampling: Sampling
    clips: Clips
    shape: decisions.Shape
    vocabulary: VocabularyRelease | None = None
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def beside(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What is released beside the rounds."""
        return () if self.vocabulary is None else ((self.vocabulary, 1),)

    @property
    def rounds(self) -> int:
        return self.config.privacy.rounds

    @property
    def noise(self) -> float:
        """In units of the update clip; for UeDP-Alg the paper's `z`."""
        return 0.0 if self.profile is None else self.profile.noise

    @property
    def private(self) -> bool:
        """Whether there is a guarantee to state."""
        return self.profile is not None and self.epsilon < math.inf and self.setup().exposed is None

    @property
    def expected_weight(self) -> float:
        """The expected number of drawn users: what a noisy sum is divided by."""
        return self.sampling.user_rate * self.shape.users

    @property
    def statement(self) -> str:
        """The guarantee in one sentence; lines that say which entities, and caveats, follow."""
        privacy = self.config.privacy
        if self.profile is None:
            return f"{privacy.method}: this run will have no privacy guarantee."
        return statements.statement(
            self.profile, self.epsilon, privacy.delta, self.private, self.setup()
        )

    @property
    def missed_line(self) -> str:
        """What the guarantee comes to where the detector missed the entity, in one sentence."""
        if not self.private:
            return ""
        privacy = self.config.privacy
        return statements.missed_line(
            statements.missed_table(
                self.profile, self.rounds, privacy.delta, self.setup(), self.vocabulary
            )
        )

    def on(self, incidence: Incidence) -> "Plan":
        """The same rounds on another corpus. UeDP-Alg's epsilon depends on it: build it anew."""
        if isinstance(self.profile, UedpAlgProfile):
            raise ValueError("what is proven of uedp-alg depends on the corpus")
        return replace(self, shape=_shape(incidence))

    def seeded(self, seed: int | None) -> "Plan":
        """The same rounds, repeatable; without a seed, fresh."""
        privacy = self.config.privacy.model_copy(update={"seed": seed})
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def signal_to_noise(self, parameters: int) -> float:
        """Length of what all rounds can say at best, over that of their noise.

        At best all users move as far as they may, and the same way in every round.
        """
        if not self.noise:
            return math.inf
        users = self.sampling.user_rate * self.shape.users
        noise = self.noise * (users + 1 if isinstance(self.profile, UedpAlgProfile) else 1)
        return users * math.sqrt(self.rounds) / (noise * math.sqrt(parameters))

    def doubts(self, parameters: int) -> list[str]:
        """What speaks against a run of so many trained parameters, one line each."""
        found = []
        users = self.sampling.user_rate * self.shape.users
        if self.profile is not None and users < _FEW:
            found.append(
                f"a round draws about {users:.2g} users: the noise hides one among them, so with "
                f"fewer than {_FEW} little of what they share is left; raise privacy.user_rate"
            )
        if statements.LARGE_EPSILON < self.epsilon < math.inf:
            found.append(
                f"epsilon {self.epsilon:.3g} says little, being above "
                f"{statements.LARGE_EPSILON}; lower privacy.epsilon, or raise privacy.noise"
            )
        if self.provenance.precision == "bfloat16" and self.profile is not None:
            found.append(
                f"half precision raises the noise by {self.clips.margin:.0%}, for rounding that "
                "depends on who else was drawn; leave out run.precision to compute in float32"
            )
        if (ratio := self.signal_to_noise(parameters)) < _FAINT:
            found.append(
                f"the noise will drown what is learned: at best signal to noise is {ratio:.2g} "
                f"over all rounds, and {_FAINT:g} is little; raise privacy.epsilon or "
                "privacy.user_rate, or train fewer parameters"
            )
        return found

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

    def setup(self) -> decisions.Setup:
        """What is put on record before the first round."""
        privacy, known = self.config.privacy, self.provenance
        stated = decisions.Setup(
            noise_source="cipher" if privacy.seed is None else "fixed seed",
            precision=known.precision,
            rounding_margin=self.clips.margin,
            texts=known.texts,
            entities=known.entities,
            users=known.users,
            vocabulary=known.words or _ORIGINS[self.config.vocabulary.source],
            labels=self._labels(),
            earlier_runs="on other corpora" if known.model else "none known",
            sentences_per_user=privacy.sentences_per_user,
        )
        if privacy.chosen_by:
            stated = stated.model_copy(update={"chosen_by": privacy.chosen_by})
        return stated

    def planned(self, run: str) -> PlannedRun:
        """The first line of the ledger of a run by this plan."""
        return PlannedRun(
            run=run,
            profile=self.profile,
            rounds=self.rounds,
            delta=self.config.privacy.delta,
            shape=self.shape,
            setup=self.setup(),
            vocabulary=self.vocabulary,
            lineage=tuple(asdict(one) for one in self.provenance.lineage),
            without_noise=self.config.privacy.method if self.profile is None else None,
        )

    def _labels(self) -> decisions.Labels:
        if self.config.task.kind != "classification":
            return "none"
        return "declared" if self.config.task.labels else "from the corpus, not covered"


# How far one text can move what others add by how rows are laid out and rounded, in update clips
# per root of the users that others are: about twice the most that `benchmarks/rounding.py` found of
# one pretrained model. Models with random weights move a hundredth of that: do not set it by them.
_MARGIN: Mapping[decisions.Precision, float] = {"float32": 1e-3, "bfloat16": 3e-2}


def rounding_margin(precision: decisions.Precision, users: float) -> float:
    """What the noise is raised by, in units of the update clip, for so many users a round."""
    return _MARGIN[precision] * math.sqrt(max(users, 1.0))


def build(config: Config, incidence: Incidence, provenance: Provenance | None = None) -> Plan:
    """Calibrate, and refuse what cannot work, before anything is loaded or trained."""
    privacy = config.privacy
    private = privacy.method in PRIVATE
    if not incidence.sentences:
        raise UserError(f"{config.data.train}: the corpus has no sentences to train on")
    if private and incidence.users < _TOO_FEW:
        raise UserError(
            f"{config.data.train}: {incidence.users} users are too few to hide among; at least "
            f"{_TOO_FEW} are needed, and hundreds make sense"
        )
    if private and incidence.users * privacy.user_rate < _TOO_FEW:
        raise UserError(
            f"privacy.user_rate {privacy.user_rate:g}: of {incidence.users:,} users a round would "
            f"draw {incidence.users * privacy.user_rate:.2g}, too few to hide among; choose at "
            f"least {math.ceil(1e3 * _TOO_FEW / incidence.users) / 1e3:g}"
        )
    if private and privacy.delta * incidence.users >= 1:
        # with this delta, giving away one user's text whole would count as private
        raise UserError(
            f"privacy.delta {privacy.delta:g}: must be below one over the number of users, "
            f"{1 / incidence.users:.2g}; choose {0.1 / incidence.users:.1g} or less"
        )
    share = privacy.entity_share if privacy.method == "rotation" else 2.0

    def profile(noise: float) -> Profile:
        if privacy.method == "rotation":
            return RotationProfile(
                noise, privacy.user_rate, share, privacy.entity_rate, privacy.extended_rate
            )
        if privacy.method == "user-level":
            return UserLevelProfile(noise, privacy.user_rate)
        return UedpAlgProfile(noise, privacy.user_rate, incidence.users, _other_holders(incidence))

    precision = Provenance().precision if provenance is None else provenance.precision
    margin = rounding_margin(precision, privacy.user_rate * incidence.users)
    words = _vocabulary(config)
    beside: tuple[tuple[PrivacyEvent, int], ...] = () if words is None else ((words, 1),)
    described: Profile | None = None
    spent = math.inf
    if private:
        if privacy.noise is not None:
            noise = privacy.noise
        else:
            assert privacy.epsilon is not None  # the config has one of the two
            noise = noise_for(privacy.epsilon, privacy.delta, privacy.rounds, profile, beside)
        described = profile(noise)
        spent = epsilon(described, privacy.rounds, privacy.delta, *beside)
    return Plan(
        config=config,
        profile=described,
        epsilon=spent,
        sampling=Sampling(
            privacy.user_rate,
            privacy.entity_rate,
            privacy.extended_rate,
            privacy.sentences_per_entity,
            privacy.sentences_per_user,
        ),
        clips=Clips(privacy.update_clip, share, margin if private else 0.0),
        shape=_shape(incidence),
        vocabulary=words,
        provenance=provenance or Provenance(),
    )


def _shape(incidence: Incidence) -> decisions.Shape:
    return decisions.Shape(
        digest=incidence.digest,
        users=incidence.users,
        sentences=incidence.sentences,
        entities=incidence.entities,
    )


_ORIGINS: Mapping[str, decisions.Origin] = {
    "tokenizer": "public",
    "public": "public",
    "private": decisions.PRIVATE_VOCABULARY,
    "corpus": decisions.CORPUS_VOCABULARY,
}


def _vocabulary(config: Config) -> VocabularyRelease | None:
    settings, privacy = config.vocabulary, config.privacy
    if settings.source != "private":
        return None
    assert privacy.epsilon is not None  # the config has seen to it
    return release_for(
        privacy.epsilon,
        privacy.delta,
        settings.share,
        settings.words_per_user,
        settings.words_per_sentence if privacy.method == "rotation" else None,
    )


def _other_holders(incidence: Incidence) -> int:
    """Most users that mention one entity, beside a protected one who may not.

    At least one: a sentence without entities is an entity of its own, and its user holds it.
    """
    return int(incidence.holders.counts.max(initial=1))
