"""How far the released code can move a pretrained model at the paper's own settings.

    python -m research.released_reach --datasets FOLDER --model FOLDER --out FILE [--sentences N]

A user takes one step of AdamW at learning rate 1e-5, which moves a weight by at most
`1e-5 (1 - b1) / sqrt(1 - b2)`, and the sum over users is divided by `q_u W_u (q_e W_e + q_s W_s)`.
So a round moves no weight further than that step over `q_e W_e + q_s W_s`, and all rounds together
change the loss by at most that radius times the 1-norm of its gradient, to first order. The
gradient is that of a saved model on the test part of CoNLL-2003.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research import paper
from research.datasets import load_texts

DATA, CATEGORY = "conll", "person"
LEARNING_RATE = 1e-5  # of the paper, and the default of its code
BETAS = (0.9, 0.999)  # AdamW's defaults
ROUNDS = 197  # the code's rounds for the printed epsilon 0.2


def radius(rounds: int = ROUNDS, category: str = CATEGORY) -> float:
    """The furthest that any weight can have moved after so many rounds."""
    counts = paper.COUNTS[DATA]
    sensitive = counts["sensitive"][category]
    divisor = paper.ENTITY_RATE * sensitive + (counts["sentences"] - sensitive)
    step = LEARNING_RATE * (1 - BETAS[0]) / math.sqrt(1 - BETAS[1])
    return float(rounds * step / divisor)


def measure(model: str, texts: Sequence[str]) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    losses = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        if ids.shape[1] < 2:
            continue
        loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
    weights = [p for p in network.parameters() if p.grad is not None]
    norm = sum(float(p.grad.abs().sum(dtype=torch.float64)) for p in weights) / len(losses)
    loss = sum(losses) / len(losses)
    change = radius() * norm
    return {
        "model": Path(model).name,
        "sentences": len(losses),
        "weights": sum(p.numel() for p in weights),
        "rounds": ROUNDS,
        "category": CATEGORY,
        "radius": radius(),
        "gradient_norm_1": norm,
        "loss_change": change,
        "perplexity": math.exp(loss),
        "least_perplexity": math.exp(loss - change),
        "paper": paper.PERPLEXITIES[DATA][CATEGORY]["0.2"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a saved causal model")
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    texts = [text for text in load_texts(given.datasets / DATA, "test").texts if text.strip()]
    every = max(1, len(texts) // given.sentences)
    result = measure(given.model, texts[::every][: given.sentences])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
