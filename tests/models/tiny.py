"""Models and tokenizers small enough for tests: random weights, every byte a token."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers.convert_slow_tokenizer import bytes_to_unicode

TOKENS = ["<|end|>", *bytes_to_unicode().values(), "th", "the", "Ġt", "ĠĠ"]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "t"), ("Ġ", "Ġ")]
WORDS = len(TOKENS)

_WIDE = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": WORDS}
_DEEP = {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(labels: int | None = None, layers: int = 3, **options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=layers, n_head=4, n_positions=64, **_ENDS, **options
    )
    if labels is None:
        return _new(transformers.GPT2LMHeadModel, config)
    config.num_labels, config.pad_token_id = labels, 0
    return _new(transformers.GPT2ForSequenceClassification, config)


def llama(**options: Any) -> nn.Module:
    config = transformers.LlamaConfig(
        **_WIDE, **_DEEP, **_ENDS, num_key_value_heads=2, tie_word_embeddings=True, **options
    )
    return _new(transformers.LlamaForCausalLM, config)


def bert(kind: str = "BertForSequenceClassification", **options: Any) -> nn.Module:
    config = transformers.BertConfig(**_WIDE, **_DEEP, pad_token_id=0, **options)
    return _new(getattr(transformers, kind), config)


def opt() -> nn.Module:
    return _new(
        transformers.OPTForCausalLM,
        transformers.OPTConfig(
            vocab_size=WORDS,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            pad_token_id=0,
            **_ENDS,
        ),
    )


CAUSAL: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama, "opt": opt}


@contextmanager
def no_network() -> Iterator[list[object]]:
    """Every attempt to reach the network fails and is listed: who asks may hide the failure."""
    attempts: list[object] = []

    def refuse(*arguments: object, **options: object) -> None:
        attempts.append(arguments)
        raise OSError("the network is unreachable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield attempts


def _new(kind: Any, config: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model: nn.Module = kind(config)
        for parameter in model.parameters():  # as they come, most outputs are almost the same
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    return model.eval()


def tokenizer(**special: str) -> Any:
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = special or {"eos_token": "<|end|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def saved(folder: Path, model: Any, words: Any = None) -> Path:
    """The model and a tokenizer (this one, or the usual) in a folder."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    if shown:
        transformers.utils.logging.enable_progress_bar()
    (words or tokenizer()).save_pretrained(folder)
    return folder


def write_gguf(path: Path, model: Any) -> None:
    """A tiny Llama as llama.cpp would have written it, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (WORDS - 1))  # control, then normal
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight":
            continue  # tied
        array = tensor.numpy()
        if "q_proj" in key:
            array = _interleaved(array, config.num_attention_heads)
        if "k_proj" in key:
            array = _interleaved(array, config.num_key_value_heads)
        name = names.get_name(key, try_suffixes=(".weight",))
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp has the two halves of a rotary pair side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
