"""Nothing above the clip, whatever cancels: an adversary that chooses what every layer sees.

A sentence's tokens are chosen so that their gradients cancel to almost nothing. What rounding makes
of that must not let the sentence, or its user, into the sum above its clip.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from uedp.mechanism.clip import Engine, combine
from uedp.mechanism.clip.rounding import exact_float32
from uedp.mechanism.clip.shared import SharedMask

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WORDS = 5


class MaskedLinear(nn.Module):
    """A linear layer whose weight is multiplied by a mask that sentences share."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.clip_mask = SharedMask(0.3)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.clip_mask(self.weight.shape, self.weight)
        return nn.functional.linear(x, self.weight if mask is None else self.weight * mask)


class Tied(nn.Module):
    """An embedding that is also the head; the adversary hands the head its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embed.weight


class Attack:
    """A layer and a sentence for it: inputs, ids and output gradients of every token."""

    def __init__(self, kind: str, dtype: torch.dtype, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.kind, self.dtype, self.device = kind, dtype, device
        self.width, self.out = 48, WORDS if kind == "tied" else 40
        makers: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: nn.Linear(self.width, self.out),
            "conv1d": lambda: Conv1D(self.out, self.width),
            "embedding": lambda: nn.Embedding(WORDS, self.out),
            "layer norm": lambda: nn.LayerNorm(self.width),
            "rms norm": lambda: nn.RMSNorm(self.width, eps=1e-6),
            "masked": lambda: MaskedLinear(self.width, self.out),
            "tied": lambda: Tied(self.width),
        }
        model = nn.ModuleDict({"layer": makers[kind]()}).to(device, dtype).train()
        if isinstance(model["layer"], nn.Linear | Conv1D):
            model["layer"].bias.requires_grad_(False)  # it would add what never cancels
        self.model, self.layer = model, model["layer"]
        self.engine = Engine(model)

    def tokens(self, pairs: int, size: float, apart: float) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of tokens whose gradients cancel but for a part `apart` of them."""
        inputs = torch.randn(pairs, self.width) * size
        grads = torch.randn(pairs, self.width if "norm" in self.kind else self.out)
        moved = inputs * (1 + apart * torch.randn(pairs, self.width))
        ids = torch.randint(WORDS, (pairs,))
        other = -grads * (1 + (apart if self.kind == "embedding" else 0) * torch.randn_like(grads))
        order = torch.randperm(2 * pairs)
        return (
            torch.cat([inputs, moved])[order].to(self.device, self.dtype),
            torch.cat([grads, other])[order].to(self.device, self.dtype),
            torch.cat([ids, ids])[order].to(self.device),
        )

    def losses(self, x: Tensor, grads: Tensor, ids: Tensor) -> Tensor:
        """(sentences, tokens, ...): losses whose gradient at the layer's output is `grads`."""
        if self.kind == "embedding":
            return (self.layer(ids) * grads).sum((1, 2))
        if self.kind == "tied":
            into = x * grads[..., :1]
            return (self.layer.head(x) * grads).sum((1, 2)) + (self.layer.embed(ids) * into).sum(
                (1, 2)
            )
        return (self.layer(x) * grads).sum((1, 2))

    def added(
        self, tokens: tuple[Tensor, Tensor, Tensor], clip: float, update_clip: float
    ) -> list[Tensor]:
        """What one user of these sentences, (sentences, tokens, ...), adds to the sum."""
        sentences = len(tokens[0])
        with self.engine.one_round():
            found = self.engine.clipped_sum(
                lambda order: self.losses(*(part[list(order)] for part in tokens)),
                [0] * sentences,
                torch.full((sentences,), clip),
                update_clip,
            )
        return [gradient.double() for gradient in found.gradients.values()]


def length(parts: list[Tensor]) -> float:
    return float(torch.sqrt(sum((part**2).sum() for part in parts)))


KINDS = ["linear", "conv1d", "embedding", "layer norm", "rms norm", "masked", "tied"]
WAYS = [(kind, None) for kind in KINDS] + [("linear", "grams"), ("linear", "by user")]
SIZES = [(1.0, 1e-1), (1.0, 1e-3), (30.0, 1e-4), (1e3, 1e-5), (1e3, 1e-7), (1e5, 0.0)]
CLIP = 1e-3


def attacks(kind: str, dtype: torch.dtype, device: str, tries: int):
    for seed in range(tries):
        attack = Attack(kind, dtype, device, seed)
        for size, apart in SIZES:
            for pairs in (1, 16, 60):
                yield attack, [attack.tokens(pairs, size, apart) for _ in range(3)]


def stacked(sentences: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    x, grads, ids = zip(*sentences, strict=True)
    return torch.stack(x), torch.stack(grads), torch.stack(ids)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_nothing_is_added_above_its_clip(kind, way, dtype, device, monkeypatch):
    if way:
        monkeypatch.setattr(combine, "_cheapest", lambda *_: way)
    worst = 0.0
    for attack, sentences in attacks(kind, dtype, device, 2):
        alone = attack.added(stacked(sentences[:1]), CLIP, 1.0)
        user = attack.added(stacked(sentences), 1.0, CLIP)
        worst = max(worst, length(alone) / CLIP, length(user) / CLIP)
    assert worst <= 1 + 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_a_sentence_moves_its_user_by_its_clip_at_most(kind, way, dtype, device, monkeypatch):
    """Emptied, or there, beside others of the user whose sum is clipped too."""
    if way:
        monkeypatch.setattr(combine, "_cheapest", lambda *_: way)
    worst = 0.0
    for attack, sentences in attacks(kind, dtype, device, 2):
        torch.manual_seed(0)
        there = attack.added(stacked(sentences), CLIP, 2 * CLIP)
        x, grads, ids = stacked(sentences)
        grads = torch.cat([torch.zeros_like(grads[:1]), grads[1:]])
        torch.manual_seed(0)
        emptied = attack.added((x, grads, ids), CLIP, 2 * CLIP)
        moved = [a - b for a, b in zip(there, emptied, strict=True)]
        worst = max(worst, length(moved) / CLIP)
    # the norms' own rounding is left: see the margin on the noise
    assert worst <= 1 + 2e-3


def test_products_stay_in_float32_whatever_the_process_allows():
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with exact_float32():
            assert [backend.fp32_precision for backend in backends] == ["ieee", "ieee"]
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        for backend, found in zip(backends, before, strict=True):
            backend.fp32_precision = found
