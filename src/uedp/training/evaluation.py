"""The losses of many sentences at once, for evaluation: no graph, little padding, one wait.

Rows are planned for all sentences together: sentences of similar length side by side, or end to end
in shared rows where a model keeps them apart, whichever computes less. Logits exist for a few
thousand tokens at a time, and the device is waited for once, at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uedp.eval_mode import evaluating
from uedp.incidence import Ints
from uedp.mechanism.packing import packed_logits
from uedp.methods import Autocast, half_precision
from uedp.progress import SILENT, Progress
from uedp.training.token_store import Ids

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """What evaluation costs on a kind of device, in tokens.

    A batch costs `batch` tokens whatever it holds: launches on an accelerator, reading the weights
    on a processor. A model that steps through its sentences costs `step` per place, too.
    """

    max_tokens: int
    logits: int  # computed at a time
    batch: int
    step: int


_COSTS = {"cuda": Costs(1 << 16, 1 << 28, 1 << 14, 1 << 10), "cpu": Costs(1 << 12, 1 << 24, 48, 8)}
_WHOLE_LOGITS = 1 << 29  # at a time, of a model that gives them all at once
_SHARED = 1.15  # the cost of a token in a shared row, where attention takes a mask
_SHARED_WIDTH = 256  # of a shared row, unless a sentence is longer; as in training


def costs_on(device: torch.device) -> Costs:
    return _COSTS.get(device.type, _COSTS["cpu"])


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentences in `rows` rows of `width` places; each begins at its start, rows end to end.

    In `shared` rows, several sentences follow each other.
    """

    sentences: Ints
    starts: Ints
    width: int
    rows: int
    shared: bool

    @property
    def places(self) -> int:
        return self.rows * self.width

    def halves(self, lengths: Ints) -> tuple["Batch", "Batch"]:
        """The same sentences in two batches, a row each: for a device without enough memory."""
        middle = len(self.sentences) // 2
        first, second = (
            _side_by_side(own, int(lengths[own].max()))
            for own in (self.sentences[:middle], self.sentences[middle:])
        )
        return first, second


def _side_by_side(sentences: Ints, width: int) -> Batch:
    return Batch(sentences, width * np.arange(len(sentences)), width, len(sentences), False)


