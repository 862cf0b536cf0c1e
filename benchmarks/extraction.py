"""What trained models give away: planted phone numbers, and the entities of CoNLL-2003.

    python benchmarks/extraction.py prepare --data DIR --material FOLDER
    python benchmarks/extraction.py train --material FOLDER --model FOLDER --out FOLDER [--jobs 4]
    python benchmarks/extraction.py score --material FOLDER --model FOLDER --out FOLDER
    python benchmarks/extraction.py table FOLDER [--plot FILE]

`prepare` plants phone numbers in CoNLL's training part, each told by 1 to 64 new users who say
nothing else, and leaves others out; entities are the human marks, names and numbers of the planted
sentences among them. It writes plain files that a machine without Arrow can read.

`train` trains a model by each method, several at once, through the same loop as `uedp train`, and
attacks it: every number of the form is ranked, and CoNLL's own entities against others of their
category, with the model before training as reference. What is finished is not done again. `score`
attacks again the models that `train --keep` left. Settings are those of `experiments.settings`;
nothing was chosen by what is shown here.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from uedp.experiments import processes
from uedp.experiments.data_sets import DATA_SETS
from uedp.experiments.material import texts, write_texts
from uedp.experiments.settings import FINE_TUNING, config

CONLL = DATA_SETS["conll"].files

RUNS: dict[str, dict[str, dict[str, Any]] | None] = {
    "noiseless": config(FINE_TUNING, "noiseless"),
    "rotation-8": config(FINE_TUNING, "rotation", 8),
    "user-level-8": config(FINE_TUNING, "user-level", 8),
    "deidentified": config(FINE_TUNING, "deidentified"),
    "rotation-2": config(FINE_TUNING, "rotation", 2),
    "user-level-2": config(FINE_TUNING, "user-level", 2),
    "untrained": None,
}


def prepare(options: argparse.Namespace) -> None:
    import uedp
    from uedp.audit.gaps import entity_gaps
    from uedp.audit.secrets import plant, save
    from uedp.entities.deidentify import deidentified_texts
    from uedp.entities.detectors.patterns import load as patterns

    folder = options.material
    folder.mkdir(parents=True, exist_ok=True)
    original = list(uedp.read(options.data / CONLL["train"], reader="conll"))
    sentences, secrets = plant(
        original,
        repeats=options.repeats,
        each=options.each,
        left_out=options.left_out,
        mask=options.mask,
        holders=options.holders,
        seed=options.seed,
    )
    planted = [secret for secret in secrets if secret.planted]
    finder = patterns()
    seen = sum(
        any(secret.text[s.start : s.end] == secret.secret for s in finder.find(secret.text))
        for secret in planted
    )
    print(
        f"{len(planted)} secrets in {sum(s.repeats for s in planted)} of {len(sentences):,} "
        f"sentences, {len(secrets) - len(planted)} left out; the detector `patterns` finds {seen}"
    )
    save(secrets, folder / "secrets.json")
    with tempfile.TemporaryDirectory() as work:
        train, plain, validation = (
            uedp.detect(source, Path(work) / name, uedp.Detection(("labels",)))
            for name, source in (
                ("train", sentences),
                ("plain", original),
                ("validation", uedp.read(options.data / CONLL["validation"], reader="conll")),
            )
        )
        hidden = deidentified_texts(train)
        for name, found in (
            ("train", [s.text for s in train]),
            ("validation", [s.text for s in validation]),
            ("deidentified", hidden),
        ):
            write_texts(folder, name, found, [None] * len(found))
        shutil.rmtree(folder / "incidence", ignore_errors=True)
        shutil.copytree(train.folder / "incidence", folder / "incidence")
        gaps = entity_gaps(
            plain, validation, most=options.entities, others=options.others, seed=options.seed
        )
    with gzip.open(folder / "gaps.json.gz", "wt") as written:
        json.dump([vars(gap) for gap in gaps], written)
    print(f"{len(gaps):,} entities to rank, half of them held out")


def train(name: str, options: argparse.Namespace) -> None:
    """One run and the attack on it, in this process."""
    from uedp.incidence import Incidence
    from uedp.training.config import parse
    from uedp.training.loop import run
    from uedp.training.material import Material

    settings, folder, began = RUNS[name], options.out / name, time.time()
    measured: dict[str, Any] = {"name": name, "method": name, "epsilon": None}
    if settings is not None and not (options.scored and (folder / "result.json").exists()):
        values = {section: dict(fields) for section, fields in settings.items()}
        values["data"] = {"train": str(options.material), "evaluate": str(options.material)}
        values["model"]["name"] = str(options.model)
        config = parse(
            values, changes=[f"privacy.rounds={options.rounds}"] if options.rounds else []
        )
        source = "deidentified" if config.privacy.method == "deidentified" else "train"
        ledger = options.out / f"{name}.corpus"  # of its own: these runs do not add up to one
        ledger.mkdir(parents=True, exist_ok=True)
        held = Material(
            texts(options.material, source),
            Incidence.load(options.material / "incidence"),
            ledger,
            texts(options.material, "validation", 50 if options.dry else None),
        )
        found = run(config, folder, material=held, say=lambda line: print(f"{name}: {line}"))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        measured |= {
            "method": config.privacy.method,
            "config": config.model_dump(mode="json", exclude={"data": True, "model": {"name"}}),
            "epsilon": None if found.certificate is None else found.certificate.epsilon,
            "noise": None if found.certificate is None else found.certificate.parameters["noise"],
            "before": found.before,
            "after": found.after,
            "mean_update": sum(json.loads(line)["mean_update"] for line in lines) / len(lines),
            "training_seconds": time.time() - began,
        }
        (options.out / f"{name}.training.json").write_text(json.dumps(measured, indent=1) + "\n")
    elif settings is not None:
        measured = json.loads((options.out / f"{name}.training.json").read_text())
    began = time.time()
    measured |= attack(folder if settings is not None else Path(options.model), options)
    measured["attack_seconds"] = time.time() - began
    (options.out / f"{name}.json").write_text(json.dumps(measured, indent=1) + "\n")
    if settings is not None and not options.keep:
        shutil.rmtree(folder)  # half a gigabyte each
        shutil.rmtree(options.out / f"{name}.corpus")
    print(_row(measured), flush=True)


def attack(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from uedp.audit.extraction import rank_entities, rank_secrets
    from uedp.audit.gaps import Gap
    from uedp.audit.ranks import summary
    from uedp.audit.scoring import Scorer
    from uedp.audit.secrets import load as load_secrets
    from uedp.models.load import load

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")

    def scorer(where: Path) -> Any:
        loaded = load(where)
        model = loaded.model.to(device)
        return Scorer(model, loaded.tokenizer, loaded.max_tokens)

    attacked = scorer(folder)
    secrets = load_secrets(options.material / "secrets.json")
    with gzip.open(options.material / "gaps.json.gz", "rt") as file:
        gaps = [Gap(**values) for values in json.load(file)]
    if options.dry:
        secrets = [s for s in secrets if s.planted][:6] + [s for s in secrets if not s.planted][:6]
        gaps = gaps[:5] + gaps[-5:]
    else:
        told = [secret for secret in secrets if secret.planted]
        secrets = told + [secret for secret in secrets if not secret.planted][: options.controls]
    found = rank_secrets(attacked, secrets, alternatives=options.alternatives, beams=options.beams)
    result: dict[str, Any] = {
        "alternatives": options.alternatives,
        "beams": options.beams,
        "secrets": summary(found),
        "ranked_secrets": _items(found),
    }
    if Path(folder) != Path(options.model):
        entities = rank_entities(attacked, gaps, scorer(Path(options.model)))
        result |= {
            "entities": summary(entities),
            "ranked_entities": _items(entities),
        }
    return result


def _items(found: Any) -> list[dict[str, Any]]:
    return [vars(item) | {"exposure": item.exposure} for item in found]


def schedule(options: argparse.Namespace, again: bool) -> None:
    """Several runs at once, each in a process of its own, none begun after the deadline."""
    options.out.mkdir(parents=True, exist_ok=True)
    waiting = {
        name: partial(_start, name, options, again)
        for name in options.runs or RUNS
        if (_attackable(name, options) if again else not (options.out / f"{name}.json").exists())
    }
    failed = processes.carry_out(
        waiting, options.out, options.jobs, options.deadline, lambda line: print(line, flush=True)
    )
    table(options.out)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed; {failed[0]}; the logs are in {options.out}")


def _attackable(name: str, options: argparse.Namespace) -> bool:
    return RUNS[name] is None or (options.out / name / "result.json").exists()


def _start(name: str, options: argparse.Namespace, again: bool) -> processes.Process:
    command = [sys.executable, "-W", "ignore", __file__, "one", name]
    for flag in ("material", "model", "out", "rounds", "alternatives", "beams", "controls"):
        if getattr(options, flag) is not None:
            command += [f"--{flag}", str(getattr(options, flag))]
    command += ["--keep"] if options.keep or again else []
    command += ["--scored"] if again else []
    command += ["--dry"] if options.dry else []
    return processes.start(name, command, options.out)


def table(folder: Path, plot: Path | None = None) -> None:
    found = list(processes.results(RUNS, folder).values())
    if not found:
        raise SystemExit(f"{folder}: no results")
    secrets = found[0]["secrets"]
    print(
        f"\n{secrets['membership']['members']} secrets planted, "
        f"{secrets['membership']['others']} left out; {secrets['candidates']:,} numbers tried for "
        f"each: exposure is at most {secrets['largest_exposure']:.1f} bits, "
        f"{secrets['exposure_by_chance']:.1f} on average by chance\n"
    )
    before = next((row["before"]["perplexity"] for row in found if row.get("before")), None)
    if before:
        print(f"perplexity before training: {before:.4g}\n")
    print(_HEAD)
    for row in found:
        print(_row(row))
    told = [name for name in secrets["groups"] if name not in ("planted", "left out")]
    print("\nmean exposure (and share written greedily), by how many users told a secret")
    print(f"{'run':14}" + "".join(f"{name:>15}" for name in [*told, "left out"]))
    for row in found:
        groups = row["secrets"]["groups"]
        cells = (
            f"{groups[name]['mean_exposure']:>8.1f} ({groups[name]['extracted']['share']:>4.0%})"
            for name in [*told, "left out"]
            if name in groups
        )
        print(f"{row['name']:14}" + "".join(f"{cell:>15}" for cell in cells))
    if plot is not None:
        from uedp.audit.ranks import Ranked
        from uedp.report.extraction_plots import extraction_figure

        extraction_figure(
            {
                row["name"]: [
                    Ranked(**{k: v for k, v in item.items() if k != "exposure"})
                    for item in row["ranked_secrets"]
                ]
                for row in found
                if row["name"] != "untrained"
            },
            plot,
        )


_HEAD = (
    f"{'run':14} {'epsilon':>7} {'perplexity':>10} {'exposure':>8} {'greedy':>7} {'beams':>6} "
    f"{'first':>6} {'area':>5} {'TPR .001':>8} {'.01':>5} {'.1':>5}   "
    f"{'entities: in':>12} {'out':>5} {'area':>5} {'TPR .001':>8} {'.01':>5} {'.1':>5}"
)


def _row(row: dict[str, Any]) -> str:
    perplexity = row.get("after", {}).get("perplexity")
    planted = row["secrets"]["groups"]["planted"]
    epsilon = f"{row['epsilon']:.3g}" if row["epsilon"] else "-"
    line = (
        f"{row['name']:14} {epsilon:>7} "
        f"{f'{perplexity:.4g}' if perplexity else '-':>10} {planted['mean_exposure']:>8.2f} "
        f"{planted['extracted']['share']:>7.1%} {planted['in_beams']['share']:>6.1%} "
        f"{planted['ranked_first']['share']:>6.1%} {_membership(row['secrets'])}"
    )
    if "entities" in row:
        groups = row["entities"]["groups"]
        line += (
            f"   {groups['held in']['mean_exposure']:>12.2f} "
            f"{groups['held out']['mean_exposure']:>5.2f} {_membership(row['entities'])}"
        )
    return line


def _membership(found: dict[str, Any]) -> str:
    rates = found["membership"]["at"]
    cells = [
        f"{rate['true_positives']['share']:.3f}".lstrip("0") if rate["resolved"] else "-"
        for rate in rates
    ]
    return f"{found['membership']['area']:>5.3f} {cells[0]:>8} {cells[1]:>5} {cells[2]:>5}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--material", type=Path, required=True)
    making.add_argument("--repeats", type=int, nargs="+", default=[1, 4, 16, 64])
    making.add_argument("--each", type=int, default=15, help="secrets for each entry of --repeats")
    making.add_argument("--left-out", type=int, default=1000)
    making.add_argument("--mask", default="212-555-####", help="a # is a digit drawn at random")
    making.add_argument("--holders", choices=["new", "existing"], default="new")
    making.add_argument("--entities", type=int, default=1000, help="to rank, of each corpus")
    making.add_argument("--others", type=int, default=100, help="that an entity is ranked among")
    making.add_argument("--seed", type=int, default=0)
    for name in ("train", "score", "one"):
        running = commands.add_parser(name)
        if name == "one":
            running.add_argument("name")
            running.add_argument("--scored", action="store_true")
        else:
            running.add_argument("--runs", nargs="*", choices=list(RUNS))
            running.add_argument("--jobs", type=int, default=1)
            running.add_argument("--deadline", type=float, default=1e9, help="seconds")
        running.add_argument("--material", type=Path, required=True)
        running.add_argument("--model", type=Path, required=True)
        running.add_argument("--out", type=Path, required=True)
        running.add_argument("--rounds", type=int, help="in place of 200")
        running.add_argument("--dry", action="store_true", help="attack a few secrets only")
        running.add_argument("--alternatives", type=int, default=10_000)
        running.add_argument("--beams", type=int, default=10)
        running.add_argument("--controls", type=int, default=200, help="left-out secrets ranked")
        running.add_argument("--keep", action="store_true", help="leave the models, to score again")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options)
    elif options.command == "one":
        train(options.name, options)
    elif options.command == "table":
        table(options.folder, options.plot)
    else:
        schedule(options, again=options.command == "score")


if __name__ == "__main__":
    main()
