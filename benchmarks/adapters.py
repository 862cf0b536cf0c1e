"""Which layers to adapt when noise is added: where gradients agree, and what noise breaks.

    python benchmarks/adapters.py --material FOLDER --model FOLDER [--sentences 80] [--out FILE]

Noise of the same size goes to every trained weight, so a layer is worth training if sentences agree
on where to move it (signal) and if the model bears noise in it (curvature). Both are measured at
the start of training, for adapters of rank 8, of whose two matrices only the second has a gradient
then. `FOLDER` is material of `benchmarks/utility.py prepare`; the validation part alone is read.

  share      of the squared length of a sentence's gradient that lies in these layers
  signal     inner product of the mean gradient with a sentence's, cut to length 1; estimated from
             pairs of different sentences, so that a sentence does not agree with itself
  curvature  trace of the loss's second derivative, from the rise of the loss under random moves
  merit      what one step can gain at best against the noise, signal^2 / curvature, if these layers
             alone were adapted: the clip then cuts them alone, so signal grows by 1 / sqrt(share)
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uedp.experiments.material import texts
from uedp.models.load import load
from uedp.models.trainable import make_trainable
from uedp.training.tasks import NextWord


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=80)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--move", type=float, default=0.05, help="size of random moves")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loaded = load(options.model, "next-word")
    model = make_trainable(loaded.model, "lora-b", rank=8).eval()
    held_out = texts(options.material, "validation").texts
    chosen = np.random.default_rng(0).choice(len(held_out), options.sentences, replace=False)
    task = NextWord([held_out[i] for i in chosen], loaded.tokenizer, 128)
    kinds: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = re.split(r"\.lora_B\.", name)[0].rsplit(".", 1)[-1]
            kinds.setdefault(kind, []).append(parameter)
    grams, lengths = gradients(model, task, kinds)
    rises = curvature(model, task, kinds, options.draws, options.move)
    rows = [row(kind, grams[kind], lengths, rises[kind]) for kind in kinds]
    whole = row("all", np.sum(list(grams.values()), 0), lengths, sum(rises.values()))
    rows = [whole, *sorted(rows, key=lambda found: -found["merit"])]
    print(f"{'layers':12} {'share':>6} {'signal':>8} {'curvature':>9} {'merit':>8}")
    for own in rows:
        print(
            f"{own['layers']:12} {own['share']:>6.3f} {own['signal']:>8.4f} "
            f"{own['curvature']:>9.2f} {own['merit'] / whole['merit']:>8.2f}"
        )
    if options.out:
        about = {
            "model": options.model.name,
            "sentences": options.sentences,
            "draws": options.draws,
        }
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


def gradients(
    model: Any, task: NextWord, kinds: dict[str, list[Tensor]]
) -> tuple[dict[str, Any], Any]:
    """Inner products of the sentences' gradients, each cut to length 1, by kind; and lengths."""
    every = [parameter for own in kinds.values() for parameter in own]
    rows: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
    lengths = []
    for place in range(len(task.lengths)):
        loss = task.sentence_losses(model, task.batch(np.array([place])))
        found = iter(torch.autograd.grad(loss.sum(), every))
        parts = {k: torch.cat([next(found).flatten() for _ in own]) for k, own in kinds.items()}
        lengths.append(float(torch.stack([part.norm() for part in parts.values()]).norm()))
        for kind, part in parts.items():
            rows[kind].append(part / lengths[-1])
    stacked = {kind: torch.stack(own) for kind, own in rows.items()}
    return {kind: (own @ own.T).double().numpy() for kind, own in stacked.items()}, lengths


@torch.no_grad()
def curvature(
    model: Any, task: NextWord, kinds: dict[str, list[Tensor]], draws: int, move: float
) -> dict[str, float]:
    def loss() -> float:
        parts = np.array_split(np.arange(len(task.lengths)), 4)
        return float(
            torch.cat([task.sentence_losses(model, task.batch(part)) for part in parts]).mean()
        )

    still, found = loss(), {}
    for kind, own in kinds.items():
        rises = []
        for seed in range(draws):
            generator = torch.Generator().manual_seed(seed)
            moves = [move * torch.randn(p.shape, generator=generator) for p in own]
            for sign in (1, -1):  # both ways, so that the slope cancels
                for parameter, step in zip(own, moves, strict=True):
                    parameter.add_(step, alpha=sign)
                rises.append(loss() - still)
                for parameter, step in zip(own, moves, strict=True):
                    parameter.sub_(step, alpha=sign)
        found[kind] = 2 * float(np.mean(rises)) / move**2
    return found


def row(kind: str, gram: Any, lengths: Any, curvature: float) -> dict[str, Any]:
    share = float(np.diag(gram).mean())
    others = gram - np.diag(np.diag(gram))
    pairs = len(lengths) * (len(lengths) - 1)
    signal = float(np.asarray(lengths) @ others.sum(1)) / pairs
    merit = signal**2 / (share * curvature) if curvature > 0 else float("nan")
    return {
        "layers": kind,
        "share": share,
        "signal": signal,
        "curvature": curvature,
        "merit": merit,
    }


if __name__ == "__main__":
    main()
