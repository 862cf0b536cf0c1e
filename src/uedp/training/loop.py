"""A run from its plan to a model and a certificate.

Every round is entered in the ledger before its noisy sum is made; a run that was killed goes on
with the rounds that were not entered. Those entered but lost stay spent: their noise may have been
seen.
"""

import contextlib
import json
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
from uedp.accounting.decisions import Precision
from uedp.accounting.ledger import (
    Budget,
    CorpusLedger,
    PlannedRun,
    RunLedger,
    refuse_another_plan,
)
from uedp.accounting.model_files import model_files
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.incidence import Incidence
from uedp.mechanism.release import ClipStats
from uedp.methods import base as methods
from uedp.models.load import load_model
from uedp.models.scratch import BYTES
from uedp.models.trainable import make_trainable, save_model, trained_names
from uedp.progress import SILENT, Progress
from uedp.signals import handled_by
from uedp.strict import parse_json
from uedp.training import checkpoint, lineage, optimise, provenance, tasks, vocabulary
from uedp.training import run_dir as folder
from uedp.training.config import PRIVATE, Config
from uedp.training.datasets import Material, Texts
from uedp.training.datasets import read as read_material
from uedp.training.metrics import Metrics, finite
from uedp.training.plan import Plan
from uedp.training.plan import build as build_plan

CONFIG = folder.CONFIG
RESULT = "result.json"  # written last: a run that has one is finished

_ROOM = {"cuda": 1 << 13, "cpu": 1 << 12}  # tokens evaluated at a time

Say = Callable[[str], None]


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


@dataclass(frozen=True)
class Built:
    """What a run is made of before its first round; `make_task` is for texts of one's own."""

    plan: Plan
    incidence: Incidence
    model: nn.Module
    method: methods.Method
    make_task: Callable[[Texts], tasks.Task]
    longest: int


Watch = Callable[[Built], methods.Method]


def run(
    config: Config,
    out: Path,
    *,
    material: Material | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
    watch: Watch | None = None,
) -> Outcome:
    """Train by a config into a folder, or go on with what the folder holds.

    `material` stands in for the corpora that the config names. Ctrl-C stops after the round it
    comes in, with a checkpoint. Of a config, `run` may change when a run is resumed, nothing else.
    `watch` sees what was built, with the weights as they are before any round, and gives the method
    that does the rounds.

    Guarantees:
      - nothing is trained before the guarantee was stated (`say`)
      - what is refused leaves nothing behind, in the folder or in the corpus's ledger
      - a run killed at any moment and resumed spends the rounds of its plan, each once
      - two processes are never at work in one folder
      - a private run does not begin with a model that has learned from the same corpus
      - a run is resumed with the noise source, precision, texts and detection that it began with
      - every run is in the corpus's ledger, one without a guarantee as infinite
      - the files of a finished run's model are in its ledger and its certificate, by their hashes;
        those that others laid beside them are not
      - resuming a finished run does nothing
    """
    with folder.alone(out) as identity:
        name = folder.begun(identity, out, config, resume)
        if (out / RESULT).is_file():
            say("this run is finished; nothing is left to do")
            return _finished(out, config)
        material = material or read_material(config)
        corpus = CorpusLedger(material.ledger)
        known = provenance.gather(config, material, corpus, precision_of(config))
        plan = build_plan(config, material.incidence, known)
        if plan.private:
            lineage.refuse_the_same(known.model, plan.shape.digest, config.model.name, known.texts)
        sentence, *lines = plan.statement.splitlines()
        for line in (sentence, plan.missed_line, *lines):
            if line:
                say(line)
        words = config.vocabulary.source != "tokenizer"
        # before anything is begun; a stand-in for words that are still to be found
        trainer = _Trainer(plan, material, out, progress, say, watch, BYTES if words else None)
        begun = name is not None
        name = name or folder.begin(identity)
        planned = plan.planned(name)
        try:
            refuse_another_plan(out, planned)
            corpus.reserve(planned, _budget(config))
        except UserError:
            if not begun:
                identity.truncate(0)
            raise
        write_atomically(out / CONFIG, config.to_yaml())
        own = lineage.Learned(
            name,
            config.privacy.method,
            plan.shape.digest,
            known.texts,
            planned.setup.vocabulary,
        )
        learned = (*known.lineage, own)
        lineage.write(out, learned)
        with _ledger(planned, out, material.ledger) as ledger:
            if words:
                tokenizer = vocabulary.prepare(
                    config.vocabulary,
                    out,
                    material.train.texts,
                    material.incidence,
                    plan.vocabulary,
                    ledger,
                )
                lineage.write(tokenizer, learned)  # whoever copies the words takes it along
                trainer = _Trainer(plan, material, out, progress, say, watch, str(tokenizer))
            return trainer.run(ledger, corpus, name)


