"""On an accelerator: fused kernels against plain PyTorch, the engine against the oracle."""

import copy

import numpy as np
import pytest
import torch

from tests.mechanism.clip.test_engine import (
    LENGTHS,
    OWNERS,
    language_models,
    ragged,
    token_losses,
)
from tests.mechanism.clip.test_records import CLIPS, TEXTS
from tests.mechanism.clip.test_records import OWNERS as PACKED_OWNERS
from tests.models import tiny
from uedp.mechanism import packing
from uedp.mechanism.clip import Engine, kernels
from uedp.mechanism.clip.reference import clipped_sum
from uedp.models.trainable import make_trainable
from uedp.training import tasks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 20), (7, 24, 576), (2, 1, 5000)])
def test_fused_kernels_are_what_plain_pytorch_gives(shape, dtype, monkeypatch):
    torch.manual_seed(0)
    x, grads = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    weights = torch.rand(shape[0], device="cuda")
    calls = [
        lambda: kernels.scaled_rows(x, weights),
        lambda: kernels.norm_gradients(x, grads, 1e-6, centred=True),
        lambda: kernels.norm_gradients(x, grads, 1e-6, centred=False),
    ]
    fused = [call() for call in calls]
    monkeypatch.setattr(kernels, "_fused", lambda values: False)
    for found, call in zip(fused, calls, strict=True):
        torch.testing.assert_close(_whole(found), _whole(call()), rtol=1e-5, atol=1e-5)


def _whole(result):
    """Parts as the sum they stand for: the second may round differently, by one bit of its own."""
    parts = result if isinstance(result, tuple) else (result,)
    return torch.stack([part.float() for part in parts]).sum(0)


@pytest.mark.parametrize("name", language_models())
def test_the_engine_is_the_oracle(name):
    torch.manual_seed(0)
    model = language_models()[name]().eval()
    exact = copy.deepcopy(model).double()
    model = model.cuda()
    ids, mask = ragged(LENGTHS, 3)
    labels = ids.masked_fill(~mask, -100)

    def losses(net, order, device):
        logits = net(
            input_ids=ids[order].to(device), attention_mask=mask[order].long().to(device)
        ).logits
        return token_losses(logits[:, :-1], labels[order][:, 1:].to(device))

    clips = torch.full((8,), 0.5)
    expected, norms = clipped_sum(
        exact, lambda i: losses(exact, [i], "cpu")[0], OWNERS, clips.tolist(), 1.0
    )

    def relative(found):
        pairs = zip((found.gradients[p] for p in model.parameters()), expected, strict=True)
        off = sum(float((g.cpu().double() - e).pow(2).sum()) for g, e in pairs) ** 0.5
        return off / sum(float(e.pow(2).sum()) for e in expected) ** 0.5

    found = Engine(model).clipped_sum(lambda o: losses(model, list(o), "cuda"), OWNERS, clips, 1.0)
    assert relative(found) < 3e-3  # factors divide by upper bounds of norms
    torch.testing.assert_close(found.sentence_norms.cpu().double(), norms, rtol=1e-5, atol=1e-6)

    def half(order):
        with torch.autocast("cuda", torch.bfloat16):
            return losses(model, list(order), "cuda")

    assert relative(Engine(model).clipped_sum(half, OWNERS, clips, 1.0)) < 0.03


@pytest.mark.parametrize("train", ["full", "lora"])
def test_shared_rows_give_the_same_on_both_devices(train, monkeypatch):
    monkeypatch.setattr(packing, "piece_width", lambda _: 3)
    model = make_trainable(tiny.llama(), train, rank=2)
    task = tasks.NextWord(TEXTS, tiny.tokenizer(), 32)
    assert task.packing_for(model) == packing.SHARED_ROWS
    found = []
    for device in ("cpu", "cuda"):
        engine = Engine(model.to(device).eval())
        sums = engine.clipped_sum(
            lambda order: task.losses(model, np.array(order), packing.SHARED_ROWS),
            PACKED_OWNERS,
            CLIPS,
            0.6,
        )
        found.append([sums.gradients[p].cpu() for p in engine.parameters if p in sums.gradients])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
