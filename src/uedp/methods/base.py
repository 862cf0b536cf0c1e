"""The method protocol and the registry of methods.

A method is one class. It defines the unit of privacy and the accounting of a round (`profile`), the
settings it accepts (`check`), its sampling, its clipping norms and its round. The loop, the ledger,
the certificate, the audits and the command line know no method by name: `@register_method` makes a
class a method, in any file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from uedp.accounting.profile import Profile
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.mechanism.packing import PackedLosses, Packing
from uedp.mechanism.release import Clips, ClipStats
from uedp.mechanism.sampling import Participants, Sampling, Uniforms

Rate = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Autocast = Callable[[], AbstractContextManager[Any]]


def half_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Passes in bfloat16 of a model whose weights are float32.

    Guarantees:
      - each pass reads the weights as they are: PyTorch would keep the halves of trained weights
        until the outermost autocast ends, even one that is not enabled, and so beyond a step
    """
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


Draw = Callable[[int, Uniforms, int], Participants]
"""The participants of a round, from its number, uniform numbers and a lending key."""


class Section(BaseModel):
    """A section of a config: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodOptions(Section):
    """Settings of one method only; most methods have none."""


PLANNED = ("user_rate", "rounds", "entity_share", "sentences_per_user", "delta", "method")
"""Fields of the privacy section that the planner chooses where a config sets none."""


class PrivacySettings(Section):
    """The method and its guarantee.

    With `epsilon` the noise multiplier is calibrated; with `noise` epsilon is computed. One of the
    two is needed, unless the method adds no noise.
    """

    method: str = Field(
        default="rotation",
        description="What is protected and how. Users together with entities are protected by "
        "`rotation` and by `fair-shares`. Chosen: the one with the better predicted "
        "signal-to-noise ratio at the target `epsilon`.",
    )
    epsilon: Positive | None = Field(
        default=None,
        description="The target of the guarantee: the noise is calibrated so that all rounds "
        "together stay within it. Without a default, because it is a decision about people.",
    )
    noise: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="The noise multiplier, in units of `update_clip`, instead of `epsilon`, which "
        "then follows from it. Nothing is planned for a given noise.",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=1e-5,
        description="A probability beside epsilon: what happens this rarely may give everything "
        "away. Chosen: 1e-5, or the power of ten below a tenth of one over the number of users, if "
        "that is smaller: with a delta of one over the users, publishing one user's text would "
        "count as private.",
    )
    rounds: Count = Field(
        default=200,
        description="Noisy updates of the model. Chosen: 200, as in our experiments, or fewer, "
        "down to 15, if these give more signal within `run.time`.",
    )
    user_rate: Rate = Field(
        default=0.1,
        description="The probability that a user is drawn in a round. Chosen, of rates that "
        "draw at least 20 users: with `rounds` and `sentences_per_user`, the cheapest plan that "
        "reaches 93% of the best predicted signal-to-noise ratio, since the rest would multiply "
        "the time; or the best within `run.time`.",
    )
    update_clip: Positive = Field(
        default=1.0,
        description="The norm that a user's update is clipped to. Never chosen from gradients. "
        "The default depends on the trained parameters: 0.1 for probes, whose gradients are short, "
        "1 otherwise; Adam adapts to the scale. For next-word adapters with a chosen "
        "`entity_share` it is 0.3 divided by that share, so that a sentence is clipped to 0.3.",
    )
    entity_share: Annotated[float, Field(gt=0, le=2)] = Field(
        default=0.3,
        description="How much of the clip one entity can move, and so the clip of a sentence. "
        "Chosen: the smallest share within 2% of the best predicted signal-to-noise ratio, "
        "because a smaller share also limits what a missed mention costs.",
    )
    entity_rate: Rate = Field(
        default=1.0,
        description="The probability that a lent entity is used in a round (q_e). By default "
        "always: leaving entities out loses sentences and saves little noise.",
    )
    extended_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0,
        description="The same for sentences without a detected entity (q_s). By default always: "
        "no smaller rate was better (docs/results.md).",
    )
    sentences_per_entity: Count | None = Field(
        default=None,
        description="The most sentences of a user in a round that mention one entity. By default "
        "no limit: their clips are divided by their number instead.",
    )
    sentences_per_user: Count | None = Field(
        default=None,
        description="The most sentences of a user in a round; null: no limit. Chosen, unless both "
        "`rounds` and `user_rate` are set: at most what 95% of the users stay below, and less, "
        "down to 1, if time is short. An update is clipped however long it is, so the first "
        "sentence of another user adds more than a second one of the same.",
    )
    seed: Seed | None = Field(
        default=None,
        description="Makes a run repeatable and voids its guarantee. By default the noise comes "
        "from a cipher with a secret key.",
    )
    chosen_by: str | None = Field(
        default=None,
        description="Who chose clips, rates and schedule, and on which data; it goes on the "
        "certificate. Fields that the planner chose are named there in any case.",
    )
    corpus_budget: Positive | None = Field(
        default=None,
        description="Refuses a run if all runs on the corpus together would exceed this epsilon. "
        "By default the sum is stated but not limited.",
    )

    @field_validator("method")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        return method_named(name).name

    @model_validator(mode="after")
    def _suits_method(self) -> "PrivacySettings":
        method_named(self.method).check(self)
        return self


class SentenceTask(Protocol):
    """The sentences of a corpus and their losses: the only access of a round to the data.

    Guarantees:
      - the loss of a sentence depends on that sentence and the weights only: it is normalised by
        the sentence's own tokens, and ignores padding
      - an empty sentence has loss zero and gradient zero
    """

    lengths: Ints

    def packing_for(self, model: nn.Module) -> Packing:
        """How sentences are packed for this model: in shared rows, if it keeps them apart."""

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        """A padded batch of these sentences, as `sentence_losses` takes it."""

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing) -> Tensor | PackedLosses:
        """The loss of each of these sentences."""

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of each sentence of a batch."""