# --- before the rounds, and after ----------------------------------------------------------------


def _finished(out: Path, config: Config) -> Outcome:
    result = read_result(out / RESULT)
    loaded = load_model(out, config.task.kind)
    issued = certificates.load_certificate(out) if config.privacy.method in PRIVATE else None
    return Outcome(
        folder=out,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        certificate=issued,
        before=result["before"],
        after=result["after"],
        rounds=result["rounds"],
        finished=True,
    )


def _budget(config: Config) -> Budget | None:
    budget = config.privacy.corpus_budget
    return None if budget is None else Budget(budget, config.privacy.delta)


@contextmanager
def _ledger(planned: PlannedRun, out: Path, corpus: Path) -> Iterator[RunLedger | None]:
    if planned.profile is None:
        yield None
        return
    with RunLedger.open(out, planned, corpus) as ledger:
        yield ledger


def precision_of(config: Config) -> Precision:
    """What the passes are computed in, on the device that the config comes to.

    If not told, a private run takes float32: in half precision, who else was drawn moves the
    gradients of all by a percent, which the noise would have to cover.
    """
    if config.run.precision != "auto":
        return config.run.precision
    device = _device(config.run.device)
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if half and config.privacy.method not in PRIVATE else "float32"


# --- the rounds ----------------------------------------------------------------------------------


