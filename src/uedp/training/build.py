"""The assembly of a run: its plan, model, tasks and method, with every guard.

Training, previews, evaluation, audits and custom loops all assemble their runs here, so that none
of them can skip a guard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from uedp.accounting.decisions import Precision
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.incidence import Incidence
from uedp.mechanism.packing import ONE_PER_ROW, loss_values
from uedp.methods import Autocast, Method, SentenceTask, half_precision, method_named
from uedp.methods.base import Rounds, probe_sentences
from uedp.models.load import LoadedModel, load_model
from uedp.models.scratch import BYTES
from uedp.models.trainable import make_trainable
from uedp.progress import SILENT, Progress
from uedp.training import lineage, provenance, tasks
from uedp.training.config import Config
from uedp.training.datasets import (
    Texts,
    TrainingData,
    public_warnings,
    refuse_private_text,
)
from uedp.training.plan import Plan, build_plan, refuse_unfit_corpus

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Assembly:
    """The parts of a run before its first round; `make_task` makes tasks of other texts."""

    plan: Plan
    incidence: Incidence
    model: nn.Module
    tokenizer: Any
    method: Rounds
    held_out: tasks.Task | None
    make_task: Callable[[Texts], tasks.Task]
    max_tokens: int
    autocast: Autocast
    public: tasks.Task | None = None
    warnings: tuple[str, ...] = ()


Watch = Callable[[Assembly], Rounds]
"""Inspects a run before its first round, and returns the method that computes the rounds."""


def plan_run(
    config: Config,
    data: TrainingData,
    ledger: CorpusLedger,
    ancestors: Sequence[lineage.Ancestor] = (),
) -> Plan:
    """Plan a run on its data; `ancestors` are runs of the model that no file records.

    Guarantees:
      - a private run is refused if the model has learned from the corpus already, in any epoch,
        unless its epsilon counts the runs in which it did
    """
    known = check_corpus(config, data, ledger, ancestors)
    plan = build_plan(config, data.incidence, known)
    if plan.private:
        lineage.refuse_reused_corpus(
            known.uncounted,
            known.epochs or ((plan.shape.digest, known.texts),),
            config.model.name,
            {entry.run for entry in ledger.entries()},
            lambda: data.plain_digest,
        )
    return plan


def check_corpus(
    config: Config,
    data: TrainingData,
    ledger: CorpusLedger,
    ancestors: Sequence[lineage.Ancestor] = (),
) -> provenance.Provenance:
    """The provenance of a run; refuses a corpus that no settings can mend, before it takes time."""
    refuse_unfit_corpus(config, data.incidence)
    refuse_private_text(data)
    return provenance.gather_provenance(config, data, ledger, precision_of(config), ancestors)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model that is ready to train, and the tasks of its texts: what no noise or rate affects."""

    config: Config
    precision: Precision
    incidence: Incidence
    model: nn.Module
    tokenizer: Any
    task: tasks.Task
    held_out: tasks.Task | None
    make_task: Callable[[Texts], tasks.Task]
    max_tokens: int
    autocast: Autocast
    public: tasks.Task | None = None
    labels: tuple[str, ...] = ()


def prepare(
    config: Config,
    data: TrainingData,
    *,
    attached: LoadedModel | None = None,
    tokenizer: str | None = None,
    progress: Progress = SILENT,
) -> Prepared:
    """Load the model, or take the attached one, and make its tasks.

    Args:
        attached: a model that is ready to train, instead of the one that the config names.
        tokenizer: the tokenizer that this run has made; before that, a placeholder is used.
    """
    names: list[str] = []
    if config.task.kind == "classification":
        names = list(config.task.labels) or data.label_names()
    loaded = attached or _load(config, tokenizer, len(names))
    if names:
        if not hasattr(getattr(loaded.model, "config", None), "id2label"):
            raise UserError(f"{type(loaded.model).__name__}: a classifier needs `config.id2label`")
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
    method_named(config.privacy.method).check_model(model)
    make_task, max_tokens = _task_maker(config, replace(loaded, model=model), names, progress)
    precision = precision_of(config)
    with set_up_for_training(model, config.task.kind):
        return Prepared(
            config=config,
            precision=precision,
            incidence=data.incidence,
            model=model,
            tokenizer=loaded.tokenizer,
            task=make_task(replace(data.train, mentions=None)),  # never evaluated on
            held_out=None if data.held_out is None else make_task(data.held_out),
            make_task=make_task,
            max_tokens=max_tokens,
            autocast=_autocast(precision != "float32", device),
            public=_public_task(make_task, data),
            labels=tuple(names),
        )


