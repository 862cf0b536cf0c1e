"""The fast path against the oracle: random small nets, and real architectures."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.mechanism.clip import ClippedSum, Engine, combine
from uedp.mechanism.clip.reference import clipped_sum

VOCABULARY = 37


def agree(
    model: nn.Module,
    losses: Callable[[nn.Module, list[int]], Tensor],
    owners: Sequence[int],
    sentence_clip: float,
    update_clip: float,
    tolerance: float = 1e-5,
) -> ClippedSum:
    """The engine's norms are the oracle's, to the relative tolerance, and its sum nearly.

    Factors divide by upper bounds, which take a little off where tokens cancel.
    """
    clips = sentence_clip * torch.linspace(0.5, 1.0, len(owners))
    exact = copy.deepcopy(model).double()
    expected, norms = clipped_sum(
        exact,
        lambda i: losses(exact, [i])[0],
        owners,
        clips.tolist(),
        update_clip,
    )
    found = Engine(model).clipped_sum(
        lambda order: losses(model, list(order)), owners, clips, update_clip
    )
    scale = max(float(norms.max()), 1e-12)
    assert float((found.sentence_norms - norms).abs().max()) <= tolerance * scale
    total = torch.sqrt(sum((t**2).sum() for t in expected))
    difference = torch.sqrt(
        sum(
            ((found.gradients[p] if p in found.gradients else torch.zeros_like(p)) - t).pow(2).sum()
            for p, t in zip(
                (p for p in model.parameters() if p.requires_grad), expected, strict=True
            )
        )
    )
    assert float(difference) <= (tolerance + 3e-3) * float(total) + 1e-9
    return found


class Net(nn.Module):
    """A little of everything: embedding, norm, a nonlinearity, linears with and without bias."""

    def __init__(self, width: int, inner: int, tied: bool, norm: str, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(16, width)
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        # float32 itself loses the gradient of a sentence that is predicted almost surely
        nn.init.normal_(self.embed.weight, std=0.3)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])[None]
        x = self.embed(ids) + self.positions(places)
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(x)


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """One value per sentence: the mean over its own tokens; padding counts for nothing."""
    found = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=-100, reduction="none"
    )
    return found.sum(1) / (labels != -100).sum(1).clamp(min=1)


def ragged(lengths: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Ids padded with zeros, and a mask."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(1, VOCABULARY, (len(lengths), longest), generator=generator)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return ids * mask, mask


@settings(max_examples=90, deadline=None)
@given(
    way=st.sampled_from(["grams", "by user", "explicit", None]),
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    width=st.sampled_from([1, 3, 8, 24]),
    inner=st.sampled_from([1, 5, 32]),
    tied=st.booleans(),
    norm=st.sampled_from(["layer", "rms"]),
    bias=st.booleans(),
    clips=st.tuples(st.sampled_from([1e-3, 0.3, 100.0]), st.sampled_from([1e-3, 0.5, 100.0])),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 10**6),
)
def test_random_nets(way, owners, width, inner, tied, norm, bias, clips, dtype, seed):
    torch.manual_seed(seed)
    if dtype == torch.bfloat16:  # too few digits for a norm over one or three numbers
        width = max(width, 8)
    model = Net(width, inner, tied, norm, bias).to(dtype)
    lengths = torch.randint(1, 8, (len(owners),)).tolist()
    ids, mask = ragged(lengths, seed)
    labels = ids.masked_fill(~mask, -100)

    def losses(net: nn.Module, order: list[int]) -> Tensor:
        return token_losses(net(ids[order]), labels[order])

    with pytest.MonkeyPatch.context() as patch:
        if way:  # else what the engine thinks is cheapest
            patch.setattr(combine, "_cheapest", lambda *_: way)
        # halves carry their own rounding, which no way of adding up can undo
        tolerance = 0.1 if dtype == torch.bfloat16 else 2e-5
        agree(model, losses, owners, *clips, tolerance=tolerance)


class Overwriting(nn.Module):
    """Changes a layer's output in place, which a gradient read off that output would not show."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden *= 3
        return self.second(torch.tanh(hidden))


