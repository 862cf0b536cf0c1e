"""Short private runs on the bundled sample, one setting changed at a time.

    uedp sample --people 4000 --out messages.jsonl
    uedp detect messages.jsonl --out corpus --hold-out others --detector labels,patterns --no-split
    uedp unpack smollm2-135m --into .
    python benchmarks/demo_sweep.py corpus others smollm2-135m --out FILE

Epsilon 8, 20 rounds of about 96 users. Its use: which of rate, rounds, users, sentences per user,
clipping norm and adapted blocks matter if a run has minutes; `training/choose.py` follows it.

The committed results are of an earlier form of this script, with the same settings: it passed texts
and incidence to the loop instead of corpora.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import uedp

BASE: dict[str, Any] = {
    "train": "lora:4",
    "rank": 4,
    "update_clip": 0.3,
    "learning_rate": 3e-3,
    "rounds": 20,
    "user_rate": 0.03,
    "sentences_per_user": 1,
    "entity_share": 1.0,
    "average": 0.0,
}
ALONE: dict[str, list[Any]] = {
    "update_clip": [0.1, 1.0],
    "learning_rate": [1e-3, 1e-2, 2e-2, 4e-2],
    "train": ["lora:2", "lora:8", "lora-b:4", "lora-b:2", "last:1"],
    "rank": [2, 8, 16],
    "rounds": [12, 30],
    "sentences_per_user": [2, 4],
    "entity_share": [0.5],
    "user_rate": [0.02, 0.05],
    "average": [0.5, 0.8],
}
TOGETHER: list[dict[str, Any]] = [
    {"train": "lora:2", "rank": 8, "learning_rate": 1e-2},
    {"train": "lora-b:4", "learning_rate": 1e-2},
    {"rank": 16, "learning_rate": 1e-2},
    {"rank": 16, "learning_rate": 2e-2},
    {"train": "lora:2", "rank": 16, "learning_rate": 2e-2},
    {"train": "last:1", "learning_rate": 6e-3},
    {"train": "last:1", "learning_rate": 1.5e-3},
    {"train": "last:2", "learning_rate": 3e-3},
    {"rank": 8, "learning_rate": 2e-2, "rounds": 30},
    {"rank": 8, "learning_rate": 2e-2, "update_clip": 0.1},
    {"rank": 8, "learning_rate": 2e-2, "sentences_per_user": 2},
    {"rank": 8, "learning_rate": 2e-2, "user_rate": 0.05},
    {"train": "lora:8", "rank": 8, "learning_rate": 1e-2},
    {"train": "lora", "rank": 8, "learning_rate": 1e-2},
]
PRIVACY = ("update_clip", "rounds", "user_rate", "sentences_per_user", "entity_share")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "others", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    alone = [{name: value} for name, values in ALONE.items() for value in values]
    rows = []
    for change in [{}, *alone, *TOGETHER]:
        rows.append(trained({**BASE, **change}, options) | {"change": change})
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
            shown = {"machine": machine, "model": options.model.name, "rows": rows}
            options.out.write_text(json.dumps(shown, indent=2) + "\n")


def trained(setting: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        outcome = uedp.train(
            options.corpus,
            {
                "name": str(options.model),
                "train": setting["train"],
                "rank": setting["rank"],
                "max_tokens": 48,
            },
            8,
            Path(folder) / "run",
            evaluate=options.others,
            privacy={name: setting[name] for name in PRIVACY},
            data={"evaluate_sentences": 400},
            optimiser={
                "rate": setting["learning_rate"],
                "average": setting["average"],
                "decay": "none",
                "warm_up": 0.0,
            },
            run={"evaluate_every": 1000},
        )
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    clipped = [json.loads(line)["users_clipped"] for line in lines]
    return {
        "noise": outcome.certificate.parameters["noise"] if outcome.certificate else None,
        "perplexity_before": outcome.before["perplexity"],
        "perplexity_after": outcome.after["perplexity"],
        "users_clipped": sum(clipped) / len(clipped),
    }


if __name__ == "__main__":
    main()
