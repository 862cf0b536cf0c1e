"""Read a causal language model or a sequence classifier, with its tokenizer."""

import contextlib
import importlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from uedp.errors import UserError
from uedp.hf_hub import ask_hub, most_tokens
from uedp.models import scratch

TaskKind = Literal["next-word", "classification"]

# modules that teach Transformers a model
_OWN_KINDS = {"awd_lstm": "uedp.models.awd_lstm", "uedp_probe": "uedp.models.probe"}
_DEFAULT_LIMIT = 1024  # tokens, for models and tokenizers that set no limit


@dataclass(frozen=True)
class LoadedModel:
    """A model on the CPU in evaluation mode, and the tokenizer it was made with.

    `max_tokens` is how many tokens it takes at once, those around the text included: a property
    of the model alone, so cutting texts to it tells nothing about them. `new_weights` names what
    the saved model lacked and was drawn from the seed.
    """

    model: Any
    tokenizer: Any
    max_tokens: int
    new_weights: tuple[str, ...] = ()


def load_model(
    model: str | Path,
    task: TaskKind = "next-word",
    *,
    labels: int | None = None,
    dropout: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sizes: scratch.Sizes | None = None,
    tokenizer: str | Path | None = None,
) -> LoadedModel:
    """The model in a folder or a `.gguf` file, in the local cache, or on the hub, in this order.

    `awd-lstm` is a new model instead: of the paper's sizes but for `sizes`, with a public
    `tokenizer`: a folder, a `tokenizer.json`, a name on the hub, or `bytes`.

    `labels` is how many classes a classifier tells apart (default: as many as the saved one).
    `dropout` replaces every dropout rate of the model; without it they stay as published.

    Guarantees:
      - a folder, a file and a cached model are read without asking the network for anything
      - no code that comes with a model is run
      - a next-word model sees only the words before the one it predicts
      - all weights come from the saved model, but for a classifier's head, which is drawn from
        the seed if the saved model has none for this number of labels; those of a new model are
        drawn from the seed
      - the tokenizer has a padding token and pads on the right; no token is added for it
    """
    asked = f"model {str(model)!r}"
    _check(asked, task, labels, dropout)
    request = _Request(asked, task, labels, dropout, seed, dtype)
    path, name = Path(model).expanduser(), str(model)
    if name in scratch.KINDS:
        return _from_scratch(request, name, sizes or {}, tokenizer)
    if sizes or tokenizer is not None:
        raise UserError(
            f"{asked}: model.sizes and model.tokenizer are for a new model "
            f"({', '.join(scratch.KINDS)}); a saved one has its own"
        )
    local: _Source | None = None
    if path.is_dir():
        local = _folder(path, asked)
    elif path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{asked}: a file; name the folder of a saved model, or a .gguf file")
        local = _Source(str(path.parent), path.name)
    elif isinstance(model, Path) or _is_path(name):
        raise UserError(f"{asked}: no such folder or file")
    try:
        return _open(request, local or _cached(name, asked))
    except OSError as error:
        if local:
            raise _unusable(asked, error) from error
    # Not in the cache, or not all of it.
    ask_hub(name, asked)
    try:
        return _open(request, _Source(name, local=False))
    except OSError as error:
        raise _unusable(asked, error) from error


@dataclass(frozen=True)
class _Request:
    asked: str
    task: TaskKind
    labels: int | None
    dropout: float | None
    seed: int
    dtype: torch.dtype


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", "/")) or name.endswith(".gguf") or name.count("/") > 1


def _check(asked: str, task: TaskKind, labels: int | None, dropout: float | None) -> None:
    if task not in get_args(TaskKind):
        raise UserError(f"task {task!r}: must be one of {', '.join(get_args(TaskKind))}")
    if labels is not None and task == "next-word":
        raise UserError(f"{asked}: labels {labels} are for classification; leave them out")
    if labels is not None and labels < 2:
        raise UserError(f"{asked}: labels {labels}: at least two classes are needed")
    if dropout is not None and not 0 <= dropout < 1:
        raise UserError(f"{asked}: dropout {dropout}: must lie in 0..1, 1 excluded")


def max_tokens_of(model: Any, tokenizer: Any) -> int:
    """The longest input of a model and its tokenizer."""
    return most_tokens(model, tokenizer, _DEFAULT_LIMIT)


# --- where it is ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """What Transformers is told: a folder or a name, and the file in it if it is a GGUF."""

    name: str
    gguf: str | None = None
    local: bool = True

    @property
    def options(self) -> dict[str, Any]:
        # No code from the model's repository is run, nor is the question put on a terminal.
        options: dict[str, Any] = {"local_files_only": self.local, "trust_remote_code": False}
        return options if self.gguf is None else {**options, "gguf_file": self.gguf}


