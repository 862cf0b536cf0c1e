"""Load a causal language model or a sequence classifier, with its tokenizer."""

import contextlib
import importlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from uedp.errors import UserError
from uedp.hf_hub import max_tokens, read_saved
from uedp.models import scratch
from uedp.models.quantized import quantize_blocks

TaskKind = Literal["next-word", "classification"]

# modules that register a model type of ours with Transformers
_OWN_TYPES = {"awd_lstm": "uedp.models.awd_lstm", "uedp_probe": "uedp.models.probe"}
_DEFAULT_LIMIT = 1024  # tokens, for models and tokenizers that set no limit
_DROPOUT = re.compile(r"(^|_)(dropout|pdrop)(_|$)")


@dataclass(frozen=True)
class LoadedModel:
    """A model on the CPU in evaluation mode, and its tokenizer.

    `max_tokens` is the longest input, special tokens included: a property of the model only, so
    truncating texts to it reveals nothing about them. `new_weights` names the weights that the
    saved model lacks, drawn from the seed.
    """

    model: Any
    tokenizer: Any
    max_tokens: int
    new_weights: tuple[str, ...] = ()


def start_token(tokenizer: Any) -> int:
    """The token that every text begins with: the start token, or else the end token."""
    tokens = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    start = next((token for token in tokens if token is not None), None)
    if start is None:
        raise UserError("the tokenizer has neither a start nor an end token; add one to it")
    return int(start)


def load_model(
    model: str | Path,
    task: TaskKind = "next-word",
    *,
    labels: int | None = None,
    dropout: float | None = None,
    seed: int = 0,
    sizes: scratch.Sizes | None = None,
    tokenizer: str | Path | None = None,
    quantize: bool = False,
) -> LoadedModel:
    """Load a model from a folder or a `.gguf` file, the local cache or the hub, in this order.

    Args:
        model: a path, a name on the hub, or `awd-lstm` for a new model
        labels: the number of classes of a classifier; by default that of the saved one
        dropout: replaces every dropout rate of the model
        sizes: of a new model, where they differ from the paper's
        tokenizer: of a new model, a public one: a folder, a `tokenizer.json`, a name on the hub,
            or `bytes`
        quantize: store the frozen linear layers of its blocks in four bits

    Guarantees:
      - a folder, a file and a cached model are read without asking the network for anything
      - no code that comes with a model is run
      - a next-word model sees only the words before the one it predicts
      - all weights come from the saved model, except a classifier's head, which is drawn from
        the seed if the saved model has none for this number of labels; those of a new model are
        drawn from the seed
      - the tokenizer has a padding token and pads on the right; no token is added for it
    """
    request = _Request(f"model {str(model)!r}", task, labels, dropout, seed, quantize)
    if model in scratch.KINDS:
        return _new_model(request, sizes or {}, tokenizer)
    if sizes or tokenizer is not None:
        raise UserError(
            f"{request.asked}: model.sizes and model.tokenizer are for a new model "
            f"({', '.join(scratch.KINDS)}); a saved one has its own"
        )
    _check_path(Path(model).expanduser(), request.asked)
    return read_saved(model, request.asked, lambda source, local: _read(request, source, local))


@dataclass(frozen=True)
class _Request:
    asked: str
    task: TaskKind
    labels: int | None
    dropout: float | None
    seed: int
    quantize: bool

    def __post_init__(self) -> None:
        if self.task not in get_args(TaskKind):
            raise UserError(f"task {self.task!r}: must be one of {', '.join(get_args(TaskKind))}")
        if self.labels is not None and self.task == "next-word":
            raise UserError(
                f"{self.asked}: labels {self.labels} are for classification; leave them out"
            )
        if self.labels is not None and self.labels < 2:
            raise UserError(f"{self.asked}: labels {self.labels}: at least two classes are needed")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"{self.asked}: dropout {self.dropout}: must be in [0, 1)")

    @property
    def classifies(self) -> bool:
        return self.task == "classification"

    def apply(self, config: Any) -> None:
        """Set the number of labels and the dropout rates of a model's config."""
        if self.classifies:
            classifier = any("ForSequenceClassification" in x for x in config.architectures or [])
            if self.labels is None and not classifier:
                raise UserError(
                    f"{self.asked}: it has no classification head; say how many labels it needs"
                )
            config.num_labels = int(config.num_labels if self.labels is None else self.labels)
        for name, value in config.to_dict().items() if self.dropout is not None else ():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue  # None means: the same as the others
            if _DROPOUT.search(name):
                setattr(config, name, self.dropout)
            elif name.endswith("layerdrop"):  # drops whole layers, which was not asked for
                setattr(config, name, 0.0)


