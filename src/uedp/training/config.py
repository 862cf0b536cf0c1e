"""The config of a run: one YAML layout, validated when it is read. Privacy comes first."""

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
    """`labels` are the classes of a classifier; by default the labels of the corpus."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    kind: Literal["next-word", "classification"] = "next-word"
    labels: tuple[str, ...] = ()

    @field_validator("labels")
    @classmethod
    def _at_least_two(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise ValueError("name at least two labels, each once")
        return labels


class ModelSettings(Section):
    """A saved model by folder or name; or a new one: its kind, its sizes, a public tokenizer."""

    name: str
    sizes: dict[str, bool | int | float] = Field(default_factory=dict)
    tokenizer: str | None = None
    train: Annotated[str, Field(pattern=r"^(full|lora(-b)?(:\d+)?|probe|last:\d+|attached)$")] = (
        "lora"
    )
    rank: Count = 8
    alpha: Positive | None = None
    targets: tuple[str, ...] = ()
    max_tokens: Annotated[int, Field(ge=2)] = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _train_new_models_fully(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("name") in NEW_MODELS:
            return {"train": "full", **values}
        return values

    @model_validator(mode="after")
    def _adapts_saved_models(self) -> "ModelSettings":
        if self.name in NEW_MODELS and self.train.startswith(("lora", "probe")):
            raise ValueError(f"{self.name} is new and has nothing to adapt; train it `full`")
        return self


class VocabularySettings(Section):
    """The vocabulary of a new word-level model (section 7 of docs/privacy.md).

    `tokenizer`: none, `model.tokenizer` is used. `public`: the words in `path`, a word list or a
    public tokenizer. `private`: these, if any, and words that many users contributed, for `share`
    of epsilon. `corpus`: the most frequent words of the corpus, which no guarantee covers.
    """

    source: Literal["tokenizer", "public", "private", "corpus"] = "tokenizer"
    path: str | None = None
    size: Count = 10_000
    lowercase: bool = True
    share: Rate = 0.3
    words_per_user: Count = 64
    words_per_sentence: Count = 16


class OptimiserSettings(Section):
    """The server optimiser, which post-processes noisy gradients."""

    name: Literal["sgd", "momentum", "adam"] = "adam"
    rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    second_moment: Annotated[float, Field(ge=0, lt=1)] = 0.99
    subtract_noise: bool = False
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Literal["none", "linear", "cosine"] = "linear"
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0


class RunSettings(Section):
    """`vectors` is a folder in which the sentence vectors of probes are cached between runs.

    `precision: auto` is float32 for private methods, half precision on an accelerator for others.
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    tokens_at_once: Count | None = None
    evaluate_every: Count = 25
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 60.0
    vectors: Path | None = None


# Under noise, a constant rate makes more progress than a decaying one; averaging removes noise.
CONSTANT_RATE: Mapping[str, Any] = MappingProxyType(
    {"decay": "none", "warm_up": 0.0, "average": 0.95}
)
# Defaults of next-word adapters trained by Adam under noise (`benchmarks/utility.py`).
ADAPTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"optimiser": {"rate": 3e-3, **CONSTANT_RATE}}
)
# Defaults of probes. Their gradients are short: a clip below most of them weights users equally,
# and few weights tolerate long steps.
PROBE_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"privacy": {"update_clip": 0.1}, "optimiser": {"rate": 0.05, **CONSTANT_RATE}}
)


class Config(Section):
    """A run. `method_options` are the options of `privacy.method`."""

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
        """Fill in defaults that depend on other fields."""
        if not isinstance(values, Mapping):
            return values
        if "alg" in values:
            raise ValueError(
                "alg: this section is now called method_options; for methods other than uedp-alg "
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
                f"vocabulary.source {source}: needs a new model without model.tokenizer"
            )
        if source == "public" and self.vocabulary.path is None:
            raise ValueError("vocabulary.path: give a word list or a tokenizer")
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
    """A field of values before validation; sections may already be models."""
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
        raise ValueError(f"method_options.{_first_error(error)}") from None


def _defaults_for(values: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Defaults that depend on the trained parameters and the noise."""
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
        path, equals, text = change.partition("=")
        section, dot, field = path.strip().partition(".")
        if not (equals and dot and field):
            raise UserError(f"change {change!r}: write section.field=value, as privacy.epsilon=4")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise UserError(f"change {change!r}: the value cannot be read ({error})") from None
        fields = nested.setdefault(section, {})
        if isinstance(fields, dict):  # if not, validation reports it below
            fields[field] = value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise UserError(f"{origin}: {_first_error(error)}") from None


PRESETS = Path(__file__).parent / "presets"


def preset_path(name: str) -> Path | None:
    """The file of a config in the package, such as `paper-gpt2`."""
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
        raise UserError(f"{path}: must have sections such as privacy, data and model")
    return parse_config(values, str(path), changes)


def _first_error(error: ValidationError) -> str:
    """The first validation error, with its field and value."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "config"
    if first["type"] == "extra_forbidden":
        return f"{field}: no such field"
    if first["type"] == "missing":
        return f"{field}: is missing"
    value = "" if isinstance(first["input"], dict | BaseModel) else f" {first['input']!r}"
    return f"{field}{value}: {first['msg'].removeprefix('Value error, ')}"
