"""Tasks: sentences as tensors, a loss for each, and what is measured on held-out users."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import evaluating
from uedp.incidence import Ints
from uedp.mechanism.clip import Packed, Rows
from uedp.progress import SILENT, Progress

Precision = Callable[[], AbstractContextManager[Any]]
Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
IGNORED = -100  # cross entropy's mark for tokens that do not count


class Task(Protocol):
    """Sentences of one corpus, ready for a model.

    Guarantees:
      - the loss of a sentence depends on that sentence and the weights alone: it is normalised by
        its own tokens, and padding counts for nothing
      - an empty sentence has loss zero and gradient zero
    """

    lengths: Ints
    packed: bool

    def pack_for(self, model: nn.Module) -> None:
        """Let sentences share rows from here on, if this model keeps them apart."""

    def batch(self, sentences: Ints) -> dict[str, Tensor]:
        """These sentences, padded: what `sentence_losses` reads."""

    def losses(self, model: nn.Module, sentences: Ints) -> Tensor | Packed:
        """The loss of each of these sentences."""

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of each sentence of a batch."""

    def evaluate(
        self, model: nn.Module, precision: Precision, room: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        """Measures over all sentences."""


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
        self.packed = False

    def pack_for(self, model: nn.Module) -> None:
        self.packed = len(self.lengths) > 0 and keeps_apart(model, int(self.lengths.max()))

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

    def losses(self, model: nn.Module, sentences: Ints) -> Tensor | Packed:
        if self.packed:
            return self._packed_losses(model, sentences)
        batch = _to_device(self.batch(sentences), model)
        return self.sentence_losses(model, batch)

    def _packed_losses(self, model: nn.Module, sentences: Ints) -> Packed:
        lengths = self.lengths[sentences]
        starts, width, rows = packed_rows(lengths)
        ids = np.full(rows * width, self._first)
        labels = np.full(rows * width, IGNORED)
        positions = np.zeros(rows * width, dtype=np.int64)
        for start, sentence in zip(starts.tolist(), sentences, strict=True):
            own = self._ids[sentence]
            ids[start : start + len(own)] = own
            labels[start : start + max(len(own) - 1, 0)] = own[1:]
            length = int(self.lengths[sentence])
            positions[start : start + length] = np.arange(length)
        there = _to_device(
            {
                "input_ids": torch.from_numpy(ids).view(rows, width),
                "position_ids": torch.from_numpy(positions).view(rows, width),
                "labels": torch.from_numpy(labels).view(rows, width),
            },
            model,
        )
        device, end = there["labels"].device, rows * width
        whole = cut_up(starts, lengths, int(lengths.max()), end).to(device)
        pieces = cut_up(starts, lengths, piece_width(lengths), end).to(device)
        labels_there, places = there["labels"], whole.places
        # one set of logits at a time: with a large vocabulary nothing else needs as much memory
        logits = _from_positions(model, there["input_ids"], there["position_ids"])
        found = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels_there.flatten(),
            ignore_index=IGNORED,
            reduction="none",
        )
        counted = (labels_there.flatten() != IGNORED)[places] & whole.real
        summed = (found[places] * counted).sum(1)

        def alone() -> Tensor:
            return self.sentence_losses(model, _to_device(self.batch(sentences), model))

        found = summed / counted.sum(1).clamp(min=1)
        return Packed(found, whole, pieces, alone)

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        found = _token_losses(model, batch)
        return found.sum(1) / (batch["labels"] != IGNORED).sum(1).clamp(min=1)

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, precision: Precision, room: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        total = 0.0
        tokens = sum(max(len(ids) - 1, 0) for ids in self._ids)
        if not tokens:
            raise UserError("there is nothing to evaluate: every sentence is empty")
        for rows in _batches(self.lengths, room, progress):
            with precision(), unmasked(model):
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
        self.packed = False

    def pack_for(self, model: nn.Module) -> None:
        """A classifier reads a sentence off the ends of its row: each keeps its own."""

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

    def losses(self, model: nn.Module, sentences: Ints) -> Tensor:
        return self.sentence_losses(model, _to_device(self.batch(sentences), model))

    @staticmethod
    def sentence_losses(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(
            _logits(model, batch), batch["labels"], ignore_index=IGNORED, reduction="none"
        )

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, precision: Precision, room: int, progress: Progress = SILENT
    ) -> Mapping[str, float]:
        wrong = total = loss = 0.0
        for rows in _batches(self.lengths, room, progress):
            batch = _to_device(self.batch(rows), model)
            with precision():
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
        self.packed = False

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


