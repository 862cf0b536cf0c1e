"""AWD-LSTM: sizes and beginnings as published, dropout as described, padding without effect."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip.shared import held_masks, shared_masks
from uedp.models.awd_lstm import (
    AwdLstmConfig,
    AwdLstmForCausalLM,
    AwdLstmForSequenceClassification,
    AwdLstmModel,
    LockedDropout,
    RecurrentWeight,
    WordDropout,
)

WORDS = 29
NO_DROPOUT = {
    f"{kind}_dropout": 0.0 for kind in ("embedding", "input", "weight", "layer", "output")
}


def config(**changes: object) -> AwdLstmConfig:
    small = {"vocab_size": WORDS, "embedding_size": 6, "hidden_size": 10, "num_labels": 4}
    return AwdLstmConfig(**{**small, **changes})


def language_model(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    return AwdLstmForCausalLM(config(**changes)).double().eval()


def classifier(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    return AwdLstmForSequenceClassification(config(**changes)).double().eval()


def words(sentences: int, tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, WORDS, (sentences, tokens), generator=generator)


# --- sizes and beginnings ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def published(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return AwdLstmForCausalLM(AwdLstmConfig(tie_word_embeddings=request.param))


def test_the_published_size(published):
    tied = published.config.tie_word_embeddings
    last = 100 if tied else 1150
    shapes = [tuple(layer.input_projection.weight.shape) for layer in published.model.layers]
    assert shapes == [(4600, 100), (4600, 1150), (4 * last, 1150)]
    recurrent = [tuple(layer.recurrent.weight.shape) for layer in published.model.layers]
    assert recurrent == [(4600, 1150), (4600, 1150), (4 * last, last)]
    assert (published.lm_head.weight is published.model.embed_tokens.weight) == tied
    assert sum(p.numel() for p in published.parameters()) == (17_849_600 if tied else 39_433_800)


def test_the_published_dropouts():
    settings = AwdLstmConfig()
    assert settings.embedding_dropout == 0.1
    assert settings.weight_dropout == 0.3
    assert settings.output_dropout == 0.5


def test_beginnings_are_uniform_as_published(published):
    """Kolmogorov-Smirnov, which a bound off by a third fails clearly."""
    for name, parameter in published.named_parameters():
        bound = 0.1 if "embed_tokens" in name else 1 / math.sqrt(1150)
        values = parameter.detach().flatten()
        values = values[torch.randperm(len(values))[:20_000]].numpy()
        assert abs(values).max() <= bound
        assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-5, name
        wide = stats.uniform(-4 / 3 * bound, 8 / 3 * bound)
        assert len(values) < 1000 or stats.kstest(values, wide.cdf).pvalue < 1e-5, name


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 0), ("vocab_size", -1), ("weight_dropout", 1.0), ("output_dropout", -0.1)],
)
def test_a_bad_size_or_rate_is_refused_by_name(field, value):
    with pytest.raises(UserError, match=f"{field} {value}: must be"):
        config(**{field: value})


# --- padding, and sentences on their own ---------------------------------------------------------

LENGTHS = [5, 1, 7, 3]


def padded(lengths: list[int], seed: int, width: int = 0) -> tuple[Tensor, Tensor]:
    """Sentences with padding strewn about them; `seed` moves the padding, not the words."""
    width = max(width, *lengths)
    ids, mask = words(len(lengths), width, seed + 1), torch.zeros(len(lengths), width)
    content = words(len(lengths), max(lengths))
    generator = torch.Generator().manual_seed(seed)
    for i, length in enumerate(lengths):
        places = torch.randperm(width, generator=generator)[:length].sort().values
        ids[i, places] = content[i, :length]
        mask[i, places] = 1
    return ids, mask.long()


def alone(model: nn.Module, i: int) -> Tensor:
    content = words(len(LENGTHS), max(LENGTHS))[i : i + 1, : LENGTHS[i]]
    logits: Tensor = model(content).logits[0]
    return logits


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(7, 14), tied=st.booleans())
def test_padding_changes_nothing_wherever_it_stands(seed, width, tied):
    ids, mask = padded(LENGTHS, seed, width)
    model = language_model(tie_word_embeddings=tied)
    logits = model(ids, attention_mask=mask).logits
    total: Tensor = torch.zeros(())
    for i in range(len(LENGTHS)):
        own = alone(model, i)
        torch.testing.assert_close(logits[i, mask[i] == 1], own)
        total = total + own.logsumexp(-1).sum()
    expected = gradients(model, total)
    found = gradients(model, (logits.logsumexp(-1) * mask).sum())
    torch.testing.assert_close(found, expected)
    model = classifier(tie_word_embeddings=tied)
    logits = model(ids, attention_mask=mask).logits
    together = torch.stack([alone(model, i) for i in range(len(LENGTHS))])
    torch.testing.assert_close(logits, together)
    torch.testing.assert_close(
        gradients(model, logits.logsumexp(-1).sum()),
        gradients(model, together.logsumexp(-1).sum()),
    )


@pytest.mark.parametrize("make", [language_model, classifier])
def test_no_state_is_carried_from_sentence_to_sentence(make: Callable[[], nn.Module]):
    model, ids = make(), words(2, 8)
    together = model(ids).logits
    for _ in range(2):  # nor from pass to pass
        for i in range(2):
            torch.testing.assert_close(model(ids[i : i + 1]).logits[0], together[i])


def test_no_state_depends_on_a_later_token():
    model, ids = language_model(), words(1, 8)
    other = ids.clone()
    other[0, 5:] = (other[0, 5:] + 1) % WORDS
    before, after = model(ids).logits, model(other).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any()


def test_a_sentence_without_tokens_moves_the_bias_alone():
    model = classifier()
    logits = model(words(2, 3), attention_mask=torch.zeros(2, 3)).logits
    torch.testing.assert_close(logits, model.classifier.bias.expand(2, -1))
    moved = gradients(model, logits[:, 0].sum())
    names = [n for (n, _), g in zip(model.named_parameters(), moved, strict=True) if g.any()]
    assert names == ["classifier.bias"]


# --- dropout -------------------------------------------------------------------------------------


def test_words_are_dropped_whole_and_everywhere():
    torch.manual_seed(0)
    dropout, ids = WordDropout(0.25), torch.randint(0, 2000, (50, 200))
    found = dropout(torch.ones(50, 200, 3), ids, 2000)
    assert (found == found[..., :1]).all()
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    by_word = torch.zeros(2000).scatter_(0, ids.flatten(), found[..., 0].flatten())
    assert torch.equal(by_word[ids], found[..., 0])
    dropped = int((by_word[ids.unique()] == 0).sum())
    assert stats.binomtest(dropped, len(ids.unique()), 0.25).pvalue > 1e-5


def test_locked_dropout_is_one_for_a_sentence_and_another_for_the_next():
    torch.manual_seed(0)
    found = LockedDropout(0.4)(torch.ones(30, 5, 200))
    assert (found == found[:, :1]).all()
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    mask = found[:, 0] == 0
    assert stats.binomtest(int(mask.sum()), mask.numel(), 0.4).pvalue > 1e-5
    pairs = (mask[:-1] & mask[1:]).sum()  # neighbours' masks are independent
    assert stats.binomtest(int(pairs), mask[1:].numel(), 0.16).pvalue > 1e-5


def test_weights_are_dropped_one_by_one():
    torch.manual_seed(0)
    layer = RecurrentWeight(50, 0.3)
    nn.init.ones_(layer.weight)
    found = layer.dropped()
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert stats.binomtest(int((found == 0).sum()), found.numel(), 0.3).pvalue > 1e-5
    assert torch.equal(found, layer.weight * layer.clip_mask.last)
    assert not torch.equal(layer.dropped(), found)


def test_without_training_nothing_is_dropped():
    model, ids = language_model(), words(2, 5)
    model.train()(ids)
    assert model.model.layers[0].recurrent.clip_mask.last is not None
    torch.testing.assert_close(model.eval()(ids).logits, language_model(**NO_DROPOUT)(ids).logits)
    assert model.model.layers[0].recurrent.clip_mask.last is None


@pytest.mark.parametrize("kind", ["embedding", "input", "weight", "layer", "output"])
def test_each_dropout_alone_is_in_use(kind):
    model = language_model(**{**NO_DROPOUT, f"{kind}_dropout": 0.5}).train()
    ids = words(2, 5)
    assert not torch.equal(model(ids).logits, model(ids).logits)


def test_masks_are_held_through_a_round_and_no_longer():
    shared = {**NO_DROPOUT, "weight_dropout": 0.5, "embedding_dropout": 0.5}
    model, ids = language_model(**shared).train(), words(3, 6)
    with held_masks(shared_masks(model)):
        first = model(ids).logits
        assert torch.equal(model(ids).logits, first)
        assert not torch.isclose(model.eval()(ids).logits, first).all()  # and after a look aside
        assert torch.equal(model.train()(ids).logits, first)
    after = model(ids).logits
    assert not torch.isclose(after, first).all()
    assert not torch.isclose(model(ids).logits, after).all()
    with held_masks(shared_masks(model)):
        assert not torch.isclose(model(ids).logits, first).all()
    with pytest.raises(ZeroDivisionError), held_masks(shared_masks(model)):
        _ = 1 / 0
    assert not torch.isclose(model(ids).logits, model(ids).logits).all()


def test_masks_of_single_sentences_are_not_held():
    model = language_model(**{**NO_DROPOUT, "output_dropout": 0.5}).train()
    ids = words(3, 6)
    with held_masks(shared_masks(model)):
        assert not torch.isclose(model(ids).logits, model(ids).logits).all()


def test_users_side_by_side_get_masks_of_their_own():
    model = language_model(embedding_dropout=0.5).train()
    ids, values = words(2, 5), {n: p.detach() for n, p in model.named_parameters()}

    def loss(of: dict[str, Tensor], _: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, of, (ids, torch.ones_like(ids))).logits
        total: Tensor = logits.logsumexp(-1).sum()
        return total

    users = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")
    found = users(values, torch.zeros(3))["model.layers.0.recurrent.weight"]
    dropped = found == 0
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[1], dropped[2])
    assert torch.isfinite(model(ids).logits).all()  # nothing of the transform is left behind


# --- as a Transformers model ---------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_language_model_comes_back_from_disk(tmp_path: Path, tied: bool):
    model = language_model(tie_word_embeddings=tied).float()
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(found, AwdLstmForCausalLM)
    assert found.config.to_diff_dict() == model.config.to_diff_dict()
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
    ids = words(2, 5)
    assert torch.equal(found(ids).logits, model(ids).logits)


def test_classifier_comes_back_from_disk(tmp_path: Path):
    model = classifier().float()
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(found, AwdLstmForSequenceClassification)
    assert torch.equal(found(words(2, 5)).logits, model(words(2, 5)).logits)
    assert found(words(2, 5)).logits.shape == (2, 4)
    assert isinstance(transformers.AutoModel.from_pretrained(tmp_path), AwdLstmModel)


def test_generation_continues_each_text_as_if_alone():
    model, ids = language_model(), words(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    both = model.generate(ids, attention_mask=mask, **settings)
    single = model.generate(ids[1:, 3:], attention_mask=mask[1:, 3:], **settings)
    assert torch.equal(both[1, 3:], single[0])


def test_arguments_are_refused_unless_they_ask_for_nothing():
    model, ids = language_model(), words(1, 3)
    model(ids, labels=None, output_attentions=False, return_dict=True)
    with pytest.raises(UserError, match="only, not labels"):
        model(ids, labels=ids)


def test_words_can_be_added():
    model = language_model().float()
    model.resize_token_embeddings(WORDS + 3, mean_resizing=False)
    ids = torch.tensor([[WORDS + 2, 1]])
    assert model.train()(ids).logits.shape == (1, 2, WORDS + 3)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_resuming_from_a_state_gives_the_logits_of_the_whole_text():
    model, ids = language_model(), words(3, 7)
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :4], resumable=True)
        rest = model(ids[:, 4:], state=first.state, resumable=True)
    assert torch.allclose(torch.cat([first.logits, rest.logits], 1), whole, atol=1e-6)
    with pytest.raises(UserError, match="evaluation mode only"):
        model.train()(ids, resumable=True)
    with pytest.raises(UserError, match="not state"):
        model.eval()(ids, state=first.state)


def test_beam_search_keeps_the_states_of_its_beams():
    model, ids = language_model(), words(2, 3)
    settings = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    found = model.generate(ids, **settings)
    model.prepare_inputs_for_generation = lambda input_ids, **_: {"input_ids": input_ids}
    assert torch.equal(found, model.generate(ids, **settings))
