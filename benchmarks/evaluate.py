"""Evaluation and generation beside a private training round, in tokens a second.

    python benchmarks/evaluate.py [--device cuda] [--models smollm2 gpt2] [--random]
        [--smollm2 FOLDER] [--texts FILE] [--tokens N] [--out FILE.json]
    python benchmarks/evaluate.py --only round ...    with an earlier version of the package

SmolLM2-135M with LoRA of rank 8, and GPT-2 of 124M parameters trained in full. With `--random` both
have random weights and random tokens, in sentences as long as those of news (log-normal, median 19
tokens); `--smollm2` is a folder that `uedp unpack` wrote, and `--texts` a file with a sentence per
line. Nothing else is needed. In one run, the fastest of repeated passes over the same sentences:

  round        a private round (user-level, everybody drawn, seven sentences each): draw, clip
               twice, secure noise; in the precisions that training offers on the device
  as written   what people write: batches of 16 in the order of the corpus, padded, with the
               model's own loss, read from the device after every batch
  before       batches of similar length of up to 8,192 tokens (4,096 on a CPU), float32 logits,
               one wait per batch: how uedp evaluated
  after        `NextWord.loss_sums`: planned batches, logits in chunks, one wait; in float32, and in
               each faster precision that the device has

  one by one   `generate` for one prompt at a time (few of them)
  batched      `uedp.training.generation.continuations`

`--clock cpu` counts the CPU time of one thread, which other work on the machine changes little.

`error` is the difference of the perplexity from that in float32, with three standard errors; an
evaluation chooses a faster precision only where both together stay below 0.1%. A training pass over
frozen weights computes at least two forward passes, a full one three: evaluation can be faster by
more only as far as a round is above its floor, or in a slower precision. `of round` compares with a
round in float32, `of best` with the fastest round.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from clip import SMOLLM2
from torch import nn

from uedp.incidence import Incidence
from uedp.mechanism.sampling import Sampling
from uedp.methods import RoundSettings, method_named
from uedp.models.trainable import make_trainable
from uedp.training.build import set_up_for_training
from uedp.training.config import parse_config
from uedp.training.tasks import NextWord

LONGEST, EACH = 128, 7  # tokens of a sentence, sentences of a user
SEED = 0


class Numbers:
    """A tokenizer for texts that are lists of token ids."""

    bos_token_id = eos_token_id = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def get_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(i) for i in text.split()][: LONGEST - 1] for text in texts]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def random_texts(tokens: int, vocabulary: int) -> list[str]:
    rng, texts = np.random.default_rng(SEED), []
    while tokens > 0:
        length = int(np.clip(np.exp(rng.normal(np.log(19), 0.65)), 2, LONGEST - 4))
        texts.append(" ".join(map(str, rng.integers(1, vocabulary, length))))
        tokens -= length + 2
    return texts


def new_model(name: str, options: argparse.Namespace) -> tuple[nn.Module, Any]:
    """A model that is ready to train, and its tokenizer."""
    torch.manual_seed(SEED)
    tokenizer: Any
    if name == "smollm2" and options.smollm2:
        from uedp.models.load import load_model

        loaded = load_model(str(options.smollm2), "next-word")
        model, tokenizer = loaded.model, loaded.tokenizer
    elif name == "smollm2":
        shape = transformers.LlamaConfig(**SMOLLM2, bos_token_id=0, eos_token_id=0)
        model, tokenizer = transformers.LlamaForCausalLM(shape), Numbers(shape.vocab_size)
    else:
        gpt2 = transformers.GPT2Config(bos_token_id=0, eos_token_id=0)
        model, tokenizer = transformers.GPT2LMHeadModel(gpt2), Numbers(gpt2.vocab_size)
    how = "lora" if name == "smollm2" else "full"
    return make_trainable(model, how, rank=8).to(options.device), tokenizer


def rounds(
    model: nn.Module, task: NextWord, options: argparse.Namespace, half: bool
) -> Callable[[], None]:
    """A private round over all sentences, without the comparison with the reference before it."""
    named = method_named("user-level")
    kind: Any = type(named.__name__, (named,), {"_check": lambda self: None})
    count = len(task.lengths)
    none = np.zeros(0, dtype=np.int64)
    users = -(-count // EACH)
    everyone = Incidence.build(np.arange(count) // EACH, none, none, users, 0)
    config = parse_config(
        {
            "privacy": {"method": "user-level", "noise": 1.0, "user_rate": 1.0, "rounds": 1},
            "data": {"train": "."},
            "model": {"name": "model"},
        }
    )
    settings = RoundSettings(
        sampling=Sampling(1.0),
        clips=named.clips(config.privacy, 0.0),
        noise=1.0,
        users=users,
        half_precision=half,
        options=config.method_options,
    )

    def precision() -> Any:
        return torch.autocast(options.device, torch.bfloat16, enabled=half)

    method = kind(settings, everyone, model, task, precision)
    numbers = iter(range(1 << 20))

    def one() -> None:
        model.train()
        with set_up_for_training(model, "next-word"):
            method.round(next(numbers))

    return one


@torch.no_grad()
def as_written(model: nn.Module, task: NextWord, options: argparse.Namespace) -> float:
    total = count = 0.0
    for start in range(0, len(task.lengths), 16):
        rows = [task._ids[i] for i in range(start, min(start + 16, len(task.lengths)))]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = torch.from_numpy(row.astype(int)), 1
        ids, mask = ids.to(options.device), mask.to(options.device)
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        each = int(mask[:, 1:].sum())
        total, count = total + loss.item() * each, count + each
    return total / count


@torch.no_grad()
def before(model: nn.Module, task: NextWord, options: argparse.Namespace) -> float:
    most = 1 << 13 if options.device == "cuda" else 1 << 12
    order, total, start = np.argsort(task.lengths, kind="stable"), 0.0, 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * task.lengths[order[end]] <= most:
            end += 1
        batch = task.batch(order[start:end])
        ids, labels = (batch[name].to(options.device) for name in ("input_ids", "labels"))
        logits = model(input_ids=ids).logits[:, :-1]
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="none"
        )
        total, start = total + float(losses.double().sum()), end
    return total / int((task._ids.lengths - 1).sum())


def fastest(
    work: Callable[[], Any], options: argparse.Namespace, passes: int | None = None
) -> tuple[float, Any]:
    """The seconds of the fastest of a few passes, after one that sets things up."""
    taken, found = [], None
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    for number in range((passes or options.passes) + (options.device == "cuda")):
        began = clock()
        found = work()
        if options.device == "cuda":
            torch.cuda.synchronize()
            if not number:
                continue
        taken.append(clock() - began)
    return min(taken), found


def measure(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model, tokenizer = new_model(name, options)
    if isinstance(tokenizer, Numbers) or options.texts is None:
        if not isinstance(tokenizer, Numbers):
            raise SystemExit("--smollm2 needs --texts")
        texts = random_texts(options.tokens, len(tokenizer))
    else:
        texts = options.texts.read_text(encoding="utf-8").splitlines()
    task = NextWord(texts, tokenizer, LONGEST)
    while int(task.lengths.sum()) > 1.02 * options.tokens:
        texts = texts[: int(len(texts) * options.tokens / task.lengths.sum())]
        task = NextWord(texts, tokenizer, LONGEST)
    tokens = int(task.lengths.sum())

    def row(way: str, precision: str, seconds: float, count: int, **more: Any) -> dict[str, Any]:
        values = {"model": name, "way": way, "precision": precision, "seconds": seconds}
        return values | {"tokens": count, "tokens a second": count / seconds} | more

    halves = [False, True] if options.device == "cuda" else [False]
    for half in halves:
        seconds, _ = fastest(rounds(model, task, options, half), options)
        yield row("round", "bf16" if half else "float32", seconds, tokens)
    if options.only == "round":
        return
    model.eval()
    for way, work in {"as written": as_written, "before": before}.items():
        seconds, loss = fastest(lambda work=work: work(model, task, options), options)
        yield row(way, "float32", seconds, tokens, perplexity=float(np.exp(loss)))
    yield from evaluated(model, task, options, row)
    yield from generated(model, options, row)


def evaluated(
    model: nn.Module, task: NextWord, options: argparse.Namespace, row: Callable[..., Any]
) -> Iterator[dict[str, Any]]:
    from uedp.training import evaluation

    everything, predicted = np.arange(len(task.lengths)), task._ids.lengths - 1
    tokens, exact = int(task.lengths.sum()), None
    names = {"tensor_float_32": "TF32", "half": "bf16"}
    ways: list[Any] = [
        nullcontext,
        *(way for _, way in evaluation._faster(torch.device(options.device))),
    ]
    for way in ways:
        precision = names.get(way.__name__, "float32")
        seconds, sums = fastest(lambda way=way: task.loss_sums(model, everything, way), options)
        loss = float(sums.sum() / predicted.sum())
        more = {"perplexity": float(np.exp(loss))}
        if exact is not None:
            difference = sums - exact
            mean = float(difference.sum() / predicted.sum())
            sure = float(3 * np.sqrt(np.square(difference - mean * predicted).sum()))
            more |= {"error": mean, "three standard errors": sure / float(predicted.sum())}
        exact = sums if exact is None else exact
        yield row("after", precision, seconds, tokens, **more)


def generated(
    model: nn.Module, options: argparse.Namespace, row: Callable[..., Any]
) -> Iterator[dict[str, Any]]:
    from uedp.training.generation import continuations, rows_at_once

    long, count = options.generate, options.texts_at_once
    model.generation_config.eos_token_id = None  # all texts as long, so that tokens are comparable
    prompts = [[0, 1 + number % 1000, 5, 6] for number in range(count)]

    def one_by_one(prompts: list[list[int]] = prompts[:3]) -> None:
        for prompt in prompts:
            ids = torch.tensor([prompt], device=options.device)
            model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=long,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    seconds, _ = fastest(one_by_one, options, 2)
    yield row("one by one", "float32", seconds, 3 * long, texts=3)
    each = rows_at_once(model, 4 + long, torch.device(options.device))
    seconds, texts = fastest(
        lambda: continuations(model, prompts, tokens=long, seed=1, padding=0), options, 2
    )
    assert all(len(text) == 4 + long for text in texts)
    precision = "TF32" if options.device == "cuda" else "float32"
    yield row("batched", precision, seconds, count * long, texts=count, at_once=min(each, count))


def table(rows: list[dict[str, Any]]) -> list[str]:
    head = f"{'model':8} {'way':11} {'precision':9} {'tokens':>8} {'seconds':>8} {'tokens/s':>9}"
    lines = [f"{head} {'of round':>8} {'of best':>8} {'perplexity':>11} {'error':>18}"]
    for row in rows:
        paces = [
            other["tokens a second"]
            for other in rows
            if other["way"] == "round" and other["model"] == row["model"]
        ]
        ratio, least = (row["tokens a second"] / pace for pace in (paces[0], max(paces)))
        perplexity = f"{row['perplexity']:.6g}" if "perplexity" in row else ""
        error = ""
        if "error" in row:
            error = f"{100 * row['error']:+.4f}% +- {100 * row['three standard errors']:.4f}%"
        lines.append(
            f"{row['model']:8} {row['way']:11} {row['precision']:9} {row['tokens']:>8,} "
            f"{row['seconds']:>8.3f} {row['tokens a second']:>9,.0f} {ratio:>8.1f} "
            f"{least:>8.1f} {perplexity:>11} {error:>18}"
        )
    return [line.rstrip() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["smollm2", "gpt2"])
    parser.add_argument("--random", action="store_true", help="Random weights: the default.")
    parser.add_argument("--smollm2", type=Path, help="A folder with the pretrained model.")
    parser.add_argument("--texts", type=Path, help="A sentence per line, for --smollm2.")
    parser.add_argument("--tokens", type=int, help="Of a round and an evaluation.")
    parser.add_argument("--generate", type=int, default=40, help="Tokens of a generated text.")
    parser.add_argument("--texts-at-once", type=int, help="Texts of the batched generation.")
    parser.add_argument("--passes", type=int, help="Repetitions.")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--only", choices=["round"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    options.tokens = options.tokens or (28_700 if on_gpu else 2_000)
    options.passes = options.passes or (5 if on_gpu else 2)
    options.texts_at_once = options.texts_at_once or (8192 if on_gpu else 64)
    if options.clock == "cpu":
        torch.set_num_threads(1)
    if options.random and options.smollm2:
        parser.error("--random and --smollm2 exclude each other")
    rows: list[dict[str, Any]] = []
    for name in options.models:
        for row in measure(name, options):
            rows.append(row)
            print("\n".join(table(rows)[0 if len(rows) == 1 else -1 :]), flush=True)
    if options.out:
        about = {"torch": torch.__version__, "transformers": transformers.__version__}
        threads = torch.get_num_threads()
        about["machine"] = f"{platform.machine()}, {threads} threads, {options.clock} time"
        if on_gpu:
            about["device"] = torch.cuda.get_device_name()
        about["weights"] = "pretrained SmolLM2" if options.smollm2 else "random"
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
        options.out.with_suffix(".txt").write_text("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
