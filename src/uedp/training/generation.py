"""Continue prompts by sampling: many at once, with a cache, in bounded memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uedp.progress import SILENT, Meter, Progress
from uedp.training.evaluation import tensor_float_32

_PROCESSOR_BYTES = 1 << 30  # of texts that are generated at once
_DEVICE_SHARE = 4  # one part in four of a GPU's memory, free or not: batches are reproducible


def continuations(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    temperature: float = 1.0,
    seed: int | None = None,
    padding: int | None = None,
    progress: Progress = SILENT,
) -> list[list[int]]:
    """Continue each prompt by up to `tokens` tokens; at temperature 0 by the likeliest ones.

    Prompts of one length are continued together, so that nothing is padded. Equal prompts are
    computed once where nothing is drawn.

    Guarantees:
      - a token is drawn from the model's distribution at this temperature, of which nothing is
        cut off
      - with a seed, the same prompts give the same texts on the same kind of device, and the
        caller's generators are unchanged
    """
    if temperature == 0 and len(set(map(tuple, prompts))) < len(prompts):
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        texts = continuations(
            model, distinct, tokens=tokens, temperature=0, padding=padding, progress=progress
        )
        known = dict(zip(distinct, texts, strict=True))
        return [known[tuple(prompt)] for prompt in prompts]
    lengths = np.array([len(prompt) for prompt in prompts])
    device = next(model.parameters()).device
    options: dict[str, Any] = {"max_new_tokens": tokens, "pad_token_id": padding}
    if temperature > 0:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    else:
        options["do_sample"] = False
    found: dict[int, list[int]] = {}
    fast = tensor_float_32() if device.type == "cuda" else nullcontext()
    with (
        torch.no_grad(),
        fast,
        _seeded(seed, device),
        progress.stage("generating", len(prompts) * tokens, "tokens") as meter,
    ):
        for length in np.unique(lengths).tolist():
            own = np.flatnonzero(lengths == length).tolist()
            each = rows_at_once(model, length + tokens, device)
            for some in (own[i : i + each] for i in range(0, len(own), each)):
                ids = torch.tensor([prompts[place] for place in some], device=device)
                for place, text in zip(some, _generated(model, ids, options, meter), strict=True):
                    found[place] = text
    return [found[place] for place in range(len(prompts))]


def _generated(model: Any, ids: Tensor, options: dict[str, Any], meter: Meter) -> list[list[int]]:
    """The prompts and what follows them; in halves if memory is short."""
    told = 0

    def tell(so_far: Tensor, scores: Any, **_: Any) -> Tensor:
        nonlocal told
        meter.advance(len(ids))
        told += len(ids)
        return torch.zeros(len(so_far), dtype=torch.bool, device=so_far.device)

    try:
        texts: list[list[int]] = model.generate(
            ids, attention_mask=torch.ones_like(ids), stopping_criteria=[tell], **options
        ).tolist()
        meter.advance(len(ids) * options["max_new_tokens"] - told)  # all ended early
        return texts
    except torch.OutOfMemoryError:
        if len(ids) < 2:
            raise
    meter.advance(-told)
    torch.cuda.empty_cache()
    return [text for half in ids.chunk(2) for text in _generated(model, half, options, meter)]


def rows_at_once(model: nn.Module, length: int, device: torch.device) -> int:
    """Texts of `length` tokens that are generated together, by the size of their cache and logits.

    Depends on the model and the kind of device only: with a seed, texts must not depend on what
    else is in memory.
    """
    config: Any = getattr(model, "config", None)

    def size(*names: str) -> int:
        return next((int(v) for n in names if (v := getattr(config, n, None))), 1)

    heads = size("num_attention_heads")
    width = size("head_dim") if size("head_dim") > 1 else size("hidden_size") // heads
    per_token = 2 * size("num_hidden_layers") * size("num_key_value_heads", "num_attention_heads")
    weight = next(model.parameters()).element_size()
    bytes_ = length * per_token * width * weight + 4 * 4 * size("vocab_size")
    room = _PROCESSOR_BYTES
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory // _DEVICE_SHARE
    return max(1, room // bytes_)


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices, enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for own in devices:
                with torch.cuda.device(own):
                    torch.cuda.manual_seed(seed)
        yield
