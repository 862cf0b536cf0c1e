"""What a run is asked to do: one YAML shape, every field checked where it is read.

The unit of privacy comes first, in the file as here.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from uedp.errors import UserError
from uedp.methods import PrivacySettings, method_named, method_names
from uedp.methods.base import Count, MethodOptions, Positive, Rate, Section, Seed
from uedp.models.scratch import KINDS as NEW_MODELS
from uedp.strict import parse_yaml


class DataSettings(Section):
    train: Path
    evaluate: Path | None = None
    evaluate_sentences: Count | None = None


class TaskSettings(Section):
    """`labels` are those a classifier tells apart; without them, those of the corpus."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    kind: Literal["next-word", "classification"] = "next-word"
    labels: tuple[str, ...] = ()

    @field_validator("labels")
    @classmethod
    def _two_at_least(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise ValueError("name at least two labels, each once")
        return labels


class ModelSettings(Section):
    """A saved model by folder or name; or a new one, of a kind, some sizes, a public tokenizer."""

    name: str
    sizes: dict[str, bool | int | float] = Field(default_factory=dict)
    tokenizer: str | None = None
    train: Annotated[str, Field(pattern=r"^(full|lora|lora-b|probe|last:\d+|attached)$")] = "lora"
    rank: Count = 8
    alpha: Positive | None = None
    targets: tuple[str, ...] = ()
    max_tokens: Annotated[int, Field(ge=2)] = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _new_ones_whole(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("name") in NEW_MODELS:
            return {"train": "full", **values}
        return values

    @model_validator(mode="after")
    def _fits(self) -> "ModelSettings":
        if self.name in NEW_MODELS and self.train.startswith(("lora", "probe")):
            raise ValueError(f"{self.name} is new and has nothing to adapt; train it `full`")
        return self


class VocabularySettings(Section):
    """Where a new word-level model gets its words (section 7 of docs/privacy.md).

    `tokenizer`: no words of its own, `model.tokenizer` cuts texts. `public`: the words in `path`,
    a word list or a public tokenizer. `private`: beside those, if any, words that many users gave,
    for `share` of epsilon. `corpus`: its most frequent words, which no guarantee covers.
    """

    source: Literal["tokenizer", "public", "private", "corpus"] = "tokenizer"
    path: str | None = None
    size: Count = 10_000
    lowercase: bool = True
    share: Rate = 0.3
    words_per_user: Count = 64
    words_per_sentence: Count = 16


class OptimiserSettings(Section):
    """What the server does with a round's noisy sum; all of it is post-processing."""

    name: Literal["sgd", "momentum", "adam"] = "adam"
    rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    second_moment: Annotated[float, Field(ge=0, lt=1)] = 0.99
    subtract_noise: bool = False
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Literal["none", "linear", "cosine"] = "linear"
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0


class RunSettings(Section):
    """`vectors` is a folder where what `model.train: probe` reads of texts is kept between runs.

    `precision: auto` is float32 for private methods, half precision on an accelerator for others.
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    tokens_at_once: Count | None = None
    evaluate_every: Count = 25
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 60.0
    vectors: Path | None = None


# Under noise, equal steps go further than long ones first; an average of the last has less of it.
CONSTANT_RATE: Mapping[str, Any] = MappingProxyType(
    {"decay": "none", "warm_up": 0.0, "average": 0.95}
)
# What next-word adapters begin with under noise, by Adam (`benchmarks/utility.py`).
ADAPTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"optimiser": {"rate": 3e-3, **CONSTANT_RATE}}
)
# What probes begin with. Their gradients are short: a clip below most of them makes all count
# alike, and few weights bear long steps.
PROBE_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "privacy": {"update_clip": 0.1},
        "optimiser": {"rate": 0.05, **CONSTANT_RATE},
    }
)


class Config(Section):
    """A whole run. `method_options` are those of `privacy.method`, if it has any."""

    privacy: PrivacySettings
    data: DataSettings
    model: ModelSettings
    task: TaskSettings = TaskSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    vocabulary: VocabularySettings = VocabularySettings()
    method_options: SerializeAsAny[MethodOptions] = MethodOptions()
    run: RunSettings = RunSettings()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        """Fill in defaults that depend on what is trained and how."""
        if not isinstance(values, Mapping):
            return values
        if "alg" in values:
            raise ValueError(
                "alg: this section is called method_options now; for methods other than uedp-alg "
                "remove it"
            )
        defaults = {
            section: {**fields, **given}
            for section, fields in _defaults_for(values).items()
            if isinstance(given := values.get(section, {}), Mapping)
        }
        return {**values, **defaults, "method_options": _options(values)}

    @model_validator(mode="after")
    def _vocabulary_fits(self) -> "Config":
        source = self.vocabulary.source
        if source != "tokenizer" and (
            self.model.name not in NEW_MODELS or self.model.tokenizer is not None
        ):
            raise ValueError(
                f"vocabulary.source {source}: words are for a new model without model.tokenizer"
            )
        if source == "public" and self.vocabulary.path is None:
            raise ValueError("vocabulary.path: name a word list or a tokenizer")
        if source == "private" and self.privacy.epsilon is None:
            raise ValueError(
                "vocabulary.source private: needs privacy.epsilon, and a method that is "
                "calibrated to it"
            )
        return self

    @property
    def private(self) -> bool:
        """Whether the method adds noise."""
        return method_named(self.privacy.method).profile_type is not None

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))


def _field(values: Mapping[str, Any], section: str, field: str, default: str) -> str:
    """A field of values that are not validated yet, sections perhaps already being models."""
    fields = values.get(section, {})
    read = fields.get if isinstance(fields, Mapping) else partial(getattr, fields)
    return str(read(field, default))


def _options(values: Mapping[str, Any]) -> Any:
    given = values.get("method_options", {})
    try:
        options = method_named(_field(values, "privacy", "method", "rotation")).options_type
    except ValueError:  # the field privacy.method reports it
        return MethodOptions()
    if isinstance(given, MethodOptions):
        given = given.model_dump()
    try:
        return options.model_validate(given or {})
    except ValidationError as error:
        raise ValueError(f"method_options.{_first(error)}") from None


def _defaults_for(values: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Defaults by what is trained, and whether with noise on every update."""
    field = partial(_field, values)
    train = field("model", "train", "lora")
    if train == "probe":
        return PROBE_DEFAULTS
    method = field("privacy", "method", "rotation")
    noisy_adapters = (
        train.startswith("lora")
        and field("model", "name", "") not in NEW_MODELS
        and method in method_names()
        and method_named(method).noises_gradients
        and field("task", "kind", "next-word") == "next-word"
        and field("optimiser", "name", "adam") == "adam"
    )
    return ADAPTER_DEFAULTS if noisy_adapters else {}


def parse_config(
    values: Mapping[str, Any], origin: str = "config", changes: Sequence[str] = ()
) -> Config:
    """A config from nested values, after `section.field=value` changes."""
    nested: dict[str, Any] = {
        section: dict(fields or {}) if isinstance(fields, Mapping | None) else fields
        for section, fields in values.items()
    }
    for change in changes:
        path, found, text = change.partition("=")
        section, dot, field = path.strip().partition(".")
        if not (found and dot and field):
            raise UserError(f"change {change!r}: write section.field=value, as privacy.epsilon=4")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise UserError(f"change {change!r}: the value cannot be read ({error})") from None
        fields = nested.setdefault(section, {})
        if isinstance(fields, dict):  # if not, what is wrong with it is said below
            fields[field] = value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise UserError(f"{origin}: {_first(error)}") from None


PRESETS = Path(__file__).parent / "presets"


def preset_path(name: str) -> Path | None:
    """The file of a config that comes with the package, such as `paper-gpt2`."""
    path = PRESETS / f"{name}.yaml"
    return path if path.is_file() else None


def load_config(path: Path, changes: Sequence[str] = ()) -> Config:
    """A config from a YAML file, after `section.field=value` changes."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not YAML: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold sections such as privacy, data and model")
    return parse_config(values, str(path), changes)


def _first(error: ValidationError) -> str:
    """The first complaint, with the field and the value."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "config"
    if first["type"] == "extra_forbidden":
        return f"{field}: no such field"
    if first["type"] == "missing":
        return f"{field}: is missing"
    value = "" if isinstance(first["input"], dict | BaseModel) else f" {first['input']!r}"
    return f"{field}{value}: {first['msg'].removeprefix('Value error, ')}"
