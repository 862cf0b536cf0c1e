"""Whole training rounds on real text, beside the loops that people write without privacy.

    python benchmarks/train_step.py prepare --data DIR --tokenizer FOLDER --out FILE.npz
    python benchmarks/train_step.py run --prepared FILE.npz [--cases headline] [--out FILE.json]
    python benchmarks/train_step.py whole --prepared FILE.npz [--rounds 200] [--out FILE.json]

`prepare` tokenises CoNLL-2003 and blogs once; the others need neither text nor tokenizer. `whole`
is a run from its plan to its certificate: rotation on CoNLL at rate 0.2, SmolLM2 with adapters,
evaluated on the validation part before, every 25 rounds and after. In `run`, every contender
works through the sentences of the same rounds, drawn as a private run draws them, and takes one
optimiser step a round. Side by side in one run, in turns of a few rounds, median:

  ours      a private round as in training: draw, clip twice, secure noise, Adam, average
  plain     (a) Transformers and PEFT as people use them: float32 weights, bf16 autocast on an
            accelerator, padded batches of similar length, the fastest of three batch sizes, AdamW
  tricks    (b) the same step with everything that makes ours fast (`Tricks`)
  opacus    (c) ghost clipping, per sentence only, batches as in (a); where it is installed and
            supports the model: it has no rule for GPT-2's Conv1D, Llama's norms and tied weights,
            which leaves LoRA

Tokens are those of the sentences, without padding. `ours is` compares tokens a second, then peak
memory (reserved by PyTorch; resident on a CPU). `kernels` and `CPU` are sums over one more round
under PyTorch's profiler, which slows it down: compare them with each other, not with the seconds.

A case is MODEL/HOW/TASK/DATA/METHOD, such as smollm2/lora/next-word/conll/user-level; `--cases`
takes several, with wildcards, and the names `headline` and `all`. The classifiers tell sentences
that mention an entity from the rest.
"""

import argparse
import ctypes
import fnmatch
import gc
import hashlib
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers
from clip import NO_DROPOUT, SMOLLM2
from torch import Tensor, nn

from uedp.incidence import Incidence, Ints
from uedp.mechanism.clip.engine import attention_without_plans
from uedp.mechanism.fixed.fixed_pass import FixedPass, Sentences
from uedp.mechanism.fixed.token_loss import IGNORED, token_losses
from uedp.mechanism.packing import SharedRows, packed_logits
from uedp.mechanism.release import max_tokens_on
from uedp.methods import method_named
from uedp.methods.base import Attempt
from uedp.methods.clipped import ClippedMethod
from uedp.methods.randomness import Randomness
from uedp.models.load import LoadedModel
from uedp.models.trainable import make_trainable
from uedp.progress import SILENT
from uedp.training import build, loop, optimise
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData
from uedp.training.engine import PrivacyEngine
from uedp.training.plan import build_plan
from uedp.training.provenance import Provenance

Array = npt.NDArray[Any]

MAX_TOKENS = 128  # of a sentence, the default of training
LABELS = ("no entity", "entity")
ROUNDS_PLANNED = 200
ONE_OF_200: Mapping[str, Any] = {"noise": 1.0, "rounds": ROUNDS_PLANNED}

GPT2 = {"vocab_size": 50257, **NO_DROPOUT}
TINY = {
    "smollm2": {"vocab_size": 512, "hidden_size": 48, "intermediate_size": 96}
    | {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1},
    "gpt2": {"vocab_size": 512, "n_embd": 48, "n_layer": 2, "n_head": 3},
}


class Case(NamedTuple):
    model: str
    how: str
    task: str
    data: str
    method: str

    @property
    def name(self) -> str:
        return "/".join(self)


MODELS, HOWS = ("smollm2", "gpt2"), ("lora", "full")
TASKS, DATA, METHODS = (
    ("next-word", "classification"),
    ("conll", "blogs"),
    ("user-level", "rotation"),
)
ALL = [Case(*parts) for parts in product(MODELS, HOWS, TASKS, DATA, METHODS)]
# rotation and blogs change the sentences that are drawn, hardly what is computed for them
CHOICES = {
    "headline": ["smollm2/lora/next-word/conll/user-level"],
    "all": [
        "*/conll/user-level",
        "smollm2/*/next-word/blogs/rotation",
        "smollm2/lora/*/conll/rot*",
    ],
}
# what a round draws: CoNLL as in the paper's tables, blogs as the planner chooses
RATES = {"conll": (0.1, None), "blogs": (0.05, 4)}
CPU_RATES = {"conll": (0.015, 4), "blogs": (0.005, 4)}  # seconds a round


# --- data ----------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Token ids, users and mentions of both data sets, as one file of integers."""
    from research.datasets import load_incidence, load_texts, prepare_dataset

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    arrays: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare_dataset("conll", options.data, Path(folder))
        texts, incidence = load_texts(Path(folder), "train").texts, load_incidence(Path(folder))
        arrays |= _arrays("conll", texts, incidence, tokenizer)
        held_out = _ids(load_texts(Path(folder), "validation").texts, tokenizer)
        arrays |= {f"conll_held_out_{key}": array for key, array in held_out.items()}
    with tempfile.TemporaryDirectory() as folder:
        corpus = _blogs(options, Path(folder))
        texts = [sentence.text for sentence in corpus]
        arrays |= _arrays("blogs", texts, corpus.incidence, tokenizer)
    with options.out.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MiB")


