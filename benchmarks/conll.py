"""Perplexity against epsilon on CoNLL-2003 with SmolLM2-135M, LoRA rank 8.

    python benchmarks/conll.py prepare --data DIR --material FOLDER
    python benchmarks/conll.py train --material FOLDER --model FOLDER --out FOLDER [--jobs 4]
    python benchmarks/conll.py table FOLDER

`prepare` reads eng.train, eng.testa and eng.testb with the human marks as entities, into plain
files that a machine without Arrow can read. `train` runs the named configs (default: all), several
at once, through the same loop as `uedp train`; what is finished is not run again. Choices were
made by perplexity on eng.testa (validation); eng.testb (test) is measured once per finished run
and decides nothing.
"""

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FILES = {"train": "eng.train.gz", "validation": "eng.testa.gz", "test": "eng.testb.gz"}
BASE: dict[str, dict[str, Any]] = {
    "privacy": {"method": "rotation", "delta": 1e-5, "rounds": 200, "user_rate": 0.1},
    "model": {"train": "lora", "rank": 8, "max_tokens": 128},
    "optimiser": {"name": "adam", "rate": 1e-3},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 600, "tokens_at_once": 1 << 14},
}


def variant(method: str, epsilon: float | None = None, **changes: Any) -> dict[str, dict[str, Any]]:
    """A config: BASE with changes, given as section__field."""
    config = {section: dict(fields) for section, fields in BASE.items()}
    config["privacy"]["method"] = method
    if epsilon is not None:
        config["privacy"]["epsilon"] = epsilon
    for path, value in changes.items():
        section, field = path.split("__")
        config.setdefault(section, {})[field] = value
    return config


FAST = {"optimiser__rate": 2e-3}
# in the order in which they are run
RUNS = {
    "rotation-8": variant("rotation", 8, privacy__entity_share=0.3, **FAST),
    "rotation-2": variant("rotation", 2, privacy__entity_share=0.3),
    "user-8-at-.1": variant("user-level", 8, **FAST),
    "user-2-at-.1": variant("user-level", 2),
    "user-8-at-.05": variant("user-level", 8, privacy__user_rate=0.05, **FAST),
    "user-2-at-.05": variant("user-level", 2, privacy__user_rate=0.05),
    "noiseless": variant("noiseless", **FAST),
    "rotation-8-slower": variant("rotation", 8, privacy__entity_share=0.3),
    "rotation-2-faster": variant("rotation", 2, privacy__entity_share=0.3, **FAST),
    "uedp-alg": variant("uedp-alg", privacy__noise=2.0, privacy__user_rate=0.05),
    "rotation-8-averaged": variant(
        "rotation", 8, privacy__entity_share=0.3, optimiser__average=0.97, **FAST
    ),
    "rotation-8-share-.5": variant("rotation", 8, privacy__entity_share=0.5, **FAST),
    "rotation-2-share-.2": variant("rotation", 2, privacy__entity_share=0.2),
    "deidentified": variant("deidentified", **FAST),
}


def prepare(data: Path, folder: Path) -> None:
    import uedp

    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        out = folder / f"corpus-{name}"
        if not out.exists():
            sentences = uedp.read(data / file, reader="conll")
            uedp.detect(sentences, out, uedp.Detection(("labels",)))
        corpus = uedp.Corpus(out)
        texts = [sentence.text for sentence in corpus]
        with gzip.open(folder / f"{name}.json.gz", "wt") as written:
            json.dump(texts, written)
        if name == "train":
            from uedp.entities.deidentify import deidentified_texts

            shutil.copytree(out / "incidence", folder / "incidence", dirs_exist_ok=True)
            with gzip.open(folder / "deidentified.json.gz", "wt") as written:
                json.dump(deidentified_texts(corpus), written)


def texts(folder: Path, name: str, most: int | None = None) -> Any:
    from uedp.training.material import Texts

    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        found = json.load(file)[:most]
    return Texts(found, [None] * len(found))


