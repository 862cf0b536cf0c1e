"""How likely a causal model finds texts that begin alike and go on differently."""

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.methods import Autocast
from uedp.training.tasks import unmasked

Floats = npt.NDArray[np.float64]

_MANY = 64  # endings of one prefix, from which on it is worth reading it apart
_ROOM = {"cuda": 1 << 14, "cpu": 1 << 12}  # tokens scored at a time


@dataclass(frozen=True, eq=False)
class Endings:
    """Ways in which a text can go on, as tokens.

    Those that differ in their last token alone share a context, and one pass gives all of them:
    to try all numbers of four digits takes a thousand rows.
    """

    contexts: list[tuple[int, ...]]
    place: Ints
    last: Ints

    @classmethod
    def of(cls, endings: Sequence[Sequence[int]]) -> "Endings":
        known = sorted({tuple(ending[:-1]) for ending in endings}, key=len)
        number = {context: place for place, context in enumerate(known)}
        place = np.array([number[tuple(ending[:-1])] for ending in endings])
        return cls(known, place, np.array([ending[-1] for ending in endings]))


@dataclass(frozen=True, eq=False)
class Question:
    """A text as far as it is given, and how it may go on."""

    prefix: Sequence[int]
    endings: Endings


@torch.no_grad()
def likelihoods(
    model: Any, questions: Sequence[Question], precision: Autocast, room: int
) -> list[Floats]:
    """For each question, the log-likelihood of each ending after the prefix.

    Where many endings follow one prefix, the model reads the prefix once, if it can.

    Guarantees:
      - each is the sum over the ending's tokens of their log-likelihoods after all before them,
        whatever stands beside it in a batch
    """
    found: dict[int, Floats] = {}
    remembers = "past_key_values" in inspect.signature(model.forward).parameters
    with unmasked(model):
        for number, question in enumerate(questions):
            if remembers and len(question.endings.contexts) >= _MANY:
                found[number] = _after_one_prefix(model, question, precision, room)
        rest = [number for number in range(len(questions)) if number not in found]
        if rest:
            side_by_side = _side_by_side(model, [questions[i] for i in rest], precision, room)
            found |= zip(rest, side_by_side, strict=True)
    return [found[number] for number in range(len(questions))]


def _after_one_prefix(model: Any, question: Question, precision: Autocast, room: int) -> Floats:
    device = next(model.parameters()).device
    with precision():
        read = model(input_ids=torch.tensor([list(question.prefix)], device=device), use_cache=True)
    endings = question.endings
    lengths = np.array([len(context) for context in endings.contexts])
    order = np.argsort(endings.place, kind="stable")
    found = np.empty(len(order))
    for begin, end in _batches(lengths + 1, room):
        contexts = endings.contexts[begin:end]
        ids = torch.from_numpy(_padded(contexts)).to(device)
        logits = read.logits[:, -1:].float().expand(len(contexts), -1, -1)
        if ids.shape[1]:
            own = copy.deepcopy(read.past_key_values)
            own.batch_repeat_interleave(len(contexts))
            with precision():
                more = model(input_ids=ids, past_key_values=own, use_cache=True).logits.float()
            logits = torch.cat([logits, more], 1)
        low, high = np.searchsorted(endings.place[order], [begin, end])
        mine = order[low:high]
        starts = np.zeros(len(contexts), dtype=np.int64)
        rows = endings.place[mine] - begin
        found[mine] = _sums(logits, ids, -1, starts, lengths[begin:end], rows, endings.last[mine])
    return found


