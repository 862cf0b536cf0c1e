"""How far one text moves the clipped sum over others by rounding alone.

    python benchmarks/half_precision.py [--device cuda] [--out FILE]

A user of weight 0 has an empty text, then a long one: what is left of the difference between the
two sums is how rows are laid out and rounded, in bfloat16 and in float32, in units of the clip. A
tiny Llama, a sentence a user, sentences in shared rows.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from packing import Numbers

from uedp.mechanism.clip import Engine
from uedp.training.tasks import NextWord

USERS = (64, 256, 1024)
CLIP = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 1024}
    heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads))
    model.to(options.device).eval()
    rows = []
    for users in USERS:
        lengths = np.random.default_rng(0).integers(5, 30, users)
        row: dict[str, Any] = {"users": users}
        for half in (True, False):
            empty, long = (summed(model, [first, *lengths], half) for first in (0, 32))
            row["bfloat16" if half else "float32"] = float((long - empty).norm()) / CLIP
        rows.append(row)
        print(f"{users:>6} users: {row['bfloat16']:.4f} clips, float32 {row['float32']:.1e}")
    if options.out:
        found = {"device": options.device, "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(found, indent=2) + "\n")


def summed(model: Any, lengths: list[int], half: bool) -> torch.Tensor:
    task = NextWord([str(n) if n else "" for n in lengths], Numbers(), 40)
    task.packed = True
    engine, count = Engine(model), len(lengths)

    def losses(order: Any) -> Any:
        device = engine.parameters[0].device.type
        with torch.autocast(device, torch.bfloat16, enabled=half):
            return task.losses(model, np.array(order))

    weights = torch.ones(count)
    weights[0] = 0
    clips = torch.full((count,), CLIP)
    found = engine.clipped_sum(losses, list(range(count)), clips, CLIP, weights).gradients
    return torch.cat([found[p].flatten().double() for p in engine.parameters])


if __name__ == "__main__":
    main()
