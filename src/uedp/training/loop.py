"""Training, from a config to a model and a certificate.

Every round is in the ledger before its noise is drawn; a killed run resumes with the rounds that
are not. Rounds in the ledger whose result was lost stay spent: it may have been seen. A round that
was interrupted before costs nothing and is repeated as it was (`uedp.training.round_key`).
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from uedp.accounting.certificate import Certificate
from uedp.accounting.statement import rounded
from uedp.errors import UserError
from uedp.mechanism.release import ClipStats
from uedp.methods import Autocast
from uedp.progress import SILENT, Meter, Progress
from uedp.signals import handled_by
from uedp.training import optimise
from uedp.training.build import Say, Watch
from uedp.training.config import Config
from uedp.training.datasets import TrainingData
from uedp.training.engine import FinishedRunError, PrivacyEngine, PrivateRun
from uedp.training.filters import build_filter
from uedp.training.loggers import Loggers, require_loggers, warning_for
from uedp.training.metrics import Metrics
from uedp.training.outcome import Outcome, finished_outcome, write_result
from uedp.training.public_phase import PublicPhase, remove_checkpoints

_NOTED_SECONDS = 0.5  # between two notes: the epsilon of a round takes a moment to compute
_STEEP = 10  # rounds from which on it is worth a line how epsilon grows


def run(
    config: Config,
    out: Path,
    *,
    data: TrainingData | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
    watch: Watch | None = None,
) -> Outcome:
    """Train by a config into a run directory, or resume the run that it holds.

    With public text, its steps come first; they spend nothing, and are resumed like rounds. Ctrl-C
    stops at once, with a checkpoint; the round that it interrupts is not spent. Only the `run`
    section of a config may change when a run is resumed.

    Args:
        data: replaces the corpora that the config names.
        watch: inspects the run before its first round, and returns the method of its rounds.

    Guarantees:
      - those of `PrivacyEngine`
      - a run killed at any moment and resumed spends the rounds of its plan, each once
      - a round that Ctrl-C interrupts before its noise is not spent, and is repeated with the same
        participants and weights
      - resuming a finished run does nothing
    """
    require_loggers(config)
    with PrivacyEngine.from_config(
        config, out, data=data, resume=resume, progress=progress, say=say
    ) as engine:
        try:
            private = engine.attach(watch=watch)
        except FinishedRunError:
            say("this run is finished; there is nothing to do")
            return finished_outcome(out, config)
        return _Training(private, progress, say).run()


_NOT_MEASURED = (
    "quality is not measured without data.evaluate, a corpus of other users; `build_corpus` with "
    "`hold_out=...` holds some out"
)
_WORSE = (
    "the public text made the model worse; lower public.rate, or take text more like the corpus"
)


class _Interrupted(BaseException):
    """A signal in the middle of a round that can be abandoned."""


class _Training:
    """The rounds of a run, with its optimiser, evaluations and checkpoints."""

    def __init__(self, private: PrivateRun, progress: Progress, say: Say) -> None:
        self._private, self._progress, self._say = private, progress, say
        self._plan, self._model = private.plan, private.model
        self._set_optimiser()
        self._evaluated_in: Autocast | None = None  # the precision of evaluations
        self._measured: dict[str, Mapping[str, float]] = {"before": {}}
        self._stopping = False

    def _set_optimiser(self) -> None:
        settings, parameters = self._plan.config.optimiser, self._private.parameters
        self._optimiser = optimise.build_optimiser(settings, parameters)
        self._average = optimise.build_average(settings, parameters, self._plan.rounds)
        self._filter = build_filter(settings, parameters)

    def run(self) -> Outcome:
        done, state, info = self._private.restore()
        if info is None:
            if self._private.public_left and not self._train_on_public_text():
                return self._outcome(done, {}, False, self._private.certify())
            if "public" not in self._measured:
                self._measured["before"] = self._evaluate_before()
            self._save(done)
        else:
            self._measured = {name: info[name] for name in ("before", "public") if name in info}
            self._restore(state)
        remove_checkpoints(self._private.out)  # of public text
        with (
            handled_by(self._ask_to_stop),
            Metrics(self._private.out, done) as metrics,
            self._loggers(done, metrics.logged) as loggers,
        ):
            done = self._rounds(done, metrics, loggers)
        self._model.eval()
        if self._average is not None:
            self._private.set_weights(self._average.values)
        finished = done >= self._plan.rounds
        after = self._evaluate(self._progress) if finished else {}
        if finished:
            certificate = self._private.finish()
            if after:
                self._say(f"after training: {_brief(after)}")
        else:
            certificate = self._private.certify()
            rounds = self._plan.rounds
            self._say(f"stopped with {done} of {rounds} rounds done; continue with `resume=True`")
        outcome = self._outcome(done, after, finished, certificate)
        if finished:
            write_result(outcome.folder, outcome.before, after, done, outcome.public)
        return outcome

    def _loggers(self, done: int, logged: int) -> Loggers:
        config, out, name = self._plan.config, self._private.out, self._private.name
        if warning := warning_for(config):
            self._say(f"warning: {warning}")
        return Loggers(config, out, name, done, logged, self._say)

    def _outcome(
        self,
        done: int,
        after: Mapping[str, float],
        finished: bool,
        certificate: Certificate | None,
    ) -> Outcome:
        out, tokenizer = self._private.out, self._private.assembly.tokenizer
        before, public = self._measured["before"], self._measured.get("public")
        return Outcome(
            out, self._model, tokenizer, certificate, before, after, done, finished, public
        )

    def _evaluate_before(self) -> Mapping[str, float]:
        before = self._evaluate(self._progress)
        self._say(f"before training: {_brief(before)}" if before else _NOT_MEASURED)
        return before

    def _train_on_public_text(self) -> bool:
        """Take the steps on public text that are left; False if they were stopped."""
        task, model = self._private.assembly.public, self._model
        assert task is not None
        initial = {
            name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad
        }
        phase = PublicPhase(self._plan.config, self._private.out, model, task)
        info = phase.restore()
        before = self._evaluate_before() if info is None else info["before"]
        self._measured["before"] = before
        if info is None:
            phase.save(before)
        with handled_by(self._ask_to_stop):
            finished = phase.run(before, self._progress, lambda: self._stopping)
        if not finished:
            self._say(
                f"stopped with {phase.done:,} of {phase.steps:,} steps on public text done, and no "
                "round spent; continue with `resume=True`"
            )
            return False
        self._private.end_public(initial)
        self._set_optimiser()  # the average begins here
        after = self._measured["public"] = self._evaluate(self._progress)
        steps = f"after {phase.steps:,} steps on public text"
        self._say(f"{steps}: {_brief(after)}" if after else f"{steps}, the private rounds begin")
        if any(before[name] < after[name] for name in list(after)[:1]):
            self._say(f"warning: {_WORSE}")
        return True

    def _rounds(self, done: int, metrics: Metrics, loggers: Loggers) -> int:
        plan, settings = self._plan, self._plan.config
        saved, latest = time.monotonic(), ""
        if not done and self._plan.private:
            self._explain_epsilon()
        noted = -math.inf
        with self._progress.stage("training", plan.rounds, "rounds") as meter:
            meter.advance(done, done)
            while done < plan.rounds and not self._stopping:
                began = time.monotonic()
                try:
                    with self._filter.ahead() if self._filter else nullcontext():
                        gradient = self._private.round(done, self._shown(meter, done))
                except _Interrupted:
                    break
                except Exception:
                    if self._private.repeatable(done):
                        self._save(done)
                    raise
                rate = optimise.learning_rate(settings.optimiser, done, plan.rounds)
                values = gradient.values
                if self._filter is not None:
                    values = self._filter.filtered(values)
                self._optimiser.step(values, rate, gradient.deviation)
                if self._filter is not None:
                    self._filter.stepped()
                done += 1
                if self._average is not None:
                    self._average.update(done)
                row: dict[str, Any] = {"round": done, "rate": rate, **asdict(gradient.stats)}
                measures: Mapping[str, float] = {}
                if done % settings.run.evaluate_every == 0 and done < plan.rounds:
                    measures = {} if self._stopping else self._evaluate()
                    latest = _brief(measures)
                row["seconds"] = time.monotonic() - began
                metrics.add({**row, **measures})
                loggers.log(row, measures)
                meter.advance(1, done)
                if time.monotonic() - noted >= _NOTED_SECONDS or done == plan.rounds:
                    meter.note(self._note(gradient.stats, done, latest))
                    noted = time.monotonic()
                if time.monotonic() - saved >= settings.run.checkpoint_seconds:
                    self._save(done)
                    saved = time.monotonic()
        self._save(done)
        return done

    def _shown(self, meter: Meter, done: int) -> Callable[[int, int], None]:
        """Shows how far a round is."""
        round_ = f"round {done + 1:,} of {self._plan.rounds:,}"

        def batch_done(batches: int, total: int) -> None:
            if not batches and self._stopping and self._private.abandonable:
                raise _Interrupted  # the signal came just before the round could be abandoned
            within = f", batch {batches + 1:,} of {total:,}" if batches < total else ""
            meter.within(batches / max(total, 1), round_ + within)

        return batch_done

    def _note(self, stats: ClipStats, done: int, latest: str) -> str:
        parts = [f"round {done:,}: {stats.users:,} users, {stats.sentences:,} sentences"]
        if self._plan.private:
            parts.append(
                f"epsilon {rounded(self._plan.epsilon_after(done), 3)} so far, "
                f"{rounded(self._plan.epsilon, 3)} in the end"
            )
        return ", ".join([*parts, latest] if latest else parts)

    def _explain_epsilon(self) -> None:
        rounds = self._plan.rounds
        if rounds < _STEEP:
            return
        early = max(2, rounds // 10)
        first, later = (self._plan.epsilon_after(count) for count in (1, early))
        self._say(
            "epsilon jumps at first and then grows slowly, because one round already has its "
            "unlucky outcomes and each further one adds less: "
            f"{rounded(first, 3)} after round 1, {rounded(later, 3)} after {early:,}, "
            f"{rounded(self._plan.epsilon, 3)} after all {rounds:,}"
        )

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            raise SystemExit(128 + number)  # the second signal: at once
        self._stopping = True
        if self._private.abandonable:
            self._say("stopping; this round is not spent, and is done again when the run resumes")
            raise _Interrupted
        step = "step" if self._private.public_left else "round"
        self._say(f"stopping after this {step}; interrupt again to stop at once")

    def _save(self, done: int) -> None:
        state = self._optimiser.state()
        for more in (self._average, self._filter):
            state |= more.state() if more else {}
        info = {name: dict(measures) for name, measures in self._measured.items()}
        self._private.save_checkpoint(done, state, info)

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        try:
            self._optimiser.restore(state)
            for more in (self._average, self._filter):
                if more is not None:
                    more.restore(state)
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{self._private.out}: its checkpoint does not fit the optimiser ({error})"
            ) from None

    def _evaluate(self, progress: Progress = SILENT) -> Mapping[str, float]:
        held_out = self._private.assembly.held_out
        if held_out is None:
            return {}
        self._model.eval()
        settings, given = self._plan.config.run, self._private.assembly.autocast
        with self._average.applied() if self._average else nullcontext():
            if self._evaluated_in is None:
                times = 2 + (self._plan.rounds - 1) // settings.evaluate_every
                self._evaluated_in = held_out.evaluation_precision(self._model, given, times)
            way, most = self._evaluated_in, settings.tokens_at_once
            return held_out.evaluate(self._model, way, most, progress)


def _brief(measures: Mapping[str, float]) -> str:
    first = next(iter(measures), None)
    return f"{first} {measures[first]:.4g}" if first else ""