def _side_by_side(
    model: Any, questions: Sequence[Question], precision: Autocast, room: int
) -> list[Floats]:
    device = next(model.parameters()).device
    rows = [(*q.prefix, *context) for q in questions for context in q.endings.contexts]
    starts = np.array([len(q.prefix) for q in questions for _ in q.endings.contexts])
    order = np.argsort([len(row) for row in rows], kind="stable")
    rows, starts = [rows[i] for i in order], starts[order]
    lengths = np.array([len(row) for row in rows])
    # for each ending its row in that order, and endings by their rows
    firsts = np.cumsum([0, *(len(q.endings.contexts) for q in questions[:-1])])
    place = np.concatenate([q.endings.place + i for q, i in zip(questions, firsts, strict=True)])
    place = np.argsort(order, kind="stable")[place]
    turn = np.argsort(place, kind="stable")
    last = np.concatenate([q.endings.last for q in questions])
    found = np.empty(len(last))
    for begin, end in _batches(lengths, room):
        some = slice(begin, end)
        ids = torch.from_numpy(_padded(rows[some])).to(device)
        kept = ids.shape[1] - int(starts[some].min()) + 1
        with precision():
            logits = _last_logits(model, ids, kept)
        mine = turn[slice(*np.searchsorted(place[turn], [begin, end]))]
        offset = ids.shape[1] - kept
        found[mine] = _sums(
            logits, ids, offset, starts[some], lengths[some], place[mine] - begin, last[mine]
        )
    return np.split(found, np.cumsum([len(q.endings.place) for q in questions])[:-1])


def _sums(
    logits: Tensor, ids: Tensor, offset: int, starts: Ints, lengths: Ints, rows: Ints, last: Ints
) -> Floats:
    """Log-likelihoods of the ids from `starts` to `lengths` of some rows, and one last token.

    `logits` at place `i` are those after the token at place `offset + i`.
    """
    device = ids.device
    total = logits.logsumexp(-1)
    steps = logits[:, :-1].gather(2, ids[:, offset + 1 :, None])[:, :, 0] - total[:, :-1]
    at = np.arange(offset + 1, ids.shape[1])
    counted = torch.from_numpy((at >= starts[:, None]) & (at < lengths[:, None])).to(device)
    inside = torch.where(counted, steps, 0.0).double().sum(1)
    row, final = (torch.from_numpy(i).to(device) for i in (rows, lengths[rows] - 1 - offset))
    closing = logits[row, final, torch.from_numpy(last).to(device)] - total[row, final]
    sums: Floats = (inside[row] + closing.double()).cpu().numpy()
    return sums


