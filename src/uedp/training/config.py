"""The config of a run: one YAML layout, validated when it is read. Privacy comes first."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from uedp.errors import UserError
from uedp.methods import PrivacySettings, method_named, method_names
from uedp.methods.base import PLANNED, Count, MethodOptions, Positive, Rate, Section, Seed
from uedp.models.scratch import KINDS as NEW_MODELS
from uedp.strict import parse_yaml, shortened


class DataSettings(Section):
    """The corpora."""

    train: Path = Field(description="The corpus to train on, as detection wrote it.")
    evaluate: Path | None = Field(
        default=None,
        description="A corpus of other users to evaluate on. By default none, and no quality is "
        "measured: the guarantee does not cover measures on the users that it protects.",
    )
    evaluate_sentences: Count | None = Field(
        default=None,
        description="Evaluate on the first so many of its sentences; null: on all. By default on "
        "1,000 if the planner chooses the rounds, since all would take long on a processor, "
        "otherwise on all.",
    )
    public: Path | None = Field(
        default=None,
        description="Text that anybody may read, to train on first, without privacy: a corpus, or "
        "a file that detection could read; no entities are looked for. By default none, because "
        "only a person can declare a text public: nothing protects it.",
    )


class PublicSettings(Section):
    """Training on `data.public`, before the private rounds: ordinary, without noise.

    It trains the same parameters as the rounds do. Adapters are then added to the weights below
    them, and the rounds start with new ones.
    """

    steps: Count | None = Field(
        default=None,
        description="Steps of the optimiser (Adam, with a rate that falls linearly, on gradients "
        "clipped to norm 1). By default three passes over the text, at most 500 steps, and no more "
        "than take a third of `run.time`; the time is measured on the public text, so that nothing "
        "private decides.",
    )
    sentences: Count = Field(
        default=128,
        description="Sentences of a step. Without noise there is no need for more; a step of a few "
        "thousand tokens keeps most devices busy.",
    )
    rate: Positive = Field(
        default=1e-3,
        description="The learning rate. The usual one of adapters and new models. By default 1e-4 "
        "where weights of a saved model are trained themselves, which would forget more at larger "
        "ones, and 0.01 for probes.",
    )
    declared_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Who declares that the text is public; it goes on the certificate. By default "
        "the person who ran this, without a name.",
    )
    reader: str = Field(
        default="auto",
        description="The format, if `data.public` is a file. By default by its suffix; .txt has "
        "one text per line.",
    )
    text: str = Field(default="text", description="The column of a file with the text, as usual.")
    label: str | None = Field(
        default=None,
        description="The column with the class, for a classifier. By default none is read.",
    )
    split: str = Field(
        default="auto",
        description="The language by whose rules texts of a file are split into sentences, or "
        "none. By default English, as detection does it, so that sentences are alike.",
    )


class TaskSettings(Section):
    """What the model learns."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    kind: Literal["next-word", "classification"] = Field(
        default="next-word",
        description="By default language modelling, which needs no labels.",
    )
    labels: tuple[str, ...] = Field(
        default=(),
        description="The classes of a classifier. By default those in the corpus, and the "
        "certificate says that their set is not covered.",
    )

    @field_validator("labels")
    @classmethod
    def _at_least_two(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if labels and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise ValueError("name at least two labels, each once")
        return labels


class ModelSettings(Section):
    """A saved model by folder or name; or a new one: its kind, its sizes, a public tokenizer."""

    name: str = Field(description="A folder, a .gguf file, a name on the hub, or awd-lstm.")
    continued: bool = Field(
        default=False,
        description="Whether `name` is the folder of a finished run on this corpus, or on an "
        "earlier epoch of it, that is trained on: then `privacy.epsilon` is that of all these runs "
        "together. By default no: a model that has learned from the corpus is refused.",
    )
    sizes: dict[str, bool | int | float] = Field(
        default_factory=dict,
        description="Sizes of a new model, such as `hidden_size`. By default those of its kind.",
    )
    tokenizer: str | None = Field(
        default=None,
        description="The tokenizer of a new model: bytes, a folder, a tokenizer.json or a name. "
        "By default none; a saved model has its own.",
    )
    train: str = Field(
        default="lora",
        pattern=r"^(full|lora(-b)?(:\d+)?|probe|last:\d+|attached)$",
        description="Which parameters are trained: full, lora, lora-b (half of each adapter), "
        "lora:N (adapters in the last N blocks), probe, last:N blocks. Adapters by default, since "
        "the norm of the noise grows with the number of parameters; a new model is trained in "
        "full.",
    )
    rank: Count = Field(
        default=8,
        description="The rank of adapters. 8 was used in all our experiments with adapters.",
    )
    alpha: Positive | None = Field(
        default=None,
        description="The scale of adapters. By default twice the rank.",
    )
    targets: tuple[str, ...] = Field(
        default=(),
        description="The layers that get adapters, by the last part of their names. By default all "
        "that can have one.",
    )
    quantize: Literal["4bit"] | None = Field(
        default=None,
        description="4bit: the frozen linear layers under adapters are stored in four bits, for "
        "models that do not fit in memory otherwise (needs the extra `quantize`). The model that "
        "is written has weights of full precision again. By default nothing is quantized.",
    )
    max_tokens: Annotated[int, Field(ge=2)] = Field(
        default=128,
        description="Longer sentences are truncated. 128 tokens hold nearly every single "
        "sentence, and memory grows with the longest.",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Overrides the dropout of the model. By default its own."
    )
    seed: Seed = Field(
        default=0,
        description="The seed of new weights, which are public. 0, so that a run starts from the "
        "same model again.",
    )

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
        if self.quantize and not self.train.startswith("lora"):
            raise ValueError(f"quantize {self.quantize}: frozen weights only; train adapters, lora")
        return self


class VocabularySettings(Section):
    """The vocabulary of a new word-level model (section 7 of docs/privacy.md)."""

    source: Literal["tokenizer", "public", "private", "corpus"] = Field(
        default="tokenizer",
        description="tokenizer: none, `model.tokenizer` is used. public: the words in `path`. "
        "private: these, if any, and words that many users contributed, for `share` of epsilon. "
        "corpus: the most frequent words of the corpus, which no guarantee covers. By default "
        "nothing is taken from the corpus.",
    )
    path: str | None = Field(
        default=None, description="A word list or a public tokenizer, which `public` needs."
    )
    size: Count = Field(
        default=10_000, description="The most words. Ten thousand cover most of everyday English."
    )
    lowercase: bool = Field(
        default=True,
        description="Words in lower case, so that each is counted once, as in the paper.",
    )
    share: Rate = Field(
        default=0.3,
        description="The share of epsilon spent on a private vocabulary. A compromise: less finds "
        "few words, more leaves little for training.",
    )
    words_per_user: Count = Field(
        default=64,
        description="Words that a user contributes to a private vocabulary. More would need more "
        "noise on every count.",
    )
    words_per_sentence: Count = Field(
        default=16, description="The same for a sentence; it bounds what an entity contributes."
    )


class OptimiserSettings(Section):
    """The server optimiser, which post-processes noisy gradients.

    Probes, and next-word adapters under noise, have defaults of their own, which were the best in
    our experiments: a constant rate (`decay: none`, `warm_up: 0`); for probes a `rate` of 0.1 and
    `average: 0.98`, for adapters 3e-3 and 0.95. If the planner chooses fewer than 200 rounds, and
    nothing of this section is set, adapters get longer steps (`3e-3 sqrt(200 / rounds)`) and a
    shorter average (`1 - 10 / rounds`).
    """

    name: Literal["sgd", "momentum", "adam"] = Field(
        default="adam",
        description="Adam by default: its steps do not depend on the scale of the clip.",
    )
    rate: Positive = Field(
        default=1e-3, description="The learning rate. The usual one of Adam, except as said above."
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.9,
        description="The average over past gradients, which also averages noise. As usual.",
    )
    second_moment: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.99,
        description="The same for squares. Shorter than usual, since runs have few rounds.",
    )
    subtract_noise: bool = Field(
        default=False,
        description="Subtract the known variance of the noise from Adam's squares. Off: what "
        "is left of small squares is unreliable.",
    )
    warm_up: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.05, description="The part of the rounds in which the rate rises. Short, as usual."
    )
    decay: Literal["none", "linear", "cosine"] = Field(
        default="linear",
        description="How the rate falls after that. To zero, so that the end is quiet.",
    )
    average: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="The average over past weights that is evaluated and saved. Off with a "
        "falling rate, which averages by itself.",
    )
    average_tail: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0,
        description="Instead of `average`, the plain mean of the weights in this last part of the "
        "rounds. Off: no gain has been shown.",
    )
    filter: Literal["none", "low-pass", "kalman"] = Field(
        default="none",
        description="Filters the noisy gradients over the rounds before the optimiser: "
        "DOPPLER's low-pass filter, or DiSK's simplified Kalman filter. Off: no gain has been "
        "shown.",
    )
    filter_gain: Rate = Field(
        default=0.7, description="What a filter takes from the newest round; 1 filters nothing."
    )

    @model_validator(mode="after")
    def _noise_is_known(self) -> "OptimiserSettings":
        if self.subtract_noise and self.filter != "none":
            raise ValueError(
                "subtract_noise: the noise is not known behind a filter; leave out one"
            )
        return self