def test_outputs_that_are_overwritten_in_place():
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    agree(
        Overwriting(),
        lambda net, order: net(x[order].to(net.first.weight.dtype)).sum((1, 2)),
        [0, 1, 0, 1, 1],
        0.5,
        1.0,
    )


class Outside(nn.Module):
    """Uses a layer's weight beside the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.layer.weight


class Mixing(nn.Module):
    """Subtracts the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return (hidden - hidden.mean(0)) ** 2


@pytest.mark.parametrize(
    ("net", "why"), [(Outside, "gradient of layer.weight"), (Mixing, "sentences beside it")]
)
def test_the_trial_finds_what_no_rule_covers(net, why):
    torch.manual_seed(0)
    x = torch.randn(4, 2, 3)
    model = net()
    with pytest.raises(UserError, match=why):
        Engine(model).check(lambda order: model(x[list(order)]).sum((1, 2)), 4)


def test_a_good_model_passes_the_trial_and_keeps_its_mode():
    model = language_models()["gpt2"]().train()
    Engine(model).check(lambda order: next_token(model, list(order)), 4)
    assert model.training


def test_shared_weights_other_than_a_tied_head_are_refused():
    model = Net(8, 8, False, "layer", True)
    model.up.weight = model.down.weight
    with pytest.raises(UserError, match="layers up and down share"):
        Engine(model)


class StrangeRMSNorm(nn.Module):
    """Named like a norm; is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.cumsum(-1)


def language_models() -> dict[str, Callable[[], nn.Module]]:
    small = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 4}
    gpt2 = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "eos_token_id": 0}
    wide = {"hidden_size": 16, "intermediate_size": 32}
    return {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=VOCABULARY, **gpt2, **drops)
        ),
        "llama, grouped-query, tied": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **small, **wide, num_key_value_heads=2, tie_word_embeddings=True
            )
        ),
        "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(
                **small, **wide, max_position_embeddings=16, bos_token_id=0, eos_token_id=0
            )
        ),
    }


OWNERS = [0, 1, 0, 2, 1, 0, 3, 3]
LENGTHS = [5, 9, 3, 12, 7, 2, 12, 4]


def next_token(net: nn.Module, order: list[int]) -> Tensor:
    ids, mask = ragged(LENGTHS, 3)
    logits = net(input_ids=ids[order], attention_mask=mask[order].long()).logits
    labels = ids.masked_fill(~mask, -100)[order]
    return token_losses(logits[:, :-1], labels[:, 1:])


def freeze_all_but(model: nn.Module, part: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)


@pytest.mark.parametrize("way", ["grams", "explicit", None])
@pytest.mark.parametrize("how", ["full", "lora", "last layer"])
@pytest.mark.parametrize("name", language_models())
def test_architectures(name, how, way, monkeypatch):
    """Layers alike are stacked, where they are computed in the same way."""
    import peft

    if way:
        monkeypatch.setattr(combine, "_cheapest", lambda *_: way)

    torch.manual_seed(0)
    model = language_models()[name]().eval()
    if how == "lora":
        target = {"gpt2": ["c_attn"], "gpt-neox": ["query_key_value"]}.get(
            name, ["q_proj", "v_proj"]
        )
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=4, target_modules=target, fan_in_fan_out=name == "gpt2")
        )
        for parameter in model.parameters():  # B starts at zero; give it a gradient for A
            if parameter.requires_grad:
                nn.init.normal_(parameter, std=0.1)
    elif how == "last layer":
        freeze_all_but(model, ".1.")
    found = agree(model, next_token, OWNERS, 0.8, 1.0)
    trained = {p for p in model.parameters() if p.requires_grad}
    assert set(found.gradients) == trained
    assert all(p.grad is None for p in model.parameters())  # no ordinary gradients were formed


def test_classifier():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        num_labels=4,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids, mask = ragged(LENGTHS, 3)
    labels = torch.arange(len(LENGTHS)) % 4

    def losses(net: nn.Module, order: list[int]) -> Tensor:
        logits = net(input_ids=ids[order], attention_mask=mask[order].long()).logits
        return nn.functional.cross_entropy(logits, labels[order], reduction="none")

    agree(model, losses, OWNERS, 0.5, 0.7)


def test_a_layer_called_twice_in_one_pass():
    """Shared layers see their calls end to end."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 6)
            self.layer = nn.Linear(6, 6)
            self.head = nn.Linear(6, VOCABULARY)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(self.embed(ids))))))

    torch.manual_seed(1)
    ids, mask = ragged(LENGTHS, 5)
    labels = ids.masked_fill(~mask, -100)
    agree(
        Twice(), lambda net, order: token_losses(net(ids[order]), labels[order]), OWNERS, 0.3, 0.4
    )


