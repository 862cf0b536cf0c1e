"""The plan of a run: sampling, clipping, noise and accounting in one object.

Everything that privacy depends on is read from the plan. The noise multiplier is calibrated with
the profile that the ledger and the certificate use.
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

_TOO_FEW, _FEW = 5, 20  # users per round: fewer are refused, or warned about
_FAINT = 0.05  # signal-to-noise ratio of a whole run below which little is learned


@dataclass(frozen=True, eq=False)
class Plan:
    """A run, fixed before it starts.

    Guarantees:
      - `profile` describes a round with `sampling`, `clips` and `noise`
      - its epsilon over `rounds` is at most the config's target, if there is one
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
        """The release of a private vocabulary, if any."""
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
        """Whether the run has a guarantee."""
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
        """The guarantee in one sentence, then lines on entities and caveats."""
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
        """The lines to report before the first round."""
        sentence, *lines = self.statement.splitlines()
        return [line for line in (sentence, self.missed_line, *lines) if line]

    def on(self, incidence: Incidence) -> "Plan":
        """The same rounds on another corpus, if the profile does not depend on the corpus."""
        if self.profile is not None:
            profile = self.method.profile(self.config.privacy, incidence, self.noise)
            if profile != self.profile:
                raise ValueError(f"the profile of {self.method.name} depends on the corpus")
        return replace(self, shape=_shape(incidence))

    def seeded(self, seed: int | None) -> "Plan":
        """The same plan with another seed, or with none."""
        privacy = self.config.privacy.model_copy(update={"seed": seed})
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def epsilon_after(self, rounds: int) -> float:
        assert self.profile is not None
        return epsilon(self.profile, rounds, self.config.privacy.delta, *self.vocabulary_events)

    def signal_to_noise(self, parameters: int) -> float:
        """The largest possible norm of the signal over all rounds, divided by that of the noise.

        It is reached if all users' updates have full norm and the same direction in every round.
        """
        if not self.noise:
            return math.inf
        noise = self.method.noise_per_update(self.round_settings)
        return self.expected_users * math.sqrt(self.rounds) / (noise * math.sqrt(parameters))

    def warnings(self, parameters: int) -> list[str]:
        """Warnings about a run with this number of trained parameters."""
        warnings = []
        users = self.expected_users
        if self.profile is not None and users < _FEW:
            warnings.append(
                f"a round draws about {users:.2g} users: the noise hides a single user, so with "
                f"fewer than {_FEW} it also hides most of what they share; raise privacy.user_rate"
            )
        if statements.LARGE_EPSILON < self.epsilon < math.inf:
            warnings.append(
                f"epsilon {self.epsilon:.3g} is a weak guarantee, above "
                f"{statements.LARGE_EPSILON}; lower privacy.epsilon, or raise privacy.noise"
            )
        if self.provenance.precision == "bfloat16" and self.profile is not None:
            warnings.append(
                f"half precision raises the noise by {self.clips.margin:.0%}, because rounding "
                "depends on the other users drawn; remove run.precision to compute in float32"
            )
        if (ratio := self.signal_to_noise(parameters)) < _FAINT:
            warnings.append(
                f"the noise will drown the signal: the signal-to-noise ratio over all rounds is at "
                f"most {ratio:.2g}, below {_FAINT:g}; raise privacy.epsilon or privacy.user_rate, "
                "or train fewer parameters"
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
        """The decisions that are recorded before the first round."""
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
        """The first record in the ledger of a run with this plan."""
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


# How far one text can move other users' updates through batch layout and rounding, in update clips
# per square root of the number of other users: about twice the largest shift that
# `benchmarks/rounding.py` measured on a pretrained model. Models with random weights shift by a
# hundredth of that, so they must not be used to set it.
_MARGIN: Mapping[decisions.Precision, float] = {"float32": 1e-3, "bfloat16": 3e-2}


def rounding_margin(precision: decisions.Precision, users: float) -> float:
    """The increase of the noise with this number of users per round, in update clips."""
    return _MARGIN[precision] * math.sqrt(max(users, 1.0))


def build_plan(config: Config, incidence: Incidence, provenance: Provenance | None = None) -> Plan:
    """Calibrate the noise and refuse impossible settings, before anything is loaded or trained."""
    privacy, method = config.privacy, method_named(config.privacy.method)
    refuse_unfit_corpus(config, incidence)
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
    _refuse_large_delta(config, incidence)
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


def refuse_unfit_corpus(config: Config, incidence: Incidence) -> None:
    """Refuse what no choice of rates and rounds can mend."""
    if not incidence.sentences:
        raise UserError(f"{config.data.train}: the corpus has no sentences to train on")
    if config.private and incidence.users < _TOO_FEW:
        raise UserError(
            f"{config.data.train}: {incidence.users} users are too few to hide among; at least "
            f"{_TOO_FEW} are needed, and hundreds are recommended"
        )
    if config.private and "delta" in config.privacy.model_fields_set:  # or it is chosen
        _refuse_large_delta(config, incidence)


def _refuse_large_delta(config: Config, incidence: Incidence) -> None:
    delta = config.privacy.delta
    if delta * incidence.users >= 1:
        # with such a delta, publishing one user's text verbatim would count as private
        raise UserError(
            f"privacy.delta {delta:g}: must be below one over the number of users, "
            f"{1 / incidence.users:.2g}; choose {0.1 / incidence.users:.1g} or less"
        )


def _refuse_few_users(config: Config, incidence: Incidence) -> None:
    privacy = config.privacy
    if incidence.users * privacy.user_rate < _TOO_FEW:
        raise UserError(
            f"privacy.user_rate {privacy.user_rate:g}: of {incidence.users:,} users a round would "
            f"draw {incidence.users * privacy.user_rate:.2g}, too few to hide among; choose at "
            f"least {math.ceil(1e3 * _TOO_FEW / incidence.users) / 1e3:g}"
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