def _folder(folder: Path, asked: str) -> _Source:
    config = folder / "config.json"
    if config.is_file():
        try:
            kind = json.loads(config.read_text()).get("model_type")
        except (ValueError, AttributeError, OSError) as error:
            raise UserError(f"{asked}: its config.json cannot be read: {_line(error)}") from error
        if kind in _OWN_KINDS:
            importlib.import_module(_OWN_KINDS[kind])
        return _Source(str(folder))
    if (folder / "adapter_config.json").is_file():
        raise UserError(f"{asked}: holds an adapter only; name the folder of the whole model")
    files = sorted(path.name for path in folder.glob("*.gguf"))
    remedy = f"name the file, {folder / files[0]}" if files else "name a folder with a saved model"
    raise UserError(f"{asked}: the folder has no config.json; {remedy}")


def _cached(name: str, asked: str) -> _Source:
    """A model in the local cache."""
    folder = _snapshot(name, asked)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(folder)
    return _folder(folder, asked)


def _snapshot(name: str, asked: str) -> Path:
    """The folder of a model in the local cache; by its name, Transformers would ask the hub for
    adapters even when told to stay local."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except HFValidationError as error:
        raise UserError(f"{asked}: no such folder, and no name the hub could know") from error


# --- reading it ----------------------------------------------------------------------------------


def _open(request: _Request, source: _Source) -> LoadedModel:
    try:
        with _quiet(source):
            return _read(request, source)
    except (UserError, OSError):  # the second means a missing file, as a rule
        raise
    # A damaged file, an unknown kind of model, code to be trusted: each has its own error class.
    except Exception as error:
        raise _unusable(request.asked, error) from error


def _read(request: _Request, source: _Source) -> LoadedModel:
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(source.name, **source.options)
    if request.task == "classification":
        config.num_labels = _number_of_labels(config, request)
    if request.dropout is not None:
        _set_dropout(config, request.dropout)
    tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up, for want of a file
        raise FileNotFoundError(
            "it has no tokenizer; put the tokenizer.json of the model beside it"
        )
    model, new_weights = _weights(config, request, source)
    words = model.get_input_embeddings().weight.shape[0]
    if source.gguf is not None:
        _drop_strangers(tokenizer, words)
    if len(tokenizer) > words:
        raise UserError(
            f"{request.asked}: its tokenizer has {len(tokenizer)} tokens, but the model knows "
            f"{words}; they do not belong together"
        )
    _set_padding(model, tokenizer, request.asked)
    limit = most_tokens(model, tokenizer, _DEFAULT_LIMIT)
    if request.task == "next-word" and _looks_ahead(model, limit):
        raise UserError(
            f"{request.asked}: {type(model).__name__} sees the words it should predict; "
            "choose a causal language model, such as gpt2"
        )
    return LoadedModel(model, tokenizer, limit, new_weights)


def _number_of_labels(config: Any, request: _Request) -> int:
    if request.labels is not None:
        return request.labels
    if any("ForSequenceClassification" in name for name in config.architectures or []):
        return int(config.num_labels)
    raise UserError(f"{request.asked}: it has no classification head; say how many labels it needs")


def _weights(config: Any, request: _Request, source: _Source) -> tuple[Any, tuple[str, ...]]:
    """The model, and the names of its weights that were drawn from the seed."""
    import transformers

    classifies = request.task == "classification"
    if classifies:
        kinds = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        reader = transformers.AutoModelForSequenceClassification
    else:
        kinds = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        reader = transformers.AutoModelForCausalLM
    if type(config) not in kinds:
        wanted = "sequence classifier" if classifies else "causal language model"
        raise UserError(
            f"{request.asked}: a model of type {config.model_type!r} is no {wanted}; "
            f"choose another, such as {'bert-base-uncased' if classifies else 'gpt2'}"
        )
    options = source.options
    if source.gguf is not None and hasattr(transformers, "GgufConfig"):
        # what is kept in blocks cannot be trained; versions without the option always unpack
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(request.seed)  # the CPU's; others stay as they are
        model, report = reader.from_pretrained(
            source.name,
            config=config,
            dtype=request.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=classifies,  # another number of labels
            **options,
        )
    new = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    base = f"{model.base_model_prefix}."
    lost = [
        name
        for name in new
        if not classifies or (name.startswith(base) and not name.startswith(f"{base}pooler."))
    ]
    if lost:
        raise UserError(
            f"{request.asked}: the saved model lacks weights ({', '.join(lost[:3])}); "
            f"it was not trained as a {type(model).__name__}"
        )
    return model, tuple(new)


def _from_scratch(
    request: _Request, kind: str, sizes: scratch.Sizes, tokenizer: str | Path | None
) -> LoadedModel:
    if tokenizer is None:
        raise UserError(
            f"{request.asked}: a new model needs a public tokenizer; name one as model.tokenizer: "
            f"a folder, a tokenizer.json, a model on the hub, or `{scratch.BYTES}`"
        )
    words = public_tokenizer(tokenizer)
    config = scratch.configuration(kind, sizes, words)
    classifies = request.task == "classification"
    if classifies:
        config.num_labels = _number_of_labels(config, request)
    if request.dropout is not None:
        _set_dropout(config, request.dropout)
    model = scratch.new_model(config, classifies, request.seed, request.dtype)
    _set_padding(model, words, request.asked)
    new_weights = tuple(sorted(name for name, _ in model.named_parameters()))
    return LoadedModel(model, words, most_tokens(model, words, _DEFAULT_LIMIT), new_weights)


def public_tokenizer(named: str | Path) -> Any:
    """From a folder or a file, the local cache, or the hub, in this order."""
    from transformers import AutoTokenizer

    if named == scratch.BYTES:
        return scratch.byte_tokenizer()
    asked, path, name = f"tokenizer {str(named)!r}", Path(named).expanduser(), str(named)
    if path.name == "tokenizer.json" and (path.parent / "tokenizer_config.json").is_file():
        path = path.parent  # which also says which tokens start and end a text
    alone = path / "tokenizer.json"
    if alone.is_file() and not (path / "tokenizer_config.json").is_file():
        path = alone
    if path.is_file():
        return scratch.tokenizer_in_file(path)
    if not path.is_dir() and (isinstance(named, Path) or _is_path(name)):
        raise UserError(f"{asked}: no such folder or file")

    def read(source: _Source) -> Any:
        with _quiet(source):
            found = AutoTokenizer.from_pretrained(source.name, **source.options)
        if len(found) <= len(set(found.all_special_ids)):
            raise FileNotFoundError("it has no tokenizer.json")
        return found

    try:
        try:
            return read(_Source(str(path if path.is_dir() else _snapshot(name, asked))))
        except OSError:
            if path.is_dir():
                raise
        ask_hub(name, asked)
        return read(_Source(name, local=False))
    except UserError:
        raise
    except Exception as error:
        raise _unusable(asked, error) from error


def _drop_strangers(tokenizer: Any, words: int) -> None:
    """Transformers gives a GGUF's tokenizer GPT-2's end token too, one that no model has a row for:
    a text that spells it would end the run."""
    from tokenizers import Tokenizer

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    known = [token for token in described["added_tokens"] if token["id"] < words]
    if len(known) < len(described["added_tokens"]):
        described["added_tokens"] = known
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(described))


_DROPOUT = re.compile(r"(^|_)(dropout|pdrop)(_|$)")


def _set_dropout(config: Any, rate: float) -> None:
    for name, value in config.to_dict().items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue  # None means: like the others
        if _DROPOUT.search(name):
            setattr(config, name, rate)
        elif name.endswith("layerdrop"):  # whole layers left out: not what was asked for
            setattr(config, name, 0.0)


def _set_padding(model: Any, tokenizer: Any, asked: str) -> None:
    """Any token will do, since padding is masked; a new one would have no trained embedding."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token or tokenizer.unk_token
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"{asked}: its tokenizer has no padding, end, start or unknown token; "
                "name one of its tokens as pad_token in tokenizer_config.json"
            )
    tokenizer.padding_side = "right"  # or the positions of the words would depend on the padding
    model.config.pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def _looks_ahead(model: Any, limit: int) -> bool:
    """Whether what is said of the first words depends on those that follow.

    The same layers make masked models that see both ways; their configs do not tell reliably.
    """
    width = min(8, limit)
    ids = torch.arange(width)[None]
    other = torch.where(ids < width // 2, ids, ids + 1)
    words = model.get_input_embeddings().weight.shape[0]
    with torch.inference_mode():
        logits, others = (model(input_ids=x % words).logits.float() for x in (ids, other))
    before = slice(0, width // 2)
    tolerance = max(1e-4, 4 * torch.finfo(model.dtype).eps) * float(logits.abs().max())
    return float((logits[:, before] - others[:, before]).abs().max()) > tolerance


def _unusable(asked: str, error: Exception) -> UserError:
    return UserError(f"{asked}: cannot be loaded: {_line(error)}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def _quiet(source: _Source) -> Iterator[None]:
    """No warnings while a model is read (what matters is checked), and bars only for fetching."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if source.gguf is not None:  # its bar listens to no setting
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        logging.set_verbosity_error()
        if shown and source.local:
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if shown:
                logging.enable_progress_bar()
