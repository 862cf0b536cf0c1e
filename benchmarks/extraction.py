"""Extraction from trained models: planted phone numbers, and the entities of CoNLL-2003.

    python benchmarks/extraction.py prepare --data DIR --datasets FOLDER
    python benchmarks/extraction.py train --datasets FOLDER --model FOLDER --out FOLDER [--jobs 4]
    python benchmarks/extraction.py score --datasets FOLDER --model FOLDER --out FOLDER
    python benchmarks/extraction.py table FOLDER [--plot FILE]

`prepare` plants 1,000 phone numbers in CoNLL's training part, each in the texts of 1 to 64 new
users with no other text, and draws 20,000 more from the same distribution that are left out.
Entities are the human marks, including names and numbers of the planted sentences. It writes plain
files, which a machine without Arrow can read.

`train` trains a model by each method, in parallel, through the same loop as `uedp train`, and
attacks it. Membership: the increase in likelihood of a number after its prompt, for planted numbers
and for those left out. Extraction: whether the model generates the number. Exposure: the rank of
the number among others of its form, for some of each group. With `prepare --entities`, CoNLL's own
entities are also ranked against others of their category. Finished runs are kept, interrupted ones
resumed. `score` repeats the attack on the models that `train --keep` kept. Settings are those of
`research/settings.py`; none was chosen by these results.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from research import markdown, processes
from research.datasets import load_texts, save_texts
from research.settings import DATA_SETTINGS, FINE_TUNING, NOISELESS_RATE, method_config
from research.sources import DATA_SETS

CONLL, SETTINGS = DATA_SETS["conll"].files, DATA_SETTINGS["conll"]

# Each entry stands for `--each` secrets: 640 told by one user, 240 by 4, 80 by 16, 40 by 64.
REPEATS = [1] * 16 + [4] * 6 + [16] * 2 + [64]
EACH, LEFT_OUT = 40, 20_000
MASK = "212-55#-####"  # 100,000 numbers: room for all that are left out

_Config = dict[str, dict[str, Any]]


def _private(method: str, epsilon: float) -> _Config:
    drawn: dict[str, Any] = {"privacy__user_rate": SETTINGS.user_level}
    if method == "rotation":
        drawn |= {"privacy__entity_share": SETTINGS.share}
    return method_config(FINE_TUNING, method, epsilon, **{**SETTINGS.flat, **drawn})


def _plain(method: str) -> _Config:
    return method_config(
        FINE_TUNING, method, privacy__user_rate=SETTINGS.plain, optimiser__rate=NOISELESS_RATE
    )


RUNS: dict[str, _Config | None] = {
    "rotation-8": _private("rotation", 8),
    "user-level-8": _private("user-level", 8),
    "noiseless": _plain("noiseless"),
    "rotation-2": _private("rotation", 2),
    "user-level-2": _private("user-level", 2),
    "deidentified": _plain("deidentified"),
    "untrained": None,
}


def prepare(options: argparse.Namespace) -> None:
    import uedp
    from uedp.audit.extraction import entity_gaps
    from uedp.audit.secrets import plant, save_secrets
    from uedp.entities.deidentify import deidentified_texts
    from uedp.entities.detectors.patterns import load_patterns

    folder = options.datasets
    folder.mkdir(parents=True, exist_ok=True)
    original = list(uedp.read_sentences(options.data / CONLL["train"], reader="conll"))
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
    finder = load_patterns()
    seen = sum(
        any(secret.text[s.start : s.end] == secret.secret for s in finder.find(secret.text))
        for secret in planted
    )
    print(
        f"{len(planted)} secrets in {sum(s.repeats for s in planted)} of {len(sentences):,} "
        f"sentences, {len(secrets) - len(planted)} left out; the detector `patterns` finds {seen}"
    )
    save_secrets(secrets, folder / "secrets.json")
    with tempfile.TemporaryDirectory() as work:
        train, plain, validation = (
            uedp.detect(source, Path(work) / name, uedp.Detection(("labels",)))
            for name, source in (
                ("train", sentences),
                ("plain", original),
                (
                    "validation",
                    uedp.read_sentences(options.data / CONLL["validation"], reader="conll"),
                ),
            )
        )
        hidden = list(deidentified_texts(train))
        for name, texts in (
            ("train", [s.text for s in train]),
            ("validation", [s.text for s in validation]),
            ("deidentified", hidden),
        ):
            save_texts(folder, name, texts, [None] * len(texts))
        shutil.rmtree(folder / "incidence", ignore_errors=True)
        shutil.copytree(train.folder / "incidence", folder / "incidence")
        gaps = []
        if options.entities:
            gaps = entity_gaps(
                plain, validation, most=options.entities, others=options.others, seed=options.seed
            )
    with gzip.open(folder / "gaps.json.gz", "wt") as written:
        json.dump([vars(gap) for gap in gaps], written)
    print(f"{len(gaps):,} entities to rank, half of them held out")


def one(name: str, options: argparse.Namespace) -> None:
    """One run and the attack on it, in this process."""
    settings, folder = RUNS[name], options.out / name
    measured: dict[str, Any] = {"name": name, "method": name, "epsilon": None}
    trained = options.out / f"{name}.training.json"
    if settings is not None and options.scored:
        measured = json.loads(trained.read_text())
    elif settings is not None:
        measured |= train(name, settings, options)
        trained.write_text(json.dumps(measured, indent=1) + "\n")
    began = time.time()
    measured |= attack(None if settings is None else folder, options)
    measured["attack_seconds"] = time.time() - began
    (options.out / f"{name}.json").write_text(json.dumps(measured, indent=1) + "\n")
    if settings is not None and not options.keep:
        shutil.rmtree(folder)  # half a gigabyte each
        shutil.rmtree(options.out / f"{name}.corpus")
        trained.unlink()
    print(" ".join(_row(measured)), flush=True)


def train(name: str, settings: _Config, options: argparse.Namespace) -> dict[str, Any]:
    """Train or resume one model. Returns its measures and the statement of its certificate."""
    from uedp.incidence import Incidence
    from uedp.training.config import parse_config
    from uedp.training.datasets import TrainingData
    from uedp.training.loop import run
    from uedp.training.run_dir import CONFIG

    folder, began = options.out / name, time.time()
    values = {section: dict(fields) for section, fields in settings.items()}
    source = "deidentified" if values["privacy"]["method"] == "deidentified" else "train"
    values["data"] = {
        "train": str(options.datasets / source),
        "evaluate": str(options.datasets / "validation"),
    }
    values["model"]["name"] = str(options.model)
    values["run"]["checkpoint_seconds"] = 60
    rounds = [f"privacy.rounds={options.rounds}"] if options.rounds else []
    parsed = parse_config(values, changes=[*rounds, *options.set])
    ledger = options.out / f"{name}.corpus"  # of its own: these runs do not add up to one
    ledger.mkdir(parents=True, exist_ok=True)
    data = TrainingData(
        load_texts(options.datasets, source),
        Incidence.load(options.datasets / "incidence"),
        ledger,
        load_texts(options.datasets, "validation", 50 if options.dry else None),
    )
    found = run(
        parsed,
        folder,
        data=data,
        resume=(folder / CONFIG).exists(),
        say=lambda line: print(f"{name}: {line}", flush=True),
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "method": parsed.privacy.method,
        "config": parsed.model_dump(mode="json", exclude={"data": True, "model": {"name"}}),
        **_certified(folder),
        "before": found.before,
        "after": found.after,
        "rounds": len(rows),
        "sentences": sum(row["sentences"] for row in rows),
        "mean_update": sum(row["mean_update"] for row in rows) / len(rows),
        "training_seconds": time.time() - began,
    }


def _certified(folder: Path) -> dict[str, Any]:
    """The whole certificate of a run, if it has one, and whether it agrees with its ledger."""
    from uedp.accounting import certificate
    from uedp.errors import UserError

    path = folder / certificate.CERTIFICATE
    if not path.exists():
        return {"epsilon": None, "certificate": None}
    issued = json.loads(path.read_text())
    try:
        certificate.verify(folder)
        checked = "passed"
    except UserError as error:
        checked = str(error)
    return {
        "epsilon": issued["epsilon"],
        "delta": issued["delta"],
        "statement": issued["statement"],
        "noise": issued.get("parameters", {}).get("noise"),
        "certificate_check": checked,
        "certificate": issued,
    }


def attack(folder: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    """Attack the model in a folder; without one, the model before training."""
    import torch

    from research.membership import likelihood, membership
    from uedp.audit.extraction import Gap, rank_entities, rank_secrets, written
    from uedp.audit.ranks import Roc, summary
    from uedp.audit.scoring import Scorer
    from uedp.audit.secrets import load_secrets
    from uedp.models.load import load_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    if device == "cuda":
        torch.cuda.empty_cache()  # for parallel runs

    def scorer(where: Path) -> Scorer:
        loaded = load_model(where)
        return Scorer(loaded.model.to(device), loaded.tokenizer, loaded.max_tokens)

    attacked = scorer(folder or options.model)
    before = None if folder is None else scorer(options.model)
    secrets = load_secrets(options.datasets / "secrets.json")
    told = sorted((s for s in secrets if s.planted), key=lambda s: s.repeats)
    left_out = [s for s in secrets if not s.planted]
    with gzip.open(options.datasets / "gaps.json.gz", "rt") as file:
        gaps = [Gap(**values) for values in json.load(file)]
    if options.dry:
        told, left_out, gaps = told[:: len(told) // 12], left_out[:200], gaps[:5] + gaps[-5:]
    clock = _Clock()

    groups = [str(secret.repeats) for secret in told]
    scores = likelihood(attacked, told + left_out)
    if before is not None:
        scores = scores - likelihood(before, told + left_out)
    curve = Roc(scores[: len(told)], scores[len(told) :])
    result: dict[str, Any] = {
        "score": "log-likelihood of the number after its prompt"
        + ("" if before is None else ", less that of the model before training"),
        "membership": membership(curve, groups),
    }
    clock("membership")

    controls = left_out[: options.controls]
    right = written(attacked, told + controls)
    result["greedy"] = _greedy(right, groups + ["left out"] * len(controls))
    clock("greedy")

    ranked = [s for _, some in _by_repeats(told) for s in some[: options.ranked]]
    ranked += controls[: options.ranked]
    found = rank_secrets(attacked, ranked, alternatives=options.alternatives, beams=options.beams)
    result |= {"alternatives": options.alternatives, "beams": options.beams}
    result["secrets"] = summary(found)
    clock("exposure")
    if gaps and before is not None:
        entities = rank_entities(attacked, gaps, before)
        result |= {"entities": summary(entities), "ranked_entities": _items(entities)}
        clock("entities")
    result["seconds"] = clock.parts
    return result


class _Clock:
    """How long each part of an attack took."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.time()

    def __call__(self, part: str) -> None:
        now = time.time()
        self.parts[part], self._last = now - self._last, now


