"""The cost of clipping twice, compared with ordinary training, Opacus and a plain loop.

    python benchmarks/clip.py [--device cuda] [--models gpt2 smollm2] [--growth] [--out FILE]

Side by side in one run, median of repeated steps, same batch and precision (bf16 autocast on an
accelerator, float32 on a CPU):

  (a) a non-private step: forward, backward, gradients of every trainable weight
  (b) ours: per-sentence and per-user clipping
  (c) Opacus ghost clipping, per sentence only, where it is installed and supports the model: it
      has no rule for GPT-2's Conv1D, tied weights or Llama's norms, so beside LoRA it trains a
      variant of SmolLM2, `untied`, with a separate output head and frozen norms
  (d) a plain loop over users with ordinary backward passes (user clip only; a few users, scaled)

The floor: forward, activation backward and one weighted product cost what (a) costs; only the
inner products are extra, for T tokens of a user about T (d_in + d_out) / (d_in d_out) of a weight
gradient each. The column `floor` is the throughput if nothing but those products were added, at
the speed of the rest: 1 / (1 + extra multiplications / multiplications of a step).
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Case(NamedTuple):
    model: str
    how: str
    users: int
    each: int
    tokens: int
    width: int | None = None


def build(case: Case) -> nn.Module:
    """The architecture at full size, random weights: speed does not depend on their values."""
    if case.model == "gpt2":
        size = {}
        if case.width:
            size = {"n_embd": case.width, "n_head": case.width // 64, "n_layer": 4}
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**NO_DROPOUT, **size))
        targets = ["c_attn", "c_proj", "c_fc"]
    else:
        shape = {**SMOLLM2, "tie_word_embeddings": case.how != "untied"}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    if case.how == "lora":
        import peft

        config = peft.LoraConfig(r=8, target_modules=targets, fan_in_fan_out=case.model == "gpt2")
        model = peft.get_peft_model(model, config)
    if case.how == "untied":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" not in name)
    model.config.use_cache = False
    return model.train()


class Bench:
    """One model, one batch, and the ways to compute a step."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.model = build(case).to(device)
        vocabulary = self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        sentences = case.users * case.each
        self.ids = torch.randint(1, vocabulary, (sentences, case.tokens), device=device)
        self.owners = [user for user in range(case.users) for _ in range(case.each)]
        self.half = device == "cuda"
        self.engine = Engine(self.model)
        self.ghost: Any = None

    def losses(self, ids: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            logits = self.model(input_ids=ids).logits[:, :-1]
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
        )
        return losses.view(ids.shape[0], -1).mean(1)

    def plain(self) -> None:
        self.losses(self.ids).sum().backward()
        self.model.zero_grad(set_to_none=True)

    def ours(self) -> None:
        sentences = len(self.owners)
        clips = torch.full((sentences,), 0.2, device=self.device)
        self.engine.clipped_sum(
            lambda order: self.losses(self.ids[torch.tensor(order, device=self.device)]),
            self.owners,
            clips,
            1.0,
        )

    def loop(self, some: int) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        each = self.case.each
        for user in range(some):
            self.losses(self.ids[user * each : (user + 1) * each]).sum().backward()
            norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters if p.grad is not None))
            for p in parameters:
                if p.grad is not None:
                    p.grad.mul_(1 / norm.clamp(min=1))
            self.model.zero_grad(set_to_none=True)

    def opacus(self) -> None:
        """Two backward passes: norms from the first, the second weighted by their clip factors."""
        per_sentence = self.losses(self.ids)
        per_sentence.sum().backward(retain_graph=True)
        self.model.zero_grad(set_to_none=True)
        factors = self.ghost.get_clipping_coef()
        self.ghost.disable_hooks()
        (factors * per_sentence).sum().backward()
        self.ghost.enable_hooks()
        self.model.zero_grad(set_to_none=True)

    def prepare_opacus(self) -> bool:
        if self.case.how not in ("lora", "untied"):
            return False
        try:
            from opacus.grad_sample import GradSampleModuleFastGradientClipping
        except ImportError:
            return False
        self.ghost = GradSampleModuleFastGradientClipping(
            self.model, max_grad_norm=1.0, loss_reduction="sum", strict=False
        )
        return True

    def floor(self) -> float:
        """Throughput if only the multiplications of the norms were added."""
        step = extra = 0.0
        tokens = self.case.each * self.case.tokens  # of a user
        for module in self.model.modules():
            weight = getattr(module, "weight", None)
            if weight is None or weight.dim() != 2 or isinstance(module, nn.Embedding):
                continue
            rows, columns = weight.shape
            trains = weight.requires_grad
            step += tokens * rows * columns * (3 if trains else 2)
            if trains:
                grams = tokens**2 * (rows + columns)
                extra += min(grams, tokens * rows * columns)
        return 1 / (1 + extra / step)