class _Trainer:
    def __init__(
        self,
        plan: Plan,
        material: Material,
        out: Path,
        progress: Progress,
        say: Say,
        watch: Watch | None,
        tokenizer: str | None,
    ) -> None:
        self._plan, self._out, self._progress, self._say = plan, out, progress, say
        self._ledger: RunLedger | None = None
        config = plan.config
        self._device = _device(config.run.device)
        self._precision = _precision(plan.provenance.precision == "bfloat16", self._device)
        names: list[str] = []
        if config.task.kind == "classification":
            names = list(config.task.labels) or material.label_names()
            if plan.private and not config.task.labels:
                say(
                    f"labels found in the corpus: {', '.join(names)}; that there are these is not "
                    "protected, unless task.labels names them"
                )
        loaded = load_model(
            config.model.name,
            config.task.kind,
            labels=len(names) or None,
            dropout=config.model.dropout,
            seed=config.model.seed,
            sizes=config.model.sizes,
            tokenizer=tokenizer or config.model.tokenizer,
        )
        if names:
            names = _in_the_order_of(loaded.model.config.id2label, names)
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
        longest = min(config.model.max_tokens, loaded.max_tokens)
        encode = tasks.encode_for(
            self._model, loaded.tokenizer, longest, config.run.vectors, progress
        )

        def task(found: Texts) -> tasks.Task:
            return tasks.build(
                config.task.kind,
                found.texts,
                found.labels,
                names,
                loaded.tokenizer,
                longest,
                encode,
            )

        self._task = task(material.train)
        self._held_out = None if material.held_out is None else task(material.held_out)
        with _training(self._model, config.task.kind):
            self._method = methods.build(
                plan, material.incidence, self._model, self._task, self._precision
            )
            if watch is not None:
                found = Built(plan, material.incidence, self._model, self._method, task, longest)
                self._method = watch(found)
        parameters = self._method.parameters
        self._optimiser = optimise.build(config.optimiser, parameters)
        decay = config.optimiser.average
        self._average = optimise.Average(parameters, decay) if decay else None
        for doubt in plan.doubts(sum(p.numel() for p in parameters)):
            say(f"warning: {doubt}")
        self._longest = longest
        self._room = config.run.tokens_at_once or _ROOM.get(self._device.type, _ROOM["cpu"])
        self._spent_at: dict[int, float] = {}  # rounds to epsilon
        self._stop = False

    def run(self, ledger: RunLedger | None, corpus: CorpusLedger, name: str) -> Outcome:
        """Train, from wherever an earlier process came to."""
        self._ledger, self._corpus, self._name = ledger, corpus, name
        checkpoint.clear(self._out)
        with _training(self._model, self._plan.config.task.kind):
            done, before = self._restored()
            if before is None:
                before = self._evaluated()
                if before:
                    self._say(f"before training: {_brief(before)}")
                self._checkpoint(done, before)
            with handled_by(self._ask_to_stop), Metrics(self._out, done) as metrics:
                done = self._rounds(done, before, metrics)
            self._model.eval()
            if self._average is not None:
                self._set(self._average.values)
            finished = done >= self._plan.rounds
            after = self._evaluated() if finished else {}
        if not finished:
            self._say(f"stopped after round {done}; go on with --resume")
            return self._outcome(before, {}, done)
        written = save_model(self._model, self._out, self._tokenizer)
        if ledger is not None:
            # not what somebody laid beside them meanwhile: `verify` is to find that
            found = model_files(self._out).items()
            ledger.record_saved({name: digest for name, digest in found if name in written})
        corpus.close(name, done, ledger is not None and ledger.vocabulary_spent)
        if after:
            self._say(f"after training: {_brief(after)}")
        outcome = self._outcome(before, after, done)
        _write_json(
            self._out / RESULT,
            {"before": finite(before), "after": finite(after), "rounds": done},
        )
        return outcome

    def _rounds(self, done: int, before: Mapping[str, float], metrics: Metrics) -> int:
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
                if self._average is not None:
                    self._average.update(done)
                row: dict[str, Any] = {"round": done, "rate": rate, **asdict(gradient.stats)}
                if done % plan.config.run.evaluate_every == 0 and done < plan.rounds:
                    found = {} if self._stop else self._evaluated()
                    row.update(found)
                    latest = _brief(found)
                row["seconds"] = time.monotonic() - began
                metrics.add(row)
                meter.advance(1, done)
                meter.note(self._note(gradient.stats, done, latest))
                if time.monotonic() - saved >= plan.config.run.checkpoint_seconds:
                    self._checkpoint(done, before)
                    saved = time.monotonic()
        self._checkpoint(done, before)
        return done

    def _note(self, stats: ClipStats, done: int, latest: str) -> str:
        parts = [f"{stats.users} users, {stats.sentences} sentences"]
        if self._plan.private:
            parts.append(f"epsilon {self._spent(done):.2f} of {self._plan.epsilon:.2f}")
        return ", ".join([*parts, latest] if latest else parts)

    def _spent(self, done: int) -> float:
        """An epsilon not below that so far; computed a few times in a run, as it takes a moment."""
        step = max(1, self._plan.rounds // 10)
        at = min(-(-done // step) * step, self._plan.rounds)
        if at not in self._spent_at:
            assert self._plan.profile is not None
            self._spent_at[at] = epsilon(
                self._plan.profile, at, self._plan.config.privacy.delta, *self._plan.beside
            )
        return self._spent_at[at]

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise SystemExit(128 + number)  # asked twice: at once
        self._stop = True
        self._say("stopping after this round; once more to stop at once")

    # --- state -----------------------------------------------------------------------------------

    def _checkpoint(self, done: int, before: Mapping[str, float]) -> None:
        state = self._optimiser.state() | (self._average.state() if self._average else {})
        tensors = {
            **dict(zip(trained_names(self._model), self._method.parameters, strict=True)),
            **{f"{_STATE}{name}": tensor for name, tensor in state.items()},
        }
        checkpoint.write(self._out, done, tensors, {"before": dict(before)})

    def _restored(self) -> tuple[int, Mapping[str, float] | None]:
        """Weights and optimiser as they were; rounds done are those the ledger says are spent.

        Also what was measured before training, None if that is still to be done.
        """
        found = checkpoint.newest(self._out)
        spent = self._ledger.spent if self._ledger is not None else 0
        if found is None:
            if spent:
                self._say(f"{spent} rounds were spent, but no checkpoint is left: they are lost")
            return spent, None
        tensors, info = found
        done = int(info["done"])
        if self._ledger is not None and spent < done:
            raise UserError(
                f"{self._out}: {done} rounds were done, but its ledger has {spent}; restore the "
                "ledger from a copy, or begin a new run"
            )
        try:
            self._set([tensors[name] for name in trained_names(self._model)])
            state = {k.removeprefix(_STATE): v for k, v in tensors.items() if k.startswith(_STATE)}
            self._optimiser.restore(state)
            if self._average is not None:
                self._average.restore(state)
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{self._out}: its checkpoint does not fit model "
                f"{self._plan.config.model.name!r} ({error}); was the model changed?"
            ) from None
        if spent > done:
            self._say(
                f"{spent - done} rounds were spent after the last checkpoint; they count but are "
                "lost"
            )
        return max(spent, done), info["before"]

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._method.parameters, values, strict=True):
            parameter.copy_(value)

    def _evaluated(self) -> Mapping[str, float]:
        if self._held_out is None:
            return {}
        self._model.eval()
        with self._averaged():
            while True:
                try:
                    return self._held_out.evaluate(self._model, self._precision, self._room)
                except torch.OutOfMemoryError:
                    if self._room <= self._longest:
                        raise
                    self._room //= 2
                    torch.cuda.empty_cache()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in place of the last ones."""
        if self._average is None:
            yield
            return
        last = [p.detach().clone() for p in self._method.parameters]
        self._set(self._average.values)
        try:
            yield
        finally:
            self._set(last)

    def _outcome(
        self, before: Mapping[str, float], after: Mapping[str, float], done: int
    ) -> Outcome:
        issued = None
        if self._ledger is not None:
            self._ledger.record_corpus(self._corpus.total(self._plan.config.privacy.delta))
            issued = certificates.issue(self._out)
        finished = done >= self._plan.rounds
        return Outcome(
            self._out, self._model, self._tokenizer, issued, before, after, done, finished
        )


_STATE = "optimiser."  # what a checkpoint calls the optimiser's tensors


@contextmanager
def _training(model: Any, kind: str) -> Iterator[None]:
    """Settings of a model that are for training alone, not to be saved with it."""
    cache = getattr(model.config, "use_cache", None)
    with tasks.unmasked(model) if kind == "next-word" else contextlib.nullcontext():
        try:
            if cache:
                model.config.use_cache = False  # keys and values, for words to come
            yield
        finally:
            if cache:
                model.config.use_cache = cache


def _in_the_order_of(saved: Mapping[int, str], names: list[str]) -> list[str]:
    """The labels as a saved classifier numbers them, if these are its labels."""
    known = [saved[number] for number in sorted(saved)]
    return known if sorted(known) == sorted(names) else names


def _device(asked: str) -> torch.device:
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError):
        raise UserError(
            f"run.device {asked!r}: there is no such device here; choose cpu, or auto"
        ) from None


def _precision(half: bool, device: torch.device) -> tasks.Precision:
    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16, enabled=half)

    return context


def read_result(path: Path) -> dict[str, Any]:
    try:
        result = parse_json(path.read_bytes())
    except ValueError:
        result = None
    shape = {"before": dict, "after": dict, "rounds": int}
    if not isinstance(result, dict) or any(type(result.get(k)) is not v for k, v in shape.items()):
        raise UserError(f"{path}: damaged; restore it from a copy")
    return result


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def _brief(found: Mapping[str, float]) -> str:
    first = next(iter(found), None)
    return f"{first} {found[first]:.4g}" if first else ""
