"""Many training runs, several at once, through the same loop as `uedp train`.

A trial is a config on prepared material. Each runs in a process of its own and leaves one JSON
file; what is there is not run again. The held-out part is measured as training goes; the test part
once, at the end, and nothing is decided by it.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from research import processes
from research.base import code_of
from uedp.errors import UserError
from uedp.progress import SILENT, Progress

Config = Mapping[str, Mapping[str, Any]]
DRY_SENTENCES = 50  # evaluated where a trial is only tried out


@dataclass(frozen=True)
class Trial:
    """One run: its name, the material it is on, which category is protected, and its config.

    `config` names the model by its part (`gpt`, `bert`) or kind (`awd-lstm`), and no data.
    """

    name: str
    data: str
    config: Config
    category: str = "all"


@dataclass(frozen=True)
class Place:
    """Where trials read and write. `models` gives each part's folder, `words` a tokenizer's.

    `out` is for runs and logs; results go to `results`, or without it to `out` as well.
    """

    materials: Path
    models: Mapping[str, str]
    out: Path
    dry_rounds: int | None = None
    results: Path | None = None

    def result(self, trial: Trial) -> Path:
        return (self.results or self.out) / f"{trial.name}.json"


def changed(base: Config, **changes: Any) -> dict[str, dict[str, Any]]:
    """A config after changes, each given as section__field."""
    config = {section: dict(fields) for section, fields in base.items()}
    for path, value in changes.items():
        section, field = path.split("__")
        config.setdefault(section, {})[field] = value
    return config


def run_trials(
    trials: Sequence[Trial],
    place: Place,
    jobs: int = 1,
    deadline: float = float("inf"),
    progress: Progress = SILENT,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run what has no result yet, and give all results by name.

    No trial is begun when `deadline` seconds have passed. A trial that fails is named, with the end
    of its log, when the others are done.
    """
    results = place.results or place.out
    for folder in (place.out, results):
        folder.mkdir(parents=True, exist_ok=True)
    waiting = {
        trial.name: partial(_start, trial, place)
        for trial in trials
        if not place.result(trial).exists()
    }
    finished = len(trials) - len(waiting)
    with progress.stage("training", len(trials), "runs") as meter:
        meter.advance(finished, finished)
        failed = processes.run_processes(
            waiting, place.out, jobs, deadline, say, ended=lambda: meter.advance(1)
        )
    if failed:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; the logs are in {place.out}")
    return processes.results((trial.name for trial in trials), results)


def _start(trial: Trial, place: Place) -> processes.Process:
    asked = place.out / f"{trial.name}.trial"
    asked.write_text(json.dumps({"trial": asdict(trial), "place": asdict(place)}, default=str))
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(asked)]
    return processes.start(trial.name, command, place.out)


def resolved(trial: Trial, place: Place) -> dict[str, dict[str, Any]]:
    """The whole config of a trial: with its data, and models by folder."""
    folder = str(place.materials / trial.data)
    config = changed(trial.config, data__train=folder, data__evaluate=folder)
    name = config["model"]["name"]
    if name in place.models:
        config["model"]["name"] = place.models[name]
    if config.get("vocabulary", {}).get("source") == "public":
        config["vocabulary"]["path"] = place.models["words"]
    if config["model"].get("train") == "probe":  # all trials read the same texts
        config.setdefault("run", {})["vectors"] = str(place.materials / "vectors")
    if place.dry_rounds:
        config["privacy"]["rounds"] = place.dry_rounds
    return config


def run(trial: Trial, place: Place, keep: bool = False) -> dict[str, Any]:
    """One trial, in this process; its result is written last. Its weights go, or else are kept."""
    import torch

    from research.datasets import incidence, texts
    from uedp.files import write_atomically
    from uedp.methods import method_named
    from uedp.models.load import load_model
    from uedp.training import loop
    from uedp.training.build import task_of_run
    from uedp.training.config import parse_config
    from uedp.training.datasets import TrainingData
    from uedp.training.run_dir import CONFIG

    began, most = time.time(), DRY_SENTENCES if place.dry_rounds else None
    config = parse_config(resolved(trial, place))
    material, folder = place.materials / trial.data, place.out / trial.name
    ledger = place.out / f"{trial.name}.corpus"  # of its own: these runs do not add up to one
    ledger.mkdir(parents=True, exist_ok=True)
    deidentified = method_named(config.privacy.method).deidentifies
    source = "deidentified" if deidentified else "train"
    held = TrainingData(
        texts(material, source),
        incidence(material, trial.category),
        ledger,
        texts(material, "validation", most),
    )
    found = loop.run(
        config,
        folder,
        data=held,
        resume=(folder / CONFIG).exists(),
        say=lambda line: print(f"{trial.name}: {line}", flush=True),
    )
    trained = load_model(str(folder), config.task.kind)
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    test = task_of_run(config, trained, texts(material, "test", most))
    measured = test.evaluate(trained.model, lambda: torch.autocast("cpu", enabled=False), 1 << 14)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measure = next(iter(measured))
    result = {
        "name": trial.name,
        "data": trial.data,
        "category": trial.category,
        "config": config.model_dump(
            mode="json",
            exclude={
                "data": True,
                "model": {"name"},
                "vocabulary": {"path"},
                "run": {"vectors"},
            },
        ),
        "model": trial.config["model"]["name"],
        "epsilon": None if found.certificate is None else found.certificate.epsilon,
        "noise": None if found.certificate is None else found.certificate.parameters["noise"],
        "measure": measure,
        "before": found.before,
        "validation": found.after,
        "test": measured,
        "rounds": len(rows),
        "sentences": sum(row["sentences"] for row in rows),
        "mean_update": sum(row["mean_update"] for row in rows) / len(rows),
        "curve": [[row["round"], row[measure]] for row in rows if measure in row],
        "seconds": time.time() - began,
        "mechanism": code_of("mechanism"),
    }
    write_atomically(place.result(trial), json.dumps(result, indent=2) + "\n")
    for bulky in () if keep else ("model.safetensors", "checkpoints"):
        path = folder / bulky
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    print(f"{trial.name}: test {measure} {measured[measure]:.4g}", flush=True)
    return result


def finished(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """The results, a line each."""
    lines = [
        f"{'run':30} {'data':6} {'epsilon':>7} {'noise':>6} {'rate':>5} {'rounds':>6} {'share':>5} "
        f"{'sentences':>9} {'clip used':>9} {'before':>8} {'validation':>10} {'test':>8} "
        f"{'seconds':>7}"
    ]
    for row in results:
        privacy, measure = row["config"]["privacy"], row["measure"]
        share = f"{privacy['entity_share']:g}" if privacy["method"] == "rotation" else "-"
        epsilon = f"{row['epsilon']:.3g}" if row["epsilon"] else "-"
        noise = f"{row['noise']:.3g}" if row["noise"] else "-"
        lines.append(
            f"{row['name']:30} {row['data']:6} {epsilon:>7} {noise:>6} {privacy['user_rate']:>5g} "
            f"{row['rounds']:>6} {share:>5} {int(row['sentences']):>9,} {row['mean_update']:>9.2f} "
            f"{row['before'][measure]:>8.4g} {row['validation'][measure]:>10.4g} "
            f"{row['test'][measure]:>8.4g} {row['seconds']:>7.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    where = asked["place"]
    place = Place(
        Path(where["materials"]),
        where["models"],
        Path(where["out"]),
        where["dry_rounds"],
        Path(where["results"]) if where["results"] else None,
    )
    run(Trial(**asked["trial"]), place)


if __name__ == "__main__":
    main()
