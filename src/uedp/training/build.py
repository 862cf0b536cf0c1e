"""The one place where a run is put together: its plan, model, tasks and method, with every guard.

Training, previews, evaluation, audits and the engine for a loop of one's own all come here, so that
none of them can leave out a guard or build a run that another would not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from uedp.accounting.decisions import Precision
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.incidence import Incidence
from uedp.mechanism.packing import loss_values
from uedp.methods import Autocast, Method, SentenceTask
from uedp.methods.base import Rounds, probe_sentences
from uedp.models.load import LoadedModel, load_model
from uedp.models.scratch import BYTES
from uedp.models.trainable import make_trainable
from uedp.progress import SILENT, Progress
from uedp.training import lineage, provenance, tasks
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData
from uedp.training.plan import Plan, build_plan

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Assembly:
    """Everything a run is made of before its first round; `make_task` is for other texts."""

    plan: Plan
    incidence: Incidence
    model: nn.Module
    tokenizer: Any
    method: Rounds
    held_out: tasks.Task | None
    make_task: Callable[[Texts], tasks.Task]
    max_tokens: int
    autocast: Autocast


Watch = Callable[[Assembly], Rounds]
"""Sees a run before its first round, and gives the method that makes the rounds."""


def plan_run(
    config: Config,
    data: TrainingData,
    ledger: CorpusLedger,
    ancestors: Sequence[lineage.Ancestor] = (),
) -> Plan:
    """Plan a run on its data; `ancestors` are runs of the model that no file tells of.

    Guarantees:
      - a private run on a corpus that the model has learned from already is refused
    """
    known = provenance.gather_provenance(config, data, ledger, precision_of(config), ancestors)
    plan = build_plan(config, data.incidence, known)
    if plan.private:
        lineage.refuse_reused_corpus(known.model, plan.shape.digest, config.model.name, known.texts)
    return plan


def assemble(
    plan: Plan,
    data: TrainingData,
    *,
    attached: LoadedModel | None = None,
    tokenizer: str | None = None,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
    watch: Watch | None = None,
) -> Assembly:
    """Load the model, or take the attached one, and make its tasks and its method.

    Args:
        attached: a model that is ready to train, in place of the one that the config names.
        tokenizer: of the words that this run has made; until there are any, a stand-in is used.

    Guarantees:
      - a model is refused that has a layer without a clip rule, that mixes sentences, or whose
        clipped sums are not those of the reference
    """
    config = plan.config
    names: list[str] = []
    if config.task.kind == "classification":
        names = list(config.task.labels) or data.label_names()
        if plan.private and not config.task.labels:
            say(
                f"labels found in the corpus: {', '.join(names)}; that there are these is not "
                "protected, unless task.labels names them"
            )
    loaded = attached or _load(config, tokenizer, len(names))
    if names:
        names = _label_order(loaded.model.config.id2label, names)
        loaded.model.config.id2label = dict(enumerate(names))
        loaded.model.config.label2id = {name: i for i, name in enumerate(names)}
    model: nn.Module = loaded.model
    device = next(model.parameters()).device
    if attached is None:
        device = device_of(config)
        model = make_trainable(
            loaded.model,
            config.model.train,
            rank=config.model.rank,
            alpha=config.model.alpha,
            targets=config.model.targets,
            seed=config.model.seed,
        ).to(device)
    plan.method.check_model(model)
    make_task, max_tokens = _task_maker(config, replace(loaded, model=model), names, progress)
    autocast = _autocast(plan.provenance.precision == "bfloat16", device)
    with set_up_for_training(model, config.task.kind):
        method = build_method(plan, data.incidence, model, make_task(data.train), autocast)
        assembly = Assembly(
            plan=plan,
            incidence=data.incidence,
            model=model,
            tokenizer=loaded.tokenizer,
            method=method,
            held_out=None if data.held_out is None else make_task(data.held_out),
            make_task=make_task,
            max_tokens=max_tokens,
            autocast=autocast,
        )
        if watch is not None:
            assembly = replace(assembly, method=watch(assembly))
    for warning in plan.warnings(sum(p.numel() for p in assembly.method.parameters)):
        say(f"warning: {warning}")
    return assembly


def build_method(
    plan: Plan,
    incidence: Incidence,
    model: nn.Module,
    task: SentenceTask,
    autocast: Autocast = nullcontext,
) -> Method:
    """The plan's method on a model; for private runs, one that keeps sentences apart."""
    if plan.private:
        refuse_mixing(model, task)
    return plan.method(plan.round_settings, incidence, model, task, autocast)


