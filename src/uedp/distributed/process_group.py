"""Rounds by several processes of `torch.distributed`, on one machine or many.

One process, the lead (rank 0), holds the run: it draws, adds the noise, keeps ledger, locks and
checkpoints, and evaluates. The others wait for what it announces. In each round it sends them the
trained weights and who was drawn; each computes the clipped sum of its users, and one reduction
brings the sums to the lead. What a process cannot do, all processes learn of before anything is
added up, so that a round is complete or abandoned.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from uedp.distributed import refuse_shared_masks
from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.mechanism.processes import MaskKey, PartialSum, divide
from uedp.mechanism.sampling import Participants
from uedp.methods import ClippedMethod, RoundSettings, SentenceTask
from uedp.methods.base import EndToEnd
from uedp.signals import deferred, handled_by
from uedp.training.build import Assembly, Watch, prepare, set_up_for_training
from uedp.training.config import Config
from uedp.training.datasets import TrainingData, read_training_data

Result = TypeVar("Result")
LEAD = 0
_ROUNDED_UP = 1 + 2.0**-10  # what a sum of rounded updates may be longer
_AT_ONCE = 10_000  # sentences whose tokens are hashed at a time
_PATIENCE = timedelta(days=7)  # others wait while the lead plans, evaluates and saves


@dataclass(frozen=True)
class _SetUp:
    """What the others need to build the same method."""

    config: Config
    settings: RoundSettings
    tokenizer: str | None
    corpus: tuple[str, str]
    surroundings: dict[str, str]


@dataclass(frozen=True)
class _Weights:
    """Hashes of all tensors of the lead's model, before the first round."""

    hashes: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Round:
    parts: Sequence[Participants]
    mask_keys: Sequence[bytes]


class _Stop:
    """The run is over."""


