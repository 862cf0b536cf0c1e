"""Clipped sums of adapters in passes of one shape, recorded once and replayed.

A round of a small model is bound by launches: thousands of operations of microseconds each. Where
every pass has the same shape, an accelerator replays all of them by itself (a CUDA graph). Then no
sentence is padded either: sentences lie end to end in one row (`varlen`), and what is left of the
row belongs to none. Adapters are fused (`adapters`), and clipped by kernels that find sentences by
their bounds (`thin`).

One shape also means that a sentence is computed alike in every pass, whoever else was drawn.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.eval_mode import modes_kept
from uedp.incidence import Ints
from uedp.mechanism.clip.clipping import Errors
from uedp.mechanism.clip.combine import FORMED
from uedp.mechanism.clip.rounding import exact_float32, sum_error
from uedp.mechanism.fixed.adapters import Adapter, Group, find_adapters, fused, group_adapters
from uedp.mechanism.fixed.attention import end_to_end
from uedp.mechanism.fixed.frozen import find_frozen
from uedp.mechanism.fixed.thin import BLOCK, MOST, SentenceRows, ThinProduct, ThinTable
from uedp.mechanism.fixed.token_loss import IGNORED, token_losses

_WAVES = 4  # in which the gradients of a pass are formed
_TRIED_WORDS = 97  # or fewer, if the model knows fewer
_SHORTEST = 16  # mean tokens of a sentence, below which passes are not full
_one_at_a_time = RLock()  # precisions and parts of Transformers are set for the whole process


@dataclass(frozen=True, eq=False)
class Sentences:
    """The tokens of some sentences end to end, users' sentences together.

    `owners` is the user of each sentence, from 0 on in order; `clips` is each sentence's.
    """

    ids: Ints
    lengths: Ints
    owners: Ints
    clips: Tensor

    @property
    def users(self) -> int:
        return int(self.owners[-1]) + 1 if len(self.owners) else 0


@dataclass(frozen=True, eq=False)
class FlatSum:
    """A clipped sum, flat, in the order of the passes (`FixedPass.in_order`), on the device.

    The sum is valid until the next pass.
    """

    total: Tensor
    sentence_norms: Tensor
    user_norms: Tensor
    finite: Tensor
    """Whether every gradient is; if not, the sum is zero."""


class FixedPass:
    """Clipped sums of the adapters of one model, for up to `tokens` tokens at a time.

    Guarantees:
      - sums and norms are those of `Engine.clipped_sum`, up to rounding
      - no sentence adds more than its clip, and no user more than the update clip
      - where a gradient is not finite, the sum is zero, and says so
      - weights of the model are as before; frozen ones are read when it is built, trained ones in
        every `refresh`
    """

    def __init__(
        self, model: nn.Module, tokens: int, longest: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """Raises `UserError` if the model is not of a kind that can be computed so."""
        adapters = find_adapters(model)
        if adapters is None:
            raise UserError("something else than plain adapters is trained")
        self.tokens, self.longest = tokens, longest
        self.sentences = max(1, tokens // _SHORTEST)
        positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        if isinstance(positions, int) and positions < longest:
            raise UserError(f"the model has {positions} positions, and a text up to {longest}")
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if any(p.numel() > FORMED for p in self.parameters):
            # the engine would allow for more rounding: who fits in a pass would be clipped less
            raise UserError(f"an adapter has more than {FORMED:,} entries")
        self._model, self._dtype = model, dtype
        self._device = adapters[0].up.device
        of_adapters = {p for adapter in adapters for p in (adapter.down, adapter.up)}
        self._half = {
            p: p.detach().to(dtype)
            for p in model.parameters()
            if p.is_floating_point() and p not in of_adapters and dtype != p.dtype
        }
        self._inputs = _Inputs(tokens, self.sentences, longest, self._device)
        self._anchor = torch.zeros((), device=self._device, requires_grad=True)
        self._frozen = find_frozen(model)
        self._inputs.fill_with_nothing()
        with self._prepared():
            self._groups = group_adapters(model, adapters, dtype, self._logits)
        for group in self._groups:
            for member in group.members:
                self._half.pop(member.base.get_parameter("weight"), None)  # its group has a copy
        each = -(-len(self._groups) // _WAVES)
        self._waves = [
            _Wave(self._groups[start : start + each], self._device)
            for start in range(0, len(self._groups), each)
        ]
        size = sum(wave.size for wave in self._waves)
        self._total = torch.zeros(size, dtype=torch.float32, device=self._device)
        self._places = self._find_places()
        self._formed: list[SentenceRows] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._recorded: list[int] = []
        self._outputs: tuple[Tensor, ...] = ()
        self._snapshot = _Snapshot(model, adapters)
        self._record()

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Frozen weights in this precision, in training mode, without any other autocast."""
        before = {parameter: parameter.data for parameter in self._half}
        device = self._device.type
        _one_at_a_time.acquire()
        kept = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        try:
            for parameter, half in self._half.items():
                parameter.data = half
            with (
                modes_kept(self._model),
                torch.autocast(device, enabled=False),
                exact_float32(),
                end_to_end(self._model, self._inputs.attended, self._inputs.count, self.longest),
                self._frozen.replaced(self._dtype),
            ):
                self._model.train()
                yield
        finally:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = kept
            for parameter, own in before.items():
                parameter.data = own
            _one_at_a_time.release()

    def _logits(self) -> Tensor:
        inputs = self._inputs
        logits: Tensor = self._model(
            input_ids=inputs.ids[None], position_ids=inputs.positions[None], use_cache=False
        ).logits
        return logits.flatten(0, 1)

    def _refresh(self) -> None:
        for group in self._groups:
            group.refresh()

    def _find_places(self) -> Tensor:
        """Where the entries of trained parameters, flattened and end to end, lie in the sum."""
        places: dict[nn.Parameter, Tensor] = {}
        start = 0
        for wave in self._waves:
            places |= {p: start + entries for p, entries in wave.places().items()}
            start += wave.size
        return torch.cat([places[parameter] for parameter in self.parameters]).to(self._device)

    def _pass(self) -> None:
        """Forward and backward; forms gradients wave by wave, as records become complete."""
        self._formed = []
        for wave in self._waves:
            # the backward pass comes to the first group last
            wave.groups[0].after = partial(self._form, wave)
        inputs = self._inputs
        try:
            with fused(self._groups, self._anchor):
                logits = self._logits()
            (token_losses(logits, inputs.labels) * inputs.weights).sum().backward()
        finally:
            for wave in self._waves:  # nothing refers to this pass: its memory goes with it
                wave.groups[0].after = _nothing

    def _form(self, wave: "_Wave") -> None:
        inputs = self._inputs
        rows = wave.table.formed(wave.products(), inputs.bounds, inputs.count)
        self._formed.insert(0, rows)
        wave.forget()

    @torch.no_grad()
    def _clip(self) -> tuple[Tensor, ...]:
        inputs, formed = self._inputs, self._formed
        squares = torch.stack([rows.squares for rows in formed]).sum(0)
        errors = Errors(inputs.owner, self.sentences + 1)
        # what is formed is what is added: only squares and sums over a user's sentences round
        own = errors.user_totals(inputs.real)
        errors.allow(slice(None), squares.sqrt(), squares=sum_error(BLOCK), norms=sum_error(own))
        factors = errors.sentence_factors(squares, inputs.clips)
        users, used = (inputs.users, inputs.user_count), factors.float()
        by_user = torch.stack([rows.user_squares(*users, used) for rows in formed]).sum(0)
        by_user = nn.functional.pad(by_user, (0, 1))  # of nobody, whose the missing sentences are
        weights, _ = errors.weights(by_user, factors, inputs.update_clip)
        finite = torch.isfinite(squares).all()
        weights = torch.where(finite, weights, 0.0)
        totals = self._total.split([wave.size for wave in self._waves])
        for rows, total in zip(formed, totals, strict=True):
            rows.weighted_sum(weights, total)
        self._formed = []
        return squares.sqrt().float(), by_user.sqrt().float(), finite

    def _record(self) -> None:
        """Try a pass, twice; record it where the device can."""
        words = self._model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        self._inputs.fill_with_a_trial(min(words, _TRIED_WORDS))
        with self._prepared():
            self._refresh()
            first, second = self._tried(), self._tried()
            if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                raise UserError("a pass draws random numbers, or adds in another order each time")
            self._refuse_company(min(words, _TRIED_WORDS), first[1])
            if self._device.type != "cuda":
                return
            self._recorded = self._where()
            pool = torch.cuda.graph_pool_handle()
            self._graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
            with torch.cuda.graph(self._graphs[0], pool=pool):
                self._refresh()
            with torch.cuda.graph(self._graphs[1], pool=pool):
                self._pass()
                self._outputs = self._clip()
            for wave in self._waves:
                wave.table.send()
            torch.cuda.empty_cache()  # what trials took

    def _refuse_company(self, words: int, norms: Tensor) -> None:
        """Raise if norms of a trial are others where other sentences lie beside, or before them."""
        count = self._inputs.fill_with_a_trial(words, others=True)
        beside = torch.equal(self._tried()[1][:count:2], norms[:count:2])
        self._inputs.fill_with_a_trial(words, backwards=True)
        elsewhere = torch.equal(self._tried()[1][:count].flip(0), norms[:count])
        if not (beside and elsewhere):
            raise UserError("the gradient of a sentence changes with the sentences beside it")

    def _tried(self) -> tuple[Tensor, Tensor]:
        """The sum and the norms of sentences."""
        versions = [(id(t), t._version) for t in self._state()]
        self._pass()
        self._outputs = self._clip()
        if [(id(t), t._version) for t in self._state()] != versions:
            raise UserError("a pass changes a parameter or a buffer of the model")
        return self._total.clone(), self._outputs[0].clone()

    def _state(self) -> Iterator[Tensor]:
        yield from self._model.parameters()
        yield from self._model.buffers()

    def is_current(self) -> bool:
        """Whether the model is the one that was read: only trained weights may have changed.

        Frozen weights that are written through `.data` go unnoticed, as in PyTorch's own checks.
        """
        return self._snapshot.is_current()

    def refresh(self) -> None:
        """Read the adapters as they are now; before the first pass of a round."""
        if not self.is_current():
            raise RuntimeError("the model was changed since it was read")
        if self._graphs and self._where() == self._recorded:
            self._graphs[0].replay()
        else:
            self._refresh()

    def _where(self) -> list[int]:
        """The addresses that a recorded refresh reads."""
        members = (member for group in self._groups for member in group.members)
        return [p.data_ptr() for member in members for p in (member.down, member.up)]

    def clipped_sum(self, batch: Sentences, update_clip: float) -> FlatSum:
        """The clipped sum of sentences that fit (`fits`)."""
        if not self.fits(batch.lengths):
            raise ValueError("these sentences do not fit in one pass")
        self._inputs.fill(batch, update_clip)
        if self._graphs:
            self._graphs[1].replay()
        else:
            with self._prepared():
                self._pass()
                self._outputs = self._clip()
        sentences, users = len(batch.lengths), batch.users
        norms, by_user, finite = (output.clone() for output in self._outputs)
        return FlatSum(self._total, norms[:sentences], by_user[:users], finite)

    def in_order(self, total: Tensor) -> Tensor:
        """A sum in the order of the model's trained parameters, each flattened, end to end."""
        return total[self._places]

    def fits(self, lengths: Ints) -> bool:
        """Whether sentences of these lengths can be computed in one pass."""
        few = len(lengths) <= self.sentences and int(lengths.sum()) <= self.tokens
        return few and int(lengths.max(initial=0)) <= self.longest


