"""A run from its plan to a model and a certificate.

Every round is entered in the ledger before its noisy sum is made; a run that was killed goes on
with the rounds that were not entered. Those entered but lost stay spent: their noise may have been
seen.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from uedp.accounting import certificate as certificates
from uedp.accounting.ledger import Budget, CorpusLedger, RunLedger
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.models.load import load
from uedp.models.trainable import make_trainable, save, trained_names
from uedp.progress import SILENT, Progress
from uedp.signals import handled_by
from uedp.training import checkpoint, methods, optimise, tasks
from uedp.training.config import Config
from uedp.training.config import load as load_config
from uedp.training.material import Material, Texts
from uedp.training.material import read as read_material
from uedp.training.plan import Plan
from uedp.training.plan import build as build_plan

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
IDENTITY = "run.json"
RESULT = "result.json"


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    folder: Path
    model: Any
    tokenizer: Any
    certificate: certificates.Certificate | None
    before: Mapping[str, float]
    after: Mapping[str, float]
    rounds: int
    finished: bool


def run(
    config: Config,
    out: Path,
    *,
    material: Material | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train by a config into a folder, or go on with what the folder holds.

    `material` stands in for the corpora that the config names.

    Guarantees:
      - nothing is trained before the guarantee was stated (`say`)
      - a run killed at any moment and resumed spends the rounds of its plan, each once
      - resuming a finished run does nothing
    """
    material = material or read_material(config)
    plan = build_plan(config, material.incidence)
    identity = _begin(out, config, resume)
    say(plan.statement)
    with _ledger(plan, out, identity, material.ledger) as ledger:
        return _Trainer(plan, material, out, ledger, progress, say).run()


# --- the folder ----------------------------------------------------------------------------------


def _begin(out: Path, config: Config, resume: bool) -> str:
    """Make the run's folder, or recognise it; gives the run's name."""
    path = out / IDENTITY
    if path.is_file():
        if not resume:
            raise UserError(f"{out}: holds a run already; add --resume to go on with it")
        if load_config(out / CONFIG) != config:
            raise UserError(
                f"{out / CONFIG}: differs from what is asked for; resume a run as it was planned"
            )
        return str(json.loads(path.read_text())["run"])
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not a run; choose another --out")
    if resume:
        raise UserError(f"{out}: holds no run to resume; leave out --resume")
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_text(config.to_yaml())
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"run": name}) + "\n")
    partial.replace(path)  # from here on the folder is a run
    return name


@contextmanager
def _ledger(plan: Plan, out: Path, name: str, corpus: Path) -> Iterator[RunLedger | None]:
    if plan.profile is None:
        yield None
        return
    privacy = plan.config.privacy
    budget = privacy.corpus_budget
    CorpusLedger(corpus).reserve(
        name,
        plan.shape.digest,
        plan.profile,
        plan.rounds,
        None if budget is None else Budget(budget, privacy.delta),
    )
    with RunLedger.open(out, name, plan.shape.digest, plan.profile, plan.rounds) as ledger:
        yield ledger


# --- the rounds ----------------------------------------------------------------------------------