def parse_duration(value: Any) -> Any:
    """Seconds; a text such as 90s, 30m, 2h or 1d has a unit."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        if isinstance(value, str):
            raise ValueError("write a number with s, m, h or d, as 30m or 2h")
        return value
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2] or "s"]


_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([smhd]?)")


Logger = Literal["tensorboard", "wandb", "mlflow"]


def _split_words(value: Any) -> Any:
    """Names in a list, or in one text, separated by commas."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


class RunSettings(Section):
    """How and where to compute; may change when a run is resumed."""

    time: Annotated[Positive, BeforeValidator(parse_duration)] = Field(
        default=3600.0,
        description="How long the planner may let the run take, in seconds or as 90s, 30m, 2h, "
        "1d; a run is not stopped by it. One hour: long enough to learn, short enough to wait.",
    )
    device: str = Field(
        default="auto",
        description="cpu, cuda or cuda:1. By default an accelerator if there is one.",
    )
    precision: Literal["auto", "float32", "bfloat16", "bfloat16-fixed"] = Field(
        default="auto",
        description="By default float32 for private methods, since half precision needs more "
        "noise, and half precision on an accelerator for others. bfloat16-fixed needs no more: "
        "adapters of a language model, on an accelerator, in passes of one shape.",
    )
    tokens_at_once: Count | None = Field(
        default=None,
        description="Tokens per batch. By default 4,096, on an accelerator 32,768, and fewer when "
        "memory runs out.",
    )
    evaluate_every: Count = Field(
        default=25,
        description="Rounds between two evaluations. Rare, since each reads all of the text.",
    )
    checkpoint_seconds: Annotated[float, Field(ge=0)] = Field(
        default=60.0, description="Seconds between two checkpoints: about what a killed run loses."
    )
    report_to: Annotated[tuple[Logger, ...], BeforeValidator(_split_words)] | None = Field(
        default=None,
        description="Programs that get the figures of every round: tensorboard (in the folder "
        "`tensorboard` of the run), wandb, mlflow. These figures are not protected, and wandb or "
        "an MLflow server take them to another machine. By default tensorboard if it is "
        "installed, since it writes only into the run's folder.",
    )
    vectors: Path | None = Field(
        default=None,
        description="A folder in which the sentence vectors of probes are cached between runs. "
        "By default none, since they are as private as the text.",
    )


