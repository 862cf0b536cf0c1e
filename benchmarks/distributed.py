"""Rounds of one process beside the same rounds of several, on the bundled sample.

    python benchmarks/distributed.py [--processes 1 2 4] [--rounds 8] [--out FILE]

Every process has one thread. Each trains the same untrained GPT-2 (4 blocks of width 256) over
bytes with LoRA, by the same seed: the sums must agree. The median of the seconds that rounds took
is compared, the first two left out. Run it on idle cores: more processes than cores cannot gain.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file

OUT = Path(__file__).with_name("results") / "distributed.json"
_SKIPPED = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--people", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = measured(Path(name), given)
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "rounds": given.rounds - _SKIPPED,
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))


def measured(work: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    uedp("sample", "--people", str(given.people), "--out", "m.jsonl", cwd=work)
    uedp("detect", "m.jsonl", "--label", "label", "--detector", "labels", "--out", "c", cwd=work)
    save_model(work / "model")
    rows: list[dict[str, Any]] = []
    alone: dict[str, torch.Tensor] = {}
    for count in given.processes:
        out = work / f"run-{count}"
        train(work, out, count, given.rounds)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        seconds = median(line["seconds"] for line in lines[_SKIPPED:])
        weights = load_file(out / "model.safetensors")
        alone = alone or weights
        apart = max(float((weights[name] - alone[name]).abs().max()) for name in alone)
        rows.append(
            {
                "processes": count,
                "seconds_a_round": seconds,
                "speed": rows[0]["seconds_a_round"] / seconds if rows else 1.0,
                "largest_difference_of_weights": apart,
                "sentences_a_round": median(line["sentences"] for line in lines[_SKIPPED:]),
            }
        )
    return rows


def train(work: Path, out: Path, processes: int, rounds: int) -> None:
    settings = {
        "privacy": {"method": "rotation", "noise": 1.0, "rounds": rounds, "user_rate": 0.5},
        "data": {"train": "c"},
        "model": {"name": "model", "train": "lora", "max_tokens": 128},
    }
    settings["privacy"] |= {"entity_share": 0.3, "seed": 7}
    (work / "config.yaml").write_text(json.dumps(settings))  # YAML, too
    line = ["-m", "uedp", "train", "config.yaml", "--out", str(out)]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    run([*(start if processes > 1 else []), *line], work)


def uedp(*arguments: str, cwd: Path) -> None:
    run(["-m", "uedp", *arguments], cwd)


def run(arguments: list[str], cwd: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-2000:]}")


def save_model(folder: Path, width: int = 256, layers: int = 4, heads: int = 4) -> None:
    """An untrained GPT-2 over bytes, the same every time."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from uedp.models.scratch import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=128,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['cores']} cores, one thread a process, {result['rounds']} rounds",
        "processes  seconds a round  speed  weights differ by",
    ]
    for row in result["rows"]:
        lines.append(
            f"{row['processes']:>9}  {row['seconds_a_round']:>15.2f}  {row['speed']:>5.2f}  "
            f"{row['largest_difference_of_weights']:.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