def _by_repeats(secrets: Iterable[Any]) -> Iterable[tuple[int, list[Any]]]:
    found: dict[int, list[Any]] = {}
    for secret in secrets:
        found.setdefault(secret.repeats, []).append(secret)
    return sorted(found.items())


def _greedy(right: list[bool], groups: list[str]) -> dict[str, Any]:
    from uedp.audit.ranks import share

    found = {
        name: [hit for hit, group in zip(right, groups, strict=True) if group == name]
        for name in dict.fromkeys(groups)
    }
    found["planted"] = [h for name, hits in found.items() if name != "left out" for h in hits]
    return {name: {"count": len(hits), **share(hits)} for name, hits in found.items()}


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
    failed = processes.run_processes(
        waiting, options.out, options.jobs, options.deadline, lambda line: print(line, flush=True)
    )
    table(options.out)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed; {failed[0]}; the logs are in {options.out}")


def _attackable(name: str, options: argparse.Namespace) -> bool:
    return RUNS[name] is None or (options.out / name / "result.json").exists()


def _start(name: str, options: argparse.Namespace, again: bool) -> processes.Process:
    command = [sys.executable, "-W", "ignore", __file__, "one", name]
    for flag in ("material", "model", "out", "rounds", *_ATTACK):
        if getattr(options, flag) is not None:
            command += [f"--{flag}", str(getattr(options, flag))]
    for change in options.set:
        command += ["--set", change]
    command += ["--keep"] if options.keep or again else []
    command += ["--scored"] if again else []
    command += ["--dry"] if options.dry else []
    return processes.start_process(name, command, options.out)


