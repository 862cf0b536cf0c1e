"""A plan ties sampling, clipping, noise and accounting together, so that they cannot drift apart.

Everything in a run that privacy depends on is read from here. The noise multiplier is calibrated
with the same profile from which the ledger and the certificate are made.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from uedp.accounting import decisions
from uedp.accounting import statement as statements
from uedp.accounting.calibrate import noise_for
from uedp.accounting.ledger import PlannedRun
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import epsilon
from uedp.accounting.vocabulary import VocabularyRelease, release_for
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling
from uedp.methods import Method, RoundSettings, method_named
from uedp.training.config import Config
from uedp.training.provenance import Provenance

_TOO_FEW, _FEW = 5, 20  # users per round: refused below the one, warned of below the other
_FAINT = 0.05  # signal-to-noise ratio of a whole run below which little is learned


@dataclass(frozen=True, eq=False)
class Plan:
    """One run, fixed before it begins.

    Guarantees:
      - `profile` describes the rounds made with `sampling`, `clips` and `noise`
      - its epsilon over `rounds` is at most the target of the config, where there is one
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
    def method(self) -> type[Method]:
        return method_named(self.config.privacy.method)

    @property
    def vocabulary_events(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What is released in addition to the rounds."""
        return () if self.vocabulary is None else ((self.vocabulary, 1),)

    @property
    def rounds(self) -> int:
        return self.config.privacy.rounds

    @property
    def noise(self) -> float:
        """The noise multiplier, in units of the update clip; for UeDP-Alg the paper's `z`."""
        return 0.0 if self.profile is None else self.profile.noise

    @property
    def private(self) -> bool:
        """Whether there is a guarantee to state."""
        return self.profile is not None and self.epsilon < math.inf and self.setup().exposed is None

    @property
    def round_settings(self) -> RoundSettings:
        return RoundSettings(
            sampling=self.sampling,
            clips=self.clips,
            noise=self.noise,
            users=self.shape.users,
            seed=self.config.privacy.seed,
            max_tokens=self.config.run.tokens_at_once,
            half_precision=self.provenance.precision == "bfloat16",
            options=self.config.method_options,
        )

    @property
    def expected_users(self) -> float:
        return self.round_settings.expected_users

    @property
    def statement(self) -> str:
        """The guarantee in one sentence; lines on entities and caveats follow."""
        privacy = self.config.privacy
        if self.profile is None:
            return f"{privacy.method}: this run will have no privacy guarantee."
        return statements.statement(
            self.profile, self.epsilon, privacy.delta, self.private, self.setup()
        )

    @property
    def missed_line(self) -> str:
        """The guarantee for an entity that the detector missed, in one sentence."""
        if not self.private:
            return ""
        privacy = self.config.privacy
        return statements.missed_line(
            statements.missed_table(
                self.profile, self.rounds, privacy.delta, self.setup(), self.vocabulary
            )
        )

    @property
    def summary(self) -> list[str]:
        """What is said before the first round, line by line."""
        sentence, *lines = self.statement.splitlines()
        return [line for line in (sentence, self.missed_line, *lines) if line]

    def on(self, incidence: Incidence) -> "Plan":
        """The same rounds on another corpus, if what is proven does not depend on it."""
        if self.profile is not None:
            profile = self.method.profile(self.config.privacy, incidence, self.noise)
            if profile != self.profile:
                raise ValueError(f"the profile of {self.method.name} depends on the corpus")
        return replace(self, shape=_shape(incidence))

    def seeded(self, seed: int | None) -> "Plan":
        """The same rounds, repeatable; without a seed, fresh."""
        privacy = self.config.privacy.model_copy(update={"seed": seed})
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def epsilon_after(self, rounds: int) -> float:
        assert self.profile is not None
        return epsilon(self.profile, rounds, self.config.privacy.delta, *self.vocabulary_events)

    def signal_to_noise(self, parameters: int) -> float:
        """Norm of the signal of all rounds at best, over that of their noise.

        At best all users move as far as they may, and the same way in every round.
        """
        if not self.noise:
            return math.inf
        noise = self.method.noise_per_update(self.round_settings)
        return self.expected_users * math.sqrt(self.rounds) / (noise * math.sqrt(parameters))

    def warnings(self, parameters: int) -> list[str]:
        """Reasons not to start a run with so many trained parameters."""
        warnings = []
        users = self.expected_users
        if self.profile is not None and users < _FEW:
            warnings.append(
                f"a round draws about {users:.2g} users: the noise hides one among them, so with "
                f"fewer than {_FEW} little of what they share is left; raise privacy.user_rate"
            )
        if statements.LARGE_EPSILON < self.epsilon < math.inf:
            warnings.append(
                f"epsilon {self.epsilon:.3g} promises little, being above "
                f"{statements.LARGE_EPSILON}; lower privacy.epsilon, or raise privacy.noise"
            )
        if self.provenance.precision == "bfloat16" and self.profile is not None:
            warnings.append(
                f"half precision raises the noise by {self.clips.margin:.0%}, for rounding that "
                "depends on who else was drawn; leave out run.precision to compute in float32"
            )
        if (ratio := self.signal_to_noise(parameters)) < _FAINT:
            warnings.append(
                f"the noise will drown the signal: at best the signal-to-noise ratio is "
                f"{ratio:.2g} over all rounds, and {_FAINT:g} is low; raise privacy.epsilon or "
                "privacy.user_rate, or train fewer parameters"
            )
        return warnings

    def describe(self) -> dict[str, float | str | None]:
        privacy = self.config.privacy
        return {
            "method": privacy.method,
            "epsilon": None if self.profile is None else self.epsilon,
            "delta": privacy.delta,
            "noise": self.noise,
            "rounds": self.rounds,
            "user rate": privacy.user_rate,
            "users per round": self.expected_users,
            "entity share": self.clips.share,
            "update clip": self.clips.update,
        }

    def setup(self) -> decisions.Setup:
        """What is recorded before the first round."""
        privacy, known = self.config.privacy, self.provenance
        setup = decisions.Setup(
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
            setup = setup.model_copy(update={"chosen_by": privacy.chosen_by})
        return setup

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
            lineage=tuple(asdict(ancestor) for ancestor in self.provenance.lineage),
            without_noise=self.config.privacy.method if self.profile is None else None,
        )

    def _labels(self) -> decisions.Labels:
        if self.config.task.kind != "classification":
            return "none"
        return "declared" if self.config.task.labels else "from the corpus, not covered"


# How far one text can move the updates of others through batch layout and rounding, in update clips
# per square root of the number of other users: about twice the largest shift that
# `benchmarks/rounding.py` measured on one pretrained model. Models with random
# weights move a hundredth of that: do not set it by them.
_MARGIN: Mapping[decisions.Precision, float] = {"float32": 1e-3, "bfloat16": 3e-2}


def rounding_margin(precision: decisions.Precision, users: float) -> float:
    """The increase of the noise for so many users per round, in units of the update clip."""
    return _MARGIN[precision] * math.sqrt(max(users, 1.0))


def build_plan(config: Config, incidence: Incidence, provenance: Provenance | None = None) -> Plan:
    """Calibrate, and refuse what cannot work, before anything is loaded or trained."""
    privacy, method = config.privacy, method_named(config.privacy.method)
    if not incidence.sentences:
        raise UserError(f"{config.data.train}: the corpus has no sentences to train on")
    provenance = provenance or Provenance()
    vocabulary = _vocabulary(config)
    plan = Plan(
        config=config,
        profile=None,
        epsilon=math.inf,
        sampling=method.sampling(privacy),
        clips=method.clips(privacy, 0.0),
        shape=_shape(incidence),
        vocabulary=vocabulary,
        provenance=provenance,
    )
    if not config.private:
        return plan
    _refuse_few_users(config, incidence)

    def profile(noise: float) -> Profile:
        return method.profile(privacy, incidence, noise)

    if privacy.noise is not None:
        noise = privacy.noise
    else:
        assert privacy.epsilon is not None  # the config has one of the two
        noise = noise_for(
            privacy.epsilon, privacy.delta, privacy.rounds, profile, plan.vocabulary_events
        )
    margin = rounding_margin(provenance.precision, plan.expected_users)
    plan = replace(plan, profile=profile(noise), clips=method.clips(privacy, margin))
    return replace(plan, epsilon=plan.epsilon_after(privacy.rounds))


def _refuse_few_users(config: Config, incidence: Incidence) -> None:
    privacy = config.privacy
    if incidence.users < _TOO_FEW:
        raise UserError(
            f"{config.data.train}: {incidence.users} users are too few to hide among; at least "
            f"{_TOO_FEW} are needed, and hundreds make sense"
        )
    if incidence.users * privacy.user_rate < _TOO_FEW:
        raise UserError(
            f"privacy.user_rate {privacy.user_rate:g}: of {incidence.users:,} users a round would "
            f"draw {incidence.users * privacy.user_rate:.2g}, too few to hide among; choose at "
            f"least {math.ceil(1e3 * _TOO_FEW / incidence.users) / 1e3:g}"
        )
    if privacy.delta * incidence.users >= 1:
        # with this delta, publishing one user's text verbatim would count as private
        raise UserError(
            f"privacy.delta {privacy.delta:g}: must be below one over the number of users, "
            f"{1 / incidence.users:.2g}; choose {0.1 / incidence.users:.1g} or less"
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
    profile_type = method_named(privacy.method).profile_type
    assert privacy.epsilon is not None  # the config requires it
    return release_for(
        privacy.epsilon,
        privacy.delta,
        settings.share,
        settings.words_per_user,
        settings.words_per_sentence if profile_type and profile_type.protects_entities else None,
    )
