"""The effect of rounding on a clipped sum: how far a text moves others, and the cost of the bounds.

    python benchmarks/rounding.py [--device cuda] [--layers 3] [--width 32] [--out FILE]
    python benchmarks/rounding.py --model FOLDER --datasets FOLDER [--out FILE]

A user of weight 0 has an empty text, then a long one. The remaining difference between the two sums
is due to the layout and rounding of rows, in bfloat16 and in float32, in units of the clipping norm
(`moved`, the largest over several lengths). The margin on the noise is set above it. bfloat16-fixed
is bfloat16 in passes of one shape, for adapters on an accelerator.

Clip factors divide by upper bounds of norms; `taken off` is how much shorter this makes the sum.

A Llama with random weights, adapters or all weights trained, with packed rows; `--layers 30
--width 576` gives SmolLM2's shapes. Or a saved model and the texts of `benchmarks/extraction.py
prepare`.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from packing import Numbers

from research.datasets import load_texts
from uedp.accounting.decisions import Precision
from uedp.incidence import Rows
from uedp.mechanism.clip import Engine, rules
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.noise import SecureNoise
from uedp.mechanism.packing import SHARED_ROWS
from uedp.mechanism.release import Clips, FixedPasses, release
from uedp.mechanism.sampling import Participants
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable
from uedp.training.plan import rounding_margin
from uedp.training.tasks import NextWord

USERS = (64, 256, 1024)
EACH = 3  # sentences per user
CLIP = 0.1
LONG = (8, 64, 120)
MAX_TOKENS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--datasets", type=Path)
    parser.add_argument("--users", type=int, nargs="+", default=USERS)
    parser.add_argument("--trained", nargs="+", default=["lora", "full"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for how in options.trained:
        torch.manual_seed(0)
        if options.model:
            loaded = load_model(options.model)
            model, texts = loaded.model, Real(loaded.tokenizer, options.datasets)
        else:
            model, texts = random_llama(options.layers, options.width), Made()
        model = make_trainable(model, how, rank=8)
        for parameter in model.parameters():  # adapters start at zero, which has no rounding error
            if parameter.requires_grad and not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
        model.to(options.device).eval()
        for users in options.users:
            fixed = ("bfloat16-fixed",) if how == "lora" and options.device == "cuda" else ()
            for precision in ("bfloat16", "float32", *fixed):
                row = measure(model, texts, users, precision) | {"trained": how}
                rows.append(row)
                print(
                    f"{how:>5} {users:>6} users {row['precision']:>14}: moved {row['moved']:.1e} "
                    f"clips (margin {rounding_margin(row['precision'], users):.1e}); taken off "
                    f"{row['taken off']:.2%}",
                    flush=True,
                )
    if options.out:
        result = {
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "model": options.model.name if options.model else "random",
            "layers": None if options.model else options.layers,
            "width": None if options.model else options.width,
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def random_llama(layers: int, width: int) -> Any:
    shape = {"hidden_size": width, "intermediate_size": width * 8 // 3, "vocab_size": 1024}
    heads = {"num_attention_heads": width // 16, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(**shape, **heads, num_hidden_layers=layers)
    return transformers.LlamaForCausalLM(config)


class Made:
    """Random texts of given numbers of tokens."""

    tokenizer: Any = Numbers()

    def some(self, count: int) -> list[str]:
        return [str(n) for n in np.random.default_rng(0).integers(5, 60, count)]

    def long(self) -> list[str]:
        return [str(n) for n in LONG]


class Real:
    """The texts of a corpus."""

    def __init__(self, tokenizer: Any, material: Path) -> None:
        self.tokenizer = tokenizer
        self._texts = load_texts(material, "train").texts

    def some(self, count: int) -> list[str]:
        chosen = np.random.default_rng(0).choice(len(self._texts), count, replace=False)
        return [self._texts[i] for i in chosen]

    def long(self) -> list[str]:
        return [" ".join(self._texts[:n]) for n in (1, 3, 8)]


def measure(model: Any, texts: Any, users: int, precision: Precision) -> dict[str, Any]:
    passes = None
    if precision == "bfloat16-fixed":
        passes = FixedPass(model, 1 << 13, MAX_TOKENS, torch.bfloat16)

    def total(first: str) -> torch.Tensor:
        return summed(model, texts.tokenizer, [first, *others], precision != "float32", passes)

    others = texts.some(EACH * users)
    empty = total("")
    moved = max(float((total(first) - empty).norm()) for first in texts.long())
    with (
        mock.patch.object(rules, "sum_error", return_value=0.0),
        mock.patch.object(rules, "SCALING_ERROR", 0.0),
    ):
        unbounded = total("")
    return {
        "users": users,
        "precision": precision,
        "moved": moved / CLIP,
        "taken off": 1 - float(empty.norm() / unbounded.norm()),
    }


def summed(
    model: Any, tokenizer: Any, texts: list[str], half: bool, passes: FixedPass | None
) -> torch.Tensor:
    task = NextWord(texts, tokenizer, MAX_TOKENS)
    clipper, count = Engine(model), len(texts)
    users = 1 + (count - 1) // EACH
    offsets = np.concatenate([[0, 1], np.arange(1 + EACH, count + 1, EACH)])
    weights = np.ones(count)
    weights[0] = 2.0**-60  # the first user's is as good as 0
    drawn = Participants(np.arange(users), Rows(offsets, np.arange(count)), weights)
    fixed = None if passes is None else FixedPasses(passes, task.tokens_of, for_all=True)

    def losses(order: Any) -> Any:
        device = clipper.parameters[0].device.type
        with torch.autocast(device, torch.bfloat16, enabled=half):
            return task.losses(model, np.array(order), SHARED_ROWS)

    clips, no_noise = Clips(CLIP, 0.5), (SecureNoise(), 0.0)
    lengths = task.lengths[:count]
    sums, _ = release(
        clipper, drawn, losses, lengths, clips, *no_noise, packing=SHARED_ROWS, fixed=fixed
    )
    return torch.cat([part.flatten().double() for part in sums])


if __name__ == "__main__":
    main()
