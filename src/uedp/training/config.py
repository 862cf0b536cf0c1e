"""What a run is asked to do: one YAML shape, every field checked where it is read.

The unit of privacy comes first, in the file as here.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from uedp.errors import UserError
from uedp.models.scratch import KINDS as NEW_MODELS
from uedp.strict import parse_yaml

Method = Literal["rotation", "user-level", "uedp-alg", "deidentified", "noiseless"]
PRIVATE: tuple[Method, ...] = ("rotation", "user-level", "uedp-alg")

Rate = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Privacy(_Section):
    """Who is protected, and how well.

    Give `epsilon`, and the noise is found; or `noise`, and epsilon follows.
    """

    method: Method = "rotation"
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

    @model_validator(mode="after")
    def _one_target(self) -> "Privacy":
        if self.method in PRIVATE and (self.epsilon is None) == (self.noise is None):
            raise ValueError("give either epsilon or noise")
        if self.method not in PRIVATE and (self.epsilon is not None or self.noise is not None):
            raise ValueError(f"{self.method} adds no noise; leave out epsilon and noise")
        if self.method == "uedp-alg" and self.noise is None:
            raise ValueError("uedp-alg takes the paper's z as noise; its epsilon follows")
        bounded = self.sentences_per_entity or self.sentences_per_user
        if self.method == "uedp-alg" and bounded:
            raise ValueError(
                "uedp-alg uses all sentences it samples; leave out sentences_per_entity and "
                "sentences_per_user"
            )
        return self


class Alg(_Section):
    """UeDP-Alg's own settings (section 2 of docs/privacy.md)."""

    estimator: Literal["f_E", "f_E+"] = "f_E+"
    local_rate: Positive = 0.1
    local_batch: Count = 8
    user_cap: Count = 1
    entity_cap: Count = 1
    literal_line: bool = False


class Data(_Section):
    train: Path
    evaluate: Path | None = None
    evaluate_sentences: Count | None = None


class Task(_Section):
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


class Model(_Section):
    """A saved model by folder or name; or a new one, of a kind, some sizes, a public tokenizer."""

    name: str
    sizes: dict[str, bool | int | float] = {}
    tokenizer: str | None = None
    train: Annotated[str, Field(pattern=r"^(full|lora|lora-b|probe|last:\d+)$")] = "lora"
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
    def _fits(self) -> "Model":
        if self.name in NEW_MODELS and self.train.startswith(("lora", "probe")):
            raise ValueError(f"{self.name} is new and has nothing to adapt; train it `full`")
        return self


class Vocabulary(_Section):
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


class Optimiser(_Section):
    """What the server does with a round's noisy sum; all of it is post-processing."""

    name: Literal["sgd", "momentum", "adam"] = "adam"
    rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    second_moment: Annotated[float, Field(ge=0, lt=1)] = 0.99
    subtract_noise: bool = False
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Literal["none", "linear", "cosine"] = "linear"
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Run(_Section):
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
EQUAL_STEPS: Mapping[str, Any] = MappingProxyType(
    {"decay": "none", "warm_up": 0.0, "average": 0.95}
)
# What next-word adapters begin with under noise, by Adam (`benchmarks/utility.py`).
FOR_NOISY_ADAPTERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"optimiser": {"rate": 3e-3, **EQUAL_STEPS}}
)
# What probes begin with. Their gradients are short: a clip below most of them makes all count
# alike, and few weights bear long steps.
FOR_PROBES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "privacy": {"update_clip": 0.1},
        "optimiser": {"rate": 0.05, **EQUAL_STEPS},
    }
)


class Config(_Section):
    """A whole run."""

    privacy: Privacy
    data: Data
    model: Model
    task: Task = Task()
    optimiser: Optimiser = Optimiser()
    vocabulary: Vocabulary = Vocabulary()
    alg: Alg = Alg()
    run: Run = Run()

    @model_validator(mode="before")
    @classmethod
    def _suited(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        suited = {
            section: {**fields, **given}
            for section, fields in _suiting(values).items()
            if isinstance(given := values.get(section, {}), Mapping)
        }
        return {**values, **suited}

    @model_validator(mode="after")
    def _words_fit(self) -> "Config":
        source = self.vocabulary.source
        if source != "tokenizer" and (
            self.model.name not in NEW_MODELS or self.model.tokenizer is not None
        ):
            raise ValueError(
                f"vocabulary.source {source}: words are for a new model without model.tokenizer"
            )
        if source == "public" and self.vocabulary.path is None:
            raise ValueError("vocabulary.path: name a word list or a tokenizer")
        if source == "private" and (
            self.privacy.method not in ("rotation", "user-level") or self.privacy.epsilon is None
        ):
            raise ValueError(
                "vocabulary.source private: needs rotation or user-level, and privacy.epsilon"
            )
        return self

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))


def _suiting(values: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What to begin with, by what is trained, and whether with noise on every update."""

    def asked(section: str, field: str, default: str) -> str:
        found = values.get(section, {})
        of = found.get if isinstance(found, Mapping) else partial(getattr, found)
        return str(of(field, default))

    train = asked("model", "train", "lora")
    if train == "probe":
        return FOR_PROBES
    suits = (
        train.startswith("lora")
        and asked("model", "name", "") not in NEW_MODELS
        and asked("privacy", "method", "rotation") in ("rotation", "user-level")
        and asked("task", "kind", "next-word") == "next-word"
        and asked("optimiser", "name", "adam") == "adam"
    )
    return FOR_NOISY_ADAPTERS if suits else {}


def parse(values: Mapping[str, Any], origin: str = "config", changes: Sequence[str] = ()) -> Config:
    """A config from nested values, after `section.field=value` changes."""
    nested: dict[str, Any] = {
        section: dict(fields or {}) if isinstance(fields, Mapping | None) else fields
        for section, fields in values.items()
    }
    for change in changes:
        path, found, text = change.partition("=")
        section, dot, field = path.strip().partition(".")
        if not (found and dot and field):
            raise UserError(f"--set {change}: write section.field=value, as privacy.epsilon=4")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise UserError(f"--set {change}: the value cannot be read ({error})") from None
        fields = nested.setdefault(section, {})
        if isinstance(fields, dict):  # if not, what is wrong with it is said below
            fields[field] = value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise UserError(f"{origin}: {_first(error)}") from None


PRESETS = Path(__file__).parent / "presets"


def preset(name: str) -> Path | None:
    """The file of a config that comes with the package, such as `paper-gpt2`."""
    path = PRESETS / f"{name}.yaml"
    return path if path.is_file() else None


def load(path: Path, changes: Sequence[str] = ()) -> Config:
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
    return parse(values, str(path), changes)


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