class _Trainer:
    def __init__(
        self,
        plan: Plan,
        material: Material,
        out: Path,
        ledger: RunLedger | None,
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._out, self._ledger = plan, out, ledger
        self._progress, self._say = progress, say
        config = plan.config
        self._device = torch.device(_device(config.run.device))
        self._precision = _precision(config.run.precision, self._device)
        names = material.label_names() if config.task.kind == "classification" else []
        loaded = load(
            config.model.name,
            config.task.kind,
            labels=len(names) or None,
            dropout=config.model.dropout,
            seed=config.model.seed,
        )
        if names:
            loaded.model.config.id2label = dict(enumerate(names))
            loaded.model.config.label2id = {name: i for i, name in enumerate(names)}
        self._tokenizer = loaded.tokenizer
        self._model: nn.Module = make_trainable(
            loaded.model,
            config.model.train,
            rank=config.model.rank,
            alpha=config.model.alpha,
            targets=config.model.targets,
            seed=config.model.seed,
        ).to(self._device)
        self._model.config.use_cache = False  # type: ignore[union-attr]
        longest = min(config.model.max_tokens, loaded.max_tokens)

        def task(found: Texts) -> tasks.Task:
            return tasks.build(
                config.task.kind, found.texts, found.labels, names, loaded.tokenizer, longest
            )

        self._task = task(material.train)
        self._held_out = None if material.held_out is None else task(material.held_out)
        self._method = methods.build(
            plan, material.incidence, self._model, self._task, self._precision
        )
        parameters = self._method.parameters
        self._optimiser = optimise.build(config.optimiser, parameters)
        self._average = optimise.Average(parameters, config.optimiser.average)
        self._spent_at = {0: 0.0}  # rounds to epsilon
        self._stop = False

    def run(self) -> Outcome:
        done, before = self._restore()
        if (self._out / RESULT).is_file() and done >= self._plan.rounds:
            self._say("this run is finished; nothing is left to do")
            return self._outcome(
                before, json.loads((self._out / RESULT).read_text())["after"], done
            )
        if not before:
            before = self._evaluated()
            if before:
                self._say(f"before training: {_brief(before)}")
            self._checkpoint(0, before)
        with handled_by(self._ask_to_stop), _Metrics(self._out) as metrics:
            done = self._rounds(done, before, metrics)
        if done < self._plan.rounds:
            self._say(f"stopped after round {done}; go on with --resume")
            return self._outcome(before, {}, done)
        after = self._evaluated()
        with self._averaged():
            save(self._model, self._out, self._tokenizer)
        if after:
            self._say(f"after training: {_brief(after)}")
        _write_json(self._out / RESULT, {"before": before, "after": after, "rounds": done})
        return self._outcome(before, after, done)

    def _rounds(self, done: int, before: Mapping[str, float], metrics: "_Metrics") -> int:
        plan, settings = self._plan, self._plan.config.optimiser
        saved, latest = time.monotonic(), ""
        with self._progress.stage("training", plan.rounds, "rounds") as meter:
            meter.advance(done, done)
            while done < plan.rounds and not self._stop:
                if self._ledger is not None:
                    self._ledger.spend()  # before anything of the round is seen
                began = time.monotonic()
                self._model.train()
                gradient = self._method.round(done)
                rate = optimise.rate_at(settings, done, plan.rounds)
                self._optimiser.step(gradient.values, rate, gradient.deviation)
                done += 1
                self._average.update(done)
                row: dict[str, Any] = {"round": done, "rate": rate, **asdict(gradient.reach)}
                if done % plan.config.run.evaluate_every == 0 and done < plan.rounds:
                    found = self._evaluated()
                    row.update(found)
                    latest = _brief(found)
                row["seconds"] = time.monotonic() - began
                metrics.add(row)
                meter.advance(1, done)
                meter.note(self._note(gradient.reach, done, latest))
                if time.monotonic() - saved >= plan.config.run.checkpoint_seconds:
                    self._checkpoint(done, before)
                    saved = time.monotonic()
        self._checkpoint(done, before)
        return done

    def _note(self, reach: Any, done: int, latest: str) -> str:
        parts = [f"{reach.users} users, {reach.sentences} sentences"]
        if self._plan.profile is not None and self._plan.epsilon < float("inf"):
            parts.append(f"epsilon {self._spent(done):.2f} of {self._plan.epsilon:.2f}")
        return ", ".join([*parts, latest] if latest else parts)

    def _spent(self, done: int) -> float:
        """Epsilon so far, computed a few times in a run: it takes a moment."""
        step = max(1, self._plan.rounds // 10)
        at = done - done % step
        if at not in self._spent_at:
            assert self._plan.profile is not None
            self._spent_at[at] = epsilon(self._plan.profile, at, self._plan.config.privacy.delta)
        return self._spent_at[at]

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise SystemExit(128 + number)  # asked twice: at once
        self._stop = True
        self._say("stopping after this round; once more to stop at once")

    # --- state -----------------------------------------------------------------------------------

    def _checkpoint(self, done: int, before: Mapping[str, float]) -> None:
        tensors = {
            **dict(zip(trained_names(self._model), self._method.parameters, strict=True)),
            **{f"optimiser.{k}": v for k, v in self._optimiser.state().items()},
            **{f"optimiser.{k}": v for k, v in self._average.state().items()},
        }
        checkpoint.write(self._out, done, tensors, {"before": dict(before)})

    def _restore(self) -> tuple[int, Mapping[str, float]]:
        """Weights and optimiser as they were; rounds done are those the ledger says are spent."""
        found = checkpoint.newest(self._out)
        spent = self._ledger.spent if self._ledger is not None else 0
        if found is None:
            if spent:
                self._say(f"{spent} rounds were spent before the first checkpoint and are lost")
            return spent, {}
        tensors, info = found
        with torch.no_grad():
            for name, parameter in zip(
                trained_names(self._model), self._method.parameters, strict=True
            ):
                parameter.copy_(tensors[name])
        state = {k.removeprefix("optimiser."): v for k, v in tensors.items()}
        self._optimiser.restore(state)
        self._average.restore(state)
        lost = spent - info["done"] if self._ledger is not None else 0
        if lost > 0:
            self._say(
                f"{lost} rounds were spent after the last checkpoint; they count but are lost"
            )
        return max(spent, int(info["done"])), info["before"]

    def _evaluated(self) -> Mapping[str, float]:
        if self._held_out is None:
            return {}
        room = self._plan.config.run.tokens_at_once or (
            1 << 15 if self._device.type == "cuda" else 1 << 12
        )
        self._model.eval()
        with self._averaged():
            return self._held_out.evaluate(self._model, self._precision, room)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in place of the last ones."""
        if not self._plan.config.optimiser.average:
            yield
            return
        parameters: list[Tensor] = list(self._method.parameters)
        last = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            torch._foreach_copy_(parameters, self._average.values)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, last)

    def _outcome(
        self, before: Mapping[str, float], after: Mapping[str, float], done: int
    ) -> Outcome:
        issued = None
        if self._ledger is not None:
            plan = self._plan
            issued = certificates.issue(
                self._out, plan.config.privacy.delta, plan.shape, plan.setup()
            )
        finished = done >= self._plan.rounds
        return Outcome(
            self._out, self._model, self._tokenizer, issued, before, after, done, finished
        )


class _Metrics:
    """One JSON line a round, on disk as it is written; TensorBoard's too, if it is installed."""

    def __init__(self, out: Path) -> None:
        self._file = (out / METRICS).open("a", encoding="utf-8")
        self._board = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(out / "tensorboard"))

    def add(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                self._board.add_scalar(name, value, row["round"])

    def __enter__(self) -> "_Metrics":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def _device(asked: str) -> str:
    if asked != "auto":
        return asked
    return "cuda" if torch.cuda.is_available() else "cpu"


def _precision(asked: str, device: torch.device) -> methods.Precision:
    half = asked == "bfloat16" or (asked == "auto" and device.type == "cuda")

    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16, enabled=half)

    return context


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(path)


def _brief(found: Mapping[str, float]) -> str:
    first = next(iter(found), None)
    return f"{first} {found[first]:.4g}" if first else ""
