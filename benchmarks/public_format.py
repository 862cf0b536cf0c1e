"""Public text as it is, and written as the private text is: what the same steps on it are worth.

    python benchmarks/public_format.py --datasets FOLDER --model FOLDER [--out benchmarks/results]

Trains adapters on AG's sentences, as they are and rewritten as CoNLL-2003 has its own
(`research/rewritten.py`), with the steps of the utility study on public text, and measures
perplexity on sentences of CoNLL's validation part before and after. Nothing private is trained on.
"""

import argparse
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from research.datasets import load_texts
from research.rewritten import public_text
from research.utility import PUBLIC, PUBLIC_STEPS, RANK
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable
from uedp.progress import SILENT
from uedp.training.config import parse_config
from uedp.training.public_phase import FOLDER, PublicPhase
from uedp.training.tasks import NextWord

PRIVATE, TEXTS = "conll", {"as it is": "ag-sentences", "rewritten": PUBLIC}
MAX_TOKENS = 128


def measured(datasets: Path, model: str, name: str, steps: int, evaluated: int) -> dict[str, Any]:
    loaded = load_model(model)
    adapted = make_trainable(loaded.model, "lora", rank=RANK)
    held_out = load_texts(datasets / PRIVATE, "validation").texts
    chosen = np.random.default_rng(0).permutation(len(held_out))[:evaluated]
    test = NextWord([held_out[i] for i in chosen], loaded.tokenizer, MAX_TOKENS)
    text = public_text(datasets, TEXTS[name])
    settings = {k.removeprefix("public__"): v for k, v in PUBLIC_STEPS.items()} | {"steps": steps}
    config = parse_config(
        {
            "data": {"train": str(datasets), "public": str(datasets)},
            "privacy": {"epsilon": 8.0},
            "model": {"name": model, "max_tokens": MAX_TOKENS},
            "public": settings,
            "run": {"precision": "float32"},
        }
    )
    before = test.evaluate(adapted, nullcontext)["perplexity"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        task = NextWord(text.texts, loaded.tokenizer, MAX_TOKENS)
        PublicPhase(config, Path(folder), adapted, task).run({}, SILENT, lambda: False)
    after = test.evaluate(adapted, nullcontext)["perplexity"]
    return {"text": name, "steps": steps, "before": before, "after": after, "evaluated": evaluated}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=PUBLIC_STEPS["public__steps"])
    parser.add_argument("--evaluated", type=int, default=500, help="sentences")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    rows = [
        measured(options.datasets, options.model, name, options.steps, options.evaluated)
        for name in TEXTS
    ]
    lines = [f"{'public text':12} {'steps':>5} {'before':>8} {'after':>8}"]
    lines += [
        f"{row['text']:12} {row['steps']:>5} {row['before']:>8.1f} {row['after']:>8.1f}"
        for row in rows
    ]
    print("\n".join(lines))
    path = options.out / "public_format"
    path.with_suffix(".json").write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
