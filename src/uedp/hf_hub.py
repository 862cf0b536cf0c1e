"""What all that load saved models share: the question to the hub, and how much a model reads."""

from typing import Any

from uedp.errors import UserError

_TIMEOUT = 5.0  # seconds to find out whether the hub is there


def ask_hub(name: str, asked: str) -> None:
    """One short question; the library itself would try for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=_TIMEOUT)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{asked}: no such folder, and the hub has no such model or does not show it to you; "
            "mend the name, or run `hf auth login`"
        ) from error
    # Its HTTP library is another from version to version, and so are the errors.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{asked}: no such folder, not in the local cache, and the hub cannot be asked "
            f"({reason}); name a folder with a saved model, or run `hf download {name}` "
            "where there is a network"
        ) from error


def most_tokens(model: Any, tokenizer: Any, default: int) -> int:
    """How many tokens the model takes at once, those around the text included."""
    limits = [tokenizer.model_max_length]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            # RoBERTa and its kin count positions from behind the padding's.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    stated = getattr(model.config, "max_position_embeddings", None)
    if stated and stated > 0:
        limits.append(stated)
    limit = min(limits)
    # A tokenizer saved without a limit says 10^30.
    return int(limit) if limit < 10**6 else default
