"""Private rounds with Hugging Face Transformers callbacks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from uedp.training.engine import PrivacyEngine


class UedpTrainer:
    """Runs the rounds of a `PrivacyEngine`; a step of its callbacks is a round.

    Callbacks get the model, the optimizer, the scheduler and the step, as with
    `transformers.Trainer`, and may stop training. They get nothing that was computed from the data
    without noise: no loss, no number of drawn users.
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
        """Spend the remaining rounds; the engine then has the certificate."""
        private = self.engine.attach(self.model, self.tokenizer)
        self.args.max_steps = self.state.max_steps = private.plan.rounds  # the planner's, perhaps
        try:
            self._notify("on_train_begin")
            for step in private.rounds(self.optimizer):
                self._notify("on_step_begin")
                self._notify("on_pre_optimizer_step")
                self.optimizer.step()
                if self.scheduler is not None:
                    self.scheduler.step()
                self.optimizer.zero_grad()
                self.state.global_step = step.round
                self._notify("on_step_end")
                if self.control.should_training_stop:
                    break
            self._notify("on_train_end")
            if not private.finished:
                private.certify()
        finally:
            self.engine.close()

    def _notify(self, event: str) -> None:
        self.control = getattr(self._callbacks, event)(self.args, self.state, self.control)
