"""One-run audits of SmolLM2 on CoNLL-2003: lower bounds from canaries, with noise and without.

    python benchmarks/audit_training.py run --datasets FOLDER --model FOLDER --out FOLDER
    python benchmarks/audit_training.py table FOLDER [--plot FOLDER]

The data are those of `benchmarks/utility.py prepare`. Canary users and entities are planted in
them, each included by a fair coin, and a model is trained once by each method, through the same
loop as `uedp train`; then the coins are guessed. Finished runs are kept, interrupted ones resumed.
Settings are those of `research/settings.py`. `sabotaged-2` is rotation at epsilon 2 without its
noise, which the ledger does not show: an effective audit refutes it. (Refuting epsilon 8 would take
more than 9,000 canaries, all guessed correctly.)
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from research.datasets import load_texts
from research.settings import FINE_TUNING, method_config

ROUNDS = {"privacy__rounds": 100}
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "noiseless": method_config(FINE_TUNING, "noiseless", **ROUNDS),
    "rotation-8": method_config(FINE_TUNING, "rotation", 8, **ROUNDS),
    "sabotaged-2": method_config(FINE_TUNING, "rotation", 2, **ROUNDS),
    "user-level-8": method_config(FINE_TUNING, "user-level", 8, **ROUNDS),
}


def run(name: str, options: argparse.Namespace) -> None:
    import torch

    from uedp.audit.training import audit
    from uedp.incidence import Incidence
    from uedp.mechanism import release
    from uedp.training.config import parse_config
    from uedp.training.datasets import TrainingData

    values = {section: dict(fields) for section, fields in RUNS[name].items()}
    values["data"] = {"train": str(options.datasets)}
    values["model"]["name"] = options.model
    changes = [f"privacy.rounds={options.rounds}"] if options.rounds else []
    config = parse_config(values, changes=changes)
    folder = options.out / name
    natural = TrainingData(
        load_texts(options.datasets, "train"),
        Incidence.load(options.datasets / "incidence"),
        options.out,  # not used: the audit has its own ledger
    )
    began, noise = time.time(), release.add_once_
    if name.startswith("sabotaged"):
        release.add_once_ = lambda noise, sums, deviation: None
    try:
        outcome = audit(
            config,
            folder,
            data=natural,
            users=options.users,
            entities=options.entities,
            holders=options.holders,
            seed=options.seed,
            references=options.references,
            refresh=max(1, config.privacy.rounds // 10),
            resume=(folder / "canaries.json").is_file(),
            say=lambda line: print(f"{name}: {line}", flush=True),
        )
    finally:
        release.add_once_ = noise
    if outcome is None:
        raise SystemExit(f"{name}: stopped; run it again to resume")
    cuda = torch.cuda.is_available()
    result = {
        "name": name,
        "config": config.model_dump(mode="json", exclude={"data": True, "model": {"name"}}),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "seconds": time.time() - began,
        "memory": torch.cuda.max_memory_allocated() if cuda else None,
        "audit": json.loads(outcome.to_json()),
    }
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def table(folder: Path, plots: Path | None) -> None:
    from uedp.audit.training import TrainingAudit

    print(
        f"{'run':14} {'canaries':8} {'score':10} {'guessed of':>10} {'guesses':>7} {'correct':>7} "
        f"{'epsilon >':>9} {'proven':>7} {'verdict':24} {'seconds':>7}"
    )
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        audit = TrainingAudit.from_json(json.dumps(row["audit"]))
        for one in audit.findings:
            proven = "none" if one.claim is None else f"{one.claim:.3g}"
            print(
                f"{row['name']:14} {one.kind:8} {one.score:10} {one.canaries:>10} "
                f"{one.guesses:>7} {one.correct:>7} {one.epsilon:>9.2f} {proven:>7} "
                f"{one.verdict:24} {row['seconds']:>7.0f}"
            )
        if plots is not None:
            from uedp.report.audit_plots import score_histograms

            score_histograms(audit, plots / f"audit_training_{row['name']}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--datasets", type=Path, required=True)
    running.add_argument("--model", required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--runs", nargs="*", choices=list(RUNS), default=list(RUNS)[:3])
    running.add_argument("--rounds", type=int, help="for a dry run")
    running.add_argument("--users", type=int, default=400)
    running.add_argument("--entities", type=int, default=100)
    running.add_argument("--references", type=int, default=1500)
    running.add_argument("--holders", type=int, default=3)
    running.add_argument("--seed", type=int, default=0)
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--plot", type=Path, help="a folder for figures")
    options = parser.parse_args()
    if options.command == "table":
        table(options.folder, options.plot)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.runs:
        if not (options.out / f"{name}.json").exists():
            run(name, options)
    table(options.out, None)


if __name__ == "__main__":
    main()