def _blogs(options: argparse.Namespace, folder: Path) -> Any:
    import uedp
    from uedp.corpus.readers import read_sentences
    from uedp.corpus.store import Corpus

    if options.blogs is not None:
        return Corpus(options.blogs)
    sentences = read_sentences(options.data / "blogs" / "train.jsonl.gz")
    return uedp.detect(sentences, folder / "corpus", uedp.Detection(("patterns",)))


def _arrays(
    name: str, texts: Sequence[str], incidence: Incidence, tokenizer: Any
) -> dict[str, Array]:
    mentions = incidence.sentence_entities
    arrays = {
        **_ids(texts, tokenizer),
        "user": incidence.sentence_user.astype(np.int32),
        "mention_sentence": mentions.row_of_value().astype(np.int32),
        "mention_entity": mentions.values.astype(np.int32),
        "end": np.array(tokenizer.eos_token_id),
    }
    tokens, users = int(arrays["lengths"].sum()), incidence.users
    print(f"{name}: {len(texts):,} sentences of {users:,} users, {tokens:,} tokens")
    return {f"{name}_{key}": array for key, array in arrays.items()}


def _ids(texts: Sequence[str], tokenizer: Any) -> dict[str, Array]:
    cut = {"truncation": True, "max_length": MAX_TOKENS, "add_special_tokens": False}
    rows = tokenizer(list(texts), **cut)["input_ids"]
    assert len(tokenizer) <= 1 << 16
    return {
        "ids": np.concatenate([np.array(row, dtype=np.uint16) for row in rows]),
        "lengths": np.array([len(row) for row in rows], dtype=np.uint16),
    }


class Prepared:
    """The sentences of a data set as ids, and the incidence."""

    def __init__(self, file: Any, name: str, vocabulary: int) -> None:
        self.rows = _rows(file, name, vocabulary)
        self.sentences = len(self.rows)
        if f"{name}_held_out_ids" in file:
            self.rows += _rows(file, f"{name}_held_out", vocabulary)
        self.end = int(file[f"{name}_end"]) % vocabulary
        user, entity = file[f"{name}_user"], file[f"{name}_mention_entity"]
        self.incidence = Incidence.build(
            user,
            file[f"{name}_mention_sentence"],
            entity,
            int(user.max()) + 1,
            int(entity.max(initial=-1)) + 1,
        )

    @cached_property
    def framed(self) -> list[Array]:
        """Sentences with a start and an end token, as next-word training reads them."""
        edge = np.array([self.end])
        return [np.concatenate([edge, row, edge])[:MAX_TOKENS] for row in self.rows]

    @cached_property
    def labels(self) -> Array:
        return (~self.incidence.extended).astype(np.int64)

    def training_data(self, folder: Path, whole: bool = False) -> TrainingData:
        """The data of a run: the text of a sentence is its number (`Numbered`)."""
        texts = [str(number) for number in range(len(self.rows))]
        train, held_out = texts[: self.sentences], texts[self.sentences :]
        return TrainingData(
            Texts(train, [LABELS[label] for label in self.labels]),
            self.incidence,
            folder,
            Texts(held_out, [None] * len(held_out)) if whole else None,
        )


def _rows(file: Any, name: str, vocabulary: int) -> list[Array]:
    ends = np.cumsum(file[f"{name}_lengths"], dtype=np.int64)
    return np.split(file[f"{name}_ids"].astype(np.int64) % vocabulary, ends[:-1])


