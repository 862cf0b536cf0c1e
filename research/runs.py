"""Training runs in parallel processes, through the same loop as `uedp train`.

A trial is a config on a prepared data set. Each runs in its own process and writes one JSON file; a
trial with a result is not run again, unless its mechanism has changed since. The validation part is
evaluated during training. The test part is evaluated once at the end and decides nothing.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research import processes
from research.base import source_digest
from uedp.errors import UserError
from uedp.progress import SILENT, Progress

if TYPE_CHECKING:
    from uedp.accounting.certificate import Certificate

Config = Mapping[str, Mapping[str, Any]]
SHARING = ("rotation", "fair-shares")  # methods with an entity share
DRY_SENTENCES = 50  # evaluated in a dry run


@dataclass(frozen=True)
class TrainingTrial:
    """One training run: name, data set, config, and protected category.

    `config` names the model by its part (`gpt`, `bert`) or kind (`awd-lstm`), and has no data.
    `texts` is the part that is trained on: by default `train`, or `deidentified` for a method that
    de-identifies. Of `surrogates`, training leaves the surrogates out of the loss. `public` names
    what is trained on first, as public text: the training part of a data set, or a rewritten one.
    """

    name: str
    data: str
    config: Config
    category: str = "all"
    texts: str | None = None
    public: str | None = None


@dataclass(frozen=True)
class Workspace:
    """Where trials read and write.

    `datasets` holds the prepared data sets. `models` maps each part to its folder, and `words` to a
    tokenizer. Runs and logs are written to `out`, results to `results` (by default `out`).
    """

    datasets: Path
    models: Mapping[str, str]
    out: Path
    dry_rounds: int | None = None
    results: Path | None = None

    def result(self, trial: TrainingTrial) -> Path:
        return (self.results or self.out) / f"{trial.name}.json"


def override(base: Config, **changes: Any) -> dict[str, dict[str, Any]]:
    """A config with some fields replaced, each given as section__field."""
    config = {section: dict(fields) for section, fields in base.items()}
    for path, value in changes.items():
        section, field = path.split("__")
        config.setdefault(section, {})[field] = value
    return config


def run_trials(
    trials: Sequence[TrainingTrial],
    workspace: Workspace,
    jobs: int = 1,
    deadline: float = float("inf"),
    progress: Progress = SILENT,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run the trials that have no result yet. Returns all results by name.

    No trial starts after `deadline` seconds. A failed trial is reported, with the last line of its
    log, when the others have finished.
    """
    results = workspace.results or workspace.out
    for folder in (workspace.out, results):
        folder.mkdir(parents=True, exist_ok=True)
    waiting = {
        trial.name: partial(_start, trial, workspace)
        for trial in trials
        if not has_current_result(trial, workspace)
    }
    finished = len(trials) - len(waiting)
    with progress.stage("training", len(trials), "runs") as meter:
        meter.advance(finished, finished)
        failed = processes.run_processes(
            waiting, workspace.out, jobs, deadline, say, ended=lambda: meter.advance(1)
        )
    if failed:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; the logs are in {workspace.out}")
    return processes.read_results((trial.name for trial in trials), results)


def has_current_result(trial: TrainingTrial, workspace: Workspace) -> bool:
    """Whether a trial has a result, and of the mechanism that is in the code."""
    path = workspace.result(trial)
    return path.exists() and not is_outdated(json.loads(path.read_text(encoding="utf-8")))


