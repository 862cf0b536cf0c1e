"""Small models with adapters, sentences for them, and the oracle."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from tests.mechanism.clip.test_engine import token_losses
from uedp.incidence import Ints
from uedp.mechanism.clip.reference import clipped_sum
from uedp.mechanism.fixed.fixed_pass import FixedPass, FlatSum, Sentences
from uedp.models.trainable import make_trainable

WORDS, TOKENS, LONGEST = 61, 160, 32
UPDATE_CLIP = 0.04


def bare(kind: str, **options: object) -> nn.Module:
    """Grouped queries and tied weights (`llama`), or stacked projections with biases (`gpt2`)."""
    torch.manual_seed(0)
    if kind == "gpt2":
        settings = {"n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 64, "resid_pdrop": 0}
        settings |= {"vocab_size": WORDS, "embd_pdrop": 0, "attn_pdrop": 0, **options}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
        for name, parameter in model.named_parameters():  # biases begin at zero
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.1)
        return model
    settings = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    settings |= {"tie_word_embeddings": True, "attn_implementation": "sdpa", **options}
    family = {"llama": "Llama", "mistral": "Mistral"}[kind]
    config = getattr(transformers, f"{family}Config")(**settings)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def adapted(kind: str = "llama", how: str = "lora", rank: int = 4, **options: object) -> nn.Module:
    return randomised(make_trainable(bare(kind, **options), how, rank=rank).train())


POISON = 110  # a word whose gradients are not finite; no trial reads it


def poisoned() -> nn.Module:
    model = adapted(vocab_size=120, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.inf
    return model


def randomised(model: nn.Module, seed: int = 1) -> nn.Module:
    """Second matrices begin at zero, where the first have no gradient."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


def some(
    lengths: Sequence[int] = (5, 9, 2, 0, 17, 30, 3, 8, 8),
    owners: Sequence[int] = (0, 0, 0, 0, 1, 2, 2, 3, 3),
    clip: float = 0.05,
    seed: int = 0,
) -> Sentences:
    ids = np.random.default_rng(seed).integers(0, WORDS, sum(lengths))
    clips = clip * torch.linspace(0.2, 1.0, len(lengths))
    return Sentences(ids, np.array(lengths, int), np.array(owners, int), clips)


def rows(batch: Sentences) -> list[Ints]:
    return np.split(batch.ids, np.cumsum(batch.lengths)[:-1])


def losses(model: nn.Module, sentences: Sequence[Ints]) -> Tensor:
    """One sentence at a time, as the model computes it by itself."""
    device = next(model.parameters()).device
    values = []
    for sentence in sentences:
        ids = torch.tensor(sentence, device=device)[None]
        if ids.shape[1] < 2:
            values.append(sum(p.sum() * 0 for p in model.parameters() if p.requires_grad))
            continue
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        values.append(nn.functional.cross_entropy(logits, ids[0, 1:]))
    return torch.stack(values)


def padded_losses(model: nn.Module, sentences: Sequence[Ints]) -> Tensor:
    """All in one batch, as the engine wants them."""
    device = next(model.parameters()).device
    ids = torch.zeros(len(sentences), max(2, *map(len, sentences)), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, label, sentence in zip(ids, labels, sentences, strict=True):
        row[: len(sentence)] = torch.tensor(sentence)
        label[: max(0, len(sentence) - 1)] = torch.tensor(sentence)[1:]
    logits = model(input_ids=ids.to(device), use_cache=False).logits
    return token_losses(logits, labels.to(device))


def oracle(
    model: nn.Module, batch: Sentences, update_clip: float = UPDATE_CLIP
) -> tuple[Tensor, Tensor]:
    """The flat sum and the norms of sentences, in float64."""
    exact = copy.deepcopy(model).cpu().double()
    each = rows(batch)
    total, norms = clipped_sum(
        exact,
        lambda i: losses(exact, [each[i]])[0],
        batch.owners.tolist(),
        batch.clips.tolist(),
        update_clip,
    )
    return torch.cat([part.flatten() for part in total]), norms


def off(found: Tensor, expected: Tensor) -> float:
    """How far a tensor is from what was expected, relative to that."""
    return float((found.double().cpu() - expected).norm() / expected.norm())


def agrees(one: FixedPass, model: nn.Module, batch: Sentences, tolerance: float = 1e-5) -> FlatSum:
    """The pass is the oracle, to the tolerance; its sum nearly: factors divide by upper bounds."""
    one.refresh()
    found = one.clipped_sum(batch, UPDATE_CLIP)
    total, norms = oracle(model, batch)
    assert bool(found.finite)
    assert off(found.sentence_norms, norms) <= tolerance
    assert off(one.in_order(found.total), total) <= tolerance + 1e-3
    return found