class Numbered:
    """A tokenizer whose texts are the numbers of sentences that are tokenised already."""

    model_max_length, name_or_path = MAX_TOKENS, ""

    def __init__(self, prepared: Prepared, vocabulary: int) -> None:
        self._rows, self._size = prepared.rows, vocabulary
        self.bos_token_id = self.eos_token_id = self.pad_token_id = prepared.end

    def __call__(
        self, texts: Sequence[str], max_length: int = MAX_TOKENS, **_: Any
    ) -> dict[str, Any]:
        return {"input_ids": [self._rows[int(text)][:max_length].tolist() for text in texts]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return ""

    def save_pretrained(self, folder: Path) -> None:
        pass

    def get_vocab(self) -> dict[str, int]:
        return {}

    def __len__(self) -> int:
        return self._size


# --- models --------------------------------------------------------------------------------------


def new_model(case: Case, prepared: Prepared, options: argparse.Namespace) -> nn.Module:
    """The architecture at full size with random weights, or a saved SmolLM2."""
    torch.manual_seed(0)
    classifies = case.task == "classification"
    if options.model is not None and case.model == "smollm2":
        kind: Any = transformers.AutoModelForCausalLM
        labels = {}
        if classifies:
            kind, labels = transformers.AutoModelForSequenceClassification, {"num_labels": 2}
        loaded = kind.from_pretrained(options.model, dtype=torch.float32, **labels)
        model: Any = loaded.to(options.device)
    else:
        with torch.device(options.device):
            model = _random_model(case, classifies, TINY[case.model] if options.tiny else {})
    model.config.pad_token_id = prepared.end
    model.config.use_cache = False
    return make_trainable(model, case.how, rank=8).to(options.device).train()


def _random_model(case: Case, classifies: bool, sizes: dict[str, int]) -> Any:
    if case.model == "gpt2":
        config: Any = transformers.GPT2Config(**{**GPT2, **sizes}, num_labels=2)
        kinds = transformers.GPT2LMHeadModel, transformers.GPT2ForSequenceClassification
    else:
        config = transformers.LlamaConfig(**{**SMOLLM2, **sizes}, num_labels=2)
        kinds = transformers.LlamaForCausalLM, transformers.LlamaForSequenceClassification
    return kinds[classifies](config)


def by_length(lengths: Ints, sentences: Ints, size: int) -> list[Ints]:
    """Batches of `size` sentences of similar length, the longest first."""
    ordered = sentences[np.argsort(-lengths[sentences], kind="stable")]
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


# --- contenders ----------------------------------------------------------------------------------


class Setting(NamedTuple):
    """What all contenders of a case share."""

    case: Case
    prepared: Prepared
    data: TrainingData
    config: Config
    drawn: list[Ints]  # the sentences of each round
    keys: list[bytes]  # that draw them
    options: argparse.Namespace

    @property
    def classifies(self) -> bool:
        return self.case.task == "classification"

    @property
    def rows(self) -> list[Array]:
        return self.prepared.rows if self.classifies else self.prepared.framed

    def autocast(self) -> AbstractContextManager[Any]:
        half = self.config.run.precision == "bfloat16"
        return torch.autocast(self.options.device, torch.bfloat16, enabled=half)

    def padded(self, sentences: Ints) -> dict[str, Tensor]:
        """A batch on the device, as a collator of Transformers makes it."""
        chosen = [self.rows[sentence] for sentence in sentences]
        shape = len(chosen), max(map(len, chosen))
        ids, mask = np.full(shape, self.prepared.end), np.zeros(shape, dtype=np.int64)
        for place, row in enumerate(chosen):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        labels = self.prepared.labels[sentences]
        if not self.classifies:
            labels = np.where(mask, ids, IGNORED)
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {
            name: torch.from_numpy(array).to(self.options.device, non_blocking=True)
            for name, array in batch.items()
        }


class Ours:
    """A private round, put together as training does; the noise is secure."""

    def __init__(self, setting: Setting) -> None:
        self._setting, config = setting, setting.config
        vocabulary = vocabulary_of(setting.case, setting.options)
        tokenizer = Numbered(setting.prepared, vocabulary)
        model = new_model(setting.case, setting.prepared, setting.options)
        if setting.classifies:
            model.config.id2label = dict(enumerate(LABELS))
        attached = LoadedModel(model, tokenizer, MAX_TOKENS)
        ready = build.prepare(config, setting.data, attached=attached)
        plan = planned(config, setting.prepared.incidence)
        self._assembly = build.assemble(plan, setting.data, prepared=ready)
        parameters = self._assembly.method.parameters
        self._optimiser = optimise.build_optimiser(config.optimiser, parameters)
        decay = config.optimiser.average  # by default of next-word adapters only
        self._average = optimise.Average(parameters, decay) if decay else None

    @property
    def pass_tokens(self) -> int | None:
        fixed = getattr(self._assembly.method, "_fixed", None)
        return None if fixed is None else int(fixed.one.tokens)

    def round(self, number: int) -> None:
        setting, assembly = self._setting, self._assembly
        if not assembly.model.training:
            assembly.model.train()
        with build.set_up_for_training(assembly.model, setting.case.task):
            attempt = Attempt(take_key=lambda: setting.keys[number])
            gradient = assembly.method.round(number, attempt)
        rate = optimise.learning_rate(setting.config.optimiser, number, ROUNDS_PLANNED)
        self._optimiser.step(gradient.values, rate, gradient.deviation)
        if self._average is not None:
            self._average.update(number + 1)
        assert gradient.stats.sentences == len(setting.drawn[number])


class Plain:
    """(a) A loop as people write it; gradients of padded batches accumulate to one step."""

    def __init__(self, setting: Setting, size: int) -> None:
        self._setting, self.size = setting, size
        self._model = new_model(setting.case, setting.prepared, setting.options)
        self._lengths = np.array([len(row) for row in setting.rows])
        self._optimiser = adamw(self._model)

    def round(self, number: int) -> None:
        setting, sentences = self._setting, self._setting.drawn[number]
        for batch in by_length(self._lengths, sentences, self.size):
            with setting.autocast():
                loss = self._model(**setting.padded(batch)).loss
            (loss * (len(batch) / len(sentences))).backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Tricks:
    """What makes ours fast and needs no privacy: everything that (b) is given too."""

    half_frozen: bool = True  # frozen weights in half precision, where activations are
    packed: bool = True  # sentences end to end in shared rows, as many as ours at once
    planless: bool = True  # attention without cuDNN, which plans for every new shape
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model  # fused layers, graphs
    token_loss: Callable[[Tensor, Tensor], Tensor] | None = None  # of logits and labels

    def attention(self, device: str) -> AbstractContextManager[Any]:
        if not self.planless or device == "cpu":
            return nullcontext()
        return attention_without_plans()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.token_loss is not None:
            return self.token_loss(logits, labels)
        return nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED)


