"""The plan of a run: sampling, clipping, noise and accounting in one object.

Everything that privacy depends on is read from the plan. The noise multiplier is calibrated with
the profile that the ledger and the certificate use.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from uedp.accounting import decisions
from uedp.accounting import statement as statements
from uedp.accounting.calibrate import noise_for
from uedp.accounting.growth import Growth, growth_lines
from uedp.accounting.ledger import PlannedRun
from uedp.accounting.limits import FEWEST_USERS, refuse_few_users, refuse_large_delta
from uedp.accounting.plan_digest import plan_digest
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import epsilon, guarantee
from uedp.accounting.vocabulary import VocabularyRelease, release_for
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling
from uedp.methods import Method, RoundSettings, method_named
from uedp.training.config import Config
from uedp.training.provenance import Provenance

_SPENT = 0.98  # of an epsilon: what is left would need noise that drowns everything
_FEW = 20  # users per round: fewer are warned about
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
    def other_events(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What else is charged: a private vocabulary, and the runs that are trained on from."""
        words = () if self.vocabulary is None else ((self.vocabulary, 1),)
        earlier = (event for run in self.provenance.earlier for event in run.events)
        return (*words, *earlier)

    @cached_property
    def growth(self) -> Growth | None:
        """The guarantee by epochs, of a corpus that was extended or a model that is trained on."""
        return self.planned("this run").growth if self.private else None

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
            half_precision=self.provenance.precision != "float32",
            fixed_passes=self.provenance.precision == "bfloat16-fixed",
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
        line = statements.statement(
            self.profile, self.epsilon, privacy.delta, self.private, self.setup()
        )
        return "\n".join([line, *growth_lines(self.growth)])

    @property
    def missed_line(self) -> str:
        """The guarantee for an entity that the detector missed, in one sentence."""
        if not self.private:
            return ""
        return statements.missed_line(self.missed_table)

    @property
    def missed_table(self) -> tuple[statements.MissedMention, ...]:
        return statements.missed_table(
            self.profile,
            self.rounds,
            self.config.privacy.delta,
            self.setup(),
            self.vocabulary,
            self.planned("this run").beside_missed,
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
            if profile.with_margin(0.0) != self.profile.with_margin(0.0):
                raise ValueError(f"the profile of {self.method.name} depends on the corpus")
        alone = replace(self.provenance, epochs=(), earlier=())
        return replace(self, shape=_shape(incidence), provenance=alone)

    def seeded(self, seed: int | None) -> "Plan":
        """The same plan with another seed, or with none."""
        privacy = self.config.privacy.model_copy(update={"seed": seed})
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def digest(self, precision: str | None = None) -> str:
        """What an audit of this plan records, so that it is held against no other."""
        assert self.profile is not None
        config = self.config.model_dump(mode="json", include={"privacy", "method_options"})
        delta = self.config.privacy.delta
        return plan_digest(
            self.profile, self.rounds, delta, config["privacy"], config["method_options"], precision
        )

    def epsilon_after(self, rounds: int) -> float:
        assert self.profile is not None
        return epsilon(self.profile, rounds, self.config.privacy.delta, *self.other_events)

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
                "depends on the other users drawn; remove run.precision to compute without that"
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
            holders=known.holders,
            vocabulary=known.words or _ORIGINS[self.config.vocabulary.source],
            labels=self._labels(),
            earlier_runs="on other corpora" if known.uncounted else "none known",
            public=known.public,
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
            epochs=self.provenance.epochs,
            earlier=self.provenance.earlier,
        )

    def _labels(self) -> decisions.Labels:
        if self.config.task.kind != "classification":
            return "none"
        return "declared" if self.config.task.labels else "from the corpus, not covered"


# How far one text can move other users' updates through batch layout and rounding, in update clips
# per square root of the number of other users: about twice the largest shift that
# `benchmarks/rounding.py` measured on a pretrained model. Models with random weights shift by a
# hundredth of that, so they must not be used to set it.
# In fixed passes a sentence's gradient does not change at all; only sums over sentences round.
_MARGIN: Mapping[decisions.Precision, float] = {
    "float32": 1e-3,
    "bfloat16": 3e-2,
    "bfloat16-fixed": 1e-3,
}


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
    refuse_large_delta(privacy.delta, incidence.users)
    refuse_few_users(privacy.user_rate, incidence.users)
    _refuse_spent(config, provenance)
    margin = rounding_margin(provenance.precision, plan.expected_users)
    plan = replace(plan, clips=method.clips(privacy, margin))  # refuses a share that is too small

    def profile(noise: float) -> Profile:
        return method.profile(privacy, incidence, noise).with_margin(margin)

    if privacy.noise is not None:
        noise = privacy.noise
    else:
        assert privacy.epsilon is not None  # the config has one of the two
        noise = noise_for(
            privacy.epsilon, privacy.delta, privacy.rounds, profile, plan.other_events
        )
    plan = replace(plan, profile=profile(noise))
    return replace(plan, epsilon=plan.epsilon_after(privacy.rounds))


def refuse_unfit_corpus(config: Config, incidence: Incidence) -> None:
    """Refuse what no choice of rates and rounds can mend."""
    if not incidence.sentences:
        raise UserError(f"{config.data.train}: the corpus has no sentences to train on")
    if config.private and incidence.users < FEWEST_USERS:
        raise UserError(
            f"{config.data.train}: {incidence.users} users are too few to hide among; at least "
            f"{FEWEST_USERS} are needed, and hundreds are recommended"
        )
    if config.private and "delta" in config.privacy.model_fields_set:  # or it is chosen
        refuse_large_delta(config.privacy.delta, incidence.users)


def _refuse_spent(config: Config, provenance: Provenance) -> None:
    """Refuse to train on by another method, or to an epsilon that the runs before have spent."""
    privacy, earlier = config.privacy, provenance.earlier
    if privacy.entity_rate < 1 and (earlier or provenance.epochs):
        raise UserError(
            f"privacy.entity_rate {privacy.entity_rate:g}: on a corpus that was extended, or to "
            "train on, no coins are flipped for entities; leave it out"
        )
    if not earlier:
        return
    if {run.profile.method for run in earlier} != {privacy.method}:
        raise UserError(
            f"privacy.method {privacy.method!r}: the model was trained by "
            f"{earlier[-1].profile.method}, and rounds of several methods do not add up to one "
            "guarantee; train on by the same"
        )
    if privacy.epsilon is not None:
        events = [event for run in earlier for event in run.events]
        spent = guarantee(events).epsilon(privacy.delta)
        if spent >= _SPENT * privacy.epsilon:
            raise UserError(
                f"privacy.epsilon {privacy.epsilon:g}: the runs that the model went through have "
                f"spent {statements.rounded(spent)} (delta {privacy.delta:g}), and it counts them: "
                "choose a larger one"
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