def train(name: str, material: Path, model: str, out: Path, rounds: int | None) -> None:
    """One run, in this process."""
    from uedp.incidence import Incidence
    from uedp.models.load import load
    from uedp.training.config import parse
    from uedp.training.loop import run
    from uedp.training.material import Material
    from uedp.training.tasks import NextWord

    config = parse(
        {
            **RUNS[name],
            "model": {**RUNS[name]["model"], "name": model},
            "data": {"train": str(material), "evaluate": str(material)},
        },
        changes=[f"privacy.rounds={rounds}"] if rounds else [],
    )
    began = time.time()
    most = 50 if rounds else None  # sentences evaluated in a dry run
    folder = out / name
    source = "deidentified" if config.privacy.method == "deidentified" else "train"
    ledger = folder.parent / f"{name}.corpus"  # of its own: these runs do not add up to one
    ledger.mkdir(parents=True, exist_ok=True)
    held = Material(
        texts(material, source),
        Incidence.load(material / "incidence"),
        ledger,
        texts(material, "validation", most),
    )
    found = run(config, folder, material=held, say=lambda line: print(f"{name}: {line}"))
    import torch

    trained = load(folder)
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    test = NextWord(texts(material, "test", most).texts, trained.tokenizer, config.model.max_tokens)
    measured = test.evaluate(trained.model, lambda: torch.autocast("cpu", enabled=False), 1 << 14)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = {
        "name": name,
        "config": config.model_dump(mode="json", exclude={"data": True, "model": {"name"}}),
        "epsilon": None if found.certificate is None else found.certificate.epsilon,
        "noise": None if found.certificate is None else found.certificate.parameters["noise"],
        "validation_before": found.before,
        "validation": found.after,
        "test": measured,
        "sentences": sum(row["sentences"] for row in rows),
        "mean_update": sum(row["mean_update"] for row in rows) / len(rows),
        "curve": [[r["round"], r["perplexity"]] for r in rows if "perplexity" in r],
        "seconds": time.time() - began,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "model.safetensors").unlink()  # half a gigabyte each
    print(f"{name}: test perplexity {measured['perplexity']:.2f}", flush=True)


def schedule(options: argparse.Namespace) -> None:
    """Several runs at once, each in a process of its own, none begun after the deadline."""
    began = time.time()
    waiting = [n for n in options.runs or RUNS if not (options.out / f"{n}.json").exists()]
    options.out.mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            if time.time() - began > options.deadline:
                print(f"not begun: {', '.join(waiting)}")
                waiting = []
                break
            name = waiting.pop(0)
            command = [sys.executable, "-W", "ignore", __file__, "one", name]
            where = ["--material", options.material, "--model", options.model, "--out", options.out]
            if options.rounds:
                where += ["--rounds", options.rounds]
            log = (options.out / f"{name}.log").open("wb")
            running[name] = subprocess.Popen(
                [*command, *map(str, where)], stdout=log, stderr=subprocess.STDOUT
            )
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                last = (options.out / f"{name}.log").read_text().strip().splitlines()[-1:]
                print(f"[{time.time() - began:.0f} s] {' '.join(last)}", flush=True)
        time.sleep(0.2)


def table(folder: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    first = next((r for r in found if r["validation_before"]), None)
    if first:
        print(f"before training: validation {first['validation_before']['perplexity']:.1f}")
    print(
        f"{'run':22} {'epsilon':>7} {'noise':>6} {'rate':>5} {'share':>5} {'sentences':>9} "
        f"{'clip used':>9} {'validation':>10} {'test':>7} {'per word':>8} {'seconds':>7}"
    )
    for row in found:
        privacy = row["config"]["privacy"]
        share = f"{privacy['entity_share']:g}" if privacy["method"] == "rotation" else "-"
        epsilon = f"{row['epsilon']:.3g}" if row["epsilon"] else "-"
        noise = f"{row['noise']:.3g}" if row["noise"] else "-"
        print(
            f"{row['name']:22} {epsilon:>7} {noise:>6} {privacy['user_rate']:>5g} {share:>5} "
            f"{row['sentences']:>9,} {row['mean_update']:>9.2f} "
            f"{row['validation']['perplexity']:>10.2f} {row['test']['perplexity']:>7.2f} "
            f"{row['test']['perplexity per word']:>8.1f} {row['seconds']:>7.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--material", type=Path, required=True)
    for name in ("train", "one"):
        running = commands.add_parser(name)
        if name == "one":
            running.add_argument("name")
        running.add_argument("--material", type=Path, required=True)
        running.add_argument("--model", required=True)
        running.add_argument("--out", type=Path, required=True)
        running.add_argument("--runs", nargs="*")
        running.add_argument("--rounds", type=int, help="for a dry run")
        running.add_argument("--jobs", type=int, default=1)
        running.add_argument("--deadline", type=float, default=1e9, help="seconds")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.data, options.material)
    elif options.command == "train":
        schedule(options)
    elif options.command == "one":
        train(options.name, options.material, options.model, options.out, options.rounds)
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