@dataclass(eq=False)
class ProcessGroup:
    """The processes that `torchrun` started, as the lead sees them (see `Processes`)."""

    read: Callable[[Config], TrainingData] = read_training_data
    rank: int = field(default_factory=dist.get_rank)
    size: int = field(default_factory=dist.get_world_size)
    _sharing: bool = field(default=False, init=False)
    _agreed: bool = field(default=False, init=False)  # on all weights

    # --- the lead --------------------------------------------------------------------------------

    def watch(self, assembly: Assembly) -> ClippedMethod:
        """Let all processes build the method of a run (see `training.build.Watch`)."""
        method, config = assembly.method, assembly.plan.config
        if not isinstance(method, ClippedMethod):
            raise UserError(
                f"privacy.method {config.privacy.method}: rounds of this method are computed by "
                "one process; start one"
            )
        refuse_shared_masks(assembly.model)
        words = str(getattr(assembly.tokenizer, "name_or_path", "") or "")
        made = config.vocabulary.source != "tokenizer" and Path(words).is_dir()
        # only the lead evaluates, and trains on public text
        data = config.data.model_copy(update={"evaluate": None, "public": None})
        config = config.model_copy(update={"data": data})
        order = _SetUp(
            config,
            assembly.plan.round_settings,
            words if made else None,
            _digests(self.read(config)),
            _surroundings(method),
        )
        with _as_user_error():
            self._send(order)
            _refuse_errors(self._gather((None, None)))
        self._model, self._parameters = assembly.model, method.parameters
        self._clip = method.settings.clips.update
        self._agreed = False
        method.processes = self
        return method

    @contextmanager
    def sharing(
        self, drawn: Participants, lengths: Ints, mask_key: MaskKey
    ) -> Iterator[Participants]:
        parts = [drawn.part(places) for places in divide(drawn, lengths, self.size)]
        keys = [mask_key(process) for process in range(self.size)]
        weights = _flat(self._parameters)  # whatever may fail does so before others are told
        try:
            with _as_user_error(), deferred():  # a round is announced with its weights, or not
                if not self._agreed:  # public text and a checkpoint may change frozen weights
                    self._agree_on_weights()
                self._send(_Round(parts, keys))
                dist.broadcast(weights, LEAD)
                self._sharing = True
            yield parts[LEAD]
        finally:
            if self._sharing:  # an exception on the way: no process may wait for this one
                self._sharing = False
                with suppress(RuntimeError):
                    self._gather((None, "abandoned"))

    def _agree_on_weights(self) -> None:
        self._send(_Weights(_hashes(self._model)))
        wanted = {name for missing, _ in self._gather(([], None)) for name in missing}
        tensors = _tensors(self._model)
        for name in sorted(wanted):
            dist.broadcast(tensors[name].detach().cpu().contiguous(), LEAD)
        self._agreed = True

    def add_up(self, own: PartialSum) -> PartialSum:
        with _as_user_error(), deferred():  # others would wait for what the lead does not send
            self._sharing = False
            answers = self._gather((None, None))
            _refuse_errors(answers)
            _reduce(own.total)
            clipped, updates = zip(*self._gather((own.clipped, own.updates)), strict=True)
        whole = PartialSum(own.total, np.concatenate(clipped), np.concatenate(updates))
        norm = float(torch.linalg.vector_norm(whole.total, dtype=torch.float64))
        if not norm <= _ROUNDED_UP * self._clip * len(whole.updates):  # or not a number
            raise UserError(
                f"the sum of {len(whole.updates):,} clipped updates is longer than they can be, or "
                "not finite: a process computed, or sent, something else; nothing of this round "
                "was released"
            )
        return whole

    def stop(self) -> None:
        """Let the other processes end; they may be gone already."""
        with suppress(RuntimeError):
            self._send(_Stop())

    # --- the others ------------------------------------------------------------------------------

    def serve(self) -> None:
        """Compute parts of rounds until the lead is done."""
        method: ClippedMethod | None = None
        while not isinstance(order := self._send(None), _Stop):
            if isinstance(order, _SetUp):
                method = self._set_up(order)
            elif method is not None and isinstance(order, _Weights):
                self._take_weights(method.model, order)
            elif method is not None:
                self._compute(method, order)

    def _set_up(self, order: _SetUp) -> ClippedMethod | None:
        error, method = None, None
        try:
            method = self._built(order)
        except (UserError, OSError, RuntimeError) as problem:
            error = f"process {self.rank}: {problem}"
        self._gather((None, error))
        return method

    def _take_weights(self, model: nn.Module, order: _Weights) -> None:
        own = _hashes(model)
        missing = [name for name, value in order.hashes.items() if own.get(name) != value]
        wanted = {name for missing, _ in self._gather((missing, None)) for name in missing}
        tensors = _tensors(model)
        with torch.no_grad():
            for name in sorted(wanted):
                received = torch.empty_like(tensors[name], device="cpu").contiguous()
                dist.broadcast(received, LEAD)
                tensors[name].copy_(received)

    def _built(self, order: _SetUp) -> ClippedMethod:
        config = order.config
        data = self.read(config)
        if _digests(data) != order.corpus:
            raise UserError(
                f"{config.data.train}: not the corpus that process {LEAD} has; every process must "
                "see the same files"
            )
        ready = prepare(config, data, tokenizer=order.tokenizer)
        with set_up_for_training(ready.model, config.task.kind):
            method = _method_type(config)(
                order.settings, data.incidence, ready.model, ready.task, ready.autocast
            )
        refuse_shared_masks(ready.model)
        for name, here in _surroundings(method).items():
            if here != (there := order.surroundings[name]):
                # which process computes a user depends on the lengths of others' texts
                raise UserError(
                    f"{name}: {here}, where process {LEAD} has {there}; the update of a user must "
                    "not depend on which process computes it: start processes that are alike"
                )
        method.model.train()
        self._config = config
        return method

    def _compute(self, method: ClippedMethod, order: _Round) -> None:
        _receive(method.parameters)
        error, part = None, None
        try:
            with set_up_for_training(method.model, self._config.task.kind):
                part = method.part_of_round(order.parts[self.rank], order.mask_keys[self.rank])
        except (UserError, RuntimeError) as problem:
            error = f"process {self.rank}: {problem}"
        answers = self._gather((None, error))
        if part is None or any(error for _, error in answers):
            return
        _reduce(part.total)
        self._gather((part.clipped, part.updates))

    # --- messages --------------------------------------------------------------------------------

    def _send(self, message: Any) -> Any:
        """The lead's message, for all processes."""
        box = [message]
        dist.broadcast_object_list(box, LEAD)
        return box[0]

    def _gather(self, own: Any) -> list[Any]:
        """What each process says, for all processes."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, own)
        return every


def train_together(
    train: Callable[[Watch], Result], read: Callable[[Config], TrainingData] = read_training_data
) -> Result | None:
    """Train in the lead of the processes that `torchrun` started; serve it in the others.

    Args:
        train: trains with a watch; called in the lead.
        read: reads the data of a config.

    Returns:
        What `train` returned; None in the other processes, once the lead is done.
    """
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    group = ProcessGroup(read)
    try:
        if group.rank == LEAD:
            return train(group.watch)
        with handled_by(lambda number, frame: None):  # the lead decides when to stop
            group.serve()
        return None
    except RuntimeError as error:
        if group.rank == LEAD:
            raise
        raise UserError(f"process {LEAD} is gone ({_brief(error)})") from None
    finally:
        if group.rank == LEAD:
            group.stop()
        with suppress(RuntimeError):
            dist.destroy_process_group()


@contextmanager
def _as_user_error() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"a process of this run is gone ({_brief(error)}); nothing of this round was released: "
            "start the processes again with `resume=True`"
        ) from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _refuse_errors(answers: Sequence[tuple[Any, str | None]]) -> None:
    if errors := [error for _, error in answers if error]:
        raise UserError(errors[0])


def _method_type(config: Config) -> type[ClippedMethod]:
    from uedp.methods import method_named

    method = method_named(config.privacy.method)
    assert issubclass(method, ClippedMethod)  # or the lead would have refused it
    return method


def _digests(data: TrainingData) -> tuple[str, str]:
    return data.incidence.digest, data.text_digest


def _surroundings(method: ClippedMethod) -> dict[str, str]:
    """What a user's update depends on beside weights and texts: by name, as it is here."""
    return {
        "device": _device_name(method.parameters[0].device),
        "PyTorch": torch.__version__,
        "Transformers": version("transformers"),
        "tokens of the texts (SHA-256)": _hash_of_tokens(method.task),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _hash_of_tokens(task: SentenceTask) -> str:
    state = hashlib.sha256(np.ascontiguousarray(task.lengths, dtype="<i8").data)
    if isinstance(task, EndToEnd):
        for start in range(0, len(task.lengths), _AT_ONCE):
            ids, _ = task.tokens_of(np.arange(start, min(start + _AT_ONCE, len(task.lengths))))
            state.update(np.ascontiguousarray(ids, dtype="<i8").data)
    return state.hexdigest()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _hashes(model: nn.Module) -> dict[str, str]:
    return {
        name: hashlib.sha256(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for name, tensor in _tensors(model).items()
    }


@torch.no_grad()
def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


@torch.no_grad()
def _receive(parameters: Sequence[Tensor]) -> None:
    """Take the values that the lead broadcasts."""
    flat = _flat(parameters)
    dist.broadcast(flat, LEAD)
    for parameter, values in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.copy_(values.view(parameter.shape))


def _reduce(total: Tensor) -> None:
    """The sum over all processes, in the lead's tensor, complete on return."""
    dist.reduce(total, LEAD)
    if total.is_cuda:  # there it is only queued, and the round would be entered before it is there
        torch.cuda.synchronize(total.device)