@runtime_checkable
class EndToEnd(Protocol):
    """A task of next words, whose sentences can be read without padding.

    Guarantees:
      - the loss of a sentence is the mean over its tokens but the first, each predicted from those
        before it; no sentence has more tokens than `longest`
    """

    longest: int

    def tokens_of(self, sentences: Ints) -> tuple[Ints, Ints]:
        """The ids of these sentences end to end, and the number of each one's."""


def probe_sentences(task: SentenceTask, quantiles: Sequence[float]) -> Ints:
    """Sentences at quantiles of length, to test a model with.

    Guarantees:
      - they differ in content, if the task has enough distinct sentences: equal ones would not
        reveal a model that mixes sentences
    """
    order = np.argsort(task.lengths, kind="stable")
    distinct: dict[bytes, int] = {}
    for sentence in order[:: max(1, len(order) // _PROBED)].tolist() + order[-1:].tolist():
        tensors = task.batch(np.array([sentence])).values()
        distinct.setdefault(b"".join(t.numpy().tobytes() for t in tensors), sentence)
    chosen = list(distinct.values())
    return np.array([chosen[int(quantile * (len(chosen) - 1))] for quantile in quantiles])


_PROBED = 1000  # sentences considered


@dataclass(frozen=True)
class RoundSettings:
    """The part of a plan that a round depends on.

    `noise` is the noise multiplier, in units of the update clip (UeDP-Alg: the paper's `z`).
    `max_tokens` bounds the tokens per batch; None: depends on the device. With `fixed_passes`,
    every sentence is computed alike whoever else was drawn, or the round is refused.
    """

    sampling: Sampling
    clips: Clips
    noise: float
    users: int
    seed: int | None = None
    max_tokens: int | None = None
    half_precision: bool = False
    fixed_passes: bool = False
    options: MethodOptions = field(default_factory=MethodOptions)

    @property
    def expected_users(self) -> float:
        """The divisor of a noisy sum."""
        return self.sampling.user_rate * self.users


@dataclass(frozen=True)
class Gradient:
    """The noisy gradient of a round, and clipping statistics, which are private."""

    values: list[Tensor]
    deviation: float  # standard deviation of the noise in every entry
    stats: ClipStats


@dataclass(frozen=True)
class Attempt:
    """How a run conducts a round: a round that is abandoned before `enter` is attempted again.

    `take_key` gives the key that decides everything but the noise (`Randomness`); None: a fresh
    one. A round that is not drawn by it is refused, since it could not be repeated. The round calls
    `enter` once, when its sum is complete and before it draws noise: it enters the round in the
    ledger. It calls `batch_done` with the batches done and their number, first with none done.
    """

    take_key: Callable[[], bytes | None] = lambda: None
    enter: Callable[[], None] = lambda: None
    batch_done: Callable[[int, int], None] = lambda done, total: None


UNATTENDED = Attempt()


class Rounds(Protocol):
    """The part of a method that the loop uses."""

    parameters: list[nn.Parameter]
    abandonable: bool

    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient: ...

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Method(ABC):
    """A training method.

    A method without a `profile_type` adds no noise and has no guarantee.
    """

    name: ClassVar[str]
    profile_type: ClassVar[type[Profile] | None] = None
    options_type: ClassVar[type[MethodOptions]] = MethodOptions
    deidentifies: ClassVar[bool] = False
    """Whether it trains on texts whose entities are replaced."""
    abandonable: bool = False
    """Whether a round leaves weights and state alone until `attempt.enter`, wherever it stops."""
    version: ClassVar[int] = 0
    """Raised whenever rounds sample, clip or add noise by another law: what was measured before is
    then not this method's."""
    noises_gradients: ClassVar[bool] = False
    """Whether the optimiser gets a noisy gradient, not local updates or an exact gradient."""

    parameters: list[nn.Parameter]

    def __init__(
        self,
        settings: RoundSettings,
        incidence: Incidence,
        model: nn.Module,
        task: SentenceTask,
        autocast: Autocast,
    ) -> None:
        self.settings, self.incidence = settings, incidence
        self.model, self.task, self.autocast = model, task, autocast
        self._set_up()

    def _set_up(self) -> None:
        """Build what rounds need; subclasses extend this, not the constructor."""
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.packing = self.task.packing_for(self.model)

    # --- before training -------------------------------------------------------------------------

    @classmethod
    def check(cls, privacy: PrivacySettings) -> None:
        """Raise ValueError for settings that this method does not accept."""
        given = (privacy.epsilon is not None) + (privacy.noise is not None)
        if cls.profile_type is None and given:
            raise ValueError(f"{cls.name} adds no noise; leave out epsilon and noise")
        if cls.profile_type is not None and given != 1:
            raise ValueError(
                "give either epsilon or noise; privacy.epsilon is the target that sets the noise, "
                "often between 1 and 10, and smaller protects more"
            )

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        """The accountant's profile of a round with this noise multiplier."""
        raise NotImplementedError(f"{cls.name} has no guarantee")

    @classmethod
    def sampling(cls, privacy: PrivacySettings) -> Sampling:
        return Sampling(
            privacy.user_rate,
            privacy.entity_rate,
            privacy.extended_rate,
            privacy.sentences_per_entity,
            privacy.sentences_per_user,
        )

    @classmethod
    def clips(cls, privacy: PrivacySettings, margin: float) -> Clips:
        """The clipping norms; by default only a user's whole update is clipped."""
        return Clips(privacy.update_clip, 2.0, margin)

    @classmethod
    def noise_per_update(cls, settings: RoundSettings) -> float:
        """The noise on a sum of updates, in units of the update clip."""
        return settings.noise

    @classmethod
    def check_model(cls, model: nn.Module) -> None:
        """Raise UserError for a model that this method cannot train, before any text is read."""
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError(f"{type(model).__name__}: no parameter has requires_grad; set some")

    # --- training --------------------------------------------------------------------------------

    @abstractmethod
    def round(self, number: int, attempt: Attempt = UNATTENDED) -> Gradient:
        """Sample by `attempt.take_key()`, clip, sum, `attempt.enter()`, and only then add noise.

        Whatever is raised on the way, the weights must be those that the round began with.
        """

    def state(self) -> dict[str, Tensor]:
        """The state between rounds, for checkpoints; most methods have none."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if state:
            raise UserError(f"{self.name}: this checkpoint holds another method's state")


_METHODS: dict[str, type[Method]] = {}
_MethodType = TypeVar("_MethodType", bound=type[Method])


def register_method(method: _MethodType) -> _MethodType:
    """Register a method class under its `name`."""
    if method.name in _METHODS:
        raise ValueError(f"method {method.name!r}: registered twice")
    _METHODS[method.name] = method
    return method


def method_names() -> tuple[str, ...]:
    return tuple(_METHODS)


def method_named(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        ValueError: there is no such method; the message lists all methods.
    """
    if name not in _METHODS:
        raise ValueError(f"no method {name!r}; choose {', '.join(sorted(_METHODS))}")
    return _METHODS[name]
