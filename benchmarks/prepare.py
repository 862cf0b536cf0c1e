"""Time and memory of preparing a million sentences: from a file to the first round's draw.

    python benchmarks/prepare.py TOKENIZER [--sentences 1000000] [--before CHECKOUT]
        [--before-sentences 100000] [--json FILE]

TOKENIZER is a tokenizer.json[.gz] whose last token ends a text, such as GPT-2's. The sentences are
messages of the sample corpus, with other people in every hundredth. Each step is a process:

    detect          the command, with patterns
    next-word       read and check the corpus, plan, tokenise, lend and draw round 1
    classification  the same with labels

Reported are seconds and the peak resident memory (`ru_maxrss`): everything counts, the imports of
PyTorch and pages of mapped files included. No model is loaded: its memory is its own.
CHECKOUT is another version of the repository to measure first, on fewer sentences.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

WORLDS = 100
MESSAGES_EACH = 14  # by one person of the sample, on average
MAX_TOKENS = 128


@dataclass(frozen=True)
class Measured:
    step: str
    sentences: int
    seconds: float
    peak_mb: float


def write(path: Path, sentences: int) -> None:
    """Messages of the sample corpus; every world has users of its own."""
    from uedp.sample.generate import sample_sentences

    people = max(30, sentences // (WORLDS * MESSAGES_EACH) + 1)
    left = sentences
    with path.open("w") as out:
        for world in range(10 * WORLDS):
            for sentence in sample_sentences(world, people):
                if not left:
                    return
                row = {"user": f"{world}-{sentence.user}", "text": sentence.text}
                out.write(json.dumps({**row, "label": sentence.label}) + "\n")
                left -= 1
    raise SystemExit(f"too few messages: {left:,} are missing")


def run(step: str, sentences: int, command: list[str], source: Path) -> Measured:
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(source), "TOKENIZERS_PARALLELISM": "true"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{step} failed")
    return Measured(step, sentences, time.perf_counter() - began, used.ru_maxrss / 1024)


def prepare(corpus: str, tokenizer: str, kind: str) -> None:
    """In a process of its own: everything up to the draw of the first round."""
    import torch
    from transformers import AutoTokenizer

    from uedp.accounting.ledger import CorpusLedger
    from uedp.methods import ClippedMethod
    from uedp.methods.randomness import Randomness
    from uedp.training.build import plan_run
    from uedp.training.config import parse_config
    from uedp.training.datasets import read_training_data
    from uedp.training.tasks import build_task

    config = parse_config(
        {
            "privacy": {"noise": 1.0, "user_rate": 0.01},
            "data": {"train": corpus},
            "model": {"name": tokenizer},
            "task": {"kind": kind},
            "run": {"device": "cpu"},
        }
    )
    data = read_training_data(config)
    plan = plan_run(config, data, CorpusLedger(data.ledger))
    names = data.label_names() if kind == "classification" else []
    words = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    task = build_task(kind, data.train.texts, data.train.labels, names, words, MAX_TOKENS)
    assert issubclass(plan.method, ClippedMethod)
    sampler = plan.method.sampler(plan.round_settings, data.incidence)
    with Randomness(None).of_round(0, torch.device("cpu")) as (uniforms, key, _):
        drawn = sampler(0, uniforms, key)
    assert task.lengths[drawn.sentences.values].sum()
    print(json.dumps({"tokens": int(task.lengths.sum()), "users": len(drawn.users)}))


def make_tokenizer(source: Path, folder: Path) -> None:
    """In a process of its own, since its memory would count for those that it starts."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content = source.read_bytes()
    if source.suffix == ".gz":
        content = gzip.decompress(content)
    backend = Tokenizer.from_buffer(content)
    end = backend.id_to_token(backend.get_vocab_size() - 1)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=end, eos_token=end, pad_token=end
    ).save_pretrained(folder)


def measure(source: Path, sentences: int, tokenizer: Path) -> list[Measured]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "texts.jsonl", sentences)
        python, corpus = sys.executable, str(folder / "corpus")
        detect = [python, "-m", "uedp", "detect", str(folder / "texts.jsonl"), "--out", corpus]
        detect += ["--detector", "patterns", "--label", "label"]
        if "no_split" in (source / "uedp" / "cli" / "data.py").read_text():
            detect.append("--no-split")
        rows = [run("detect", sentences, detect, source)]
        model = str(folder / "model")
        for kind in ("tokenizer", "next-word", "classification"):
            step = [python, __file__, str(tokenizer), "--step", kind]
            step += ["--corpus", corpus, "--model", model]
            rows.append(run(kind, sentences, step, source))
        return [row for row in rows if row.step != "tokenizer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--before-sentences", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "tokenizer":
        make_tokenizer(options.tokenizer, options.model)
        return
    if options.step:
        prepare(options.corpus, str(options.model), options.step)
        return
    here = Path(__file__).resolve().parents[1]
    found = {}
    if options.before is not None:
        found["before"] = measure(
            options.before / "src", options.before_sentences, options.tokenizer
        )
    found["now"] = measure(here / "src", options.sentences, options.tokenizer)
    print(f"{'':8}{'step':16}{'sentences':>12}{'seconds':>10}{'peak MB':>10}")
    for version, rows in found.items():
        for row in rows:
            print(
                f"{version:8}{row.step:16}{row.sentences:>12,}{row.seconds:>10.1f}"
                f"{row.peak_mb:>10,.0f}"
            )
    if options.json is not None:
        written = {version: [asdict(row) for row in rows] for version, rows in found.items()}
        options.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
