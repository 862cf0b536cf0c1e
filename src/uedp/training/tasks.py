"""Tasks: sentences as tensors, a loss for each, and what is measured on held-out users."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.mechanism.packing import (
    ONE_PER_ROW,
    PackedLosses,
    Packing,
    SharedRows,
    packed_logits,
    packing_for,
)
from uedp.methods import Autocast, SentenceTask
from uedp.progress import SILENT, Progress

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
IGNORED = -100  # cross entropy's mark for tokens that do not count


class Task(SentenceTask, Protocol):
    """Sentences of one corpus, ready for a model, and measures over all of them."""

    def evaluate(
        self, model: nn.Module, autocast: Autocast, max_tokens: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        """Measures over all sentences, about `max_tokens` of them computed at a time."""


class NextWord:
    """Predict every token from those before it, the first and an end token included.

    Models are causal and padding is on the right, so that no token sees any: there is no mask.
    Padding all to the longest wastes most of the work where lengths differ; a model that keeps
    apart what begins again at position 0 computes several sentences in one row.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any, max_tokens: int) -> None:
        self._ids, self._first = encoded(texts, tokenizer, max_tokens)
        kept = (
            # of a text that was cut, the words that are left
            text if len(ids) < max_tokens else tokenizer.decode(ids, skip_special_tokens=True)
            for text, ids in zip(texts, self._ids, strict=True)
        )
        self._words = sum(len(text.split()) for text in kept)
        self.lengths = np.array([max(len(ids), 2) for ids in self._ids])

    def packing_for(self, model: nn.Module) -> Packing:
        return packing_for(model, int(self.lengths.max(initial=0)))

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        """Ids and labels; label `t` is what position `t` should predict."""
        chosen = [self._ids[i] for i in sentences]
        width = max(2, max((len(ids) for ids in chosen), default=2))
        ids = np.full((len(chosen), width), self._first)
        labels = np.full((len(chosen), width - 1), IGNORED)
        for row, own in enumerate(chosen):
            ids[row, : len(own)] = own
            labels[row, : max(len(own) - 1, 0)] = own[1:]
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def losses(
        self, model: nn.Module, sentences: Ints, packing: Packing = ONE_PER_ROW
    ) -> Tensor | PackedLosses:
        if packing.shares_rows:
            return self._packed_losses(model, sentences)
        return self.sentence_losses(model, _to_device(self.batch(sentences), model))

    def _packed_losses(self, model: nn.Module, sentences: Ints) -> PackedLosses:
        chosen = [self._ids[sentence] for sentence in sentences]
        layout = SharedRows.of(self.lengths[sentences])
        batch = _to_device(
            {
                "ids": layout.fill(chosen, self._first),
                "positions": layout.positions(),
                "labels": layout.fill([own[1:] for own in chosen], IGNORED),
            },
            model,
        )
        labels = batch["labels"].flatten()
        by_sentence = layout.by_sentence(labels.device)
        # one set of logits at a time: with a large vocabulary nothing else needs as much memory
        logits = packed_logits(model, batch["ids"], batch["positions"])
        by_token = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels, ignore_index=IGNORED, reduction="none"
        )
        counted = (labels != IGNORED)[by_sentence.places] & by_sentence.real
        summed = (by_token[by_sentence.places] * counted).sum(1)
        losses = summed / counted.sum(1).clamp(min=1)

        def recompute() -> Tensor:
            return self.sentence_losses(model, _to_device(self.batch(sentences), model))

        return PackedLosses(losses, by_sentence, layout.by_piece(labels.device), recompute)

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        found = _token_losses(model, batch)
        return found.sum(1) / (batch["labels"] != IGNORED).sum(1).clamp(min=1)

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, autocast: Autocast, max_tokens: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        total = 0.0
        tokens = sum(max(len(ids) - 1, 0) for ids in self._ids)
        if not tokens:
            raise UserError("there is nothing to evaluate: every sentence is empty")
        for rows in _batches(self.lengths, max_tokens, progress):
            with autocast(), unmasked(model):
                found = _token_losses(model, _to_device(self.batch(rows), model))
            total += float(found.double().sum())
        return {
            "perplexity": math.exp(min(total / tokens, 700)),
            "perplexity per word": math.exp(min(total / max(self._words, 1), 700)),
            "bits per token": total / tokens / math.log(2),
            "tokens": float(tokens),
        }