def task_of_run(
    config: Config, trained: LoadedModel, texts: Texts, progress: Progress = SILENT
) -> tasks.Task:
    """The task of a finished run on other texts, cut as in training."""
    names: list[str] = []
    if config.task.kind == "classification":
        id2label: Mapping[int, str] = trained.model.config.id2label
        names = [id2label[number] for number in sorted(id2label)]
    return _task_maker(config, trained, names, progress)[0](texts)


# --- guards --------------------------------------------------------------------------------------


@torch.no_grad()
def refuse_mixing(model: nn.Module, task: SentenceTask) -> None:
    """Refuse a model in which the loss of a short sentence changes beside a long one."""
    sentences = probe_sentences(task, (0.1, 0.3, 0.5, 1.0))
    short = sentences[:-1]
    packing = task.packing_for(model)
    with evaluating(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
        alone = torch.cat(
            [loss_values(task.losses(model, short[[i]], packing)) for i in range(len(short))]
        )
        beside = loss_values(task.losses(model, sentences, packing))[:-1]
    if not torch.allclose(alone, beside, rtol=_ROUNDING, atol=_ROUNDING):
        raise UserError(
            f"the loss of a sentence changes with the sentences beside it: {type(model).__name__} "
            "mixes sentences, or attends to padding; choose a model that does neither"
        )


_ROUNDING = 1e-4  # rounding is far below, a model that attends to padding above


# --- parts ---------------------------------------------------------------------------------------


def _load(config: Config, tokenizer: str | None, labels: int) -> LoadedModel:
    settings = config.model
    if tokenizer is None and config.vocabulary.source != "tokenizer":
        tokenizer = BYTES  # a stand-in, until the words of the run are made
    return load_model(
        settings.name,
        config.task.kind,
        labels=labels or None,
        dropout=settings.dropout,
        seed=settings.seed,
        sizes=settings.sizes,
        tokenizer=tokenizer or settings.tokenizer,
    )


def _task_maker(
    config: Config, loaded: LoadedModel, names: list[str], progress: Progress
) -> tuple[Callable[[Texts], tasks.Task], int]:
    from uedp.training.vectors import encoder_for  # imports Transformers, which takes seconds

    max_tokens = min(config.model.max_tokens, loaded.max_tokens)
    encode = encoder_for(loaded.model, loaded.tokenizer, max_tokens, config.run.vectors, progress)

    def make_task(texts: Texts) -> tasks.Task:
        return tasks.build_task(
            config.task.kind,
            texts.texts,
            texts.labels,
            names,
            loaded.tokenizer,
            max_tokens,
            encode,
        )

    return make_task, max_tokens


def _label_order(saved: Mapping[int, str], names: list[str]) -> list[str]:
    """The labels as a saved classifier numbers them, if these are its labels."""
    known = [saved[number] for number in sorted(saved)]
    return known if sorted(known) == sorted(names) else names


def device_of(config: Config) -> torch.device:
    name = config.run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise UserError(
            f"run.device {name!r}: there is no such device here; choose cpu, or auto"
        ) from None


def precision_of(config: Config) -> Precision:
    """The precision of forward and backward passes, on the device that the config selects.

    By default a private run takes float32: in half precision, who else was drawn moves everybody's
    gradients by a percent, which the noise would have to cover.
    """
    if config.run.precision != "auto":
        return config.run.precision
    half = device_of(config).type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if half and not config.private else "float32"


def _autocast(half: bool, device: torch.device) -> Autocast:
    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16, enabled=half)

    return context


@contextmanager
def set_up_for_training(model: Any, kind: str) -> Iterator[None]:
    """Settings of a model that are for training alone, not to be saved with it."""
    settings: Any = getattr(model, "config", None)
    cache = getattr(settings, "use_cache", None)
    with tasks.without_padding_warning(model) if kind == "next-word" else nullcontext():
        try:
            if cache:
                settings.use_cache = False  # keys and values of a generation
            yield
        finally:
            if cache:
                settings.use_cache = cache