def _check_path(path: Path, asked: str) -> None:
    if path.is_file() and path.suffix != ".gguf":
        raise UserError(f"{asked}: a file; name the folder of a saved model, or a .gguf file")
    if not path.is_dir() or (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        raise UserError(f"{asked}: holds an adapter only; name the folder of the whole model")
    files = sorted(path.glob("*.gguf"))
    remedy = f"name the file, {files[0]}" if files else "name a folder with a saved model"
    raise UserError(f"{asked}: the folder has no config.json; {remedy}")


def _register_type(folder: Path, asked: str) -> None:
    """Register the model type of a folder with Transformers, if it is one of ours."""
    if (folder / "config.json").is_file():
        try:
            model_type = json.loads((folder / "config.json").read_text()).get("model_type")
        except (ValueError, AttributeError, OSError) as error:
            raise UserError(f"{asked}: its config.json cannot be read: {error}") from error
        if model_type in _OWN_TYPES:
            importlib.import_module(_OWN_TYPES[model_type])


def _read(request: _Request, source: str, local: bool) -> LoadedModel:
    from transformers import AutoConfig

    path, options = Path(source), _options(local)
    gguf = path.is_file()
    if gguf:
        source, options["gguf_file"] = str(path.parent), path.name
    elif local:
        _register_type(path, request.asked)
    # the progress bar of a GGUF file cannot be switched off
    with contextlib.redirect_stderr(io.StringIO()) if gguf else contextlib.nullcontext():
        config = AutoConfig.from_pretrained(source, **options)
        request.apply(config)
        tokenizer = _read_tokenizer(source, options)
        model, new_weights = _read_weights(config, request, source, options)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if gguf:
        _drop_unknown_tokens(tokenizer, vocabulary)
    if len(tokenizer) > vocabulary:
        raise UserError(
            f"{request.asked}: its tokenizer has {len(tokenizer)} tokens, but the model knows "
            f"{vocabulary}; they do not belong together"
        )
    _set_padding(model, tokenizer, request.asked)
    limit = max_tokens(model, tokenizer, _DEFAULT_LIMIT)
    if not request.classifies and _looks_ahead(model, limit):
        raise UserError(
            f"{request.asked}: {type(model).__name__} sees the words it should predict; "
            "choose a causal language model, such as gpt2"
        )
    return LoadedModel(model, tokenizer, limit, new_weights)


def _options(local: bool) -> dict[str, Any]:
    """For `from_pretrained`: run no code of the model, and do not ask on the terminal."""
    return {"local_files_only": local, "trust_remote_code": False}


def _read_tokenizer(source: str, options: Mapping[str, Any]) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up, for lack of a file
        raise FileNotFoundError(
            "it has no tokenizer; put the tokenizer.json of the model beside it"
        )
    return tokenizer


def _read_weights(
    config: Any, request: _Request, source: str, options: dict[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    """The model, and the names of its weights that were drawn from the seed."""
    import transformers

    if request.classifies:
        known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        auto_class = transformers.AutoModelForSequenceClassification
        wanted, example = "sequence classifier", "bert-base-uncased"
    else:
        known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        auto_class = transformers.AutoModelForCausalLM
        wanted, example = "causal language model", "gpt2"
    if type(config) not in known:
        raise UserError(
            f"{request.asked}: a model of type {config.model_type!r} is not a {wanted}; "
            f"choose another, such as {example}"
        )
    if "gguf_file" in options and hasattr(transformers, "GgufConfig"):
        # quantised blocks cannot be trained; versions without the option always dequantise
        options = {**options, "quantization_config": transformers.GgufConfig(dequantize=True)}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(request.seed)  # the CPU's; others stay as they are
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            dtype="auto" if request.quantize else torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=request.classifies,  # another number of labels
            **options,
        )
    new = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    base = f"{model.base_model_prefix}."
    missing = [
        name
        for name in new
        if not request.classifies
        or (name.startswith(base) and not name.startswith(f"{base}pooler."))
    ]
    if missing:
        raise UserError(
            f"{request.asked}: the saved model lacks weights ({', '.join(missing[:3])}); "
            f"it was not trained as a {type(model).__name__}"
        )
    if request.quantize:
        quantize_blocks(model, request.asked)
    return model, tuple(new)


def _new_model(request: _Request, sizes: scratch.Sizes, named: str | Path | None) -> LoadedModel:
    if named is None:
        raise UserError(
            f"{request.asked}: a new model needs a public tokenizer; name one as model.tokenizer: "
            f"a folder, a tokenizer.json, a model on the hub, or `{scratch.BYTES}`"
        )
    tokenizer = public_tokenizer(named)
    config = scratch.configuration(sizes, tokenizer)
    request.apply(config)
    model = scratch.new_model(config, request.classifies, request.seed)
    _set_padding(model, tokenizer, request.asked)
    new_weights = sorted(name for name, _ in model.named_parameters())
    limit = max_tokens(model, tokenizer, _DEFAULT_LIMIT)
    return LoadedModel(model, tokenizer, limit, tuple(new_weights))


def public_tokenizer(named: str | Path) -> Any:
    """A tokenizer from a folder or a file, the local cache or the hub, in this order."""
    if named == scratch.BYTES:
        return scratch.byte_tokenizer()
    path = Path(named).expanduser()
    folder = path.parent if path.name == "tokenizer.json" else path
    if (folder / "tokenizer_config.json").is_file():
        named = folder  # the config says which tokens start and end a text
    elif (folder / "tokenizer.json").is_file():
        return scratch.tokenizer_in_file(folder / "tokenizer.json")
    elif path.is_file():
        return scratch.tokenizer_in_file(path)
    return read_saved(
        named,
        f"tokenizer {str(named)!r}",
        lambda source, local: _read_tokenizer(source, _options(local)),
    )


def _drop_unknown_tokens(tokenizer: Any, vocabulary: int) -> None:
    """Drop the tokens that the model has no embedding for.

    Transformers adds GPT-2's end token to the tokenizer of every GGUF file; a text that spells it
    would crash the run.
    """
    from tokenizers import Tokenizer

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    known = [token for token in described["added_tokens"] if token["id"] < vocabulary]
    if len(known) < len(described["added_tokens"]):
        described["added_tokens"] = known
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(described))


def _set_padding(model: Any, tokenizer: Any, asked: str) -> None:
    """Any token will do, since padding is masked; a new one would have no trained embedding."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token or tokenizer.unk_token
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"{asked}: its tokenizer has no padding, end, start or unknown token; "
                "name one of its tokens as pad_token in tokenizer_config.json"
            )
    tokenizer.padding_side = "right"  # else the positions of words would depend on the padding
    model.config.pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def _looks_ahead(model: Any, limit: int) -> bool:
    """Whether the predictions at the first positions depend on later tokens.

    Masked models that see both ways use the same layers, and their configs are not reliable.
    """
    length = min(8, limit)
    ids = torch.arange(length)[None]
    other = torch.where(ids < length // 2, ids, ids + 1)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    with torch.inference_mode():
        logits, others = (model(input_ids=x % vocabulary).logits for x in (ids, other))
    first = slice(0, length // 2)
    tolerance = 1e-4 * float(logits.abs().max())
    return float((logits[:, first] - others[:, first]).abs().max()) > tolerance