def timed(
    steps: dict[str, Callable[[], None]], device: str, repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each step, taken in turns, and its peak memory (accelerator only)."""
    peaks, seconds = dict.fromkeys(steps, 0.0), {name: [] for name in steps}
    for name, step in steps.items():
        step()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            peaks[name] = float(torch.cuda.max_memory_allocated())
            torch.cuda.empty_cache()
    for turn in range(repeats + 1):  # the first is to warm up
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(own) for name, own in seconds.items()}, peaks


def measure(case: Case, device: str, repeats: int, loop_users: int) -> dict[str, Any]:
    bench = Bench(case, device)
    steps = {"plain": bench.plain, "ours": bench.ours}
    seconds, peaks = timed(steps, device, repeats)
    loop = opacus = None
    if loop_users:
        some = partial(bench.loop, loop_users)
        loop = timed({"loop": some}, device, 2)[0]["loop"] * case.users / loop_users
    if bench.prepare_opacus():
        opacus = timed({"opacus": bench.opacus}, device, repeats)[0]["opacus"]
    return {
        **case._asdict(),
        "plain_seconds": seconds["plain"],
        "ours_seconds": seconds["ours"],
        "opacus_seconds": opacus,
        "loop_seconds": loop,
        "throughput": seconds["plain"] / seconds["ours"],
        "floor": bench.floor(),
        "memory": peaks["ours"] / peaks["plain"] if peaks["plain"] else None,
    }


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for model in options.models:
        for how in [*options.how, *(["untied"] if model == "smollm2" and options.untied else [])]:
            for tokens in options.tokens:
                yield Case(model, how, options.users, options.each, tokens)
    if options.growth:  # of a model of four layers, around one case
        middle = Case("gpt2", "full", options.users, options.each, 24, 512)
        yield middle
        for users in (options.users // 2, 2 * options.users):
            yield middle._replace(users=users)
        for each in (2, 32):
            yield middle._replace(each=each)
        for tokens in (12, 96):
            yield middle._replace(tokens=tokens)
        for width in (256, 1024):
            yield middle._replace(width=width)


HEADER = (
    f"{'model':8} {'how':6} {'width':>5} {'users':>5} {'each':>4} {'tokens':>6} {'plain ms':>9} "
    f"{'ours ms':>9} {'ours/plain':>10} {'floor':>6} {'memory':>7} {'opacus/ours':>11} "
    f"{'loop/ours':>9}"
)


def line(row: dict[str, Any]) -> str:
    memory = f"{row['memory']:.2f}" if row["memory"] else "-"

    def ratio(name: str) -> str:
        return f"{row[name] / row['ours_seconds']:.1f}x" if row[name] else "-"

    return (
        f"{row['model']:8} {row['how']:6} {row['width'] or '-':>5} {row['users']:>5} "
        f"{row['each']:>4} {row['tokens']:>6} {row['plain_seconds'] * 1e3:>9.1f} "
        f"{row['ours_seconds'] * 1e3:>9.1f} {row['throughput']:>9.2f}x {row['floor']:>6.2f} "
        f"{memory:>7} {ratio('opacus_seconds'):>11} "
        f"{ratio('loop_seconds'):>9}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="*", default=["gpt2", "smollm2"])
    parser.add_argument("--how", nargs="+", default=["full", "lora"])
    parser.add_argument("--untied", action="store_true", help="the variant Opacus can train")
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 64])
    parser.add_argument("--growth", action="store_true", help="also vary users, tokens and width")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--loop-users", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{torch.get_num_threads()} CPU cores ({platform.machine()})"
    )
    print(f"{name}, torch {torch.__version__}")
    print(HEADER)
    rows = []
    for case in cases(options):
        row = measure(case, options.device, options.repeats, options.loop_users)
        rows.append(row)
        print(line(row), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if options.out:
            options.out.write_text(json.dumps({"machine": name, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
