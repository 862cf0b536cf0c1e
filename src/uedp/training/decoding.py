"""Draw the tokens of many texts side by side, each from random numbers of its own."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uedp.errors import UserError
from uedp.training.evaluation import tensor_float_32
from uedp.training.tasks import without_padding_warning

_WASTE = 4  # finished texts are taken out of a batch once they are one part in so many
_LIKELIEST = 1024  # tokens that almost always hold the share `top_p`: a full sort is slow


class KeptState:
    """What a model keeps of texts that grow by a token at a time: keys and values, or states.

    A model that keeps nothing reads the whole texts again.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: Any = None
        self._accepts = inspect.signature(model.forward).parameters

    def next_logits(self, texts: Tensor) -> Tensor:
        """For the token after each text; all but the last token were there before, if kept."""
        new = texts if self._kept is None else texts[:, -1:]
        if "past_key_values" in self._accepts:
            last = {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}
            read = self._model(input_ids=new, past_key_values=self._kept, use_cache=True, **last)
            self._kept = read.past_key_values
        elif "resumable" in self._accepts:  # ours
            read = self._model(input_ids=new, state=self._kept, resumable=True)
            self._kept = read.state
        else:
            return last_logits(self._model, texts, 1)[:, 0]
        logits: Tensor = read.logits[:, -1].float()
        return logits

    def keep(self, texts: Tensor) -> None:
        """Of the texts only these, by number; one may be there several times."""
        if isinstance(self._kept, list):
            self._kept = [tuple(part[texts] for part in state) for state in self._kept]
        elif self._kept is not None:
            self._kept.batch_select_indices(texts)


def last_logits(model: Any, ids: Tensor, count: int) -> Tensor:
    """At the last positions only: a large vocabulary's head costs more than the rest of a model."""
    accepts = "logits_to_keep" in inspect.signature(model.forward).parameters
    given = {"logits_to_keep": count} if accepts else {}
    logits: Tensor = model(input_ids=ids, **given).logits[:, -count:].float()
    return logits


@dataclass(frozen=True)
class TokenSampling:
    """How tokens are drawn: at most `tokens` a text, from the model's distribution.

    At temperature 0 the likeliest token is taken. `top_k` of 0 keeps all tokens, else as many of
    the likeliest; `top_p` keeps the fewest likeliest that have this share together.
    """

    tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"`tokens={self.tokens}`: must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"`temperature={self.temperature:g}`: must not be negative or infinite")
        if self.top_k < 0:
            raise UserError(f"`top_k={self.top_k}`: must not be negative; 0 keeps all tokens")
        if not 0 < self.top_p <= 1:
            raise UserError(f"`top_p={self.top_p:g}`: must be above 0 and at most 1")


@torch.no_grad()
def sample_texts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    draws: npt.NDArray[np.float64],
    sampling: TokenSampling,
    ends: frozenset[int] = frozenset(),
    finished: Callable[[int], None] = lambda texts: None,
) -> list[list[int]]:
    """Continue prompts of any lengths together; returns prompts and continuations.

    Rows start together and nothing is padded: while a prompt lasts, its own tokens are appended in
    place of drawn ones.

    Args:
        draws: (texts, tokens) numbers from [0, 1); number `t` of a text decides its new token `t`
        ends: tokens after which a text is finished; they are part of it
        finished: called with the number of texts that were just finished

    Guarantees:
      - a text depends on the model, its prompt and its own draws only, up to rounding in the model
      - a token is drawn from the model's distribution, changed as `sampling` says
      - of equal batches, the results are equal on the same machine
    """
    device = next(model.parameters()).device
    own = [len(prompt) for prompt in prompts]
    held = torch.tensor([prompt[: min(own)] for prompt in prompts], device=device)
    alive, results = list(range(len(prompts))), [list(prompt) for prompt in prompts]
    done: set[int] = set()
    state = KeptState(model)
    fast = tensor_float_32() if device.type == "cuda" else nullcontext()
    with fast, without_padding_warning(model):
        while len(done) < len(prompts):
            place = held.shape[1]
            numbers = [draws[i, min(max(place - own[i], 0), sampling.tokens - 1)] for i in alive]
            chosen = choose(state.next_logits(held), np.array(numbers), sampling).tolist()
            before = len(done)
            for row, text in enumerate(alive):
                if place < own[text]:
                    chosen[row] = prompts[text][place]
                elif text not in done:
                    results[text].append(chosen[row])
                    if chosen[row] in ends or place + 1 - own[text] >= sampling.tokens:
                        done.add(text)
            if len(done) > before:
                finished(len(done) - before)
            held = torch.cat([held, torch.tensor(chosen, device=device)[:, None]], 1)
            kept = [row for row, text in enumerate(alive) if text not in done]
            if kept and _WASTE * (len(alive) - len(kept)) >= len(alive):
                rows = torch.tensor(kept, device=device)
                held, alive = held[rows], [alive[row] for row in kept]
                state.keep(rows)
    return results


def choose(logits: Tensor, draws: npt.NDArray[np.float64], sampling: TokenSampling) -> Tensor:
    """One token for each row of logits, by inverting its distribution at the row's draw."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    # less the largest, so that a small temperature does not overflow
    shifted = logits.double() - logits.amax(1, keepdim=True)
    chances = (shifted / sampling.temperature).softmax(1)
    if not bool(torch.isfinite(chances).all()):
        raise UserError(
            "generate: the model's probabilities are not numbers; its training diverged"
        )
    order = None
    if sampling.top_k or sampling.top_p < 1:
        chances, order = _likeliest(chances, sampling)
    sums = chances.cumsum(1)
    # a draw is below 1, so that a token beyond it always exists, and has a chance above 0
    at = torch.from_numpy(draws).to(logits.device)[:, None] * sums[:, -1:]
    places = torch.searchsorted(sums, at, right=True).clamp(max=sums.shape[1] - 1)
    return (places if order is None else order.gather(1, places))[:, 0]


def _likeliest(chances: Tensor, sampling: TokenSampling) -> tuple[Tensor, Tensor]:
    """The tokens that are kept, likeliest first: their chances, others 0, and their numbers."""
    words = chances.shape[1]
    count = min(sampling.top_k or words, words)
    first = min(count, _LIKELIEST)
    found, order = chances.topk(first, 1)
    total = chances.sum(1, keepdim=True)
    if sampling.top_k:
        if count > first:
            found, order = chances.topk(count, 1)
        total = found.sum(1, keepdim=True)
    elif bool((found.sum(1) < sampling.top_p).any()):
        found, order = chances.sort(dim=1, descending=True, stable=True)
    before = found.cumsum(1) - found
    return torch.where(before < sampling.top_p * total, found, 0.0), order
