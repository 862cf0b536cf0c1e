"""Private rounds with the callbacks of Hugging Face Transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from uedp.training.engine import PrivacyEngine


class UedpTrainer:
    """Runs the rounds of a `PrivacyEngine`; a step of its callbacks is a round.

    Callbacks see the model, the optimizer, the scheduler and the step, as with
    `transformers.Trainer`, and may stop training. Nothing that was computed from the data without
    noise is handed to them: no loss, no number of drawn users.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: PrivacyEngine,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.engine, self.model, self.tokenizer = engine, model, tokenizer
        self.optimizer, self.scheduler = optimizer, scheduler
        rounds = engine.config.privacy.rounds
        self.args = TrainingArguments(
            output_dir=str(engine.out), max_steps=rounds, report_to=[], save_strategy="no"
        )
        self.state, self.control = TrainerState(max_steps=rounds), TrainerControl()
        self._callbacks = CallbackHandler(list(callbacks), model, tokenizer, optimizer, scheduler)

    def train(self) -> None:
        """Spend the rounds that are left; the engine then has the certificate."""
        private = self.engine.attach(self.model, self.tokenizer)
        self._tell("on_train_begin")
        for step in private.rounds(self.optimizer):
            self._tell("on_step_begin")
            self._tell("on_pre_optimizer_step")
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.optimizer.zero_grad()
            self.state.global_step = step.round
            self._tell("on_step_end")
            if self.control.should_training_stop:
                break
        self._tell("on_train_end")
        self.engine.close()

    def _tell(self, event: str) -> None:
        self.control = getattr(self._callbacks, event)(self.args, self.state, self.control)
