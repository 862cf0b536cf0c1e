"""Attention over sentences that lie end to end in one row, without a mask.

A mask of all pairs of tokens costs more than the attention itself, and the kernels that take one
plan anew for every shape. Kernels for sequences of varying length take where each one begins, and
compute a sentence alike wherever it lies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.fixed.short_attention import is_available, short_attention

_NAME = "uedp_end_to_end"
_HALVES = (torch.bfloat16, torch.float16)

# What Transformers passes along that does not change which tokens are read.
_HARMLESS = frozenset(
    ("position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states")
)

_sentences: "ContextVar[_Sentences]" = ContextVar("sentences")  # that this thread's model reads


@dataclass(frozen=True, eq=False)
class _Sentences:
    bounds: Tensor
    count: Tensor
    longest: int


@contextmanager
def end_to_end(model: nn.Module, bounds: Tensor, count: Tensor, longest: int) -> Iterator[None]:
    """Inside, a causal model of Transformers reads its one row as sentences end to end.

    Args:
        bounds: int32, where the first sentence begins, and where each one ends; what is left of
            the row in pieces after them.
        count: how many sentences there are.
        longest: no sentence has more tokens.

    Raises:
        UserError: its attention is not of the usual kind.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "_attn_implementation"):
        raise UserError(f"{type(model).__name__}: its attention cannot be replaced")
    _register()
    before = config._attn_implementation
    token = _sentences.set(_Sentences(bounds, count, longest))
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _sentences.reset(token)


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As Transformers calls it: (1, heads, tokens, features)."""
    own = _sentences.get()
    bounds, count, longest = own.bounds, own.count, own.longest
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    unusual = [name for name in options if name not in _HARMLESS and _set(options[name])]
    if dropout or not causal or attention_mask is not None or query.shape[0] != 1 or unusual:
        raise UserError(f"{type(module).__name__}: its attention is not plain causal attention")
    if sliding_window is not None and sliding_window < longest:
        raise UserError(f"{type(module).__name__}: its attention has a window")
    # squeezed: the gradient of a selected row would be copied into zeros
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    if is_available(q, longest):
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        return short_attention(q, k, v, bounds, count, longest, scale)[None], None
    if q.is_cuda and q.dtype in _HALVES:
        output = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, 0.0, True, False, scale=scaling
        )[0]
        return output[None], None
    times = q.shape[1] // k.shape[1]
    if times > 1:
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    if q.is_cuda:
        output = torch.ops.aten._efficient_attention_forward(
            q[None], k[None], v[None], None, bounds, bounds, longest, longest, 0.0, _CAUSAL,
            compute_log_sumexp=True, scale=scaling,
        )[0]  # fmt: skip
        return output, None
    return _by_sentence(q, k, v, bounds, scaling)[None], None


def _set(option: Any) -> bool:
    return option is not None and option is not False


_CAUSAL = 1  # PyTorch's number for "causal, from the top left"


def _by_sentence(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, scaling: float | None) -> Tensor:
    ends = bounds.tolist()
    parts = []
    for start, end in zip(ends, [*ends[1:], len(q)], strict=True):  # what is left over, as one
        if end > start:
            own, keys, values = (t[start:end].transpose(0, 1)[None] for t in (q, k, v))
            attended = nn.functional.scaled_dot_product_attention(
                own, keys, values, is_causal=True, scale=scaling
            )
            parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)