def _nothing() -> None:
    pass


class _Snapshot:
    """What of a model a pass has read once and for all: everything but the trained weights."""

    def __init__(self, model: nn.Module, adapters: Sequence[Adapter]) -> None:
        self._adapters = [(adapter, adapter.state()) for adapter in adapters]
        self._tensors = [
            (own, name, tensor, self._state(tensor))
            for module in model.modules()
            for own in (module._parameters, module._buffers)
            for name, tensor in own.items()
            if tensor is not None
        ]

    @staticmethod
    def _state(tensor: Tensor) -> tuple[int, ...] | None:
        """None for what trains: it may be written to, and moved."""
        return None if tensor.requires_grad else (tensor._version, tensor.data_ptr())

    def is_current(self) -> bool:
        return all(
            own.get(name) is tensor and self._state(tensor) == state
            for own, name, tensor, state in self._tensors
        ) and all(adapter.state() == state for adapter, state in self._adapters)


class _Inputs:
    """The buffers that a pass reads, filled by two copies from the host."""

    def __init__(self, tokens: int, sentences: int, longest: int, device: torch.device) -> None:
        self._tokens, self._sentences, self._longest = tokens, sentences, longest
        rest = -(-tokens // longest) + 1  # pieces that what is left of the row is cut into
        sizes = {
            "ids": tokens,
            "positions": tokens,
            "labels": tokens,
            "bounds": sentences + rest + 1,
            "users": sentences + 1,
            "owner": sentences,
            "counts": 2,
        }
        self._whole = _Buffer(sizes, torch.int64, device)
        self._real = _Buffer(
            {"weights": tokens, "clips": sentences, "update": 1}, torch.float64, device
        )
        self.attended = torch.zeros(sentences + rest + 1, dtype=torch.int32, device=device)
        self.bounds = self.attended[: sentences + 1]
        self.users = torch.zeros(sentences + 1, dtype=torch.int32, device=device)
        self.weights = torch.zeros(tokens, dtype=torch.float32, device=device)
        self.ids, self.positions, self.labels = (
            self._whole.device[name] for name in ("ids", "positions", "labels")
        )
        self.owner, counts = self._whole.device["owner"], self._whole.device["counts"]
        self.count, self.user_count = counts[0], counts[1]
        self.clips, self.update_clip = self._real.device["clips"], self._real.device["update"]
        self.real = torch.zeros(sentences, dtype=torch.float64, device=device)

    def fill(self, batch: Sentences, update_clip: float) -> None:
        lengths, sentences = batch.lengths, len(batch.lengths)
        assert (np.diff(batch.owners) >= 0).all()
        ends = np.cumsum(lengths)
        used = int(ends[-1]) if sentences else 0
        starts = np.repeat(ends - lengths, lengths)
        whole, real = self._whole.writable(), self._real.writable()
        whole["ids"][:used], whole["ids"][used:] = batch.ids, 0
        whole["positions"][:used] = np.arange(used) - starts
        rest = np.arange(self._tokens - used)
        whole["positions"][used:] = rest % self._longest
        whole["labels"][: max(used - 1, 0)] = batch.ids[1:]
        whole["labels"][max(used - 1, 0) :] = IGNORED
        whole["labels"][ends[lengths > 0] - 1] = IGNORED
        bounds = whole["bounds"]
        bounds[0], bounds[1 : sentences + 1] = 0, ends
        bounds[sentences + 1 :] = np.minimum(
            used + self._longest * np.arange(1, len(bounds) - sentences), self._tokens
        )
        owners = batch.owners
        users = batch.users
        whole["owner"][:sentences], whole["owner"][sentences:] = owners, self._sentences
        whole["users"][: users + 1] = np.searchsorted(owners, np.arange(users + 1))
        whole["users"][users + 1 :] = sentences
        whole["counts"][:] = sentences, users
        real["weights"][:used] = np.repeat(1 / np.maximum(lengths - 1, 1), lengths)
        real["weights"][used:] = 0
        real["clips"][:sentences], real["clips"][sentences:] = batch.clips.numpy(), 1
        real["update"][0] = update_clip
        self._whole.send()
        self._real.send()
        self.attended.copy_(self._whole.device["bounds"])
        self.users.copy_(self._whole.device["users"])
        self.weights.copy_(self._real.device["weights"])
        self.real.copy_(self.owner < self._sentences)

    def fill_with_nothing(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.fill(Sentences(none, none, none, torch.zeros(0)), 1.0)

    def fill_with_a_trial(self, words: int, others: bool = False, backwards: bool = False) -> int:
        """Some sentences of varying lengths, of a user each, half the row; ids below `words`.

        With `others`, every second sentence is another one; `backwards`, the last comes first.
        Returns their number.
        """
        lengths: list[int] = []
        used = 0
        while used + 2 < self._tokens // 2 and len(lengths) < self._sentences:
            length = min(self._longest, 2 + 7 * len(lengths) % 29, self._tokens // 2 - used)
            lengths.append(length)
            used += length
        owners = np.arange(len(lengths))
        ids = (np.arange(used) + np.repeat(owners % 2 * others, lengths)) % words
        sentences = np.split(ids, np.cumsum(lengths)[:-1])
        if backwards:
            sentences, lengths = sentences[::-1], lengths[::-1]
        clips = torch.full((len(lengths),), 0.1)
        self.fill(Sentences(np.concatenate(sentences), np.array(lengths), owners, clips), 1.0)
        return len(lengths)


class _Buffer:
    """Named parts of one tensor, on the host and on the device."""

    def __init__(self, sizes: dict[str, int], dtype: torch.dtype, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._host = [self._on_host(sizes, dtype) for _ in range(2)]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._flat = torch.zeros(sum(sizes.values()), dtype=dtype, device=device)
        parts = self._flat.split(list(sizes.values()))
        self.device = dict(zip(sizes, parts, strict=True))
        self._sizes = sizes

    def _on_host(self, sizes: dict[str, int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(sum(sizes.values()), dtype=dtype, pin_memory=self._pinned)

    def writable(self) -> dict[str, npt.NDArray[np.generic]]:
        """The parts on the host, once the copy before last has arrived."""
        self._turn = 1 - self._turn
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()
        parts = self._host[self._turn].split(list(self._sizes.values()))
        return {name: part.numpy() for name, part in zip(self._sizes, parts, strict=True)}

    def send(self) -> None:
        self._flat.copy_(self._host[self._turn], non_blocking=True)
        if self._pinned:
            event = torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event


class _Wave:
    """Consecutive groups whose gradients are formed together, and where these lie in its part.

    All groups at once would keep all records until the end of a pass; one by one they would leave
    the device idle.
    """

    def __init__(self, groups: Sequence[Group], device: torch.device) -> None:
        self.groups = groups
        self._starts: dict[nn.Parameter, int] = {}
        self.size = 0
        shapes = []
        for group in groups:
            for member, ranks in zip(group.members, group.ranks, strict=True):
                for parameter, width in (
                    (member.down, member.down.shape[1]),
                    (member.up, len(member.up)),
                ):
                    if parameter.requires_grad:
                        self._starts[parameter] = self.size
                        self.size += parameter.numel()
                        shapes += [(part.stop - part.start, width) for part in _slices(ranks)]
        self.table = ThinTable(shapes, device)

    def places(self) -> dict[nn.Parameter, Tensor]:
        """Where the entries of each parameter, flattened, lie in this part of the sum."""
        ups = {id(member.up) for group in self.groups for member in group.members}
        places = {}
        for parameter, start in self._starts.items():
            entries = torch.arange(parameter.numel())
            if id(parameter) in ups:  # a row for each thin feature
                entries = entries.view(*reversed(parameter.shape)).t().flatten()
            places[parameter] = start + entries
        return places

    def products(self) -> list[ThinProduct]:
        """Of the records of this pass."""
        products = []
        for group in self.groups:
            record = group.record
            assert record is not None
            assert record.grads is not None
            assert record.thin_grads is not None
            members = zip(group.members, group.outputs, group.ranks, strict=True)
            for member, outputs, ranks in members:
                for parameter, thin, wide, scale in (
                    (member.down, record.thin_grads, record.inputs, 1.0),
                    (member.up, record.thin, record.grads[:, outputs], member.scale),
                ):
                    if not parameter.requires_grad:
                        continue
                    start = self._starts[parameter] - ranks.start * wide.shape[1]
                    products += [
                        ThinProduct(thin[:, own], wide, scale, start + own.start * wide.shape[1])
                        for own in _slices(ranks)
                    ]
        return products

    def forget(self) -> None:
        """Free the records."""
        for group in self.groups:
            group.record = None


def _slices(columns: slice) -> list[slice]:
    """In parts of at most `MOST`."""
    starts = range(columns.start, columns.stop, MOST)
    return [slice(start, min(start + MOST, columns.stop)) for start in starts]


class NoFixedPassError(UserError):
    """The device or the model cannot be computed so."""


_TOKENS = (1 << 13, 1 << 12, 1 << 11)  # of a pass: more than the first gain little
FEWEST_TOKENS = _TOKENS[-1]
_SHARE = 0.4  # of the memory that is free: others train on the same device


def fixed_pass(model: nn.Module, tokens: int | None, longest: int, dtype: torch.dtype) -> FixedPass:
    """A fixed pass; raises `NoFixedPassError` where the device or the model does not allow one.

    Args:
        tokens: of a pass; by default as many as are worth it and fit, measured here.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise NoFixedPassError("there is no accelerator")
    try:
        if tokens is not None:
            return FixedPass(model, tokens, longest, dtype)
        return _largest(model, longest, dtype, device)
    except Exception as error:  # of any kind: a model of another make
        raise NoFixedPassError(str(error) or type(error).__name__) from error


def _largest(model: nn.Module, longest: int, dtype: torch.dtype, device: torch.device) -> FixedPass:
    """As large as its share of the free memory holds: decided by a pass of the smallest size."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    trial = FixedPass(model, _TOKENS[-1], longest, dtype)
    each = (torch.cuda.max_memory_allocated(device) - before) / _TOKENS[-1]
    for tokens in _TOKENS:
        if tokens * each <= _SHARE * free:
            if tokens == _TOKENS[-1]:
                return trial
            del trial
            gc.collect()  # its graph has memory of its own
            torch.cuda.empty_cache()
            return FixedPass(model, tokens, longest, dtype)
    raise UserError(f"{free / 1e9:.1f} GB of free memory hold no pass of {_TOKENS[-1]:,} tokens")
