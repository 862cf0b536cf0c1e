"""Sentences end to end are computed as each alone, and other attention is refused."""

import pytest
import torch
from torch import nn

from tests.mechanism.fixed.small import bare
from uedp.errors import UserError
from uedp.mechanism.fixed.attention import _attention, end_to_end

BOUNDS = torch.tensor([0, 5, 5, 14, 20, 24], dtype=torch.int32)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_model_reads_sentences_end_to_end_as_each_alone(kind):
    model, ids = bare(kind).eval(), torch.randint(0, 61, (24,))
    positions = torch.cat([torch.arange(n) for n in (5, 9, 6, 4)])
    before = model.config._attn_implementation
    with torch.no_grad(), end_to_end(model, BOUNDS, torch.tensor(3), 16):
        found = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    assert model.config._attn_implementation == before
    for start, end in ((0, 5), (5, 14), (14, 20)):
        with torch.no_grad():
            alone = model(input_ids=ids[None, start:end], use_cache=False).logits[0]
        torch.testing.assert_close(found[start:end], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.1}, {"is_causal": False}, {"sliding_window": 15}, {"softcap": 30.0}],
    ids=str,
)
def test_other_attention_is_refused(options):
    q = torch.randn(1, 2, 24, 8)
    with end_to_end(bare("llama"), BOUNDS, torch.tensor(3), 16):
        _attention(nn.Module(), q, q, q, None, sliding_window=16, softcap=None)
        with pytest.raises(UserError, match="attention"):
            _attention(nn.Module(), q, q, q, None, **options)
        with pytest.raises(UserError, match="plain causal"):
            _attention(nn.Module(), q, q, q, torch.ones(24, 24), **options)


def test_a_model_without_such_attention_is_refused():
    with (
        pytest.raises(UserError, match="cannot be replaced"),
        end_to_end(nn.Linear(2, 2), BOUNDS, torch.tensor(3), 16),
    ):
        pass
