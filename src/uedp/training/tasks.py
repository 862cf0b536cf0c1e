"""Tasks: batches of sentences, a loss for each, and measures on held-out users."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uedp.corpus.records import listed, quoted
from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.mechanism.fixed.token_loss import IGNORED, token_losses
from uedp.mechanism.packing import (
    ONE_PER_ROW,
    PackedLosses,
    Packing,
    SharedRows,
    packed_logits,
    packing_for,
)
from uedp.methods import Autocast, SentenceTask
from uedp.models.load import start_token
from uedp.progress import SILENT, Progress
from uedp.training import evaluation
from uedp.training.mentions import Codes, Mentions, NameTokens
from uedp.training.token_store import Ids, TokenStore, Truncation, count_ids, tokenised

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
_Measures = dict[str, float]
_NO_CODES: Codes = np.zeros(0, dtype=np.uint16)


class Task(SentenceTask, Protocol):
    """The sentences of a corpus, ready for a model, and measures over all of them."""

    truncation: Truncation

    def evaluate(
        self,
        model: nn.Module,
        autocast: Autocast,
        max_tokens: int | None = None,
        progress: Progress = SILENT,
    ) -> Mapping[str, float]:
        """Measures over all sentences, computed in batches of about `max_tokens`.

        With mentions, the first of them is also measured on names and on the rest. The names of
        measures of single categories end in `: CATEGORY`. The model is in evaluation mode.
        """

    def evaluate_some(self, model: nn.Module, sentences: Ints, autocast: Autocast) -> None:
        """Compute what `evaluate` would of some sentences, to see how long it takes."""

    def evaluation_precision(
        self, model: nn.Module, autocast: Autocast, evaluations: int = 1
    ) -> Autocast:
        """The given precision, or a faster one in which so many evaluations measure the same."""


class NextWord:
    """Predict every token, the end token included, from the tokens before it.

    Models are causal and padding is on the right, where no token attends to it: no mask is needed.
    A model that separates sentences by their positions computes several of them in one row, which
    saves most of the padding.
    """

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Any,
        max_tokens: int,
        progress: Progress = SILENT,
        mentions: Mentions | None = None,
    ) -> None:
        start, end = start_token(tokenizer), tokenizer.eos_token_id
        self._first, self._words, self.truncation = start, 0, Truncation()
        self.longest = max_tokens

        def between_start_and_end(text: str, ids: list[int]) -> list[int]:
            # nothing is learned from an empty text, not even the end token; some tokenizers make
            # a token of one
            if not ids or not text.strip():
                return []
            ids = [start, *ids, *([] if end is None else [end])][:max_tokens]
            if len(ids) == max_tokens:
                text = tokenizer.decode(ids, skip_special_tokens=True)
            self._words += len(text.split())
            return ids

        # a tokenizer that does not say where its tokens stand leaves names unmeasured
        aligned = mentions and getattr(tokenizer, "is_fast", False)
        names = NameTokens(mentions) if mentions and aligned else None
        rows = tokenised(
            texts,
            tokenizer,
            max_tokens - 1,
            self.truncation,
            between_start_and_end,
            progress,
            None if names is None else names.add,
            add_special_tokens=False,
        )
        self._ids = TokenStore(rows, count_ids(tokenizer))
        self.lengths = np.maximum(self._ids.lengths, 2)
        self._names, self._codes = names, _NO_CODES if names is None else names.codes()

    def packing_for(self, model: nn.Module) -> Packing:
        return packing_for(model, int(self.lengths.max(initial=0)))

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        """Ids and labels; label `t` is the token that position `t` should predict."""
        chosen = [self._ids[i] for i in sentences]
        width = int(self.lengths[sentences].max(initial=2))
        return {
            "input_ids": _padded(chosen, width, self._first),
            "labels": _padded([self.labels_of(i) for i in sentences], width - 1, IGNORED),
        }

    def labels_of(self, sentence: int) -> Ids:
        """The tokens to predict, in order: all but the first."""
        return self._ids[sentence][1:]

    def tokens_of(self, sentences: Ints) -> tuple[Ints, Ints]:
        """The ids of these sentences end to end, and the number of each one's."""
        return self._ids.end_to_end(sentences)

    def losses(
        self, model: nn.Module, sentences: Ints, packing: Packing = ONE_PER_ROW
    ) -> Tensor | PackedLosses:
        if packing.shares_rows:
            return self._packed_losses(model, sentences)
        return self.sentence_losses(model, _to_device(self.batch(sentences), model))

    def _packed_losses(self, model: nn.Module, sentences: Ints) -> PackedLosses:
        chosen = [self._ids[sentence] for sentence in sentences]
        layout = SharedRows.of(self.lengths[sentences], next(model.parameters()).device)
        batch = _to_device(
            {
                "ids": layout.fill(chosen, self._first),
                "positions": layout.positions(),
                "labels": layout.fill([self.labels_of(s) for s in sentences], IGNORED),
            },
            model,
        )
        labels = batch["labels"].flatten()
        by_sentence = layout.by_sentence(labels.device)
        # kept nowhere else: with a large vocabulary, logits need more memory than anything
        logits = packed_logits(model, batch["ids"], batch["positions"])
        by_token = token_losses(logits.flatten(0, 1), labels)
        counted = (labels != IGNORED)[by_sentence.places] & by_sentence.real
        summed = (by_token[by_sentence.places] * counted).sum(1)
        losses = summed / counted.sum(1).clamp(min=1)

        def recompute() -> Tensor:
            return self.sentence_losses(model, _to_device(self.batch(sentences), model))

        pieces = layout.by_piece(labels.device)
        where = layout.starts, layout.lengths
        return PackedLosses(losses, by_sentence, pieces, recompute, *where)

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        losses = _token_losses(model, batch)
        return losses.sum(1) / (batch["labels"] != IGNORED).sum(1).clamp(min=1)

    def evaluate(
        self,
        model: nn.Module,
        autocast: Autocast,
        max_tokens: int | None = None,
        progress: Progress = SILENT,
    ) -> Mapping[str, float]:
        tokens = int(self._predicted.sum())
        if not tokens:
            raise UserError("nothing to evaluate: every sentence is empty")
        everything = np.arange(len(self._ids))
        groups = None
        if self._names is not None:
            codes = [self._codes[low:high] for low, high in pairwise(self._ids.offsets)]
            groups = evaluation.Groups(codes, len(self._names.sets))
        sums, by_group = self._sums(model, everything, autocast, max_tokens, progress, groups)
        total = float(sums.sum())
        on_names, counted, detail = self._on_names(by_group)
        return {
            "perplexity": _perplexity(total, tokens),
            **on_names,
            "perplexity per word": _perplexity(total, self._words),
            "bits per token": total / tokens / math.log(2),
            "tokens": float(tokens),
            **counted,
            **detail,
        }

    def _on_names(self, sums: npt.NDArray[np.float64]) -> tuple[_Measures, _Measures, _Measures]:
        """Perplexities on names and on other tokens, the number of names, and both by category.

        Args:
            sums: the summed loss of the tokens of each set of categories.
        """
        counts = np.bincount(self._codes, minlength=len(sums))
        if self._names is None or not counts[1:].any():
            return {}, {}, {}
        counts[0] -= int((self._ids.lengths > 0).sum())  # start tokens are not predicted
        on = {"perplexity on names": _perplexity(sums[1:].sum(), int(counts[1:].sum()))}
        if counts[0]:
            on["perplexity on other tokens"] = _perplexity(sums[0], int(counts[0]))
        detail = {}
        for category, own in zip(self._names.categories, self._names.sets.T, strict=True):
            if count := int(counts[own].sum()):
                detail[f"perplexity on names: {category}"] = _perplexity(sums[own].sum(), count)
                detail[f"name tokens: {category}"] = float(count)
        return on, {"name tokens": float(counts[1:].sum())}, detail

    def evaluate_some(self, model: nn.Module, sentences: Ints, autocast: Autocast) -> None:
        self.loss_sums(model, sentences, autocast)

    def evaluation_precision(
        self, model: nn.Module, autocast: Autocast, evaluations: int = 1
    ) -> Autocast:
        def sums(sentences: Ints, way: Autocast) -> npt.NDArray[np.float64]:
            return self.loss_sums(model, sentences, way)

        return evaluation.faster_precision(model, sums, self._predicted, autocast, evaluations)

    def loss_sums(
        self,
        model: nn.Module,
        sentences: Ints,
        autocast: Autocast,
        max_tokens: int | None = None,
        progress: Progress = SILENT,
    ) -> npt.NDArray[np.float64]:
        """The summed loss of each of these sentences, for evaluation: without a graph."""
        return self._sums(model, sentences, autocast, max_tokens, progress)[0]

    def _sums(
        self,
        model: nn.Module,
        sentences: Ints,
        autocast: Autocast,
        max_tokens: int | None,
        progress: Progress,
        groups: evaluation.Groups | None = None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        with without_padding_warning(model):
            return evaluation.loss_sums_by_group(
                model,
                [self._ids[sentence] for sentence in sentences],
                self._first,
                autocast=autocast,
                max_tokens=max_tokens,
                may_share=lambda: self.packing_for(model).shares_rows,
                progress=progress,
                groups=groups,
            )

    @property
    def _predicted(self) -> Ints:
        """The tokens of each sentence that are predicted: all but the first."""
        return np.maximum(self._ids.lengths - 1, 0)


class Classification:
    """Predict the label of a sentence; a sentence without a label is ignored.

    The model's outputs are the labels in the order of `names`.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[str | None],
        names: Sequence[str],
        tokenizer: Any,
        max_tokens: int,
        progress: Progress = SILENT,
        mentions: Mentions | None = None,
    ) -> None:
        self._labels, self._mentions = _label_numbers(texts, labels, names), mentions
        self._pad = tokenizer.pad_token_id
        self.truncation = Truncation()
        rows = tokenised(texts, tokenizer, max_tokens, self.truncation, progress=progress)
        self._ids = TokenStore(rows, count_ids(tokenizer))
        self.lengths = np.maximum(self._ids.lengths, 1)

    def packing_for(self, model: nn.Module) -> Packing:
        """One row each: classifiers read the first or the last position of a row."""
        return ONE_PER_ROW

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        chosen = [self._ids[i] for i in sentences]
        width = int(self.lengths[sentences].max(initial=1))
        mask = _padded([np.ones_like(ids) for ids in chosen], width, 0)
        mask[:, 0] = 1  # attention over no token at all is undefined
        return {
            "input_ids": _padded(chosen, width, self._pad),
            "attention_mask": mask,
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
        self,
        model: nn.Module,
        autocast: Autocast,
        max_tokens: int | None = None,
        progress: Progress = SILENT,
    ) -> Mapping[str, float]:
        labelled = np.flatnonzero(self._labels != IGNORED)
        if not len(labelled):
            raise UserError("nothing to evaluate: no sentence has text and a label")
        groups = self._groups()
        measured = self._measured(model, labelled, autocast, max_tokens, progress, groups)
        loss, wrong, *with_entities = measured
        count, counts = float(len(labelled)), groups[labelled].sum(0).tolist()
        on, counted, detail = _by_entities(wrong, count, with_entities, counts, self._mentions)
        whole = {"loss": loss / count, "sentences": count}
        return {"error rate": wrong / count, **on, **whole, **counted, **detail}

    def evaluate_some(self, model: nn.Module, sentences: Ints, autocast: Autocast) -> None:
        self._measured(model, sentences, autocast)

    def _measured(
        self,
        model: nn.Module,
        sentences: Ints,
        autocast: Autocast,
        max_tokens: int | None = None,
        progress: Progress = SILENT,
        groups: npt.NDArray[np.bool_] | None = None,
    ) -> list[float]:
        """The summed loss, the number of wrong answers, and that in each group of sentences."""
        groups = np.zeros((len(self._labels), 0), dtype=np.bool_) if groups is None else groups

        def measure(some: Ints) -> Tensor:
            batch = _to_device(self.batch(some), model)
            logits = _logits(model, batch)
            wrong = (logits.argmax(1) != batch["labels"]).to(logits.dtype)
            own = torch.from_numpy(groups[some]).to(wrong)
            loss = nn.functional.cross_entropy(
                logits, batch["labels"], ignore_index=IGNORED, reduction="sum"
            )
            return torch.cat([loss[None], wrong.sum()[None], wrong @ own])

        with autocast():
            return evaluation.summed(model, measure, sentences, self.lengths, max_tokens, progress)

    def _groups(self) -> npt.NDArray[np.bool_]:
        """Sentences with entities: any, and each category; none without mentions."""
        if not self._mentions:
            return np.zeros((len(self._labels), 0), dtype=np.bool_)
        by_category = self._mentions.by_sentence(len(self._labels))
        return np.hstack([by_category.any(1, keepdims=True), by_category])

    def evaluation_precision(
        self, model: nn.Module, autocast: Autocast, evaluations: int = 1
    ) -> Autocast:
        """The given one: a sample cannot show that no sentence changes its class."""
        return autocast


class ProbeClassification(Classification):
    """Classification of vectors that a frozen encoder has computed from the sentences."""

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[str | None],
        names: Sequence[str],
        vectors: npt.NDArray[np.float32],
        mentions: Mentions | None = None,
    ) -> None:
        self._labels, self._mentions = _label_numbers(texts, labels, names), mentions
        self._vectors, self.truncation = vectors, Truncation()
        self.lengths = np.ones(len(vectors), dtype=np.int64)

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        return {
            "vectors": torch.from_numpy(self._vectors[sentences]),
            "labels": torch.from_numpy(self._labels[sentences]),
        }


def _by_entities(
    wrong: float,
    count: float,
    wrong_with: Sequence[float],
    count_with: Sequence[int],
    mentions: Mentions | None,
) -> tuple[_Measures, _Measures, _Measures]:
    """Error rates with and without entities, the number with, and both by category."""
    if not mentions or not count_with[0]:
        return {}, {}, {}
    on = {"error rate with entities": wrong_with[0] / count_with[0]}
    if count > count_with[0]:
        without = (wrong - wrong_with[0]) / (count - count_with[0])
        on["error rate without entities"] = without
    detail = {}
    each = zip(mentions.categories, wrong_with[1:], count_with[1:], strict=True)
    for category, own, number in each:
        if number:
            detail[f"error rate with entities: {category}"] = own / number
            detail[f"sentences with entities: {category}"] = float(number)
    return on, {"sentences with entities": float(count_with[0])}, detail


def _label_numbers(
    texts: Sequence[str], labels: Sequence[str | None], names: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Labels by their place in `names`; IGNORED for a sentence without text or label."""
    numbers: dict[str | None, int] = {name: place for place, name in enumerate(names)}
    unknown = sorted({label for label in labels if label is not None} - numbers.keys())
    if unknown:
        raise UserError(
            f"label {quoted(unknown[0])}: not one of {listed(names)}; correct it, or name all "
            "labels in task.labels"
        )
    pairs = zip(texts, labels, strict=True)
    known = (numbers.get(label, IGNORED) if text.strip() else IGNORED for text, label in pairs)
    return np.fromiter(known, np.int64, len(texts))


def _logits(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: Tensor = model(**inputs).logits
    return logits.float()


def build_task(
    kind: str,
    texts: Sequence[str],
    labels: Sequence[str | None],
    names: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
    encode: Encode | None = None,
    progress: Progress = SILENT,
    mentions: Mentions | None = None,
) -> Task:
    """The task on these sentences, in their order.

    Args:
        names: all labels of a classification, in the order of the model's outputs.
        encode: for a model that takes vectors; every text is encoded once, here.
        mentions: of entities in these sentences, which are then measured apart.
    """
    if kind == "next-word":
        return NextWord(texts, tokenizer, max_tokens, progress, mentions)
    if encode is not None:
        return ProbeClassification(texts, labels, names, encode(texts), mentions)
    return Classification(texts, labels, names, tokenizer, max_tokens, progress, mentions)


def _perplexity(loss: float, tokens: int) -> float:
    return math.exp(min(float(loss) / max(tokens, 1), 700))


def _padded(rows: Sequence[Ids], width: int, fill: int) -> Tensor:
    padded = np.full((len(rows), width), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return torch.from_numpy(padded)


@contextmanager
def without_padding_warning(model: Any) -> Iterator[None]:
    """Within the context, a causal model does not search every batch for padding to warn about."""
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
    """(sentences, positions): the loss of each prediction, zero for padding."""
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    labels = batch["labels"]
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(labels.shape)


def _to_device(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