# Under noise, a constant rate makes more progress than a decaying one; averaging removes noise.
CONSTANT_RATE: Mapping[str, Any] = MappingProxyType(
    {"decay": "none", "warm_up": 0.0, "average": 0.95}
)
# Defaults of next-word adapters trained by Adam under noise (`benchmarks/utility.py`).
ADAPTER_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"optimiser": {"rate": 3e-3, **CONSTANT_RATE}}
)
# Defaults of probes. Their gradients are short: a clip below most of them weights users equally,
# and few weights tolerate long steps if they are averaged over many rounds.
PROBE_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "privacy": {"update_clip": 0.1},
        "optimiser": {"rate": 0.1, **CONSTANT_RATE, "average": 0.98},
    }
)
_PUBLIC_PROBE_RATE, _PUBLIC_WEIGHTS_RATE = 0.01, 1e-4


class Config(Section):
    """A run. `method_options` are the options of `privacy.method`."""

    privacy: PrivacySettings
    data: DataSettings
    model: ModelSettings
    task: TaskSettings = TaskSettings()
    public: PublicSettings = PublicSettings()
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
    def _quantized_weights_stay(self) -> "Config":
        if self.model.quantize and self.data.public is not None:
            raise ValueError(
                "model.quantize: adapters learned from data.public cannot be added to weights of "
                "four bits; leave one of the two out"
            )
        return self

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
        raise ValueError(f"method_options.{_first_error(error, options.model_fields)}") from None


