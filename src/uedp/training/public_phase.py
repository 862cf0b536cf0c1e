"""Training on public text, before the private rounds: ordinary steps without noise.

Nothing here reads the private corpus. How many steps there are is chosen by the public text and by
the time that they take.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.methods import Autocast
from uedp.methods.plain import mean_gradient
from uedp.models.trainable import trained_names
from uedp.progress import Progress
from uedp.training import checkpoint, optimise
from uedp.training.build import Prepared, set_up_for_training, without_noise
from uedp.training.config import Config, OptimiserSettings, PublicSettings
from uedp.training.metrics import Metrics
from uedp.training.tasks import Task

FOLDER = "public"  # in the run directory: its curve and, until it is done, its checkpoints
_PASSES, _MOST_STEPS = 3, 500
_MOST_NORM = 1.0  # of a step's gradient
_SHARE_OF_TIME = 1 / 3  # of run.time; two thirds are left for the rounds
_TIMED_SENTENCES, _TIMED_SECONDS = 8, 1.0
_NOTED_SECONDS = 0.5


# --- how long it takes ---------------------------------------------------------------------------


def public_steps(ready: Prepared) -> tuple[int, float]:
    """The steps on public text, as set or as it and `run.time` allow, and the seconds they take.

    Guarantees:
      - nothing private decides how many there are
      - none without public text
    """
    if ready.public is None:
        return 0, 0.0
    seconds, config = _step_seconds(ready), ready.config
    steps = config.public.steps
    if steps is None:
        passes = math.ceil(_PASSES * len(ready.public.lengths) / config.public.sentences)
        steps = min(_MOST_STEPS, passes)
        # a model of the corpus's own words, which is measured with those, takes a private time
        if config.vocabulary.source not in ("private", "corpus"):
            in_time = int(_SHARE_OF_TIME * config.run.time / max(seconds, 1e-9))
            steps = max(1, min(steps, in_time))
    return steps, steps * seconds


def _step_seconds(ready: Prepared) -> float:
    """The time of a step, measured on a few sentences of the public text.

    Guarantees:
      - weights, gradients and random numbers of the caller are as before
    """
    task, model, settings = ready.public, ready.model, ready.config.public
    assert task is not None
    device = next(model.parameters()).device
    training = model.training
    autocast = without_noise(ready.config)
    count = min(_TIMED_SENTENCES, settings.sentences)
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        set_up_for_training(model, ready.config.task.kind),
    ):
        model.train()
        _gradient(ready.config, model, task, np.arange(1), autocast)  # sets things up
        while True:
            sentences = sentences_of_step(0, count, len(task.lengths), ready.config.model.seed)
            began = time.perf_counter()
            _gradient(ready.config, model, task, sentences, autocast)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
            if count == settings.sentences or seconds >= _TIMED_SECONDS:
                break
            count = min(4 * count, settings.sentences)
    model.train(training)
    return seconds * settings.sentences / count


def sentences_of_step(step: int, count: int, of: int, seed: int) -> Ints:
    """The sentences of a step: all of them in random order, then in another.

    Guarantees:
      - depends on its arguments alone, so that a resumed run continues where it was
      - a sentence is used again only after all others were
    """
    taken: list[Ints] = []
    first, left = step * count, count
    while left:
        passed, start = divmod(first, of)
        order = np.random.default_rng([seed, passed]).permutation(of)
        taken.append(order[start : start + left])
        first, left = first + len(taken[-1]), left - len(taken[-1])
    return np.concatenate(taken)


def _gradient(
    config: Config, model: torch.nn.Module, task: Task, sentences: Ints, autocast: Autocast
) -> tuple[list[Tensor], float]:
    packing = task.packing_for(model)
    return mean_gradient(model, task, sentences, packing, autocast, config.run.tokens_at_once)


# --- the steps -----------------------------------------------------------------------------------


def optimiser_settings(settings: PublicSettings) -> OptimiserSettings:
    """Adam with a short warm-up and a rate that falls linearly; gradients are clipped."""
    return OptimiserSettings(name="adam", rate=settings.rate)


class PublicPhase:
    """The steps on public text, with checkpoints of their own.

    Guarantees:
      - a run killed at any moment and resumed ends with the weights it would have had
      - the ledger is not touched
    """

    def __init__(self, config: Config, out: Path, model: torch.nn.Module, task: Task) -> None:
        assert config.public.steps is not None
        self.steps: int = config.public.steps
        self.done = 0
        self._config, self._out, self._model, self._task = config, out / FOLDER, model, task
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._settings = optimiser_settings(config.public)
        self._optimiser = optimise.build_optimiser(self._settings, self._parameters)
        self._autocast = without_noise(config)

    def restore(self) -> Mapping[str, Any] | None:
        """Restore the newest checkpoint; returns what was saved beside it, None without one."""
        checkpoint.remove_scratch(self._out)
        newest = checkpoint.load_newest_checkpoint(self._out)
        if newest is None:
            return None
        tensors, info = newest
        try:
            with torch.no_grad():
                for name, parameter in zip(
                    trained_names(self._model), self._parameters, strict=True
                ):
                    parameter.copy_(tensors[name])
            self._optimiser.restore({k.removeprefix(_STATE): v for k, v in tensors.items()})
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{self._out}: its checkpoint does not fit model {self._config.model.name!r} "
                f"({error}); was the model changed?"
            ) from None
        self.done = int(info["done"])
        return info

    def save(self, before: Mapping[str, float]) -> None:
        weights = dict(zip(trained_names(self._model), self._parameters, strict=True))
        state = {f"{_STATE}{name}": value for name, value in self._optimiser.state().items()}
        checkpoint.write_checkpoint(
            self._out, self.done, {**weights, **state}, {"before": dict(before)}
        )

    def run(
        self, before: Mapping[str, float], progress: Progress, stopping: Callable[[], bool]
    ) -> bool:
        """Take the steps that are left; False if it was stopped before the last."""
        config, saved, noted = self._config, time.monotonic(), -math.inf
        device = self._parameters[0].device
        self._model.train()
        with (
            Metrics(self._out, self.done) as metrics,
            set_up_for_training(self._model, config.task.kind),
            progress.stage("training on public text", self.steps, "steps") as meter,
        ):
            meter.advance(self.done, self.done)
            while self.done < self.steps and not stopping():
                began = time.monotonic()
                rate = optimise.learning_rate(self._settings, self.done, self.steps)
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    # the same dropout masks when the run is resumed; they are no secret here
                    seeds = np.random.default_rng([config.model.seed, self.steps, self.done])
                    torch.manual_seed(int(seeds.integers(2**62)))
                    loss = self._step(rate)
                self.done += 1
                seconds = time.monotonic() - began
                metrics.add({"round": self.done, "rate": rate, "loss": loss, "seconds": seconds})
                meter.advance(1, self.done)
                if time.monotonic() - noted >= _NOTED_SECONDS or self.done == self.steps:
                    meter.note(f"step {self.done:,}: loss {loss:.4g} on public text")
                    noted = time.monotonic()
                if time.monotonic() - saved >= config.run.checkpoint_seconds:
                    self.save(before)
                    saved = time.monotonic()
        self.save(before)
        self._model.eval()
        return self.done >= self.steps

    def _step(self, rate: float) -> float:
        """Take one step; returns the loss before it."""
        settings = self._config.public
        count, of = settings.sentences, len(self._task.lengths)
        sentences = sentences_of_step(self.done, count, of, self._config.model.seed)
        gradient, loss = _gradient(self._config, self._model, self._task, sentences, self._autocast)
        if not math.isfinite(loss):
            raise UserError(
                f"data.public: the loss of step {self.done + 1} is not finite; lower public.rate, "
                f"which is {settings.rate:g}"
            )
        # a pretrained model's gradient is now and then several times as long as usual
        norm = torch.nn.utils.get_total_norm(gradient)
        torch._foreach_mul_(gradient, (_MOST_NORM / (norm + 1e-6)).clamp(max=1.0))
        self._optimiser.step(gradient, rate, 0.0)
        return loss


_STATE = "optimiser."


def remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of the steps, once the rounds have one."""
    shutil.rmtree(out / FOLDER / checkpoint.FOLDER, ignore_errors=True)
