"""Saved Transformers models: find them, read them quietly, and how many tokens they take."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from uedp.errors import UserError

T = TypeVar("T")
_TIMEOUT = 5.0  # seconds to wait for the hub
_NO_LIMIT = 10**6  # a tokenizer saved without a limit says 10^30


def read_saved(named: str | Path, asked: str, read: Callable[[str, bool], T]) -> T:
    """Read a saved model from a folder or file, the local cache or the hub, in this order.

    Args:
        named: a path, or a name on the hub
        asked: how errors call it
        read: called with a path or a name, and whether it must do without the network. An OSError
            means that a file is missing.

    Guarantees:
      - a folder, a file and a cached model are read without asking the network for anything
    """
    path, name = Path(named).expanduser(), str(named)
    try:
        if path.exists():
            with quiet_transformers():
                return read(str(path), True)
        if isinstance(named, Path) or _is_path(name):
            raise UserError(f"{asked}: no such folder or file")
        with suppress(OSError), quiet_transformers():  # not in the cache, or not all of it
            return read(_cached(name, asked), True)
        ask_hub(name, asked)
        with quiet_transformers(bars=True):
            return read(name, False)
    except UserError:
        raise
    # A damaged file, an unknown kind of model, code to be trusted: each has its own error class.
    except Exception as error:
        raise UserError(f"{asked}: cannot be loaded: {' '.join(str(error).split())}") from error


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", "/")) or name.endswith(".gguf") or name.count("/") > 1


def _cached(name: str, asked: str) -> str:
    """The folder of a model in the local cache; by its name, Transformers would ask the hub for
    adapters even when told to stay local."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return str(snapshot_download(name, local_files_only=True))
    except HFValidationError as error:
        raise UserError(f"{asked}: no such folder, and not a valid name on the hub") from error


def ask_hub(name: str, asked: str) -> None:
    """Check that the hub has a model; Transformers itself would try for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=_TIMEOUT)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{asked}: no such folder, and the hub has no such model or does not show it to you; "
            "correct the name, or run `hf auth login`"
        ) from error
    # The hub's HTTP library, and with it the error, differs from version to version.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{asked}: no such folder, not in the local cache, and the hub cannot be reached "
            f"({reason}); name a folder with a saved model, or run `hf download {name}` "
            "where there is a network"
        ) from error


@contextmanager
def quiet_transformers(bars: bool = False) -> Iterator[None]:
    """Silence the warnings of Transformers and PEFT, and their progress bars unless `bars`."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        if not bars:
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if shown:
                logging.enable_progress_bar()


def max_tokens(model: Any, tokenizer: Any, default: int) -> int:
    """The longest input in tokens, special tokens included; `default` if nothing sets a limit."""
    limits = [tokenizer.model_max_length]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            # RoBERTa and related models start counting positions after the padding index.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    stated = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if stated and stated > 0:
        limits.append(stated)
    limit = min(limits)
    return int(limit) if limit < _NO_LIMIT else default