def padded_batches(lengths: Ints, max_tokens: int, costs: Costs, serial: bool) -> list[Batch]:
    """All sentences, one per row, those of similar length together, at the least cost.

    Guarantees:
      - every sentence is in one batch; a batch has at most `max_tokens` places, or one sentence
      - no other division of the sorted sentences costs less, but for rounding up to whole batches
    """
    order = np.argsort(lengths, kind="stable")
    widths, count = np.unique(lengths, return_counts=True)
    until = np.concatenate([[0], np.cumsum(count)])
    best, begin = np.zeros(len(widths) + 1), np.zeros(len(widths), dtype=np.int64)
    for last, width in enumerate(widths.tolist()):
        places = width * (until[last + 1] - until[: last + 1])
        passes = np.ceil(places / max_tokens)
        total = best[: last + 1] + places + passes * (costs.batch + serial * costs.step * width)
        begin[last] = int(total.argmin())
        best[last + 1] = total[begin[last]]
    batches: list[Batch] = []
    end = len(widths)
    while end:
        first, width = int(begin[end - 1]), int(widths[end - 1])
        own = order[until[first] : until[end]]
        parts = -(-len(own) // max(1, max_tokens // width))
        batches += (_side_by_side(part, width) for part in np.array_split(own, parts))
        end = first
    return batches[::-1]


def shared_batches(lengths: Ints, max_tokens: int) -> list[Batch]:
    """All sentences end to end in shared rows: each, longest first, in the fullest row it fits.

    Guarantees:
      - every sentence is in one batch, whole; no two overlap
      - a batch has two rows at least: a model may read a single row as one sentence
    """
    width = max(_SHARED_WIDTH, int(lengths.max(initial=1)))
    row, offset = np.zeros((2, len(lengths)), dtype=np.int64)
    rows_with: list[list[int]] = [[] for _ in range(width + 1)]  # so much space left
    spaces, rows = 0, 0  # the bits of `spaces`: whether any row has this much left
    order = np.argsort(-lengths, kind="stable")
    for sentence, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        enough = spaces >> length
        if enough:
            space = length + (enough & -enough).bit_length() - 1
            row[sentence] = rows_with[space].pop()
            spaces ^= (not rows_with[space]) << space
        else:
            space, row[sentence], rows = width, rows, rows + 1
        offset[sentence] = width - space
        rows_with[space - length].append(int(row[sentence]))
        spaces |= 1 << (space - length)
    order = np.argsort(row, kind="stable")
    each = max(2, max_tokens // width)
    edges = np.searchsorted(row[order], np.arange(0, rows + each, each))
    batches = []
    for number, (low, high) in enumerate(pairwise(edges)):
        own = order[low:high]
        if len(own):
            starts = (row[own] - number * each) * width + offset[own]
            used = min(each, rows - number * each)
            batches.append(Batch(own, starts, width, max(2, used), True))
    return batches


def plan_batches(
    lengths: Ints,
    max_tokens: int,
    costs: Costs,
    serial: bool = False,
    may_share: Callable[[], bool] = lambda: False,
) -> list[Batch]:
    """Batches for all sentences, in shared rows if these cost less.

    Args:
        serial: the model steps through a sentence instead of computing all tokens at once.
        may_share: whether the model keeps sentences in a row apart; a trial, so asked last.
    """
    padded = padded_batches(lengths, max_tokens, costs, serial)
    if serial or not len(lengths):
        return padded
    shared = shared_batches(lengths, max_tokens)

    def cost(batches: list[Batch], each: float) -> float:
        return sum(costs.batch + each * batch.places for batch in batches)

    return shared if cost(shared, _SHARED) < cost(padded, 1.0) and may_share() else padded


# --- models --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Parts:
    """A causal model in two parts, the second of which is applied to a few tokens at a time."""

    body: Callable[..., Tensor]
    head: Callable[[Tensor], Tensor]
    whole: bool  # the body is the whole model, and its logits are there at once


_split: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether a model can be split


def _parts(model: nn.Module) -> _Parts:
    """The model's body and head if their logits are the model's, else the whole model."""
    if model not in _split:
        _split[model] = _is_body_and_head(model)
    if not _split[model]:
        return _Parts(_logits_of(model), lambda logits: logits, True)
    body, head = _body_and_head(model)
    return _Parts(lambda **i: body(use_cache=False, **i).last_hidden_state, head, False)


def _logits_of(model: nn.Module) -> Callable[..., Tensor]:
    def logits(input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is not None:
            return packed_logits(model, input_ids, position_ids)
        found: Tensor = model(input_ids=input_ids).logits
        return found

    return logits


def _body_and_head(model: Any) -> tuple[Any, Any]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model, inner.get_output_embeddings()


_LARGE = 30.0  # logits that any cap or scale after the head would show in


@torch.no_grad()
def _is_body_and_head(model: Any) -> bool:
    """Whether the logits are exactly the head applied to the last states of the body.

    By trial: the head must receive the body's states, and what it makes of other, large states must
    be the model's logits. A model that caps or scales its logits fails.
    """
    device = next(model.parameters()).device
    received: list[Tensor] = []
    try:
        body, head = _body_and_head(model)
        if head is None or body is model:
            return False
        ids = torch.arange(8, device=device).view(2, 4) % int(model.config.vocab_size)
        with evaluating(model), torch.autocast(device.type, enabled=False):
            states = body(input_ids=ids, use_cache=False).last_hidden_state
            others = torch.linspace(-1, 1, states.numel(), device=device).view(states.shape)
            others = others.to(states.dtype)
            others *= _LARGE / head(others).abs().max().clamp(min=1e-3)
            expected = head(others)

            def swap(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
                received.append(given[0])
                return (others,)

            hook = head.register_forward_pre_hook(swap)
            try:
                logits = model(input_ids=ids).logits
            finally:
                hook.remove()
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):
        return False
    if len(received) != 1 or received[0].shape != states.shape:
        return False
    same = torch.allclose(received[0], states, 1e-4, 1e-4 * float(states.abs().max()))
    return same and torch.allclose(logits, expected, 1e-5, 1e-5 * _LARGE)


def _is_serial(model: Any) -> bool:
    """Whether a model steps through its tokens, as one without attention does."""
    return not hasattr(getattr(model, "config", None), "num_attention_heads")


# --- losses --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Groups:
    """The number of each token's group, for every sentence, and how many groups there are."""

    codes: Sequence[Ids]
    count: int


def loss_sums(model: nn.Module, ids: Sequence[Ids], padding: int, **settings: Any) -> Floats:
    """The summed loss of each sentence of token ids; `settings` are those below."""
    return loss_sums_by_group(model, ids, padding, **settings)[0]


@torch.no_grad()
def loss_sums_by_group(
    model: nn.Module,
    ids: Sequence[Ids],
    padding: int,
    *,
    autocast: Autocast,
    max_tokens: int | None = None,
    may_share: Callable[[], bool] = lambda: False,
    progress: Progress = SILENT,
    groups: Groups | None = None,
) -> tuple[Floats, Floats]:
    """The summed loss of each sentence of token ids, and of each group of tokens.

    Every token but the first of a sentence is predicted. Not in inference mode: what a model keeps
    of such a pass could not be used in training.

    Guarantees:
      - a sentence's sum is that of the sentence by itself, up to rounding
      - the sums of groups add up to those of sentences; without groups there are none
      - logits are computed for a limited number of tokens at a time, where the model allows it
      - waits for the device once, at the end; a batch that does not fit in memory is halved
    """
    device = next(model.parameters()).device
    costs, lengths = costs_on(device), np.array([len(own) for own in ids])
    wanted = np.flatnonzero(lengths > 1)
    parts = _parts(model)
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 1 << 16))
    at_once = max_tokens or costs.max_tokens
    if parts.whole:
        at_once = min(at_once, max(1, _WHOLE_LOGITS // vocabulary))
    plan = plan_batches(lengths[wanted], at_once, costs, _is_serial(model), may_share)
    sums = torch.zeros(len(lengths), dtype=_double(device), device=device)
    by_group = sums.new_zeros(groups.count if groups else 0)
    codes = groups.codes if groups else None

    def add(batch: Batch) -> None:
        owners, own, losses = _token_losses(parts, batch, ids, codes, padding, device, vocabulary)
        losses = losses.to(sums.dtype)
        sums.index_add_(0, owners, losses)
        if own is not None:
            by_group.index_add_(0, own, losses)

    with autocast():
        _each(add, plan, wanted, lengths, progress)
        found: Floats = torch.cat([sums, by_group]).cpu().double().numpy()
    return found[: len(lengths)], found[len(lengths) :]


@torch.no_grad()
def summed(
    model: nn.Module,
    measure: Callable[[Ints], Tensor],
    sentences: Ints,
    lengths: Ints,
    max_tokens: int | None = None,
    progress: Progress = SILENT,
) -> list[float]:
    """The sums of what `measure` gives for batches of these sentences, each in a row of its own.

    Guarantees:
      - waits for the device once, at the end; a batch that does not fit in memory is halved
    """
    device = next(model.parameters()).device
    costs = costs_on(device)
    at_once = max_tokens or costs.max_tokens
    plan = padded_batches(lengths[sentences], at_once, costs, _is_serial(model))
    total = torch.zeros((), dtype=_double(device), device=device)

    def add(batch: Batch) -> None:
        nonlocal total
        total = total + measure(batch.sentences).to(total.dtype)

    _each(add, plan, sentences, lengths, progress)
    values: list[float] = total.tolist()
    return values


def _each(
    compute: Callable[[Batch], None],
    plan: Sequence[Batch],
    numbers: Ints,
    lengths: Ints,
    progress: Progress,
) -> None:
    """Compute all batches of a plan for the sentences with these numbers."""

    def attempt(batch: Batch) -> None:
        try:
            compute(batch)
            return
        except torch.OutOfMemoryError:
            if len(batch.sentences) < 2:
                raise
        torch.cuda.empty_cache()  # not in the handler, which keeps the tensors of the attempt
        for half in batch.halves(lengths):
            attempt(half)

    with progress.stage("evaluating", len(numbers), "sentences") as meter:
        for batch in plan:
            attempt(replace(batch, sentences=numbers[batch.sentences]))
            meter.advance(len(batch.sentences))


def _double(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which it does not have


def _token_losses(
    parts: _Parts,
    batch: Batch,
    ids: Sequence[Ids],
    codes: Sequence[Ids] | None,
    padding: int,
    device: torch.device,
    vocabulary: int,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The sentence, the group and the loss of every predicted token of a batch."""
    chosen = [ids[sentence] for sentence in batch.sentences.tolist()]
    lengths = np.array([len(own) for own in chosen])
    flat = np.concatenate(chosen).astype(np.int64)
    inside = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(batch.starts, lengths) + inside
    predicting = np.flatnonzero(inside + 1 < np.repeat(lengths, lengths))
    rows = np.full(batch.places, padding)
    rows[places] = flat
    numbers = [rows, places[predicting], flat[predicting + 1]]
    numbers.append(np.repeat(batch.sentences, lengths)[predicting])
    if batch.shared:
        positions = np.zeros(batch.places, dtype=np.int64)
        positions[places] = inside
        numbers.append(positions)
    own_groups = None
    if codes is not None:
        own = np.concatenate([codes[sentence] for sentence in batch.sentences.tolist()])
        own_groups = _sent(own[predicting + 1].astype(np.int64), device)
    input_ids, where, labels, owners, *position_ids = (_sent(x, device) for x in numbers)
    shape = (batch.rows, batch.width)
    inputs = {"input_ids": input_ids.view(shape)}
    if batch.shared:
        inputs["position_ids"] = position_ids[0].view(shape)
    states = parts.body(**inputs).flatten(0, 1)
    each = max(1, costs_on(device).logits // vocabulary)
    losses = [
        nn.functional.cross_entropy(parts.head(states[at]).float(), own, reduction="none")
        for at, own in zip(where.split(each), labels.split(each), strict=True)
    ]
    return owners, own_groups, torch.cat(losses)


def _sent(numbers: Ints, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda":  # from pinned memory, a copy does not wait
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# --- precision -----------------------------------------------------------------------------------

_TOLERANCE = 1e-3  # of a perplexity, relative
# Tokens that show it: the loss of a token is off by .06 (standard deviation) in bfloat16
_SAMPLED_HALF, _SAMPLED_TF32 = 1 << 16, 1 << 13
_SURE = 3.0  # standard errors


def faster_precision(
    model: nn.Module,
    sums: Callable[[Ints, Autocast], Floats],
    tokens: Ints,
    given: Autocast,
    evaluations: int = 1,
) -> Autocast:
    """The precision of an evaluation: the `given` one, or a faster one that measures the same.

    A sample of sentences is computed in both. That must pay: it is done only for a corpus that is
    several times as large, or evaluated several times.

    Args:
        sums: the summed losses of sentences in a precision.
        tokens: the predicted tokens of each sentence.
        evaluations: how often all of them will be evaluated.

    Guarantees:
      - the mean loss in a faster precision differs from that in the given one by less than
        `_TOLERANCE`, with three standard errors to spare
    """
    device, total = next(model.parameters()).device, int(tokens.sum())
    with given():
        if torch.is_autocast_enabled(device.type):
            return given
    order = np.random.default_rng(0).permutation(len(tokens))
    for sampled, way in _faster(device):
        if total < sampled or evaluations * total < 4 * sampled:
            continue
        sample = order[: 1 + int(np.searchsorted(np.cumsum(tokens[order]), sampled))]
        difference = sums(sample, way) - sums(sample, given)
        if _error(difference, tokens[sample]) < _TOLERANCE:
            return way
    return given


def _error(differences: Floats, tokens: Ints) -> float:
    """A bound on the difference of mean losses, from those of sampled sentences."""
    total = max(int(tokens.sum()), 1)
    mean = float(differences.sum()) / total
    spread = float(np.sqrt(np.square(differences - mean * tokens).sum())) / total
    return abs(mean) + _SURE * spread


def _faster(device: torch.device) -> Iterator[tuple[int, Autocast]]:
    """Faster precisions on a device, fastest first, with the tokens that it takes to judge them."""

    def half() -> AbstractContextManager[Any]:
        return half_precision(device)

    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            yield _SAMPLED_HALF, half
        yield _SAMPLED_TF32, tensor_float_32
    elif device.type == "cpu" and _has_half_precision_products():
        yield _SAMPLED_HALF, half


def _has_half_precision_products() -> bool:
    kinds = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, kind, lambda: False)() for kind in kinds)


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """Products of float32 in TF32 on a GPU: eleven bits of precision, several times as fast."""
    products: Any = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before
