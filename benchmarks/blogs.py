"""What the planner's defaults give on real people's text, and whether they keep their time.

    uedp detect blogs/train.jsonl.gz --out corpus --detector patterns,spacy:NER --no-split
    uedp detect blogs/test.jsonl.gz --out test --detector patterns --no-split
    uedp unpack smollm2-135m --into .
    python benchmarks/blogs.py corpus test smollm2-135m --out FILE

Only the method, epsilon and the time are given: rotation at 8 in 170 s, users alone at 8 in 90 s,
rotation at 2 in 90 s. Perplexity on the first 4,000 sentences of other authors.

The committed results are of an earlier form of this script, with the same settings: it passed texts
and incidence to the loop instead of corpora.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import uedp
from uedp.training.config import load_config

RUNS = (("rotation", 8, 170), ("user-level", 8, 90), ("rotation", 2, 90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "others", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    rows = []
    for method, epsilon, seconds in RUNS:
        rows.append(trained(method, epsilon, seconds, options))
        print(json.dumps(rows[-1], indent=2), flush=True)
        if options.out:
            shown = {"machine": machine, "model": options.model.name, "runs": rows}
            options.out.write_text(json.dumps(shown, indent=2) + "\n")


def trained(
    method: str, epsilon: float, seconds: float, options: argparse.Namespace
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run, said = Path(folder) / "run", []
        began = time.monotonic()
        outcome = uedp.train(
            options.corpus,
            str(options.model),
            epsilon,
            run,
            evaluate=options.others,
            privacy={"method": method},
            data={"evaluate_sentences": 4000},
            run={"time": seconds},
            say=said.append,
        )
        total = time.monotonic() - began
        rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        config = load_config(run / "config.yaml")
    assert outcome.certificate is not None
    return {
        "name": f"{method}-{epsilon}",
        "before": outcome.before,
        "after": outcome.after,
        "asked": seconds,
        "seconds": total,
        "rounds_seconds": sum(row["seconds"] for row in rounds),
        "rounds": len(rounds),
        "users": sum(row["users"] for row in rounds) / len(rounds),
        "sentences": sum(row["sentences"] for row in rounds) / len(rounds),
        "privacy": config.privacy.model_dump(mode="json"),
        "optimiser": config.optimiser.model_dump(mode="json"),
        "epsilon": outcome.certificate.epsilon,
        "statement": outcome.certificate.statement,
        "said": said,
    }


if __name__ == "__main__":
    main()