def build(
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


def encode_for(
    model: Any, tokenizer: Any, tokens: int, keep: Path | None, progress: Progress = SILENT
) -> Encode | None:
    """What reads texts for a model that takes vectors; other models read them themselves."""
    if model.config.model_type != "uedp_probe":
        return None
    from uedp.training.vectors import Encoder  # asks Transformers in, which takes seconds

    return Encoder(model.encoder, tokenizer, tokens, keep, progress)


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


_ROW = 256  # tokens of a row that sentences share, or as long as the longest


def packed_rows(lengths: Ints) -> tuple[Ints, int, int]:
    """Where each of these sentences starts in rows laid end to end; how wide rows are, how many.

    Guarantees:
      - no sentence is cut in two, and no two overlap
      - several sentences take at least two rows: a single one would mean one sentence elsewhere
      - of many rows, up to an eighth are empty at the end: shapes that come again are planned once
    """
    longest, total = int(lengths.max()), int(lengths.sum())
    width = max(longest, min(_ROW, total // 2 + 1))
    starts = np.zeros(len(lengths), dtype=np.int64)
    row = used = 0
    for place, length in enumerate(lengths.tolist()):
        if used + length > width:
            row, used = row + 1, 0
        starts[place] = row * width + used
        used += length
    step = 1 << max(0, (row + 1).bit_length() - 4)
    return starts, width, -(-(row + 1) // step) * step


_PIECES = (8, 16, 32, 64, 128, 256)
_PIECE_COST = 16  # tokens that take as long as one more piece


def piece_width(lengths: Ints) -> int:
    """Into pieces of how many tokens to cut sentences, so that little is padded."""
    widths = [width for width in _PIECES if width < lengths.max()] + [int(lengths.max())]
    return min(widths, key=lambda width: int((-(-lengths // width)).sum()) * (width + _PIECE_COST))


def cut_up(starts: Ints, lengths: Ints, width: int, end: int) -> Rows:
    """Sentences that start at places and are so long, in rows of a width; `end` is past all places.

    Guarantees:
      - the first row of every sentence comes first, in order
      - every token is in one row, once; what a row lacks is marked, and is placed at the first
        token of its sentence
    """
    count = -(-lengths // width)
    all_, none = np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64)
    sentence = np.concatenate([all_, np.repeat(all_, count - 1)])
    number = np.concatenate([none, *(np.arange(1, c) for c in count.tolist() if c > 1)])
    token = number[:, None] * width + np.arange(width)
    real = token < lengths[sentence][:, None]
    places = starts[sentence][:, None] + np.where(real, token, 0)
    return Rows(torch.from_numpy(places), torch.from_numpy(real), torch.from_numpy(sentence), end)


_LENGTHS = (0.15, 0.6, 0.05, 1.0, 0.27, 0.03, 0.47, 0.8, 0.19, 0.39, 0.9, 0.08)  # of the longest
_PROBED = 5  # every so many sentences


@torch.no_grad()
def keeps_apart(model: nn.Module, longest: int = 32) -> bool:
    """Whether a causal model computes what begins again at position 0 as if it stood alone.

    Tried out, not looked up, with rows as wide and as many as in training: some sentences are
    computed beside others, beside others still, and alone.

    Guarantees:
      - weights that are all zero, behind which nothing shows, are others while it is tried; they
        are zero again afterwards, and the caller's random numbers are left alone
    """
    device = next(model.parameters()).device
    size = int(getattr(getattr(model, "config", None), "vocab_size", 0))
    if size < 8:
        return False
    numbers = np.random.default_rng(0)
    once = [max(2, round(share * longest)) for share in _LENGTHS]
    lengths = np.array(once * (1 + 3 * _ROW // (2 * sum(once))))
    starts, width, rows = packed_rows(lengths)
    positions = np.zeros(rows * width, dtype=np.int64)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        positions[start : start + length] = np.arange(length)
    ids, others = numbers.integers(0, size, (2, rows * width))
    probed = [slice(a, a + n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    probed = probed[::_PROBED]
    for where in probed:
        others[where] = ids[where]

    def logits(of: Ints, at: Ints, shape: tuple[int, int]) -> Tensor:
        tensors = (torch.from_numpy(values.copy()).view(shape).to(device) for values in (of, at))
        return _from_positions(model, *tensors).flatten(0, 1)

    try:
        with evaluating(model), torch.autocast(device.type, enabled=False), _opened(model):
            beside, still = (logits(of, positions, (rows, width)) for of in (ids, others))
            for where in probed:
                alone = logits(ids[where], positions[where], (1, where.stop - where.start))
                near = 1e-4 * float(alone.abs().max())
                for found in (beside[where], still[where]):
                    if not near or not torch.allclose(found, alone, rtol=1e-4, atol=near):
                        return False
    except (TypeError, ValueError, IndexError, RuntimeError, UserError):
        return False  # it takes no positions, or no rows that long
    return True


@contextmanager
def _opened(model: nn.Module) -> Iterator[None]:
    """Weights that are all zero filled with something, for the length of a block."""
    closed = [p for p in model.parameters() if p.is_floating_point() and not bool(p.any())]
    generator = torch.Generator().manual_seed(0)
    for parameter in closed:
        parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in closed:
                parameter.zero_()


def _from_positions(model: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    # with a cache, positions would not part sentences
    logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return logits


def _to_device(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _batches(lengths: Ints, room: int, progress: Progress) -> Iterator[Ints]:
    """Sentences of like length together, about `room` tokens at a time."""
    order = np.argsort(lengths, kind="stable")
    with progress.stage("evaluating", len(order), "sentences") as meter:
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * lengths[order[end]] <= room:
                end += 1
            yield order[start:end]
            meter.advance(end - start)
            start = end
