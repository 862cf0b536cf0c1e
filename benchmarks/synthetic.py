r"""Synthetic text: how often its audit is wrong, and an example with a pretrained model.

    python benchmarks/synthetic.py calibrate --out benchmarks/results/synthetic_calibration.json
    python benchmarks/synthetic.py example RUN --folder DIR --out \
        benchmarks/results/synthetic_example.json
    python benchmarks/synthetic.py cost --out benchmarks/results/synthetic_cost.json

`calibrate` needs no model. People of the bundled sample are put at random in three parts: trained
on, held out, never seen. Texts of the last are what a model would write that has learned how people
write and nothing of anybody; some of them are replaced by copies of training text. It counts how
often the audit raises an alarm.

`example` generates texts with a run and, with `--model`, with the model it started from, and audits
them. Texts that are in the folder already are resumed.

`cost` times the audit of texts against more than 100,000 messages.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import uedp
from uedp.audit.synthetic import audit_texts
from uedp.sample.generate import sample_sentences
from uedp.training.config import load_config
from uedp.training.decoding import TokenSampling
from uedp.training.synthetic import about_path, write_texts

PARTS = {"train": 0.5, "held_out": 0.25, "never_seen": 0.25}
COPIED = (0.0, 0.05, 0.1)


def calibrate(splits: int, people: int, texts: int) -> dict[str, Any]:
    found: dict[float, list[dict[str, Any]]] = {share: [] for share in COPIED}
    with tempfile.TemporaryDirectory() as temporary:
        for split in range(splits):
            folder = Path(temporary) / str(split)
            folder.mkdir()
            parts = _parts(split, people)
            for name in ("train", "held_out"):
                uedp.detect(parts[name], folder / name, uedp.Detection(("labels",)))
            for share, results in found.items():
                rng = random.Random(split)
                copied = round(share * texts)
                chosen = rng.sample([s.text for s in parts["never_seen"]], texts - copied)
                chosen += rng.sample([s.text for s in parts["train"]], copied)
                path = folder / "texts.jsonl"
                path.write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
                audit = audit_texts(path, folder / "train", folder / "held_out", seed=split)
                results.append({"alarms": list(audit.alarms), "p_values": audit.p_values})
    return {
        "splits": splits,
        "people": people,
        "parts": PARTS,
        "texts": texts,
        "by_share_copied": {str(share): _summary(results) for share, results in found.items()},
    }


def _parts(split: int, people: int) -> dict[str, list[Any]]:
    sentences = list(sample_sentences(split, people))
    users = sorted({sentence.user for sentence in sentences})
    random.Random(split).shuffle(users)
    ends = (len(users) * np.cumsum([0, *PARTS.values()])).astype(int)
    own = {
        name: set(users[low:high]) for name, low, high in zip(PARTS, ends, ends[1:], strict=False)
    }
    return {name: [s for s in sentences if s.user in who] for name, who in own.items()}


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    values = [result["p_values"] for result in results]
    return {
        "alarms": sum(bool(result["alarms"]) for result in results),
        "of": len(results),
        "at_5_percent_each": {
            name: sum(value[name] <= 0.05 for value in values) for name in values[0]
        },
    }


def example(run: Path, model: Path | None, folder: Path, count: int, tokens: int) -> dict[str, Any]:
    data = load_config(run / "config.yaml").data
    answer: dict[str, Any] = {"count": count, "tokens": tokens}
    for name, source in {"run": run, **({} if model is None else {"before": model})}.items():
        out = folder / f"{name}.jsonl"
        about = write_texts(
            source,
            out,
            count=count,
            seed=1,
            sampling=TokenSampling(tokens=tokens, temperature=0.9, top_p=0.95),
            drop=("empty", "duplicates"),
            resume=True,
        )
        audit = audit_texts(
            out,
            data.train,
            data.evaluate,
            run=run if name == "run" else None,
            reference=None if model is None else str(model),
        )
        lines = [json.loads(line) for line in out.read_text().split("\n")[:-1]]
        answer[name] = {
            "about": json.loads(about_path(out).read_text()),
            "audit": audit.to_json(),
            "first_texts": [line["text"] for line in lines[:20]],
        }
        assert about.counts.written == len(lines)
    return answer


def cost(people: int, texts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sentences = list(sample_sentences(0, people))
        users = sorted({sentence.user for sentence in sentences})
        random.Random(0).shuffle(users)
        held = set(users[: len(users) // 5])
        written = random.Random(0).sample([s.text for s in sample_sentences(1, 600)], texts)
        sides = {"train": lambda user: user not in held, "held_out": lambda user: user in held}
        for name, belongs in sides.items():
            part = [sentence for sentence in sentences if belongs(sentence.user)]
            uedp.detect(part, folder / name, uedp.Detection(("labels",)))
        del sentences
        path = folder / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in written))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, used = time.perf_counter(), time.process_time()
        audit_texts(path, folder / "train", folder / "held_out")
        return {
            "sentences": {name: len(uedp.Corpus(folder / name)) for name in sides},
            "texts": texts,
            "seconds": time.perf_counter() - began,
            "processor_seconds": time.process_time() - used,
            "peak_megabytes_before": before / 1024,
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("calibrate")
    first.add_argument("--splits", type=int, default=30)
    first.add_argument("--people", type=int, default=200)
    first.add_argument("--texts", type=int, default=200)
    second = commands.add_parser("example")
    second.add_argument("run", type=Path)
    second.add_argument("--model", type=Path, help="What it started from, to compare with.")
    second.add_argument("--folder", type=Path, required=True, help="For the texts.")
    second.add_argument("--count", type=int, default=200)
    second.add_argument("--tokens", type=int, default=48)
    third = commands.add_parser("cost")
    third.add_argument("--people", type=int, default=8000)
    third.add_argument("--texts", type=int, default=2000)
    for command in (first, second, third):
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "calibrate":
        answer = calibrate(options.splits, options.people, options.texts)
    elif options.command == "cost":
        answer = cost(options.people, options.texts)
    else:
        answer = example(options.run, options.model, options.folder, options.count, options.tokens)
    options.out.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
