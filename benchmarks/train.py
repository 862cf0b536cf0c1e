"""Utility against epsilon: language models on CoNLL-2003, a classifier on AG.

    python benchmarks/train.py prepare DATA --data DIR --material FOLDER
    python benchmarks/train.py train SUITE --material FOLDER --model FOLDER --out FOLDER [--jobs 4]
    python benchmarks/train.py table FOLDER

`prepare conll` reads eng.train, eng.testa and eng.testb with the human marks as entities; `prepare
ag` reads AG's news, users drawn at random as in the paper (groups of 15 +- 2 articles), entities
found by the spaCy pipeline named by --ner, a tenth of the users held out for validation. Both
write plain files that a machine without Arrow can read.

`train` runs a suite (`smollm2` and `awd-lstm` on CoNLL, `minilm` on AG), several runs at once,
through the same loop as `uedp train`; what is finished is not run again. Choices were made on the
validation part; the test part is measured once per finished run and decides nothing.
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

CONLL = {"train": "eng.train.gz", "validation": "eng.testa.gz", "test": "eng.testb.gz"}
BASE: dict[str, dict[str, Any]] = {
    "privacy": {"method": "rotation", "delta": 1e-5, "rounds": 200, "user_rate": 0.1},
    "model": {"train": "lora", "rank": 8, "max_tokens": 128},
    "optimiser": {"name": "adam", "rate": 1e-3},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 60, "tokens_at_once": 1 << 14},
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
SHARE = {"privacy__entity_share": 0.3}
SMOLLM2 = {
    "rotation-8": variant("rotation", 8, **SHARE, **FAST),
    "rotation-2": variant("rotation", 2, **SHARE),
    "user-8-at-.1": variant("user-level", 8, **FAST),
    "user-2-at-.1": variant("user-level", 2),
    "user-8-at-.05": variant("user-level", 8, privacy__user_rate=0.05, **FAST),
    "user-2-at-.05": variant("user-level", 2, privacy__user_rate=0.05),
    "noiseless": variant("noiseless", **FAST),
    "rotation-8-slower": variant("rotation", 8, **SHARE),
    "rotation-2-faster": variant("rotation", 2, **SHARE, **FAST),
    "uedp-alg": variant("uedp-alg", privacy__noise=2.0, privacy__user_rate=0.05),
    "rotation-8-averaged": variant("rotation", 8, **SHARE, **FAST, optimiser__average=0.97),
    "rotation-8-share-.5": variant("rotation", 8, privacy__entity_share=0.5, **FAST),
    "rotation-2-share-.2": variant("rotation", 2, privacy__entity_share=0.2),
    "deidentified": variant("deidentified", **FAST),
}
FROM_SCRATCH = {
    "model__train": "full",
    "model__max_tokens": 64,
    "model__sizes": {"embedding_size": 100, "hidden_size": 1150, "num_hidden_layers": 3},
    "vocabulary__source": "public",
}
AWD_LSTM = {
    "noiseless": variant("noiseless", **FROM_SCRATCH),
    "user-8": variant("user-level", 8, **FROM_SCRATCH),
    "rotation-8": variant("rotation", 8, **SHARE, **FROM_SCRATCH),
}
CLASSIFY = {"task__kind": "classification", "privacy__user_rate": 0.05}
MINILM = {
    "noiseless": variant("noiseless", **CLASSIFY),
    "deidentified": variant("deidentified", **CLASSIFY),
    **{
        f"{method}-{epsilon}": variant(method, epsilon, **CLASSIFY, **SHARE)
        for method in ("rotation", "user-level")
        for epsilon in (8, 2)
    },
    "uedp-alg": variant("uedp-alg", privacy__noise=2.5, **CLASSIFY),
}
# each in the order in which its runs are made
SUITES = {"smollm2": SMOLLM2, "awd-lstm": AWD_LSTM, "minilm": MINILM}


def prepare(data: str, source: Path, folder: Path, ner: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    corpora = _conll(source, folder) if data == "conll" else _ag(source, folder, ner)
    for name, corpus in corpora.items():
        _write(folder, name, [s.text for s in corpus], [s.label for s in corpus])
    from uedp.entities.deidentify import deidentified_texts

    train = corpora["train"]
    shutil.copytree(train.folder / "incidence", folder / "incidence", dirs_exist_ok=True)
    _write(folder, "deidentified", deidentified_texts(train), [s.label for s in train])


def _conll(source: Path, folder: Path) -> dict[str, Any]:
    import uedp

    found = {}
    for name, file in CONLL.items():
        out = folder / f"corpus-{name}"
        if not out.exists():
            uedp.detect(uedp.read(source / file, reader="conll"), out, uedp.Detection(("labels",)))
        found[name] = uedp.Corpus(out)
    return found


def _ag(source: Path, folder: Path, ner: str | None) -> dict[str, Any]:
    """Every tenth user is held out before detection, so that no entity is linked across."""
    import uedp
    from uedp.corpus.users import assign, random_groups

    if ner is None:
        raise SystemExit("prepare ag: name a spaCy pipeline with --ner")
    detection = uedp.Detection((f"spacy:{ner}", "patterns"))
    read = list(uedp.read(source / "train.csv.gz", reader="ag"))
    groups = random_groups(len(read), 15, 2, seed=0)
    articles = list(assign(read, groups))
    held_out = set(sorted({article.user for article in articles})[::10])
    parts = {
        "train": [a for a in articles if a.user not in held_out],
        "validation": [a for a in articles if a.user in held_out],
        "test": list(uedp.read(source / "test.csv.gz", reader="ag")),
    }
    found = {}
    for name, part in parts.items():
        out = folder / f"corpus-{name}"
        if not out.exists():
            how = detection if name == "train" else uedp.Detection(("labels",))
            uedp.detect(part, out, how)
        found[name] = uedp.Corpus(out)
    return found


def _write(folder: Path, name: str, texts: list[str], labels: list[str | None]) -> None:
    with gzip.open(folder / f"{name}.json.gz", "wt") as written:
        json.dump({"texts": texts, "labels": labels}, written)


def texts(folder: Path, name: str, most: int | None = None) -> Any:
    from uedp.training.material import Texts

    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        found = json.load(file)
    return Texts(found["texts"][:most], found["labels"][:most])


def train(suite: str, name: str, material: Path, model: str, out: Path, rounds: int | None) -> None:
    """One run, in this process."""
    import torch

    from uedp.incidence import Incidence
    from uedp.models.load import load
    from uedp.training import tasks
    from uedp.training.config import parse
    from uedp.training.loop import run
    from uedp.training.material import Material

    values = {section: dict(fields) for section, fields in SUITES[suite][name].items()}
    values["data"] = {"train": str(material), "evaluate": str(material)}
    if suite == "awd-lstm":
        values["model"]["name"], values["vocabulary"]["path"] = "awd-lstm", model
    else:
        values["model"]["name"] = model
    config = parse(values, changes=[f"privacy.rounds={rounds}"] if rounds else [])
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
    trained = load(folder, config.task.kind)
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    names = list(trained.model.config.id2label.values())
    part = texts(material, "test", most)
    test = tasks.build(
        config.task.kind, part.texts, part.labels, names, trained.tokenizer, config.model.max_tokens
    )
    measured = test.evaluate(trained.model, lambda: torch.autocast("cpu", enabled=False), 1 << 14)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measure = next(iter(measured))
    result = {
        "suite": suite,
        "name": name,
        "config": config.model_dump(mode="json", exclude={"data": True, "model": {"name"}}),
        "epsilon": None if found.certificate is None else found.certificate.epsilon,
        "noise": None if found.certificate is None else found.certificate.parameters["noise"],
        "validation_before": found.before,
        "validation": found.after,
        "test": measured,
        "sentences": sum(row["sentences"] for row in rows),
        "mean_update": sum(row["mean_update"] for row in rows) / len(rows),
        "curve": [[r["round"], r[measure]] for r in rows if measure in r],
        "seconds": time.time() - began,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "model.safetensors").unlink()  # half a gigabyte each
    print(f"{name}: test {measure} {measured[measure]:.4g}", flush=True)


def schedule(options: argparse.Namespace) -> None:
    """Several runs at once, each in a process of its own, none begun after the deadline."""
    began = time.time()
    waiting = [
        n for n in options.runs or SUITES[options.suite] if not (options.out / f"{n}.json").exists()
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            if time.time() - began > options.deadline:
                print(f"not begun: {', '.join(waiting)}")
                waiting = []
                break
            name = waiting.pop(0)
            command = [sys.executable, "-W", "ignore", __file__, "one", options.suite, name]
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
    if not found:
        raise SystemExit(f"{folder}: no results")
    measure = next(iter(found[0]["test"]))
    before = found[0]["validation_before"].get(measure)
    print(f"{found[0]['suite']}, {measure}; before training, validation: {before:.4g}")
    print(
        f"{'run':22} {'epsilon':>7} {'noise':>6} {'rate':>5} {'share':>5} {'sentences':>9} "
        f"{'clip used':>9} {'validation':>10} {'test':>8} {'seconds':>7}"
    )
    for row in found:
        privacy = row["config"]["privacy"]
        share = f"{privacy['entity_share']:g}" if privacy["method"] == "rotation" else "-"
        epsilon = f"{row['epsilon']:.3g}" if row["epsilon"] else "-"
        noise = f"{row['noise']:.3g}" if row["noise"] else "-"
        print(
            f"{row['name']:22} {epsilon:>7} {noise:>6} {privacy['user_rate']:>5g} {share:>5} "
            f"{row['sentences']:>9,} {row['mean_update']:>9.2f} "
            f"{row['validation'][measure]:>10.4g} {row['test'][measure]:>8.4g} "
            f"{row['seconds']:>7.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("which", choices=["conll", "ag"])
    making.add_argument("--ner", help="a spaCy pipeline, for AG")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--material", type=Path, required=True)
    for name in ("train", "one"):
        running = commands.add_parser(name)
        running.add_argument("suite", choices=list(SUITES))
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
        prepare(options.which, options.data, options.material, options.ner)
    elif options.command == "train":
        schedule(options)
    elif options.command == "one":
        train(
            options.suite,
            options.name,
            options.material,
            options.model,
            options.out,
            options.rounds,
        )
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