class Classification:
    """Tell which of a fixed list of labels a sentence has; one without a label counts for nothing.

    The labels are numbered as in `names`, which is what the model's outputs mean.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[str | None],
        names: Sequence[str],
        tokenizer: Any,
        max_tokens: int,
    ) -> None:
        self._labels = _numbered(texts, labels, names)
        self._pad = tokenizer.pad_token_id
        self._ids = (
            tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
            if texts
            else []
        )
        self.lengths = np.array([max(len(ids), 1) for ids in self._ids])

    def packing_for(self, model: nn.Module) -> Packing:
        """A classifier reads a sentence off the ends of its row: one row each."""
        return ONE_PER_ROW

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        chosen = [self._ids[i] for i in sentences]
        width = max(max((len(ids) for ids in chosen), default=1), 1)
        ids = np.full((len(chosen), width), self._pad)
        mask = np.zeros((len(chosen), width), dtype=np.int64)
        mask[:, 0] = 1  # attention over nothing at all is not defined
        for row, own in enumerate(chosen):
            ids[row, : len(own)] = own
            mask[row, : len(own)] = 1
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(self._labels[sentences]),
        }

    def losses(self, model: nn.Module, sentences: Ints, packing: Packing = ONE_PER_ROW) -> Tensor:
        return self.sentence_losses(model, _to_device(self.batch(sentences), model))

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(
            _logits(model, batch), batch["labels"], ignore_index=IGNORED, reduction="none"
        )

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, autocast: Autocast, max_tokens: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        wrong = total = loss = 0.0
        for rows in _batches(self.lengths, max_tokens, progress):
            batch = _to_device(self.batch(rows), model)
            with autocast():
                logits = _logits(model, batch)
            counted = batch["labels"] != IGNORED
            wrong += float(((logits.argmax(1) != batch["labels"]) & counted).sum())
            loss += float(
                nn.functional.cross_entropy(
                    logits, batch["labels"], ignore_index=IGNORED, reduction="sum"
                )
            )
            total += float(counted.sum())
        if not total:
            raise UserError("there is nothing to evaluate: no sentence has text and a label")
        return {"error rate": wrong / total, "loss": loss / total, "sentences": total}


class Probing(Classification):
    """The same where a frozen encoder has read the sentences already: a vector each."""

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[str | None],
        names: Sequence[str],
        vectors: npt.NDArray[np.float32],
    ) -> None:
        self._labels = _numbered(texts, labels, names)
        self._vectors = vectors
        self.lengths = np.ones(len(vectors), dtype=np.int64)

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        return {
            "vectors": torch.from_numpy(self._vectors[sentences]),
            "labels": torch.from_numpy(self._labels[sentences]),
        }


def _numbered(
    texts: Sequence[str], labels: Sequence[str | None], names: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Labels by their place among the names; what has none, or no text, counts for nothing."""
    number: dict[str | None, int] = {name: place for place, name in enumerate(names)}
    unknown = sorted({label for label in labels if label is not None} - number.keys())
    if unknown:
        raise UserError(
            f"label {unknown[0]!r}: not one of {', '.join(names)}; correct it, or name all "
            "labels in task.labels"
        )
    return np.array(
        [
            number.get(label, IGNORED) if text.strip() else IGNORED
            for text, label in zip(texts, labels, strict=True)
        ],
        dtype=np.int64,
    )


def _logits(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    read = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: Tensor = model(**read).logits
    return logits.float()


def build_task(
    kind: str,
    texts: Sequence[str],
    labels: Sequence[str | None],
    names: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
    encode: Encode | None = None,
) -> Task:
    """The task on sentences, in their order; `names` are the labels there are.

    With `encode`, which reads texts for a model that takes vectors, each is read once, now.
    """
    if kind == "next-word":
        return NextWord(texts, tokenizer, max_tokens)
    if encode is not None:
        return Probing(texts, labels, names, encode(texts))
    return Classification(texts, labels, names, tokenizer, max_tokens)


def encoded(texts: Sequence[str], tokenizer: Any, max_tokens: int) -> tuple[list[list[int]], int]:
    """Ids of each text between a start and an end token, and the start token.

    A text is cut to a length that is the same for all, and then has no end; an empty one has no
    ids at all, so that nothing, not even the end token, is learned from it.
    """
    start = tokenizer.bos_token_id
    end = tokenizer.eos_token_id
    start = end if start is None else start
    if start is None:
        raise UserError("the tokenizer has neither a start nor an end token; add one to it")
    plain = (
        tokenizer(
            list(texts), add_special_tokens=False, truncation=True, max_length=max_tokens - 1
        )["input_ids"]
        if texts
        else []
    )
    finish = [] if end is None else [end]
    return [
        # some tokenizers find a token in an empty text
        [start, *ids, *finish][:max_tokens] if ids and text.strip() else []
        for text, ids in zip(texts, plain, strict=True)
    ], start


@contextmanager
def unmasked(model: Any) -> Iterator[None]:
    """For a causal model without a mask: some look for padding in every batch, to warn of it."""
    config = getattr(model, "config", None)
    padding = getattr(config, "pad_token_id", None)
    if config is None or padding is None:
        yield
        return
    config.pad_token_id = None
    try:
        yield
    finally:
        config.pad_token_id = padding


def _token_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    """(sentences, positions): what each prediction cost, zero where there is none to make."""
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    labels = batch["labels"]
    found = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return found.view(labels.shape)


def _to_device(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _batches(lengths: Ints, max_tokens: int, progress: Progress) -> Iterator[Ints]:
    """Sentences of like length together, about `max_tokens` at a time."""
    order = np.argsort(lengths, kind="stable")
    with progress.stage("evaluating", len(order), "sentences") as meter:
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * lengths[order[end]] <= max_tokens:
                end += 1
            yield order[start:end]
            meter.advance(end - start)
            start = end