# --- tables and the figure, from the JSON files --------------------------------------------------


def table(folder: Path, plot: Path | None = None) -> None:
    rows = list(processes.read_results(RUNS, folder).values())
    if not rows:
        raise SystemExit(f"{folder}: no results")
    found = rows[0]["membership"]
    print(
        f"{found['members']:,} secrets planted, {found['others']:,} left out; intervals are "
        "Clopper and Pearson's at 95%\n"
    )
    before = next((row["before"]["perplexity"] for row in rows if row.get("before")), None)
    if before:
        print(f"perplexity before training: {before:.4g}\n")
    print(markdown.table(_HEAD, map(_row, rows)))
    groups = list(found["groups"])

    def by_group(title: str, names: list[str], cell: Callable[[Any, str], str]) -> None:
        print(f"\n{title}, by the number of users who hold a secret:\n")
        cells = ([row["name"], *(cell(row, name) for name in names)] for row in rows)
        print(markdown.table(["run", *names], cells))

    by_group(
        "True positives at 0.1% false positives",
        groups,
        lambda row, name: _rates(row["membership"]["groups"][name])[1],
    )
    by_group(
        "Written by the model after the prompt",
        [*groups, "left out"],
        lambda row, name: _interval(row["greedy"][name]),
    )
    secrets = rows[0]["secrets"]
    by_group(
        f"Mean exposure in bits among {secrets['candidates']:,} numbers (at most "
        f"{secrets['largest_exposure']:.1f}, by chance {secrets['exposure_by_chance']:.1f})",
        [*groups, "left out"],
        lambda row, name: _exposure(row["secrets"]["groups"], name),
    )
    if any("entities" in row for row in rows):
        print("\nCoNLL's own entities, compared with held-out ones:\n")
        cells = ([r["name"], *_rates(r["entities"]["membership"])] for r in rows if "entities" in r)
        print(markdown.table(["run", *_RATES], cells))
    for row in rows:
        if row.get("certificate"):
            print(f"\n{row['name']}: {row['statement']} Check: {row['certificate_check']}.")
    if plot is not None:
        from research.plots.membership import membership_figure

        membership_figure(
            {row["name"]: row["membership"] for row in rows if row["name"] != "untrained"}, plot
        )