def _in_place(logits: Tensor, labels: Tensor) -> Tensor:
    losses = token_losses(logits, labels)
    return losses.sum() / (labels != IGNORED).sum()


TRICKS = Tricks(token_loss=_in_place)


class Tricky:
    """(b) The plain step with the tricks of ours."""

    def __init__(self, setting: Setting, tricks: Tricks = TRICKS) -> None:
        self._setting, self._tricks = setting, tricks
        model = new_model(setting.case, setting.prepared, setting.options)
        if tricks.half_frozen and setting.config.run.precision == "bfloat16":
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.bfloat16()
        if not setting.classifies:
            model.config.pad_token_id = None  # or every row is searched for padding
        self._model = tricks.prepare(model)
        self._lengths = np.array([len(row) for row in setting.rows])
        self._optimiser = adamw(model)
        device = torch.device(setting.options.device)
        self._at_once = setting.config.run.tokens_at_once or max_tokens_on(device)

    def round(self, number: int) -> None:
        setting, sentences = self._setting, self._setting.drawn[number]
        for batch in self._batches(sentences):
            with setting.autocast(), self._tricks.attention(setting.options.device):
                loss = self._loss(batch)
                (loss * (len(batch) / len(sentences))).backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def _loss(self, batch: Ints) -> Tensor:
        setting = self._setting
        if setting.classifies or not self._tricks.packed:
            loss: Tensor = self._model(**setting.padded(batch)).loss
            return loss
        rows, layout = [setting.rows[i] for i in batch], SharedRows.of(self._lengths[batch])
        host = (
            layout.fill(rows, setting.prepared.end),
            layout.positions(),
            layout.fill([row[1:] for row in rows], IGNORED),
        )
        ids, positions, labels = (
            tensor.to(setting.options.device, non_blocking=True) for tensor in host
        )
        logits = packed_logits(self._model, ids, positions)
        return self._tricks.loss(logits.flatten(0, 1), labels.flatten())

    def _batches(self, sentences: Ints) -> list[Ints]:
        """By length, about as many tokens at once as ours."""
        ordered = sentences[np.argsort(self._lengths[sentences], kind="stable")]
        shares = self._tricks.packed and not self._setting.classifies
        lengths = self._lengths[ordered]
        tokens = lengths.sum() if shares else len(ordered) * lengths.max()
        return np.array_split(ordered, min(len(ordered), math.ceil(tokens / self._at_once)))


class PlainPass(FixedPass):
    """The recorded pass of ours, with the gradient of a plain loop in place of clipped sums."""

    def _form(self, wave: Any) -> None:
        start = sum(other.size for other in self._waves[: self._waves.index(wave)])
        for formed in wave.products():
            thin, wide = formed.thin, formed.wide
            options = {"out_dtype": torch.float32} if thin.dtype == torch.bfloat16 else {}
            gradient = torch.mm(thin.t(), wide, **options).mul_(formed.scale)
            own = self._total[start + formed.start :][: gradient.numel()]
            own.copy_(gradient.flatten())
        wave.forget()

    def _clip(self) -> tuple[Tensor, ...]:
        return (self._total.new_zeros(self.sentences),) * 2 + (self._total.new_ones(()),)


class Recorded:
    """(b) for adapters: the same passes as ours, without sentences, users, clips and noise."""

    def __init__(self, setting: Setting, tokens: int) -> None:
        self._setting = setting
        self._model = new_model(setting.case, setting.prepared, setting.options)
        dtype = torch.bfloat16 if setting.config.run.precision == "bfloat16" else torch.float32
        self._pass = PlainPass(self._model, tokens, MAX_TOKENS, dtype)
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._optimiser = adamw(self._model)

    def round(self, number: int) -> None:
        setting, sentences = self._setting, self._setting.drawn[number]
        lengths = np.array([len(setting.rows[i]) for i in sentences])
        total = torch.zeros_like(self._pass._total)
        self._pass.refresh()
        start = 0
        while start < len(sentences):
            end = start + int(
                np.searchsorted(np.cumsum(lengths[start:]), self._pass.tokens, "right")
            )
            end = min(end, start + self._pass.sentences)
            own = np.concatenate([setting.rows[i] for i in sentences[start:end]])
            nobody = np.zeros(end - start, dtype=np.int64)
            batch = Sentences(own, lengths[start:end], nobody, torch.ones(end - start))
            total.add_(self._pass.clipped_sum(batch, 1.0).total)
            start = end
        flat = self._pass.in_order(total).div_(len(sentences))
        parts = flat.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)