def _batches(lengths: Ints, room: int) -> Iterator[tuple[int, int]]:
    """Rows from one to another, sorted by length, of about `room` tokens each."""
    begin = 0
    while begin < len(lengths):
        end = begin + 1
        while end < len(lengths) and (end + 1 - begin) * lengths[end] <= room:
            end += 1
        yield begin, end
        begin = end


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    """On the right, where no token before sees it."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids


def _last_logits(model: Any, ids: Tensor, count: int) -> Tensor:
    """At the last positions alone: a head over many words costs more than the rest of a model."""
    accepts = "logits_to_keep" in inspect.signature(model.forward).parameters
    given = {"logits_to_keep": count} if accepts else {}
    logits: Tensor = model(input_ids=ids, **given).logits[:, -count:].float()
    return logits


class Scorer:
    """A causal model and its tokenizer, asked how likely texts are."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        max_tokens: int,
        precision: Autocast = torch.no_grad,
        room: int | None = None,
    ) -> None:
        self._model, self._tokenizer, self._longest = model, tokenizer, max_tokens
        self._device = next(model.parameters()).device
        self._precision = precision
        self._room = room or _ROOM.get(self._device.type, _ROOM["cpu"])
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        start = next((token for token in starts if token is not None), None)
        if start is None:
            raise UserError("the tokenizer has neither a start nor an end token; add one to it")
        self._start: int = start

    def question(self, before: str, candidates: Sequence[str], after: str = "") -> Question:
        """What stands in the gap? Each candidate is scored with what comes after."""
        prefix, endings = self.split([f"{before}{c}{after}" for c in candidates])
        return Question(prefix, Endings.of(endings))

    def answer(self, questions: Sequence[Question]) -> list[Floats]:
        """The log-likelihood of each ending, less a constant for each question."""
        return likelihoods(self._model, questions, self._precision, self._room)

    def split(self, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """The tokens that all texts begin with, and those that each goes on with."""
        rows = self.tokens(texts)
        shortest = min(map(len, rows))
        first, last = min(rows), max(rows)  # no two part earlier
        shared = next((i for i in range(shortest) if first[i] != last[i]), shortest)
        shared = min(shared, shortest - 1)
        return rows[0][:shared], [row[shared:] for row in rows]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Of each text, after a start token."""
        found = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        longest = max(map(len, found), default=0) + 1
        if longest > self._longest:
            raise UserError(
                f"a text of {longest} tokens is too long for the model, which takes {self._longest}"
            )
        return [[self._start, *ids] for ids in found]

    @torch.no_grad()
    def go_on(self, prompts: Sequence[str], tokens: int, beams: int = 1) -> list[list[str]]:
        """For each prompt its likeliest continuations by beam search; one beam is greedy."""
        rows = self.tokens(prompts)
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            by_length.setdefault(len(row), []).append(number)
        found: list[list[str]] = [[] for _ in rows]
        for length, numbers in by_length.items():  # of one length, so that nothing is padded
            each = max(1, self._room // ((length + tokens) * beams))
            for some in (numbers[i : i + each] for i in range(0, len(numbers), each)):
                ids = torch.tensor([rows[i] for i in some], device=self._device)
                for number, ends in zip(some, self._beams(ids, tokens, beams), strict=True):
                    found[number] = self._tokenizer.batch_decode(ends, skip_special_tokens=True)
        return found

    def _beams(self, ids: Tensor, tokens: int, beams: int) -> Tensor:
        """(prompts, length) to (prompts, beams, tokens), likeliest first."""
        prompts, length = ids.shape
        held = ids[:, None]
        scores = torch.zeros(prompts, 1, device=ids.device)
        for _ in range(tokens):
            with self._precision(), unmasked(self._model):
                logits = _last_logits(self._model, held.flatten(0, 1), 1)[:, 0]
            steps = logits.log_softmax(-1).view(prompts, held.shape[1], -1)
            every = (scores[:, :, None] + steps).flatten(1)
            scores, chosen = every.topk(min(beams, every.shape[1]), 1)
            parents = (chosen // steps.shape[2])[:, :, None].expand(-1, -1, held.shape[2])
            added = (chosen % steps.shape[2])[:, :, None]
            held = torch.cat([held.gather(1, parents), added], 2)
        return held[:, :, length:]


class Completions:
    """The same candidates after many prompts, cut into tokens once where that is the same cut."""

    def __init__(self, scorer: Scorer, candidates: Sequence[str]) -> None:
        self._scorer, self._candidates = scorer, candidates
        self._known: tuple[list[list[int]], Endings] | None = None

    def after(self, prompt: str) -> Question:
        """How does the prompt go on?"""
        prefix = None if self._known is None else self._prefix(prompt, self._known[0])
        if self._known is None or prefix is None:
            prefix, cut = self._scorer.split([f"{prompt} {c}" for c in self._candidates])
            self._known = cut, Endings.of(cut)
        return Question(prefix, self._known[1])

    def _prefix(self, prompt: str, endings: list[list[int]]) -> list[int] | None:
        """What comes before the known endings, if some candidates are still cut that way."""
        some = range(0, len(endings), max(1, len(endings) // 8))
        rows = self._scorer.tokens([f"{prompt} {self._candidates[i]}" for i in some])
        prefixes = []
        for row, i in zip(rows, some, strict=True):
            if row[len(row) - len(endings[i]) :] != endings[i]:
                return None
            prefixes.append(row[: len(row) - len(endings[i])])
        return prefixes[0] if all(prefix == prefixes[0] for prefix in prefixes) else None