def assemble(
    plan: Plan,
    data: TrainingData,
    *,
    prepared: Prepared | None = None,
    attached: LoadedModel | None = None,
    tokenizer: str | None = None,
    progress: Progress = SILENT,
    say: Say = lambda line: None,
    watch: Watch | None = None,
) -> Assembly:
    """Put a run together: the model and its tasks (`prepare`, unless given), and the method.

    Guarantees:
      - a model is refused if it has a layer without a clip rule, mixes sentences, or has clipped
        sums that differ from the reference
    """
    config = plan.config
    ready = prepared or prepare(
        config, data, attached=attached, tokenizer=tokenizer, progress=progress
    )
    if ready.labels and plan.private and not config.task.labels:
        say(
            f"labels in the corpus: {', '.join(sorted(ready.labels))}; the set of labels is not "
            "protected, unless task.labels declares it"
        )
    with set_up_for_training(ready.model, config.task.kind):
        method = build_method(plan, data.incidence, ready.model, ready.task, ready.autocast)
        assembly = Assembly(
            plan=plan,
            incidence=data.incidence,
            model=ready.model,
            tokenizer=ready.tokenizer,
            method=method,
            held_out=ready.held_out,
            make_task=ready.make_task,
            max_tokens=ready.max_tokens,
            autocast=ready.autocast,
            public=ready.public,
        )
        if watch is not None:
            assembly = replace(assembly, method=watch(assembly))
    warnings = plan.warnings(sum(p.numel() for p in assembly.method.parameters))
    source = config.vocabulary.source
    unmade = tokenizer is None and (prepared is None or source == "private")
    # else a placeholder was used, or texts were
    if (source == "tokenizer" or not unmade) and not data.stays_with_clients:
        cut = ready.task.truncation.warning(ready.max_tokens)
        warnings += [cut] if cut else []
    if data.shared_users and plan.private:
        warnings.append(
            f"{data.shared_users:,} users of data.evaluate have the name of a user in the training "
            "corpus: measures on their texts have no noise, and no guarantee covers them"
        )
    warnings += public_warnings(data)
    for warning in warnings:
        say(f"warning: {warning}")
    return replace(assembly, warnings=tuple(warnings))


def build_method(
    plan: Plan,
    incidence: Incidence,
    model: nn.Module,
    task: SentenceTask,
    autocast: Autocast = nullcontext,
) -> Method:
    """The plan's method on a model; for a private run, the model must not mix sentences."""
    if plan.private:
        refuse_mixing(model, task)
    return plan.method(plan.round_settings, incidence, model, task, autocast)


def task_of_run(
    config: Config, trained: LoadedModel, texts: Texts, progress: Progress = SILENT
) -> tasks.Task:
    """The task of a finished run on other texts, truncated as in training."""
    names: list[str] = []
    if config.task.kind == "classification":
        id2label: Mapping[int, str] = trained.model.config.id2label
        names = [id2label[number] for number in sorted(id2label)]
    return _task_maker(config, trained, names, progress)[0](texts)


# --- guards --------------------------------------------------------------------------------------


