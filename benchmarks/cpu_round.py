"""Private rounds on CPU cores, beside a plain Transformers + PEFT loop on the same sentences.

    python benchmarks/cpu_round.py --data DIR --model FOLDER [--sentences 150] [--how lora full]
        [--precision float32] [--threads 2] [--steps 3] [--out FILE]

`--data` holds `conll2003/eng.train.gz` as downloaded, `--model` is a folder of `uedp unpack
smollm2-135m`. Every document is a user, all users are drawn, and a round is what `ClippedMethod`
computes: clipped sums of packed rows, noise, one step of Adam. The plain loop is what users write:
float32, batches of 16 sentences of similar length, padded, with an attention mask, AdamW. Private
rounds and passes of the plain loop take turns; medians are reported, in seconds per real token.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import uedp
from uedp.incidence import Incidence
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling
from uedp.methods import RoundSettings, method_named
from uedp.models.trainable import make_trainable
from uedp.training import optimise, tasks
from uedp.training.build import _autocast, set_up_for_training
from uedp.training.config import OptimiserSettings

BATCH = 16  # sentences of the plain loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=80)
    parser.add_argument("--how", nargs="+", default=["lora", "full"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", choices=["plain", "private"])
    parser.add_argument("--profile", type=Path, help="Write a table of operators.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts, owners = sentences(options.data / "conll2003/eng.train.gz", options.sentences)
    rows = [measure(options, how, texts, owners) for how in options.how]
    about = {
        "machine": platform.machine(),
        "cores": options.threads,
        "torch": torch.__version__,
        "precision": options.precision,
        "rows": rows,
    }
    print(json.dumps(about, indent=2))
    if options.out:
        options.out.write_text(json.dumps(about, indent=2) + "\n")


def sentences(path: Path, count: int) -> tuple[list[str], list[int]]:
    """The first sentences of the corpus, and the user of each."""
    texts: list[str] = []
    owners: list[int] = []
    numbers: dict[str, int] = {}
    for sentence in uedp.read_sentences(path, reader="conll"):
        if len(texts) == count:
            break
        texts.append(sentence.text)
        owners.append(numbers.setdefault(sentence.user, len(numbers)))
    return texts, owners


def measure(
    options: argparse.Namespace, how: str, texts: list[str], owners: list[int]
) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    task = tasks.NextWord(texts, tokenizer, 128)
    tokens = int(task.lengths.sum())
    makers = {
        "plain": lambda: plain_loop(options, how, texts, tokenizer),
        "private": lambda: private_round(options, how, task, owners),
    }
    work = {name: make() for name, make in makers.items() if options.only in (None, name)}
    for each in work.values():
        each()
    if options.profile:
        profiled(work[options.only or "private"], options.profile)
        return {}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.steps):
        for name, each in work.items():
            began = time.perf_counter()
            each()
            seconds[name].append(time.perf_counter() - began)
    found = {name: statistics.median(values) / tokens for name, values in seconds.items()}
    row: dict[str, Any] = {"how": how, "sentences": len(texts), "tokens": tokens}
    row |= {f"{name} s/token": round(value, 6) for name, value in found.items()}
    if len(found) == 2:
        row["tokens/s of plain"] = round(found["plain"] / found["private"], 3)
    return row


def private_round(
    options: argparse.Namespace, how: str, task: tasks.NextWord, owners: list[int]
) -> Callable[[], None]:
    """A round as `uedp train` computes it, and its optimiser step."""
    model = make_trainable(loaded(options.model), how, rank=8).train()
    kind: Any = type("Unchecked", (method_named("user-level"),), {"_check": lambda self: None})
    none, users = np.zeros(0, dtype=np.int64), max(owners) + 1
    incidence = Incidence.build(np.array(owners), none, none, users, 0)
    half = options.precision == "bfloat16"
    settings = RoundSettings(Sampling(1.0), Clips(1.0, 2.0), 1.0, users, half_precision=half)
    with set_up_for_training(model, "next-word"):
        method = kind(settings, incidence, model, task, _autocast(half, torch.device("cpu")))
    optimiser = optimise.build_optimiser(OptimiserSettings(), method.parameters)
    number = iter(range(1 << 30))

    def work() -> None:
        with set_up_for_training(model, "next-word"):
            gradient = method.round(next(number))
            optimiser.step(gradient.values, 1e-4, gradient.deviation)

    return work


def plain_loop(
    options: argparse.Namespace, how: str, texts: list[str], tokenizer: Any
) -> Callable[[], None]:
    """Every sentence once, in batches of similar length."""
    import peft

    model = loaded(options.model)
    if how == "lora":
        targets = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
        model = peft.get_peft_model(model, targets)
    model.train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    first, last = tokenizer.bos_token or tokenizer.eos_token, tokenizer.eos_token
    ids = [tokenizer(first + text + last, add_special_tokens=False).input_ids for text in texts]
    by_length = sorted((own[:128] for own in ids), key=len)
    batches = [by_length[start : start + BATCH] for start in range(0, len(by_length), BATCH)]
    half = options.precision == "bfloat16"

    def work() -> None:
        for own in batches:
            batch = tokenizer.pad({"input_ids": own}, return_tensors="pt")
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(**batch, labels=labels).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()

    return work


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def profiled(work: Callable[[], None], path: Path) -> None:
    with torch.profiler.profile(record_shapes=True) as profile:
        work()
    averages = profile.key_averages(group_by_input_shape=True)
    path.write_text(
        averages.table(
            sort_by="self_cpu_time_total",
            row_limit=60,
            max_name_column_width=60,
            max_shapes_column_width=90,
        )
    )


if __name__ == "__main__":
    main()