class Opacus:
    """(c) Ghost clipping per sentence: norms from one backward pass, a second one weighted."""

    def __init__(self, setting: Setting, size: int) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        self._setting, self.size = setting, size
        self._model = new_model(setting.case, setting.prepared, setting.options)
        self._lengths = np.array([len(row) for row in setting.rows])
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._optimiser = adamw(self._model)
        self._ghost = GradSampleModuleFastGradientClipping(
            self._model, max_grad_norm=1.0, loss_reduction="sum", strict=False
        )

    def round(self, number: int) -> None:
        setting, sentences = self._setting, self._setting.drawn[number]
        sums = [torch.zeros_like(p) for p in self._parameters]
        for batch in by_length(self._lengths, sentences, self.size):
            losses = self._losses(setting.padded(batch))
            losses.sum().backward(retain_graph=True)
            self._optimiser.zero_grad(set_to_none=True)
            factors = self._ghost.get_clipping_coef()
            self._ghost.disable_hooks()
            (factors * losses).sum().backward()
            self._ghost.enable_hooks()
            torch._foreach_add_(sums, [p.grad for p in self._parameters])
            self._optimiser.zero_grad(set_to_none=True)
        for parameter, total in zip(self._parameters, sums, strict=True):
            parameter.grad = (total + torch.randn_like(total)) / len(sentences)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def _losses(self, batch: dict[str, Tensor]) -> Tensor:
        labels = batch.pop("labels")
        with self._setting.autocast():
            logits = self._model(**batch).logits
        entropy = partial(nn.functional.cross_entropy, ignore_index=IGNORED, reduction="none")
        if self._setting.classifies:
            return entropy(logits.float(), labels)
        labels = labels[:, 1:]
        losses = entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten())
        return losses.view(labels.shape).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, fused=True)


# --- measuring -----------------------------------------------------------------------------------


def vocabulary_of(case: Case, options: argparse.Namespace) -> int:
    sizes: dict[str, Any] = {**(GPT2 if case.model == "gpt2" else SMOLLM2)}
    return int((TINY[case.model] if options.tiny else sizes)["vocab_size"])


def planned(config: Config, incidence: Incidence) -> Any:
    return build_plan(config, incidence, Provenance(precision=build.precision_of(config)))


def config_of(
    case: Case, options: argparse.Namespace, target: Mapping[str, Any] = ONE_OF_200
) -> Config:
    rate, most = (CPU_RATES if options.device == "cpu" else RATES)[case.data]
    privacy = {"method": case.method, "delta": 1e-6, **target}
    if case.method == "rotation":
        privacy["entity_share"] = 0.5  # enough for the margin of half precision
    run = {"device": options.device, "precision": options.precision}
    if options.tokens_at_once:
        run["tokens_at_once"] = options.tokens_at_once
    return Config.model_validate(
        {
            "privacy": {
                **privacy,
                "user_rate": options.rate or rate,
                "sentences_per_user": most,
            },
            "data": {"train": case.data},
            "model": {"name": case.model, "train": case.how, "max_tokens": MAX_TOKENS},
            "task": {"kind": case.task},
            "run": run,
        }
    )


def drawn_sentences(config: Config, incidence: Incidence, keys: Sequence[bytes]) -> list[Ints]:
    """The sentences of each round, as a private run with these keys draws them."""
    method = method_named(config.privacy.method)
    assert issubclass(method, ClippedMethod)
    draw = method.sampler(planned(config, incidence).round_settings, incidence)
    drawn = []
    for number, key in enumerate(keys):
        with Randomness(None, key).of_round(number, torch.device("cpu")) as (uniforms, lending, _):
            drawn.append(draw(number, uniforms, lending).sentences.values)
    return drawn


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def timed(contender: Any, number: int, device: str) -> tuple[float, float]:
    """Seconds of a round, and the CPU seconds of all threads."""
    synchronise(device)
    began, process = time.perf_counter(), time.process_time()
    contender.round(number)
    synchronise(device)
    return time.perf_counter() - began, time.process_time() - process


def profiled(contender: Any, number: int, device: str) -> dict[str, Any]:
    """Kernel time, launches and CPU time of one round, and the kernels that take longest.

    CPU time is that of PyTorch's operations in all threads, each counted with what it calls.
    """
    from torch.profiler import ProfilerActivity, profile

    on_cuda = device != "cpu"
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]) as seen:
        contender.round(number)
        synchronise(device)
    launches, operations = 0, []
    taken, count = Counter[str](), Counter[str]()
    # the raw events: making Python objects of them, with their tree, would take half a minute
    for event in seen.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() != torch.autograd.DeviceType.CPU:
            if not event.is_user_annotation():
                taken[name] += event.duration_ns()
                count[name] += 1
        elif re.match("cu[A-Z]|cuda[A-Z]", name):
            launches += "Launch" in name
        else:
            operations.append((event.start_thread_id(), event.start_ns(), event.end_ns()))
    return {
        "kernel_seconds": taken.total() / 1e9,
        "kernels": count.total(),
        "launches": launches,
        "cpu_seconds": _outermost(operations) / 1e9,
        "top_kernels": [
            [name[:80], each / 1e9, count[name]] for name, each in taken.most_common(12)
        ],
    }