@torch.no_grad()
def refuse_mixing(model: nn.Module, task: SentenceTask) -> None:
    """Refuse a model if the loss of a sentence depends on other sentences in its batch."""
    *others, last = probe_sentences(task, (0.1, 0.3, 0.5, *_LONGER))
    short = np.array(others[:3])
    # beside one of twice their length or more, they are padded; longer still would only take time
    twice = [one for one in others[3:] if task.lengths[one] >= 2 * task.lengths[short].max()]
    sentences = np.array([*short, *twice[:1]] if twice else [*short, last])
    for packing in {ONE_PER_ROW, task.packing_for(model)}:  # shared rows fall back on single ones
        with evaluating(model), torch.autocast(next(model.parameters()).device.type, enabled=False):
            single = torch.cat(
                [loss_values(task.losses(model, short[[i]], packing)) for i in range(len(short))]
            )
            batched = loss_values(task.losses(model, sentences, packing))[:-1]
        if not torch.allclose(single, batched, rtol=_ROUNDING, atol=_ROUNDING):
            raise UserError(
                "the loss of a sentence changes with the sentences beside it: "
                f"{type(model).__name__} mixes sentences, or attends to padding; choose a model "
                "that does neither"
            )


_LONGER = (0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # quantiles of length
_ROUNDING = 1e-4  # far above rounding, far below the effect of attending to padding


# --- parts ---------------------------------------------------------------------------------------


def _load(config: Config, tokenizer: str | None, labels: int) -> LoadedModel:
    settings = config.model
    if tokenizer is None and config.vocabulary.source != "tokenizer":
        tokenizer = BYTES  # a placeholder until the run has made its vocabulary
    return load_model(
        settings.name,
        config.task.kind,
        labels=labels or None,
        dropout=settings.dropout,
        seed=settings.seed,
        sizes=settings.sizes,
        tokenizer=tokenizer or settings.tokenizer,
        quantize=settings.quantize is not None,
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
            progress,
            texts.mentions,
        )

    return make_task, max_tokens


def _public_task(make_task: Callable[[Texts], tasks.Task], data: TrainingData) -> tasks.Task | None:
    return None if data.public is None else make_task(Texts(data.public.texts, data.public.labels))


def _label_order(saved: Mapping[int, str], names: list[str]) -> list[str]:
    """The labels in the order of a saved classifier, if it has the same labels."""
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
            f"run.device {name!r}: not available on this machine; choose cpu or auto"
        ) from None


def precision_of(config: Config) -> Precision:
    """The precision of forward and backward passes, on the device that the config selects.

    A private run defaults to float32: in half precision, a user's gradient changes by a percent
    with the other users drawn, which the noise would have to cover. In passes of one shape it does
    not change, but not every model can be computed in those.
    """
    return "float32" if config.private and config.run.precision == "auto" else _fastest(config)


def without_noise(config: Config) -> Autocast:
    """The precision of passes over public text: half where that is faster, unless one is set."""
    return _autocast(_fastest(config) != "float32", device_of(config))


def _fastest(config: Config) -> Precision:
    if config.run.precision != "auto":
        return config.run.precision
    half = device_of(config).type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if half else "float32"


def _autocast(half: bool, device: torch.device) -> Autocast:
    def context() -> AbstractContextManager[Any]:
        return half_precision(device) if half else torch.autocast(device.type, enabled=False)

    return context


@contextmanager
def set_up_for_training(model: Any, kind: str) -> Iterator[None]:
    """Model settings for training only, which are not saved with the model.

    Guarantees:
      - the caller's autocast is off: in half precision, norms and sums would exceed their bounds
    """
    settings: Any = getattr(model, "config", None)
    cache = getattr(settings, "use_cache", None)
    quiet = tasks.without_padding_warning(model) if kind == "next-word" else nullcontext()
    with quiet, torch.autocast(next(model.parameters()).device.type, enabled=False):
        try:
            if cache:
                settings.use_cache = False  # only generation uses it
            yield
        finally:
            if cache:
                settings.use_cache = cache
