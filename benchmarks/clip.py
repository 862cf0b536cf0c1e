"""The cost of clipping twice: ours against ordinary training and against plain loops.

    python benchmarks/clip.py [--device cuda] [--models gpt2 smollm2] [--users 64] [--out FILE]

Side by side in one run, median of repeated steps, same batch and precision (bf16 on an
accelerator, float32 on a CPU):

  (a) a non-private step: forward, backward, gradients of every trainable weight
  (b) ours: per-sentence and per-user clipping
  (c) Opacus ghost clipping per sample, where it is installed and supports the model
  (d) a plain loop over users with ordinary backward passes (user clip only; a few users, scaled)

The floor: forward, activation backward and one weighted product cost what (a) costs; only the
inner products are extra, for T tokens of a user about T (d_in + d_out) / (d_in d_out) of a weight
gradient each.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from uedp.mechanism.clip import Engine

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def build(name: str, how: str) -> nn.Module:
    """The architecture at full size, random weights: speed does not depend on their values."""
    if name == "gpt2":
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**drops))
        targets = ["c_attn", "c_proj", "c_fc"]
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMOLLM2))
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    if how == "lora":
        import peft

        config = peft.LoraConfig(r=8, target_modules=targets, fan_in_fan_out=name == "gpt2")
        model = peft.get_peft_model(model, config)
    model.config.use_cache = False
    return model.train()


class Bench:
    """One model, one batch, and the ways to compute a step."""

    def __init__(self, model: nn.Module, users: int, each: int, tokens: int, device: str) -> None:
        self.model = model.to(device)
        self.device = device
        self.users, self.each = users, each
        vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self.ids = torch.randint(1, vocabulary, (users * each, tokens), device=device)
        self.owners = [user for user in range(users) for _ in range(each)]
        self.half = device == "cuda"
        self.engine = Engine(model)

    def losses(self, ids: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            logits = self.model(input_ids=ids).logits[:, :-1]
        found = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        return found.view(ids.shape[0], -1).mean(1)

    def plain(self) -> None:
        self.losses(self.ids).sum().backward()
        self.model.zero_grad(set_to_none=True)

    def ours(self) -> None:
        sentences = len(self.owners)
        clips = torch.full((sentences,), 0.2, device=self.device)
        weights = torch.ones(self.users, device=self.device)
        order_to_ids = self.ids
        self.engine.clipped_sum(
            lambda order: self.losses(order_to_ids[torch.tensor(order, device=self.device)]),
            self.owners,
            clips,
            1.0,
            weights,
        )

    def loop(self, some: int) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        for user in range(some):
            own = self.ids[user * self.each : (user + 1) * self.each]
            self.losses(own).sum().backward()
            norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters if p.grad is not None))
            for p in parameters:
                if p.grad is not None:
                    p.grad.mul_(1 / norm.clamp(min=1))
            self.model.zero_grad(set_to_none=True)


def timed(step: Callable[[], None], device: str, repeats: int) -> tuple[float, float]:
    """Median seconds of a step, and peak memory in bytes (accelerator only)."""
    for _ in range(3 if device == "cuda" else 1):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return statistics.median(seconds), float(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["gpt2", "smollm2"])
    parser.add_argument("--how", nargs="+", default=["full", "lora"])
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 64])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--loop-users", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {options.users} users x {options.each} sentences")
    print(
        f"{'model':8} {'how':5} {'tokens':>6} {'plain ms':>9} {'ours ms':>9} {'ours/plain':>10} "
        f"{'memory':>7} {'loop/ours':>9}"
    )
    rows = []
    for model_name in options.models:
        for how in options.how:
            for tokens in options.tokens:
                torch.manual_seed(0)
                bench = Bench(
                    build(model_name, how), options.users, options.each, tokens, options.device
                )
                plain, plain_peak = timed(bench.plain, options.device, options.repeats)
                ours, ours_peak = timed(bench.ours, options.device, options.repeats)
                loop, _ = timed(partial(bench.loop, options.loop_users), options.device, 2)
                loop *= options.users / options.loop_users
                row = {
                    "model": model_name,
                    "how": how,
                    "tokens": tokens,
                    "plain_seconds": plain,
                    "ours_seconds": ours,
                    "throughput": plain / ours,
                    "memory": ours_peak / plain_peak if plain_peak else None,
                    "loop_seconds": loop,
                }
                rows.append(row)
                memory = f"{row['memory']:.2f}" if row["memory"] else "-"
                print(
                    f"{model_name:8} {how:5} {tokens:>6} {plain * 1e3:>9.1f} {ours * 1e3:>9.1f} "
                    f"{plain / ours:>9.2f}x {memory:>7} {loop / ours:>8.1f}x",
                    flush=True,
                )
                del bench
                if options.device == "cuda":
                    torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps({"machine": name, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