def is_outdated(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a method, or of a version of one, that is no longer in the code.

    Results from before versions were recorded are of version 0.
    """
    from uedp.methods import method_named, method_names

    name = result["config"]["privacy"]["method"]
    return name not in method_names() or result.get("version", 0) != method_named(name).version


def _start(trial: TrainingTrial, workspace: Workspace) -> processes.Process:
    request = workspace.out / f"{trial.name}.trial"
    content = {"trial": asdict(trial), "workspace": asdict(workspace)}
    request.write_text(json.dumps(content, default=str))
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(request)]
    return processes.start_process(trial.name, command, workspace.out)


def resolve_config(trial: TrainingTrial, workspace: Workspace) -> dict[str, dict[str, Any]]:
    """The complete config of a trial: with its data, and models by folder."""
    folder = str(workspace.datasets / trial.data)
    config = override(trial.config, data__train=folder, data__evaluate=folder)
    name = config["model"]["name"]
    if name in workspace.models:
        config["model"]["name"] = workspace.models[name]
    if config.get("vocabulary", {}).get("source") == "public":
        config["vocabulary"]["path"] = workspace.models["words"]
    if config["model"].get("train") == "probe":  # all trials read the same texts
        config.setdefault("run", {})["vectors"] = str(workspace.datasets / "vectors")
    if workspace.dry_rounds:
        config["privacy"]["rounds"] = workspace.dry_rounds
        if trial.public:
            config.setdefault("public", {})["steps"] = workspace.dry_rounds
    config["privacy"].setdefault("entity_share", 0.3)  # or the planner would choose it
    return config


def run(trial: TrainingTrial, workspace: Workspace, keep_weights: bool = False) -> dict[str, Any]:
    """Run one trial in this process. The result is written last; the weights are then removed."""
    import torch

    from research.datasets import SURROGATES, load_incidence, load_texts
    from research.rewritten import public_text
    from research.surrogate_task import without_surrogates
    from uedp.files import write_atomically
    from uedp.methods import method_named
    from uedp.models.load import load_model
    from uedp.training import loop
    from uedp.training.build import precision_of, task_of_run
    from uedp.training.config import parse_config
    from uedp.training.datasets import Texts, TrainingData
    from uedp.training.run_dir import CONFIG

    start, most = time.time(), DRY_SENTENCES if workspace.dry_rounds else None
    config = parse_config(resolve_config(trial, workspace))
    data, folder = workspace.datasets / trial.data, workspace.out / trial.name
    ledger = workspace.out / f"{trial.name}.corpus"  # its own: trials are not composed
    ledger.mkdir(parents=True, exist_ok=True)
    deidentified = method_named(config.privacy.method).deidentifies
    source = trial.texts or ("deidentified" if deidentified else "train")
    texts = load_texts(data, source)
    training_data = TrainingData(
        Texts(texts.texts, texts.labels),
        load_incidence(data, trial.category),
        ledger,
        load_texts(data, "validation", most),
        public=public_text(workspace.datasets, trial.public, most) if trial.public else None,
    )
    outcome = loop.run(
        config,
        folder,
        data=training_data,
        resume=(folder / CONFIG).exists(),
        say=lambda line: print(f"{trial.name}: {line}", flush=True),
        watch=partial(without_surrogates, texts) if source == SURROGATES else None,
    )
    if not outcome.finished:
        raise UserError(f"{trial.name}: stopped; run it again to resume it")
    trained = load_model(str(folder), config.task.kind)
    trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    test = task_of_run(config, trained, load_texts(data, "test", most))
    measured = test.evaluate(trained.model, nullcontext)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measure = next(iter(measured))
    result = {
        "name": trial.name,
        "data": trial.data,
        "category": trial.category,
        "texts": trial.texts,
        "public": trial.public,
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
        "epsilon": None if outcome.certificate is None else outcome.certificate.epsilon,
        "noise": None if outcome.certificate is None else outcome.certificate.parameters["noise"],
        "certificate": None if outcome.certificate is None else _facts(outcome.certificate),
        "measure": measure,
        "before": outcome.before,
        "after_public": outcome.public,
        "validation": outcome.after,
        "test": measured,
        "rounds": len(rows),
        "sentences": sum(row["sentences"] for row in rows),
        "mean_update": sum(row["mean_update"] for row in rows) / len(rows),
        "curve": [[row["round"], row[measure]] for row in rows if measure in row],
        "seconds": time.time() - start,
        "mechanism": source_digest("uedp.mechanism"),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "version": method_named(config.privacy.method).version,
        "precision": precision_of(config),
        "incidence": training_data.incidence.digest,
    }
    write_atomically(workspace.result(trial), json.dumps(result, indent=2) + "\n")
    for bulky in () if keep_weights else ("model.safetensors", "checkpoints"):
        path = folder / bulky
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    print(f"{trial.name}: test {measure} {measured[measure]:.4g}", flush=True)
    return result


def _facts(certificate: "Certificate") -> dict[str, Any]:
    """What a certificate says of its guarantee."""
    kept = ("statement", "unit", "epsilon", "delta", "private", "parameters", "caveats")
    return {name: getattr(certificate, name) for name in kept}


def load_results(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, sorted by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def results_table(results: Iterable[Mapping[str, Any]]) -> str:
    """One line for each result."""
    lines = [
        f"{'run':30} {'data':6} {'epsilon':>7} {'noise':>6} {'rate':>5} {'rounds':>6} {'share':>5} "
        f"{'sentences':>9} {'clip used':>9} {'before':>8} {'validation':>10} {'test':>8} "
        f"{'seconds':>7}"
    ]
    for row in results:
        privacy, measure = row["config"]["privacy"], row["measure"]
        share = f"{privacy['entity_share']:g}" if privacy["method"] in SHARING else "-"
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
    request = json.loads(Path(sys.argv[1]).read_text())
    given = request["workspace"]
    workspace = Workspace(
        Path(given["datasets"]),
        given["models"],
        Path(given["out"]),
        given["dry_rounds"],
        Path(given["results"]) if given["results"] else None,
    )
    run(TrainingTrial(**request["trial"]), workspace)


if __name__ == "__main__":
    main()