def test_chunks_add_up():
    torch.manual_seed(0)
    model = language_models()["gpt2"]().eval()
    engine = Engine(model)
    clips = torch.full((8,), 0.5)
    whole = engine.clipped_sum(lambda o: next_token(model, list(o)), OWNERS, clips, 1.0)
    parts: dict[nn.Parameter, Tensor] = {}
    for users in ((0, 3), (1, 2)):
        inside = [i for i, owner in enumerate(OWNERS) if owner in users]
        found = engine.clipped_sum(
            lambda o, inside=inside: next_token(model, [inside[i] for i in o]),
            [OWNERS[i] for i in inside],
            clips[inside],
            1.0,
        )
        for parameter, gradient in found.gradients.items():
            parts[parameter] = parts.get(parameter, 0) + gradient
    for parameter, gradient in whole.gradients.items():
        torch.testing.assert_close(parts[parameter], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_sentence_that_is_not_finite_contributes_nothing(bad):
    torch.manual_seed(0)
    model = language_models()["gpt2"]().eval()
    engine = Engine(model)
    clips = torch.full((8,), 0.5)

    def losses(order: Sequence[int], factor: float) -> Tensor:
        scale = torch.tensor([factor if i == 2 else 1.0 for i in order])
        return next_token(model, list(order)) * scale

    broken = engine.clipped_sum(lambda o: losses(o, bad), OWNERS, clips, 1.0)
    without = engine.clipped_sum(lambda o: losses(o, 0.0), OWNERS, clips, 1.0)
    for parameter, gradient in without.gradients.items():
        torch.testing.assert_close(broken.gradients[parameter], gradient, rtol=1e-4, atol=1e-6)


def test_every_update_is_bounded():
    torch.manual_seed(0)
    model = language_models()["gpt2"]().eval()
    for user in range(4):
        own = [i for i, owner in enumerate(OWNERS) if owner == user]
        found = Engine(model).clipped_sum(
            lambda o, own=own: next_token(model, [own[i] for i in o]),
            [user] * len(own),
            torch.full((len(own),), 0.2),
            0.3,
        )
        norm = torch.sqrt(sum((g**2).sum() for g in found.gradients.values()))
        assert float(norm) <= 0.3 * (1 + 1e-5)


def test_bfloat16_autocast_keeps_norms_in_float32():
    torch.manual_seed(0)
    model = language_models()["llama, grouped-query, tied"]().eval()

    def losses(net: nn.Module, order: list[int]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token(net, order)

    engine = Engine(model)
    clips = torch.full((8,), 0.5)
    half = engine.clipped_sum(lambda o: losses(model, list(o)), OWNERS, clips, 1.0)
    full = engine.clipped_sum(lambda o: next_token(model, list(o)), OWNERS, clips, 1.0)
    assert half.sentence_norms.dtype == torch.float32
    torch.testing.assert_close(half.sentence_norms, full.sentence_norms, rtol=0.03, atol=0.01)
    assert all(g.dtype == torch.float32 for g in half.gradients.values())


class Unruly(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part


class DoubleLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (nn.Conv2d(1, 1, 1), r"part \(Conv2d\)"),
        (nn.BatchNorm1d(3), "mixes sentences"),
        (StrangeRMSNorm(), r"part \(StrangeRMSNorm\)"),
        (DoubleLinear(2, 2), r"part \(DoubleLinear\)"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
    ],
)
def test_what_cannot_be_clipped_is_refused_by_name(part, why):
    with pytest.raises(UserError, match=why):
        Engine(Unruly(part))


def test_a_reduced_loss_is_refused():
    model = language_models()["gpt2"]().eval()
    with pytest.raises(UserError, match="one value per sentence"):
        Engine(model).clipped_sum(
            lambda o: next_token(model, list(o)).mean(), OWNERS, torch.ones(8), 1.0
        )
    assert all(p.requires_grad for p in model.parameters())  # left as it was


class CentresInTraining(nn.Module):
    """Mixes sentences, in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return (hidden - hidden.mean(0) if self.training else hidden) ** 2


class KeepsStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(x)) ** 2


class Renormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 3, max_norm=0.1)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x.abs().long().clamp(max=8)[..., 0])) ** 2


class SkipsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layerdrop = 0.1
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) ** 2


class SkipsByChance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.training and bool(torch.rand([]) < 0.1)
        return x if skipped else self.layer(x) ** 2


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (CentresInTraining, "sentences beside it"),
        (KeepsStatistics, "norm.running_mean changes in the forward pass"),
        (Renormed, "embed.weight changes in the forward pass"),
        (SkipsLayers, r"SkipsLayers.layerdrop is 0.1"),
        (SkipsByChance, "random numbers that the sentences of a pass share"),
    ],
)
def test_what_a_model_does_in_training_mode_is_tried_too(net, why):
    torch.manual_seed(0)
    x = torch.randn(4, 2, 3)
    model = net().train()
    with pytest.raises(UserError, match=why):
        Engine(model).check(lambda order: model(x[list(order)]).sum((1, 2)), 4)
    assert all(module.training for module in model.modules())  # left as they were


def test_a_pass_that_changes_the_model_is_refused_in_a_round_as_well():
    torch.manual_seed(0)
    x, model = torch.randn(4, 2, 3), KeepsStatistics().train()
    with pytest.raises(UserError, match="changes in the forward pass"):
        Engine(model).clipped_sum(
            lambda order: model(x[list(order)]).sum((1, 2)),
            [0, 0, 1, 1],
            torch.ones(4),
            1.0,
        )


@pytest.mark.parametrize("name", language_models())
def test_dropout_of_every_kind_passes_the_trial(name):
    torch.manual_seed(0)
    model = language_models()[name]()
    drops = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout")
    for field in drops:
        if hasattr(model.config, field):
            setattr(model.config, field, 0.3)
    model = type(model)(model.config).train()
    Engine(model).check(lambda order: next_token(model, list(order)), 4)


class CentresCrowds(nn.Module):
    """Mixes sentences, once there are many of them, in one mode only."""

    def __init__(self, more_than: int, training: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self._more_than, self._mixes_in_training = more_than, training

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        mixes = self.training == self._mixes_in_training and len(x) > self._more_than
        return (hidden - hidden.mean(0) if mixes else hidden) ** 2


@pytest.mark.parametrize("training", [False, True])
def test_what_only_a_crowd_mixes_is_found(training):
    torch.manual_seed(0)
    x, model = torch.randn(4, 2, 3), CentresCrowds(40, training)
    with pytest.raises(UserError, match="sentences beside it"):
        Engine(model).check(lambda order: model(x[list(order)]).sum((1, 2)), 4)


def test_long_sentences_are_not_computed_many_times_over():
    torch.manual_seed(0)
    x, model, seen = torch.randn(4, 2, 3), CentresCrowds(1 << 30, True), [0, 0, 0, 0]

    def losses(order):
        for place in order:
            seen[place] += 1
        return model(x[list(order)]).sum((1, 2))

    Engine(model).check(losses, 4)
    assert seen[3] == 6  # passes in training mode
    assert seen[2] == 12
    assert seen[0] + seen[1] > 100
