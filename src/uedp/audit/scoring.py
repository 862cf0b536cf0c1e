"""Likelihoods of texts that share a beginning, under a causal language model."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uedp.accounting.divergence import Floats
from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.models.load import start_token
from uedp.training.decoding import KeptState, last_logits
from uedp.training.tasks import without_padding_warning

_MANY = 64  # endings of one prefix, from which on caching its keys and values pays
_MAX_TOKENS = {"cuda": 1 << 14, "cpu": 1 << 12}  # scored at a time


@dataclass(frozen=True, eq=False)
class Endings:
    """Continuations of a text, as tokens.

    Those that differ only in their last token share a context, and one pass gives all of them:
    all numbers of four digits take a thousand rows.
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
    """A prefix and its candidate continuations."""

    prefix: Sequence[int]
    endings: Endings


@torch.no_grad()
def likelihoods(model: Any, questions: Sequence[Question], max_tokens: int) -> list[Floats]:
    """For each question, the log-likelihood of each ending after the prefix.

    Where many endings follow one prefix, the prefix is computed once, if the model has a cache.

    Guarantees:
      - each is the sum over the ending's tokens of their log-likelihoods after all before them,
        whatever stands beside it in a batch
    """
    answers: dict[int, Floats] = {}
    has_cache = "past_key_values" in inspect.signature(model.forward).parameters
    with without_padding_warning(model):
        for number, question in enumerate(questions):
            if has_cache and len(question.endings.contexts) >= _MANY:
                answers[number] = _after_one_prefix(model, question, max_tokens)
        rest = [number for number in range(len(questions)) if number not in answers]
        if rest:
            scores = _side_by_side(model, [questions[i] for i in rest], max_tokens)
            answers |= zip(rest, scores, strict=True)
    return [answers[number] for number in range(len(questions))]


def _after_one_prefix(model: Any, question: Question, max_tokens: int) -> Floats:
    prefix = torch.tensor([list(question.prefix)], device=next(model.parameters()).device)
    read = model(input_ids=prefix, use_cache=True)

    def logits_from(ids: Tensor, first: int) -> Tensor:
        before: Tensor = read.logits[:, -1:].float().expand(len(ids), -1, -1)
        if not ids.shape[1]:
            return before
        own = copy.deepcopy(read.past_key_values)
        own.batch_repeat_interleave(len(ids))
        more = model(input_ids=ids, past_key_values=own, use_cache=True).logits.float()
        return torch.cat([before, more], 1)

    starts = np.zeros(len(question.endings.contexts), dtype=np.int64)
    return _scores(question.endings, starts, logits_from, prefix.device, max_tokens)


def _side_by_side(model: Any, questions: Sequence[Question], max_tokens: int) -> list[Floats]:
    rows = [(*q.prefix, *context) for q in questions for context in q.endings.contexts]
    starts = np.array([len(q.prefix) for q in questions for _ in q.endings.contexts])
    order = np.argsort([len(row) for row in rows], kind="stable")
    firsts = np.cumsum([0, *(len(q.endings.contexts) for q in questions[:-1])])
    place = np.concatenate([q.endings.place + i for q, i in zip(questions, firsts, strict=True)])
    last = np.concatenate([q.endings.last for q in questions])
    endings = Endings([rows[i] for i in order], np.argsort(order, kind="stable")[place], last)

    def logits_from(ids: Tensor, first: int) -> Tensor:
        return last_logits(model, ids, ids.shape[1] - first + 1)

    device = next(model.parameters()).device
    scores = _scores(endings, starts[order], logits_from, device, max_tokens)
    return np.split(scores, np.cumsum([len(q.endings.place) for q in questions])[:-1])


def _scores(
    endings: Endings,
    starts: Ints,
    logits_from: Callable[[Tensor, int], Tensor],
    device: torch.device,
    max_tokens: int,
) -> Floats:
    """The log-likelihood of each ending: of its context from `starts` on, and its last token.

    Contexts are sorted by length. `logits_from(ids, first)` gives the logits for the ids from place
    `first` on, and for the token after them.
    """
    lengths = np.array([len(context) for context in endings.contexts])
    by_context = np.argsort(endings.place, kind="stable")
    scores = torch.empty(len(by_context), dtype=torch.float64, device=device)
    for begin, end in _batches(lengths + 1, max_tokens):
        ids = torch.from_numpy(_padded(endings.contexts[begin:end])).to(device)
        first, ends = int(starts[begin:end].min()), lengths[begin:end]
        logits = logits_from(ids, first)
        total = logits.logsumexp(-1)
        steps = logits[:, :-1].gather(2, ids[:, first:, None])[:, :, 0] - total[:, :-1]
        at = np.arange(first, ids.shape[1])
        counted = (at >= starts[begin:end, None]) & (at < ends[:, None])
        inside = torch.where(torch.from_numpy(counted).to(device), steps, 0.0).double().sum(1)
        low, high = np.searchsorted(endings.place[by_context], [begin, end])
        mine = by_context[low:high]
        rows = endings.place[mine] - begin
        row, final, last, place = (
            torch.from_numpy(index).to(device, non_blocking=True)
            for index in (rows, ends[rows] - first, endings.last[mine], mine)
        )
        closing = logits[row, final, last] - total[row, final]
        scores[place] = inside[row] + closing.double()
    found: Floats = scores.cpu().numpy()  # waits for the device, once
    return found


