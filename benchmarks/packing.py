"""The cost of sentences of unequal length: padded rows against packed rows.

    python benchmarks/packing.py [--device cuda] [--layers 30] [--users 96] [--out FILE]

SmolLM2's shapes with LoRA of rank 8, lengths like those of news (log-normal, median 19 tokens, a
few over 100), seven sentences a user on average. Side by side in one run, median of repeated steps
on the same sentences (bf16 autocast on an accelerator, float32 on a CPU):

  plain    an ordinary step with packed rows: the floor
  padded   clipped twice, each sentence in a row as long as the longest
  shared   clipped twice, packed rows, gradients of sentences laid out whole
  pieces   the same, gradients laid out in pieces, as in training
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from uedp.mechanism import packing
from uedp.mechanism.clip import Engine
from uedp.models.trainable import make_trainable
from uedp.training import tasks

WIDTHS = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152}
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}


class Numbers:
    """A tokenizer for texts that are numbers of tokens."""

    bos_token_id = eos_token_id = 0

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1 + i % 1000 for i in range(int(text or 0))] for text in texts]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return str(len(ids))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--users", type=int, default=96)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    each = rng.poisson(6, options.users) + 1
    owners = np.repeat(np.arange(options.users), each).tolist()
    lengths = np.clip(np.exp(rng.normal(np.log(19), 0.65, len(owners))), 2, 124).astype(int)
    task = tasks.NextWord([str(n) for n in lengths], Numbers(), 128)
    shape = transformers.LlamaConfig(**WIDTHS, **HEADS, num_hidden_layers=options.layers)
    model = make_trainable(transformers.LlamaForCausalLM(shape), "lora", rank=8)
    model = model.to(options.device).train()
    model.config.use_cache, model.config.pad_token_id = False, None
    rows = measure(options, task, model, owners)
    tokens = int(task.lengths.sum())
    padded = len(owners) * int(task.lengths.max())
    head = (
        f"{len(owners)} sentences of {options.users} users, {tokens:,} tokens, {padded:,} padded; "
        f"{options.layers} layers, {options.device}"
    )
    print("\n".join([head, f"{'':8} {'ms':>8} {'of plain':>9} {'GiB':>6}", *map(line, rows)]))
    if options.out:
        about = {"machine": platform.machine(), "torch": torch.__version__, "what": head}
        if options.device == "cuda":
            about["device"] = torch.cuda.get_device_name()
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


def line(row: dict[str, Any]) -> str:
    memory = "-" if row["gib"] is None else f"{row['gib']:.1f}"
    return f"{row['way']:8} {row['ms']:>8.1f} {row['of plain']:>9.2f} {memory:>6}"


def measure(
    options: argparse.Namespace, task: tasks.NextWord, model: Any, owners: list[int]
) -> list[dict[str, Any]]:
    engine, everything = Engine(model), np.arange(len(owners))
    device, narrow = options.device, packing.piece_width
    half = device == "cuda"
    clips = torch.full((len(owners),), 0.3)

    def losses(order: Any, packed: bool = True) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            return task.losses(model, everything[list(order)], packing.Packing(packed))

    def plain() -> None:
        torch.autograd.grad(packing.loss_values(losses(everything)).sum(), engine.parameters)

    def clipped(packed: bool, width: Callable[[Any], int]) -> None:
        packing.piece_width = width
        engine.clipped_sum(lambda order: losses(order, packed), owners, clips, 1.0)

    ways = {
        "plain": plain,
        "padded": lambda: clipped(False, narrow),
        "shared": lambda: clipped(True, lambda lengths: int(lengths.max())),
        "pieces": lambda: clipped(True, narrow),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, float] = {}
    for step in range(options.steps + 1):  # interleaved; the first is a warm-up
        for name, way in ways.items():
            if half:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            way()
            if half:
                torch.cuda.synchronize()
                memory[name] = torch.cuda.max_memory_allocated() / 2**30
            if step:
                taken[name].append(time.perf_counter() - began)
    median = {name: statistics.median(times) for name, times in taken.items()}
    return [
        {
            "way": name,
            "ms": 1e3 * seconds,
            "of plain": seconds / median["plain"],
            "gib": memory.get(name),
        }
        for name, seconds in median.items()
    ]


if __name__ == "__main__":
    main()