def _outermost(spans: Sequence[tuple[int, int, int]]) -> int:
    """The time of spans (thread, start, end) that are in no other one of their thread."""
    total, ends = 0, Counter[int]()
    for thread, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        if end > ends[thread]:
            total += end - max(start, ends[thread])
            ends[thread] = end
    return total


class Held(NamedTuple):
    """Bytes in use before a contender is built."""

    reserved: int  # on an accelerator: what PyTorch's allocator took; else: resident
    allocated: int = 0  # of these, by tensors


def held(device: str) -> Held:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        return Held(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
    if _RESET_PEAK.exists():
        ctypes.CDLL(None).malloc_trim(0)  # freed memory would count for the next contender
    return Held(_resident("VmRSS"))


@contextmanager
def memory_of(found: dict[str, float], device: str, base: Held) -> Iterator[None]:
    """Peak memory inside, without what was held before (`base`), in GiB.

    What is reserved counts, with an empty cache before: it includes the memory that CUDA graphs
    keep for themselves, which no tensor holds between their runs, and fragmentation.
    """
    synchronise(device)
    if device == "cpu":
        if not _RESET_PEAK.exists():  # only Linux has it
            yield
            return
        _RESET_PEAK.write_text("5")
        yield
        found["peak_gib"] = max(0, _resident("VmHWM") - base.reserved) / 2**30
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    synchronise(device)
    found["peak_gib"] = (torch.cuda.max_memory_reserved() - base.reserved) / 2**30
    found["peak_allocated_gib"] = (torch.cuda.max_memory_allocated() - base.allocated) / 2**30


_RESET_PEAK = Path("/proc/self/clear_refs")


def _resident(which: str) -> int:
    """Resident memory of this process in bytes, as Linux counts it: now, or the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which + ":"):
            return 1024 * int(line.split()[1])
    return 0


class Measured:
    """The contenders of one case, and what was measured of them."""

    def __init__(self, case: Case, prepared: Prepared, options: argparse.Namespace) -> None:
        self._options, self._device = options, options.device
        timed_rounds = options.passes * options.rounds
        self._timed = range(options.warm_up, options.warm_up + timed_rounds)
        keys = [
            hashlib.sha256(f"{case.name} {number}".encode()).digest()
            for number in range(self._timed.stop + 1)
        ]
        config = config_of(case, options)
        drawn = drawn_sentences(config, prepared.incidence, keys)
        with tempfile.TemporaryDirectory() as folder:
            data = prepared.training_data(Path(folder))
        self._setting = Setting(case, prepared, data, config, drawn, keys, options)
        lengths = np.array([len(row) for row in self._setting.rows])
        self._tokens = [int(lengths[sentences].sum()) for sentences in drawn]
        self.found: dict[str, dict[str, Any]] = {}
        self._pass_tokens: int | None = None  # of ours, where its passes are recorded

    def row(self) -> dict[str, Any]:
        setting, options = self._setting, self._options
        contenders: dict[str, Any] = {}
        for name, make in self._makers().items():
            if name not in options.contenders:
                continue
            contender = self._warm(name, make)
            if contender is None:
                continue
            if options.passes > 1:
                contenders[name] = contender
            else:  # one at a time in memory
                self._time(name, contender, self._timed)
                self._profile(name, contender)
                del contender
        for start in self._timed[:: options.rounds] if contenders else []:
            for name, contender in contenders.items():
                self._time(name, contender, range(start, start + options.rounds))
        for name, contender in contenders.items():
            self._profile(name, contender)
        privacy, timed_ = setting.config.privacy, slice(self._timed.start, self._timed.stop)
        return {
            **setting.case._asdict(),
            "user_rate": privacy.user_rate,
            "sentences_per_user": privacy.sentences_per_user,
            "sentences": statistics.mean(map(len, setting.drawn[timed_])),
            "tokens": statistics.mean(self._tokens[timed_]),
            "contenders": self.found,
            **self._ratios(),
        }

    def _makers(self) -> dict[str, Callable[[], Any]]:
        setting = self._setting
        makers = {"ours": partial(Ours, setting), "plain": self._fastest_plain}
        makers["tricks"] = self._with_tricks
        if setting.case.how == "lora":
            makers["opacus"] = lambda: Opacus(setting, self._size())
        return makers

    def _with_tricks(self) -> "Tricky | Recorded":
        tokens = self._pass_tokens
        return Recorded(self._setting, tokens) if tokens else Tricky(self._setting)

    def _sizes(self) -> list[int]:
        default = [8, 32, 128] if self._device == "cpu" else [32, 128, 512]
        return list(self._options.sizes or default)

    def _size(self) -> int:
        return int(self.found.get("plain", {}).get("sentences_per_batch", self._sizes()[0]))

    def _fastest_plain(self) -> "Plain":
        """The plain loop with the batch size that suits it best."""
        sizes, taken = self._sizes(), {}
        contender = Plain(self._setting, sizes[-1])
        if self._device != "cpu":
            contender.round(0)  # warms up
        for number, size in enumerate(sizes * self._options.trials):
            contender.size, number = size, number % self._options.warm_up
            each = timed(contender, number, self._device)[0] / self._tokens[number]
            taken[size] = min(each, taken.get(size, math.inf))
        contender.size = min(taken, key=lambda size: taken[size])
        return contender

    def _warm(self, name: str, make: Callable[[], Any]) -> Any:
        """Build a contender and warm it up; None if it cannot be had."""
        device, measures = self._device, {}
        base = held(device)
        began = time.perf_counter()
        try:
            contender = make()
            measures["build_seconds"] = time.perf_counter() - began
            for number in range(self._options.warm_up):
                with memory_of(measures, device, base):
                    seconds = timed(contender, number, device)[0]
                measures.setdefault("first_seconds", seconds)
        except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
            if name != "opacus":
                raise
            self.found[name] = {"missing": f"{type(error).__name__}: {error}"[:300]}
            return None
        if isinstance(contender, Ours):
            self._pass_tokens = measures["pass_tokens"] = contender.pass_tokens
        if isinstance(contender, Plain):
            measures["sentences_per_batch"] = contender.size
        self.found[name] = measures | {"each_seconds": [], "each_process_seconds": []}
        times = {key: round(measures[key], 2) for key in ("build_seconds", "first_seconds")}
        print(f"{self._setting.case.name}, {name}: {times}", file=sys.stderr, flush=True)
        return contender

    def _time(self, name: str, contender: Any, numbers: range) -> None:
        """Rounds one after the other, as in a run: what they overlap stays within a contender."""
        for number in numbers:
            seconds, process = timed(contender, number, self._device)
            self.found[name]["each_seconds"].append(seconds)
            self.found[name]["each_process_seconds"].append(process)

    def _profile(self, name: str, contender: Any) -> None:
        found, tokens = self.found[name], self._tokens[self._timed.start : self._timed.stop]
        pairs = zip(tokens, found["each_seconds"], strict=True)
        found["tokens_per_second"] = statistics.median(n / seconds for n, seconds in pairs)
        found["seconds"] = statistics.median(found["each_seconds"])
        found["process_seconds"] = statistics.median(found["each_process_seconds"])
        if self._options.profile:
            found |= profiled(contender, self._timed.stop, self._device)

    def _ratios(self) -> dict[str, float]:
        """Tokens a second of ours by those of the others, round by round; the median."""
        ratios, ours = {}, self.found.get("ours", {})
        for name, other in self.found.items():
            if name == "ours" or "seconds" not in other or not ours:
                continue
            pairs = zip(other["each_seconds"], ours["each_seconds"], strict=True)
            ratios[f"ours/{name}"] = statistics.median(theirs / own for theirs, own in pairs)
            pairs = zip(other["each_process_seconds"], ours["each_process_seconds"], strict=True)
            ratios[f"CPU time {name}/ours"] = statistics.median(a / b for a, b in pairs)
            if other.get("peak_gib"):
                ratios[f"memory ours/{name}"] = ours["peak_gib"] / other["peak_gib"]
        return ratios


def whole_run(options: argparse.Namespace) -> None:
    """A run as training does it, with ledger, evaluations, checkpoints and certificate."""
    complete_options(options)
    case = Case("smollm2", "lora", "next-word", "conll", "rotation")
    vocabulary = vocabulary_of(case, options)
    with np.load(options.prepared) as file:
        prepared = Prepared(file, case.data, vocabulary)
    model = new_model(case, prepared, options)
    config = config_of(case, options, {"epsilon": 8.0, "rounds": options.rounds})
    synchronise(options.device)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        data = prepared.training_data(Path(folder), whole=True)
        began = time.perf_counter()
        with PrivacyEngine.from_config(config, out, data=data) as engine:
            run_ = engine.attach(model, Numbered(prepared, vocabulary))
            attached = time.perf_counter() - began
            outcome = loop._Training(run_, SILENT, print).run()
        total = time.perf_counter() - began
        rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert outcome.certificate is not None
    every = config.run.evaluate_every
    found = {
        **about(options),
        "case": case.name,
        "user_rate": config.privacy.user_rate,
        "rounds": len(rounds),
        "sentences": statistics.mean(row["sentences"] for row in rounds),
        "evaluated_sentences": len(prepared.rows) - prepared.sentences,
        "evaluations": 2 + sum(row["round"] % every == 0 for row in rounds[:-1]),
        "seconds": total,
        "plan_and_checks_seconds": attached,
        "round_seconds": statistics.median(
            row["seconds"] for row in rounds if row["round"] % every
        ),
        "rounds_seconds": sum(row["seconds"] for row in rounds),
        "epsilon": outcome.certificate.epsilon,
        "perplexity": [outcome.before["perplexity"], outcome.after["perplexity"]],
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


# --- reporting -----------------------------------------------------------------------------------

HEADER = (
    f"{'':8} {'s/round':>8} {'tokens/s':>9} {'ours is':>8} {'GiB':>6} {'ours is':>8} "
    f"{'kernels s':>9} {'launches':>8} {'CPU s':>7}"
)


def lines(row: dict[str, Any]) -> list[str]:
    name = Case(*(row[field] for field in Case._fields)).name
    shown = [f"{name}: {row['sentences']:,.0f} sentences, {row['tokens']:,.0f} tokens a round"]
    for contender, found in row["contenders"].items():
        if "seconds" not in found:
            shown.append(f"{contender:8} {found['missing']}")
            continue
        cells = (
            f"{found['seconds']:.3f}",
            f"{found['tokens_per_second']:,.0f}",
            _cell(row, f"ours/{contender}", ".2f"),
            _cell(found, "peak_gib", ".1f"),
            _cell(row, f"memory ours/{contender}", ".2f"),
            _cell(found, "kernel_seconds", ".3f"),
            _cell(found, "launches", ","),
            _cell(found, "cpu_seconds", ".3f"),
        )
        widths = 8, 9, 8, 6, 8, 9, 8, 7
        own = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        shown.append(f"{contender:8} {own}")
    return shown


def _cell(row: dict[str, Any], key: str, how: str) -> str:
    value = row.get(key)
    return f"{value:{how}}" + ("x" if key.find("ours/") >= 0 else "") if value else "-"


def chosen(patterns: Sequence[str]) -> list[Case]:
    wanted = [own for pattern in patterns for own in CHOICES.get(pattern, [pattern])]
    for pattern in wanted:
        if not any(fnmatch.fnmatch(case.name, pattern) for case in ALL):
            sys.exit(f"--cases {pattern}: matches no case, such as {ALL[0].name}")
    return [case for case in ALL if any(fnmatch.fnmatch(case.name, own) for own in wanted)]


def machine(device: str) -> str:
    if device == "cpu":
        return f"{torch.get_num_threads()} CPU cores ({platform.machine()})"
    return torch.cuda.get_device_name()


def complete_options(options: argparse.Namespace) -> None:
    if options.precision == "auto":
        options.precision = "float32" if options.device == "cpu" else "bfloat16"


def about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": machine(options.device),
        "precision": options.precision,
        "weights": "random" if options.model is None else options.model.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run(options: argparse.Namespace) -> None:
    complete_options(options)
    if options.profile is None:
        options.profile = options.device != "cpu"
    head = about(options)
    print(", ".join(f"{key} {value}" for key, value in head.items()))
    print(HEADER, flush=True)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    with np.load(options.prepared) as file:
        known: dict[tuple[str, int], Prepared] = {}
        for case in chosen(options.cases):
            key = case.data, vocabulary_of(case, options)
            if key not in known:
                known[key] = Prepared(file, *key)
            rows.append(Measured(case, known[key], options).row())
            print("\n".join(lines(rows[-1])), flush=True)
            gc.collect()
            if options.device != "cpu":
                torch.cuda.empty_cache()
            head["seconds"] = round(time.perf_counter() - began, 1)
            if options.out:
                options.out.write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n")
    print(f"{head['seconds']} s")


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare", help="tokenise the data sets into one file")
    first.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    first.add_argument("--tokenizer", required=True, help="SmolLM2's, a folder or a name")
    first.add_argument("--blogs", type=Path, help="blogs as a corpus (default: only patterns)")
    first.add_argument("--out", type=Path, required=True)
    first.set_defaults(command=prepare)
    second = commands.add_parser("run", help="measure rounds side by side")
    third = commands.add_parser("whole", help="time a whole run")
    for command in (second, third):
        command.add_argument("--prepared", type=Path, required=True)
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        command.add_argument("--model", type=Path, help="a folder with SmolLM2 (default: random)")
        command.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
        command.add_argument("--tokens-at-once", type=int, help="as run.tokens_at_once")
        command.add_argument("--tiny", action="store_true", help="small models, to try the script")
        command.add_argument("--out", type=Path)
    second.add_argument("--cases", nargs="+", default=["headline"], metavar="CASE")
    contenders = ["ours", "plain", "tricks", "opacus"]
    second.add_argument("--contenders", nargs="+", default=contenders, choices=contenders)
    second.add_argument("--rate", type=float, help="the rate at which users are drawn")
    second.add_argument("--sizes", type=int, nargs="+", help="sentences per batch that (a) tries")
    second.add_argument("--trials", type=int, default=2, help="rounds per size that (a) tries")
    second.add_argument("--rounds", type=int, default=3, help="one after the other")
    second.add_argument("--passes", type=int, default=2, help="in turns; 1: one model at a time")
    second.add_argument("--warm-up", type=int, default=2, help="rounds before; the last for memory")
    flag = argparse.BooleanOptionalAction
    second.add_argument("--profile", action=flag, help="one more round (default: accelerator)")
    second.set_defaults(command=run)
    third.add_argument("--rounds", type=int, default=200)
    third.add_argument("--rate", type=float, default=0.2)
    third.set_defaults(command=whole_run)
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would say when it starts
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # of Opacus
    options.command(options)


if __name__ == "__main__":
    main()