def _defaults_for(values: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Defaults that depend on the trained parameters and the noise."""
    field = partial(_field, values)
    new = field("model", "name", "") in NEW_MODELS
    train = field("model", "train", "full" if new else "lora")
    if train == "probe":
        return {**PROBE_DEFAULTS, "public": {"rate": _PUBLIC_PROBE_RATE}}
    if not train.startswith("lora") and not new:
        return {"public": {"rate": _PUBLIC_WEIGHTS_RATE}}
    method = field("privacy", "method", "rotation")
    noisy_adapters = (
        train.startswith("lora")
        and not new
        and method in method_names()
        and method_named(method).noises_gradients
        and field("task", "kind", "next-word") == "next-word"
        and field("optimiser", "name", "adam") == "adam"
    )
    return ADAPTER_DEFAULTS if noisy_adapters else {}


def parse_config(
    values: Mapping[str, Any], origin: str = "config", changes: Sequence[str] = ()
) -> Config:
    """A config from nested values, after `section.field=value` changes.

    A null leaves a field to the planner; but `sentences_per_user: null` means no limit.
    """
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
    if isinstance(privacy := nested.get("privacy"), dict):
        for field in set(PLANNED) - {"sentences_per_user"}:
            if field in privacy and privacy[field] is None:
                del privacy[field]
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise UserError(f"{origin}: {_first_error(error)}") from None


def default_config(config: Config) -> Config:
    """The config without the fields that a person tunes."""
    values = config.model_dump(mode="json", include={"data", "model", "task"})
    kept = config.privacy.model_dump(include={"method", "epsilon", "noise"}, exclude_none=True)
    return parse_config({"privacy": kept, **values})


PRESETS = Path(__file__).parent / "presets"


def preset_path(name: str) -> Path | None:
    """The file of a config in the package, such as `paper-gpt2`."""
    path = PRESETS / f"{name}.yaml"
    return path if path.is_file() else None


def load_config(path: Path, changes: Sequence[str] = ()) -> Config:
    """A config from a YAML file, after `section.field=value` changes."""
    if (path / "corpus.json").is_file():
        raise UserError(f"{path}: is a corpus, not a config; name it with `corpus=...`")
    if (path / "config.yaml").exists():
        raise UserError(f"{path}: is a run, not a config; name {path / 'config.yaml'}")
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


_LONGEST = 40  # characters of a field's name: a file of messages may be taken for a config


def _first_error(error: ValidationError, known: Iterable[str] | None = None) -> str:
    """The first validation error, with its field and value; `known` are fields of one section."""
    first = error.errors()[0]
    field = ".".join(str(name)[:_LONGEST] for name in first["loc"]) or "config"
    if first["type"] == "extra_forbidden":
        meant = _meant(*map(str, first["loc"])) if known is None else closest(field, known)
        return f"{field}: no such field" + (f"; did you mean {meant}?" if meant else "")
    if first["type"] == "missing":
        return f"{field}: is missing"
    value = "" if isinstance(first["input"], dict | BaseModel) else f" {shortened(first['input'])}"
    return f"{field}{value}: {first['msg'].removeprefix('Value error, ')}"


# What other programs call a field.
_OTHER_NAMES = {
    "learning_rate": "optimiser.rate",
    "lr": "optimiser.rate",
    "epochs": "privacy.rounds",
    "steps": "privacy.rounds",
    "batch_size": "privacy.user_rate",
    "noise_multiplier": "privacy.noise",
    "max_grad_norm": "privacy.update_clip",
    "max_length": "model.max_tokens",
}


def _meant(*path: str) -> str | None:
    """The section or the field that an unknown one was probably meant to be."""
    fields: dict[str, list[str]] = {}  # the places of each name
    for section, info in Config.model_fields.items():
        for field in getattr(info.annotation, "model_fields", ()):
            fields.setdefault(field, []).append(f"{section}.{field}")
    *sections, name = path[:2]
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    if sections:
        own = [field for field, places in fields.items() if f"{sections[0]}.{field}" in places]
        if near := closest(name, own):
            return f"{sections[0]}.{near}"
    elif near := closest(name, Config.model_fields):
        return near
    near = closest(name, fields)
    return fields[near][0] if near else None


def closest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of some names, None if no one is similar."""
    found = difflib.get_close_matches(name.lower().replace("-", "_"), list(names), 1, 0.7)
    return found[0] if found else None
