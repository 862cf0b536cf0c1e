"""Tokens drawn side by side: the law of each, and its independence from the others."""

import numpy as np
import pytest
import torch

from tests.models import tiny
from tests.training.test_evaluation import lstm
from uedp.errors import UserError
from uedp.training.decoding import TokenSampling, choose, sample_texts
from uedp.training.generation import continuations

PROMPTS = [[0], [0, 5, 9], [0, 5, 9, 12, 3], [0, 7], [0, 200, 3], [0, 7]]
GREEDY = TokenSampling(tokens=6, temperature=0)


@pytest.fixture(params=["gpt2", "llama", "lstm"])
def model(request):
    return lstm() if request.param == "lstm" else getattr(tiny, request.param)()


def draws(texts: int, tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((texts, tokens))


def test_prompts_of_any_lengths_are_continued_as_if_alone(model):
    numbers = draws(len(PROMPTS), 6)
    for sampling in (GREEDY, TokenSampling(tokens=6, temperature=0.8, top_p=0.9)):
        together = sample_texts(model, PROMPTS, numbers, sampling, frozenset({0}))
        for prompt, own, text in zip(PROMPTS, numbers, together, strict=True):
            assert text[: len(prompt)] == prompt
            assert [text] == sample_texts(model, [prompt], own[None], sampling, frozenset({0}))


def test_the_likeliest_tokens_are_those_of_transformers(model):
    found = sample_texts(model, PROMPTS, draws(len(PROMPTS), 6), GREEDY)
    ids = model.config.eos_token_id
    expected = continuations(model, PROMPTS, tokens=6, temperature=0, padding=0)
    for ours, theirs in zip(found, expected, strict=True):
        until = next((i for i in range(1, len(theirs)) if theirs[i] == ids), len(theirs))
        assert ours[:until] == theirs[:until]


def test_a_text_ends_after_an_end_token_or_the_limit_and_is_counted_once(model):
    numbers, told = draws(40, 20, 1), []
    ends = frozenset(range(60))
    texts = sample_texts(model, [[0]] * 40, numbers, TokenSampling(20), ends, told.append)
    assert sum(told) == 40
    lengths = {len(text) for text in texts}
    assert len(lengths) > 4
    assert max(lengths) <= 21
    for text in texts:
        assert not ends & set(text[1:-1])
        assert text[-1] in ends or len(text) == 21


def test_tokens_follow_the_models_distribution():
    model = tiny.gpt2()
    with torch.no_grad():
        logits = 4 * model(input_ids=torch.tensor([[0, 5]])).logits[0, -1]
    n = 20_000
    found = choose(logits.expand(n, -1), draws(n, 1)[:, 0], TokenSampling(temperature=2.0))
    shares = torch.bincount(found, minlength=tiny.WORDS) / n
    expected = (logits / 2).softmax(0)
    distance = float((shares - expected).abs().sum()) / 2
    # 261 words: the mean distance of a right sampler is below sqrt(261 / (2 pi n)) = 0.046
    assert distance < 0.06
    wrong = float((shares - (logits / 3).softmax(0)).abs().sum()) / 2
    assert wrong > 0.06


def test_only_the_likeliest_tokens_are_kept():
    chances = torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]])
    points = np.linspace(0, 1, 1000, endpoint=False)

    def kept(**settings) -> dict[int, float]:
        logits = chances.log().expand(len(points), -1)
        tokens = choose(logits, points, TokenSampling(**settings)).tolist()
        return {token: tokens.count(token) / len(points) for token in set(tokens)}

    assert set(kept()) == {0, 1, 2, 3, 4}
    assert kept(top_k=2) == pytest.approx({1: 0.4 / 0.65, 3: 0.25 / 0.65}, abs=2e-3)
    assert set(kept(top_p=0.66)) == {1, 3, 2}
    assert set(kept(top_p=0.64)) == {1, 3}
    assert set(kept(top_p=1e-9)) == {1}
    assert set(kept(top_k=3, top_p=0.6)) == {1, 3}  # of the three that are kept
    assert set(kept(temperature=1e-6)) == {1}


def test_a_wide_distribution_is_sorted_in_full():
    words = 3000
    logits = torch.zeros(4, words)
    logits[:, 7] = 1e-3
    points = np.array([0.0, 0.3, 0.6, 0.999])
    found = choose(logits, points, TokenSampling(top_p=0.9)).tolist()
    assert found[0] == 7
    assert max(found) > 2000


def test_wrong_settings_and_broken_models_are_refused():
    for settings, what in (
        ({"tokens": 0}, "tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ):
        with pytest.raises(UserError, match=what):
            TokenSampling(**settings)
    with pytest.raises(UserError, match="diverged"):
        choose(torch.full((1, 3), float("nan")), np.zeros(1), TokenSampling())