_RATES = ["area", "TPR at 0.1% FPR", "at 1%", "at 10%"]
_HEAD = ["run", "epsilon", "delta", "noise", "perplexity", *_RATES, "written"]


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        markdown.epsilon(row["epsilon"]),
        f"{row['delta']:g}" if row.get("delta") else "-",
        f"{row['noise']:.3g}" if row.get("noise") else "-",
        f"{row['after']['perplexity']:.4g}" if row.get("after") else "-",
        *_rates(row["membership"]),
        f"{row['greedy']['planted']['share']:.1%}",
    ]


def _rates(rates: dict[str, Any]) -> list[str]:
    """A dash where too few numbers were left out to resolve such a rate."""
    return [
        f"{rates['area']:.3f}",
        *(_interval(at["true_positives"]) if at["resolved"] else "-" for at in rates["at"]),
    ]


def _interval(share: dict[str, float]) -> str:
    return f"{share['share']:.1%} ({share['low']:.1%} to {share['high']:.1%})"


def _exposure(groups: dict[str, Any], name: str) -> str:
    group = groups.get(name if name == "left out" else f"{name} users")
    return f"{group['mean_exposure']:.1f}" if group else "-"


_ATTACK = {"alternatives": 1000, "beams": 10, "controls": 1000, "ranked": 40}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare")
    making.add_argument("--data", type=Path, required=True)
    making.add_argument("--datasets", type=Path, required=True)
    making.add_argument("--repeats", type=int, nargs="+", default=REPEATS)
    making.add_argument("--each", type=int, default=EACH, help="secrets for each entry above")
    making.add_argument("--left-out", type=int, default=LEFT_OUT)
    making.add_argument("--mask", default=MASK, help="a # is a digit drawn at random")
    making.add_argument("--holders", choices=["new", "existing"], default="new")
    making.add_argument("--entities", type=int, default=0, help="to rank, of each corpus")
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
        running.add_argument("--datasets", type=Path, required=True)
        running.add_argument("--model", type=Path, required=True)
        running.add_argument("--out", type=Path, required=True)
        running.add_argument("--rounds", type=int, help="in place of 200")
        running.add_argument("--set", action="append", default=[], help="section.field=value")
        running.add_argument("--dry", action="store_true", help="attack a few secrets only")
        for flag, number in _ATTACK.items():
            running.add_argument(f"--{flag}", type=int, default=number, help=_HELP.get(flag))
        running.add_argument("--keep", action="store_true", help="keep the models, for `score`")
    shown = commands.add_parser("table")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options)
    elif options.command == "one":
        one(options.name, options)
    elif options.command == "table":
        table(options.folder, options.plot)
    else:
        schedule(options, again=options.command == "score")


_HELP = {
    "controls": "left-out secrets that the model is asked to write",
    "ranked": "secrets of each group that exposure is measured on",
}


if __name__ == "__main__":
    main()