def _batches(lengths: Ints, max_tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted by length, of about `max_tokens` tokens each."""
    begin = 0
    while begin < len(lengths):
        end = begin + 1
        while end < len(lengths) and (end + 1 - begin) * lengths[end] <= max_tokens:
            end += 1
        yield begin, end
        begin = end


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    """Padded on the right, where no earlier token attends to it."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    return ids


class Scorer:
    """Scores texts by a causal model and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, max_tokens: int) -> None:
        self._model, self._tokenizer, self._longest = model, tokenizer, max_tokens
        self._device = next(model.parameters()).device
        self._max_tokens = _MAX_TOKENS.get(self._device.type, _MAX_TOKENS["cpu"])
        self._start = start_token(tokenizer)

    def question(self, before: str, candidates: Sequence[str], after: str = "") -> Question:
        """A gap between two texts; each candidate is scored with the text after it."""
        prefix, endings = self.split([f"{before}{c}{after}" for c in candidates])
        return Question(prefix, Endings.of(endings))

    def answer(self, questions: Sequence[Question]) -> list[Floats]:
        """The log-likelihood of each ending, less a constant for each question."""
        return likelihoods(self._model, questions, self._max_tokens)

    def split(self, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """The tokens that all texts begin with, and the remaining tokens of each."""
        rows = self.tokens(texts)
        shortest = min(map(len, rows))
        first, last = min(rows), max(rows)  # no two differ earlier
        shared = next((i for i in range(shortest) if first[i] != last[i]), shortest)
        shared = min(shared, shortest - 1)
        return rows[0][:shared], [row[shared:] for row in rows]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, after a start token."""
        token_ids = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        longest = max(map(len, token_ids), default=0) + 1
        if longest > self._longest:
            raise UserError(
                f"a text of {longest} tokens is too long for the model, which takes {self._longest}"
            )
        return [[self._start, *ids] for ids in token_ids]

    @torch.no_grad()
    def continuations(self, prompts: Sequence[str], tokens: int, beams: int = 1) -> list[list[str]]:
        """For each prompt its likeliest continuations by beam search; one beam is greedy."""
        rows = self.tokens(prompts)
        texts: list[list[str]] = [[] for _ in rows]
        for length in {len(row) for row in rows}:  # of one length, so that nothing is padded
            numbers = [number for number, row in enumerate(rows) if len(row) == length]
            each = max(1, self._max_tokens // ((length + tokens) * beams))
            for some in (numbers[i : i + each] for i in range(0, len(numbers), each)):
                ids = torch.tensor([rows[i] for i in some], device=self._device)
                for number, ends in zip(some, self._beams(ids, tokens, beams), strict=True):
                    texts[number] = self._tokenizer.batch_decode(ends, skip_special_tokens=True)
        return texts

    def _beams(self, ids: Tensor, tokens: int, beams: int) -> Tensor:
        """(prompts, length) to (prompts, beams, tokens), likeliest first."""
        prompts, length = ids.shape
        held, memory = ids[:, None], KeptState(self._model)
        scores = torch.zeros(prompts, 1, device=ids.device)
        first = torch.arange(prompts, device=ids.device)[:, None]
        for _ in range(tokens):
            with without_padding_warning(self._model):
                logits = memory.next_logits(held.flatten(0, 1))
            steps = logits.log_softmax(-1).view(prompts, held.shape[1], -1)
            every = (scores[:, :, None] + steps).flatten(1)
            scores, chosen = every.topk(min(beams, every.shape[1]), 1)
            parents = chosen // steps.shape[2]
            memory.keep((first * held.shape[1] + parents).flatten())
            added = (chosen % steps.shape[2])[:, :, None]
            ancestors = held.gather(1, parents[:, :, None].expand(-1, -1, held.shape[2]))
            held = torch.cat([ancestors, added], 2)
        return held[:, :, length:]


class Completions:
    """The same candidates after many prompts, tokenized once where the tokens are the same."""

    def __init__(self, scorer: Scorer, candidates: Sequence[str]) -> None:
        self._scorer, self._candidates = scorer, candidates
        self._known: tuple[list[list[int]], Endings] | None = None

    def after(self, prompt: str) -> Question:
        """The question which candidate continues the prompt."""
        prefix = None if self._known is None else self._prefix(prompt, self._known[0])
        if self._known is None or prefix is None:
            prefix, cut = self._scorer.split([f"{prompt} {c}" for c in self._candidates])
            self._known = cut, Endings.of(cut)
        return Question(prefix, self._known[1])

    def _prefix(self, prompt: str, endings: list[list[int]]) -> list[int] | None:
        """The prefix of the known endings, if a sample of candidates still has these tokens."""
        some = range(0, len(endings), max(1, len(endings) // 8))
        rows = self._scorer.tokens([f"{prompt} {self._candidates[i]}" for i in some])
        prefixes = []
        for row, i in zip(rows, some, strict=True):
            if row[len(row) - len(endings[i]) :] != endings[i]:
                return None
            prefixes.append(row[: len(row) - len(endings[i])])
        return prefixes[0] if all(prefix == prefixes[0] for prefix in prefixes) else None
