"""Models trained from scratch: an architecture, sizes, and a public tokenizer.

The tokenizer must not be trained on the private corpus: its tokens reveal which words are frequent
there. The built-in one, `bytes`, was trained on no text.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from uedp.errors import UserError

KINDS = ("awd-lstm",)
BYTES = "bytes"

Sizes = Mapping[str, int | float | bool]

_TYPES = {int: "a whole number", float: "a number", bool: "true or false"}
_PADDING, _START, _END = "<pad>", "<bos>", "<eos>"
_MAX_TOKENS = 1024
# The usual names, for a file that does not say which token is which.
_ROLES = {
    "bos_token": ("<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "[CLS]"),
    "eos_token": ("<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>", "[EOS]", "[SEP]"),
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
}


def byte_tokenizer() -> Any:
    """A tokenizer whose tokens are the 256 bytes of UTF-8, after padding, start and end.

    Guarantees:
      - any text is split into its bytes, and decoding them gives the same text
      - no token is added to a text, and no text can spell a special token
      - saved and loaded, it is the same
    """
    tokens = [_PADDING, _START, _END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return fast_tokenizer(backend, pad_token=_PADDING, bos_token=_START, eos_token=_END)


def tokenizer_in_file(path: Path) -> Any:
    """The tokenizer in a `tokenizer.json`, or a `tokenizer.json.gz`.

    Such a file does not say which tokens start and end a text: they are recognised by name.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        backend = Tokenizer.from_str(text)
    # the library raises bare exceptions, gzip and the file system their own errors
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"tokenizer {str(path)!r}: not a tokenizer.json: {reason}") from error
    known = backend.get_vocab()
    roles = {
        role: token
        for role, tokens in _ROLES.items()
        if (token := next((token for token in tokens if token in known), None))
    }
    if "eos_token" not in roles and "bos_token" not in roles:
        raise UserError(
            f"tokenizer {str(path)!r}: no token is known to start or end a text; name "
            "the folder it was saved in, with its tokenizer_config.json"
        )
    return fast_tokenizer(backend, _MAX_TOKENS, **roles)


def fast_tokenizer(backend: Tokenizer, max_length: int = _MAX_TOKENS, **special: str) -> Any:
    """A Transformers tokenizer that pads on the right, with special tokens no text can spell."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_length,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **special,
    )


def configuration(sizes: Sizes, tokenizer: Any) -> Any:
    """The config of a new AWD-LSTM, the only kind so far: its defaults, except for these sizes."""
    from uedp.models.awd_lstm import AwdLstmConfig

    types = {
        name: value_type
        for name, value_type in AwdLstmConfig.__annotations__.items()
        if value_type in _TYPES and name != "vocab_size"  # the tokenizer's
    }
    for name, value in sizes.items():
        if name not in types:
            raise UserError(f"model.sizes.{name}: no such size; choose among {', '.join(types)}")
        wanted = types[name]
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise UserError(f"model.sizes.{name} {value!r}: must be {_TYPES[wanted]}")
    return AwdLstmConfig(
        **sizes,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def new_model(config: Any, classifies: bool, seed: int) -> Any:
    """A model in evaluation mode, its weights drawn from the seed.

    Guarantees:
      - the same config and seed give the same weights; the caller's random state is unchanged
    """
    import torch  # here: configs need only the names of this module
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    auto_class = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = auto_class.from_config(config, dtype=torch.float32)
    return model.eval()
