"""Generation in batches: the texts that one prompt after the other gives."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import tiny
from tests.training.test_evaluation import lstm
from uedp.training import generation
from uedp.training.generation import continuations, rows_at_once

PROMPTS = [[0], [0, 5, 9], [0, 5, 9], [0, 7], [0, 200, 3], [0, 7]]


@pytest.fixture(params=["gpt2", "llama", "lstm"])
def model(request):
    return lstm() if request.param == "lstm" else getattr(tiny, request.param)()


def test_a_prompt_is_continued_as_if_alone(model):
    together = continuations(model, PROMPTS, tokens=6, temperature=0, padding=0)
    for prompt, text in zip(PROMPTS, together, strict=True):
        (alone,) = continuations(model, [prompt], tokens=6, temperature=0, padding=0)
        ends = [*text, *[0] * 9][: len(alone)]  # padded where others go on
        assert ends == alone
        assert text[: len(prompt)] == prompt


@torch.no_grad()
def test_the_likeliest_tokens_are_those_of_the_whole_text(model):
    """The cache changes nothing."""
    (text,) = continuations(model, [[0, 5, 9]], tokens=6, temperature=0, padding=0)
    ids = [0, 5, 9]
    for token in text[3:]:
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        assert token == int(logits.argmax())
        ids.append(token)


def test_tokens_are_drawn_from_the_models_distribution():
    model = tiny.gpt2()
    model.generation_config.top_k = 3  # not used
    texts = continuations(model, [[0, 5]] * 4000, tokens=1, temperature=2.0, seed=1, padding=0)
    with torch.no_grad():
        expected = (model(input_ids=torch.tensor([[0, 5]])).logits[0, -1] / 2).softmax(0)
    found = torch.zeros(tiny.WORDS)
    for text in texts:
        found[text[2] if len(text) > 2 else 0] += 1 / len(texts)
    assert float((found - expected).abs().sum()) / 2 < 0.12
    assert int((found > 0).sum()) > 3


def test_seeds_are_reproducible_and_batches_bounded(monkeypatch):
    model = tiny.llama()

    def texts(**options: Any) -> Any:
        return continuations(model, [[0]] * 9, tokens=5, padding=0, **options)

    calls = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda ids, **o: calls.append(len(ids)) or generate(ids, **o)
    )
    monkeypatch.setattr(generation, "rows_at_once", lambda *_: 4)
    first = texts(seed=3)
    assert calls == [4, 4, 1]
    assert texts(seed=3) == first
    assert texts(seed=4) != first
    assert len({tuple(text) for text in first}) > 5


def test_equal_prompts_are_computed_once_where_nothing_is_drawn(monkeypatch):
    model = tiny.llama()
    rows = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda ids, **o: rows.append(len(ids)) or generate(ids, **o)
    )
    continuations(model, PROMPTS, tokens=2, temperature=0, padding=0)
    assert sum(rows) == 4


def test_progress_counts_every_token_once():
    class Shown:
        def __init__(self) -> None:
            self.items = self.total = self.calls = 0

        @contextmanager
        def stage(self, name: str, total: int, unit: str):
            self.total = total
            yield self

        def advance(self, items: int, position: int | None = None) -> None:
            self.items, self.calls = self.items + items, self.calls + 1

    shown = Shown()
    continuations(tiny.llama(), PROMPTS, tokens=4, seed=0, padding=0, progress=shown)  # type: ignore[arg-type]
    assert shown.items == shown.total == 4 * len(PROMPTS)
    assert shown.calls > 3


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    model = tiny.llama()
    expected = continuations(model, [[0, i] for i in range(5)], tokens=3, temperature=0, padding=0)
    generate = model.generate

    def short(ids: torch.Tensor, **options: Any) -> Any:
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        return generate(ids, **options)

    monkeypatch.setattr(model, "generate", short)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = continuations(model, [[0, i] for i in range(5)], tokens=3, temperature=0, padding=0)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs[: len(ours)]
    monkeypatch.setattr(
        model, "generate", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError)
    )
    with pytest.raises(torch.OutOfMemoryError):
        continuations(model, [[0]], tokens=3, padding=0)


def test_rows_at_once_follow_from_the_size_of_cache_and_logits():
    processor = torch.device("cpu")
    small = rows_at_once(tiny.llama(), 10, processor)
    assert small > rows_at_once(tiny.llama(), 1000, processor) > 100
    cache = 2 * 3 * 2 * 8 * 4 * 10 + 16 * tiny.WORDS  # keys, values; layers, heads, width, bytes
    assert small == (1 << 30) // cache
    assert rows_at_once(nn.Linear(1, 1), 10, processor) > 100
