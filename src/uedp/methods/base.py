"""What a method is, and the registry that everything else asks.

A method is one class. It says what it protects and how its rounds are accounted for (`profile`),
what it demands of the settings (`check`), how it samples and clips, and what one round does. The
loop, the ledger, the certificate, the audits and the command line know no method by name; a class
in anybody's file becomes a method by `@register_method`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np
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
Draw = Callable[[int, Uniforms, int], Participants]
"""The participants of a round: by its number, uniform numbers and a key for lending."""


class Section(BaseModel):
    """A section of a config: frozen, and every field known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodOptions(Section):
    """Settings that only one method has; most have none."""


class PrivacySettings(Section):
    """The `privacy` section of a config: who is protected, and how well.

    Give `epsilon`, and the noise multiplier is calibrated; or `noise`, and epsilon follows.
    """

    method: str = "rotation"
    epsilon: Positive | None = None
    noise: Annotated[float, Field(ge=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    rounds: Count = 200
    user_rate: Rate = 0.1
    update_clip: Positive = 1.0
    entity_share: Annotated[float, Field(gt=0, le=2)] = 0.3
    entity_rate: Rate = 1.0
    extended_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    sentences_per_entity: Count | None = None
    sentences_per_user: Count | None = None
    seed: Seed | None = None
    chosen_by: str | None = None
    corpus_budget: Positive | None = None

    @field_validator("method")
    @classmethod
    def _is_registered(cls, name: str) -> str:
        return method_named(name).name

    @model_validator(mode="after")
    def _suits_method(self) -> "PrivacySettings":
        method_named(self.method).check(self)
        return self


class SentenceTask(Protocol):
    """The sentences of a corpus with a loss for each: all that a round reads of the data.

    Guarantees:
      - the loss of a sentence depends on that sentence and the weights alone: it is normalised by
        the sentence's own tokens, and padding counts for nothing
      - an empty sentence has loss zero and gradient zero
    """

    lengths: Ints

    def packing_for(self, model: nn.Module) -> Packing:
        """How this model takes sentences: in shared rows, if it keeps them apart."""

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        """These sentences, padded: the input of `sentence_losses`."""

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing) -> Tensor | PackedLosses:
        """The loss of each of these sentences."""

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of each sentence of a batch."""


def probe_sentences(task: SentenceTask, quantiles: Sequence[float]) -> Ints:
    """Sentences to try a model with, at quantiles of length.

    Guarantees:
      - they differ in content, as far as the task has so many that differ: side by side, equal
        sentences would not show that a model mixes them
    """
    order = np.argsort(task.lengths, kind="stable")
    distinct: dict[bytes, int] = {}
    for sentence in order[:: max(1, len(order) // _PROBED)].tolist() + order[-1:].tolist():
        tensors = task.batch(np.array([sentence])).values()
        distinct.setdefault(b"".join(t.numpy().tobytes() for t in tensors), sentence)
    chosen = list(distinct.values())
    return np.array([chosen[int(quantile * (len(chosen) - 1))] for quantile in quantiles])


_PROBED = 1000  # sentences looked at


@dataclass(frozen=True)
class RoundSettings:
    """The part of a plan that rounds depend on.

    `noise` is the noise multiplier, in units of the update clip (UeDP-Alg: the paper's `z`).
    `max_tokens` bounds the tokens computed at once; None: by the device.
    """

    sampling: Sampling
    clips: Clips
    noise: float
    users: int
    seed: int | None = None
    max_tokens: int | None = None
    half_precision: bool = False
    options: MethodOptions = field(default_factory=MethodOptions)

    @property
    def expected_users(self) -> float:
        """What a noisy sum is divided by."""
        return self.sampling.user_rate * self.users


@dataclass(frozen=True)
class Gradient:
    """What a round hands to the optimiser, and how far the clips reached (private)."""

    values: list[Tensor]
    deviation: float  # standard deviation of the noise in every entry
    stats: ClipStats


class Rounds(Protocol):
    """What the loop needs of a method."""

    parameters: list[nn.Parameter]

    def round(self, number: int) -> Gradient: ...

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class Method(ABC):
    """One way to spend a round.

    Class attributes say what kind of method it is. A method without a `profile_type` adds no noise
    and guarantees nothing.
    """

    name: ClassVar[str]
    profile_type: ClassVar[type[Profile] | None] = None
    options_type: ClassVar[type[MethodOptions]] = MethodOptions
    deidentifies: ClassVar[bool] = False
    """Whether it trains on texts with the entities replaced."""
    noises_gradients: ClassVar[bool] = False
    """Whether the optimiser gets a gradient with noise, rather than local updates or none."""

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
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.packing = task.packing_for(model)

    # --- before training -------------------------------------------------------------------------

    @classmethod
    def check(cls, privacy: PrivacySettings) -> None:
        """Raise ValueError for settings that this method cannot have."""
        given = (privacy.epsilon is not None) + (privacy.noise is not None)
        if cls.profile_type is None and given:
            raise ValueError(f"{cls.name} adds no noise; leave out epsilon and noise")
        if cls.profile_type is not None and given != 1:
            raise ValueError("give either epsilon or noise")

    @classmethod
    def profile(cls, privacy: PrivacySettings, incidence: Incidence, noise: float) -> Profile:
        """How the accountant sees a round with this noise multiplier."""
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
        """The clipping norms; by default a sentence is bounded by its user's update alone."""
        return Clips(privacy.update_clip, 2.0, margin)

    @classmethod
    def noise_per_update(cls, settings: RoundSettings) -> float:
        """The noise on a sum of updates, in units of the update clip."""
        return settings.noise

    @classmethod
    def check_model(cls, model: nn.Module) -> None:
        """Raise UserError for a model that this method cannot train, before any text is read."""
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError(f"{type(model).__name__}: no parameter has requires_grad; train some")

    # --- training --------------------------------------------------------------------------------

    @abstractmethod
    def round(self, number: int) -> Gradient:
        """Sample, clip, sum and add noise."""

    def state(self) -> dict[str, Tensor]:
        """What must survive from round to round, for the checkpoint; most methods have nothing."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state that `state` gave."""
        if state:
            raise UserError(f"{self.name}: a checkpoint with another method's state")


_METHODS: dict[str, type[Method]] = {}
_MethodType = TypeVar("_MethodType", bound=type[Method])


def register_method(method: _MethodType) -> _MethodType:
    """Make a class a method, by its `name`."""
    if method.name in _METHODS:
        raise ValueError(f"method {method.name!r}: registered twice")
    _METHODS[method.name] = method
    return method


def method_names() -> tuple[str, ...]:
    return tuple(_METHODS)


def method_named(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        ValueError: there is no such method; names those that there are.
    """
    if name not in _METHODS:
        raise ValueError(f"no method {name!r}; choose {', '.join(sorted(_METHODS))}")
    return _METHODS[name]
