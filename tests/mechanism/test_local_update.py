"""Local-Update: both ways against a plain reading of Alg. 1, and what each docstring promises."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from uedp.errors import UserError
from uedp.incidence import Rows
from uedp.mechanism import local_update as local
from uedp.mechanism.local_update import LocalUpdate, Steps, UpdateSum, shuffled

VOCABULARY = 37
OWNED = [[3, 0, 5], [], [1], [6, 2, 7, 4, 8], [9, 10]]  # rows of each user, in their order
LENGTHS = [5, 9, 3, 12, 7, 2, 12, 4, 8, 6, 11]
STEPS = Steps(rate=0.05, batch_size=2, update_clip=1e3)


# --- models ---------------------------------------------------------------------------------------


class Net(nn.Module):
    """Embedding, norm, a nonlinearity, linears; the head may be the embedding."""

    def __init__(self, width: int = 8, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.3)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(x + self.down(torch.tanh(self.up(self.norm(x)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def gpt2(attention: str = "sdpa", width: int = 16) -> nn.Module:
    shape = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": width, "n_layer": 2}
    ends = {"n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**shape, **ends, attn_implementation=attention)
    return transformers.GPT2LMHeadModel(config)


def llama(attention: str = "sdpa") -> nn.Module:
    heads = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**SMALL, **heads, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config)


def bert(attention: str = "sdpa") -> nn.Module:
    config = transformers.BertConfig(**SMALL, num_labels=3, attn_implementation=attention)
    return transformers.BertForSequenceClassification(config)


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # at zero, half of the gradients would be zero
            nn.init.normal_(parameter, std=0.1)
    return model


# --- sentences and their losses -------------------------------------------------------------------


def sentences(lengths: Sequence[int] = LENGTHS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    longest = max(lengths)
    ids = torch.randint(1, VOCABULARY, (len(lengths), longest), generator=generator)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    classes = torch.randint(0, 3, (len(lengths),), generator=generator)
    return {"ids": ids * mask, "mask": mask, "class": classes}


def per_sentence(logits: Tensor, labels: Tensor) -> Tensor:
    found = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=-100, reduction="none"
    )
    return found.sum(1) / (labels != -100).sum(1).clamp(min=1)


def next_token(forward: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    output = forward(batch["ids"])
    logits = output if isinstance(output, Tensor) else output.logits
    labels = torch.where(batch["mask"], batch["ids"], -100)
    return per_sentence(logits[:, :-1], labels[:, 1:])


def classified(forward: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    dtype = torch.get_default_dtype()
    hidden = torch.zeros(batch["mask"].shape, dtype=dtype).masked_fill(~batch["mask"], -1e9)
    logits = forward(input_ids=batch["ids"], attention_mask=hidden[:, None, None]).logits
    return nn.functional.cross_entropy(logits, batch["class"], reduction="none")


def classified_by_plain_mask(forward: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    logits = forward(input_ids=batch["ids"], attention_mask=batch["mask"].long()).logits
    return nn.functional.cross_entropy(logits, batch["class"], reduction="none")


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "net": (Net, next_token),
    "net, tied": (lambda: Net(tied=True), next_token),
    "lstm": (Recurrent, next_token),
    "gpt2": (gpt2, next_token),
    "gpt2, eager": (lambda: gpt2("eager"), next_token),
    "gpt2, lora": (adapted, next_token),
    "llama, grouped-query, tied": (llama, next_token),
    "llama, eager": (lambda: llama("eager"), next_token),
    "bert": (bert, classified),
    "bert, eager": (lambda: bert("eager"), classified),
}
# of the LSTM alone torch says that it batches it by a loop of its own
slow_lstm = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
NAMES = [pytest.param(name, marks=slow_lstm if name == "lstm" else ()) for name in MODELS]


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    build, losses = MODELS[name]
    return build().eval(), losses


# --- the oracle -----------------------------------------------------------------------------------


def plainly(
    model: nn.Module,
    losses: Any,
    steps: Steps,
    tensors: Mapping[str, Tensor],
    orders: Sequence[Sequence[int]],
    weights: Tensor,
    user_weights: Tensor,
) -> dict[str, Tensor]:
    """Alg. 1, line by line, on a copy of the model for each user."""
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
    for order, user_weight in zip(orders, user_weights.tolist(), strict=True):
        own = copy.deepcopy(model)
        for i in range(0, len(order), steps.batch_size):
            rows = list(order[i : i + steps.batch_size])
            found = losses(own, {n: t[rows] for n, t in tensors.items()})
            own.zero_grad()
            sum(w * v for w, v in zip(weights[rows], found, strict=True)).backward()
            base = dict((model if steps.from_start else own).named_parameters())
            with torch.no_grad():
                for n, p in own.named_parameters():
                    if p.grad is not None:
                        p.copy_(base[n] - steps.rate * p.grad / steps.divisor)
        update = {n: own.get_parameter(n).detach() - model.get_parameter(n).detach() for n in total}
        norm = torch.cat([u.flatten() for u in update.values()]).norm()
        factor = user_weight * min(1.0, steps.update_clip / max(float(norm), 1e-300))
        total = {n: t + factor * update[n] for n, t in total.items()}
    return total


def arguments(
    tensors: Mapping[str, Tensor], orders: Sequence[Sequence[int]] = OWNED
) -> dict[str, Any]:
    return {
        "tensors": tensors,
        "orders": [np.array(order, dtype=np.int64) for order in orders],
        "weights": torch.linspace(0.3, 2.0, len(tensors["ids"]), dtype=torch.float64),
        "user_weights": torch.linspace(0.4, 1.0, len(orders), dtype=torch.float64),
    }


def named(model: nn.Module, found: UpdateSum) -> dict[str, Tensor]:
    return {n: found.updates[p] for n, p in model.named_parameters() if p.requires_grad}


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Relative to the size of the other."""
    assert one.keys() == other.keys()
    apart = sum(float((one[n].double() - other[n].double()).square().sum()) for n in one)
    size = sum(float(other[n].double().square().sum()) for n in one)
    return (apart / max(size, 1e-300)) ** 0.5


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def exact(model: nn.Module) -> None:
    """In float64 throughout: Llama's own norm computes in float32 whatever it is given."""
    model.double()
    for module in model.modules():
        for name, child in module.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)


# --- both ways are Alg. 1 -------------------------------------------------------------------------

READINGS = {
    "one after the other": STEPS,
    "as printed": Steps(0.05, 2, 1e3, from_start=True),
    "clipped": Steps(0.05, 2, 0.02),
    "a mean": Steps(0.05, 2, 0.02, divisor=2.0),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("name", NAMES)
def test_both_ways_in_double(name, reading, doubles):
    """Guarantee: both ways give the same sum; and it is that of Alg. 1."""
    model, losses = made(name)
    exact(model)
    given_ = arguments(sentences())
    expected = plainly(model, losses, READINGS[reading], **given_)
    for batched in (True, False):
        way = LocalUpdate(model, losses, READINGS[reading], batched=batched, users_at_once=3)
        assert distance(named(model, way.weighted_sum(**given_)), expected) < 1e-10
        assert way.batched == batched  # it did not fall back


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_in_single(name):
    model, losses = made(name)
    given_ = arguments(sentences())
    loop, batched = (LocalUpdate(model, losses, STEPS, batched=b) for b in (False, True))
    sums = [named(model, way.weighted_sum(**given_)) for way in (batched, loop)]
    assert batched.batched  # it did not fall back
    assert distance(*sums) < 1e-5


@settings(max_examples=40, deadline=None)
@given(
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=11),
    batch=st.integers(1, 5),
    clip=st.sampled_from([1e-3, 0.05, 100.0]),
    at_once=st.sampled_from([1, 2, 64]),
    from_start=st.booleans(),
    tied=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_random_rounds(owners, batch, clip, at_once, from_start, tied, seed):
    """Guarantee: the sum does not depend on how many users are computed at once."""
    torch.manual_seed(seed)
    model = Net(tied=tied).double()
    orders = [[i for i, owner in enumerate(owners) if owner == user] for user in range(5)]
    steps = Steps(0.1, batch, clip, divisor=batch, from_start=from_start)
    given_ = arguments(sentences(), orders)
    expected = plainly(model, next_token, steps, **given_)
    way = LocalUpdate(model, next_token, steps, users_at_once=at_once)
    assert distance(named(model, way.weighted_sum(**given_)), expected) < 1e-10
    assert way.batched


def test_the_two_readings_differ():
    model, losses = made("net")
    given_ = arguments(sentences())
    sums = [
        named(model, LocalUpdate(model, losses, steps).weighted_sum(**given_))
        for steps in (STEPS, READINGS["as printed"])
    ]
    assert distance(*sums) > 0.1


def test_the_server_adds_the_sum():
    model, losses = made("net")
    given_ = arguments(sentences())
    with torch.no_grad():
        before = losses(model, given_["tensors"]).mean()
    found = LocalUpdate(model, losses, STEPS).weighted_sum(**given_)
    with torch.no_grad():
        for parameter, update in found.updates.items():
            parameter += update
        assert losses(model, given_["tensors"]).mean() < before


def test_small_updates_are_not_lost_in_rounding():
    """The update of float32 weights, a millionth of them, agrees with the exact one."""
    torch.manual_seed(0)
    model = Net()
    steps, given_ = Steps(1e-7, 2, 1e3), arguments(sentences())
    exact = plainly(copy.deepcopy(model).double(), next_token, steps, **given_)
    for batched in (True, False):
        way = LocalUpdate(model, next_token, steps, batched=batched)
        assert distance(named(model, way.weighted_sum(**given_)), exact) < 1e-5


def test_half_precision_weights_are_summed_in_single():
    model, losses = made("gpt2")
    model.bfloat16()
    given_ = arguments(sentences())
    sums = [
        named(model, LocalUpdate(model, losses, STEPS, batched=b).weighted_sum(**given_))
        for b in (True, False)
    ]
    assert all(update.dtype == torch.float32 for update in sums[0].values())
    assert distance(*sums) < 0.05


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", ["net", "gpt2", "llama, grouped-query, tied"])
def test_under_autocast(name, batched):
    """Products in bfloat16, of the weights as they are; the clip as exact as without."""
    model, losses = made(name)
    given_ = arguments(sentences())
    expected = LocalUpdate(model, losses, STEPS, batched=False).weighted_sum(**given_)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        way = LocalUpdate(model, losses, STEPS, batched=batched)
        found = way.weighted_sum(**given_)
        alone = given_ | {"orders": given_["orders"][:1], "user_weights": torch.ones(1)}
        clipped = LocalUpdate(model, losses, Steps(0.5, 2, 0.01), batched=batched)
        updates = clipped.weighted_sum(**alone).updates.values()
    assert way.batched == batched
    assert 1e-4 < distance(named(model, found), named(model, expected)) < 0.02
    norm = float(torch.cat([u.flatten() for u in updates]).norm())
    assert 0.01 * (1 - 1e-4) <= norm <= 0.01


def test_dropout_is_drawn_for_each_user():
    torch.manual_seed(0)
    model = gpt2().train()
    same = arguments(sentences([8]), [[0], [0]])
    norms = LocalUpdate(model, next_token, STEPS).weighted_sum(**same).norms
    assert norms[0] != norms[1]


# --- what is promised -----------------------------------------------------------------------------

WAYS = pytest.mark.parametrize("batched", [True, False], ids=["batched", "loop"])


@WAYS
def test_a_user_moves_the_sum_by_at_most_its_share(batched):
    """Guarantee: at most `w_u * update_clip`; and exactly that where the clip binds."""
    model, losses = made("net")
    steps = Steps(0.5, 2, 0.01)
    given_ = arguments(sentences())
    for user, weight in enumerate(given_["user_weights"].tolist()):
        alone = given_ | {"orders": [given_["orders"][user]]}
        alone["user_weights"] = given_["user_weights"][user : user + 1]
        found = LocalUpdate(model, losses, steps, batched=batched).weighted_sum(**alone)
        norm = float(torch.cat([u.flatten() for u in found.updates.values()]).norm())
        bound = weight * steps.update_clip if OWNED[user] else 0.0
        assert bound * (1 - 1e-4) <= norm <= bound
        assert (float(found.norms[0]) > steps.update_clip) == bool(OWNED[user])


@WAYS
def test_a_user_moves_the_sum_by_the_same_whoever_else_is_there(batched):
    """Guarantee: the sum of all is the sum of each alone."""
    model, losses = made("gpt2")
    model.double()
    given_ = arguments(sentences())
    steps = Steps(0.05, 2, 0.02)
    way = LocalUpdate(model, losses, steps, batched=batched)
    together = named(model, way.weighted_sum(**given_))
    apart = {n: torch.zeros_like(t) for n, t in together.items()}
    for user, order in enumerate(given_["orders"]):
        alone = given_ | {"orders": [order]}
        alone["user_weights"] = given_["user_weights"][user : user + 1]
        for n, update in named(model, way.weighted_sum(**alone)).items():
            apart[n] += update
    assert distance(together, apart) < 1e-10


@WAYS
def test_no_sentences_no_update(batched):
    """Guarantee: exactly zero, from a user without sentences and from a round without users."""
    model, losses = made("gpt2")
    given_ = arguments(sentences())
    for orders in ([], [[]], [[], []]):
        empty = arguments(given_["tensors"], orders)
        found = LocalUpdate(model, losses, STEPS, batched=batched).weighted_sum(**empty)
        assert found.norms.shape == (len(orders),)
        assert all(not update.any() for update in found.updates.values())


@WAYS
def test_emptied_sentences_give_no_update(batched):
    """What the accountant needs of an emptied user: no decay, no regulariser."""
    model, losses = made("gpt2")
    tensors = sentences()
    tensors["mask"] = torch.zeros_like(tensors["mask"])
    found = LocalUpdate(model, losses, STEPS, batched=batched).weighted_sum(**arguments(tensors))
    assert all(not update.any() for update in found.updates.values())
    assert not found.norms.any()


@WAYS
@pytest.mark.parametrize("broken", [3, 6, 7, 8, 10])
def test_updates_that_are_not_finite_count_for_nothing(batched, broken):
    """Guarantee: that user contributes zero, the others what they always do."""
    model, losses = made("net")
    given_ = arguments(sentences())

    def breaking(forward, batch):
        return losses(forward, batch) / torch.where(batch["number"] == broken, 0.0, 1.0)

    given_["tensors"]["number"] = torch.arange(len(LENGTHS))
    found = LocalUpdate(model, breaking, STEPS, batched=batched).weighted_sum(**given_)
    without = [[] if broken in order else order for order in OWNED]
    given_["orders"] = [np.array(order, dtype=np.int64) for order in without]
    expected = LocalUpdate(model, losses, STEPS, batched=False).weighted_sum(**given_)
    assert distance(named(model, found), named(model, expected)) < 1e-5
    assert int((~torch.isfinite(found.norms)).sum()) == 1


def state(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items()}


@WAYS
def test_the_model_is_left_as_it_was(batched):
    """Guarantee: weights to the bit, gradients untouched, also after an error."""
    model, losses = made("gpt2")
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    before = state(model)
    calls = []

    def failing(forward, batch):
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("on purpose")
        return losses(forward, batch)

    way = LocalUpdate(model, losses, STEPS, batched=batched)
    way.weighted_sum(**arguments(sentences()))
    with pytest.raises(KeyError):
        LocalUpdate(model, failing, STEPS, batched=batched).weighted_sum(**arguments(sentences()))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    grads = {n for n, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == 1
    assert torch.equal(model.lm_head.weight.grad, torch.ones_like(model.lm_head.weight))


def test_only_trainable_parameters_are_in_the_sum():
    model, losses = made("gpt2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" in name)
    for batched in (True, False):
        found = LocalUpdate(model, losses, STEPS, batched=batched).weighted_sum(
            **arguments(sentences())
        )
        trained = {p for n, p in model.named_parameters() if "mlp" in n}
        assert set(found.updates) == trained
        assert all(update.any() for update in found.updates.values())


# --- models that cannot be batched ----------------------------------------------------------------


class Remembering(Net):
    """Keeps something of every batch it sees, and lets it show."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        self.seen += ids.sum() / 100
        return super().forward(ids) * (1 + self.seen)


class Branching(Net):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (2.0 if ids.sum() % 2 == 0 else 1.0)


class Doubled(torch.autograd.Function):
    """An operation of the old kind, of which torch.func knows nothing."""

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class Custom(Net):
    def forward(self, ids: Tensor) -> Tensor:
        return Doubled.apply(super().forward(ids))


class Checkpointed(Net):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, ids, use_reentrant=False)


class Listing(Net):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * len(set(ids.flatten().tolist()))


def frozen_lstm() -> nn.Module:
    model = Recurrent().double()
    model.lstm.requires_grad_(False)
    return model


def plain_mask() -> nn.Module:
    return bert().eval()


def own_precision() -> nn.Module:
    model = gpt2().eval()
    model.transformer.forward = torch.autocast("cpu", dtype=torch.bfloat16)(
        model.transformer.forward
    )
    return model


@pytest.mark.parametrize(
    "build",
    [Branching, Remembering, Custom, Checkpointed, Listing, own_precision, frozen_lstm, plain_mask],
)
def test_a_model_that_cannot_be_batched_is_looped_over(build, caplog):
    """Guarantee: the same sum, and the log says why, once."""
    torch.manual_seed(0)
    model = build()
    losses = classified_by_plain_mask if build is plain_mask else next_token
    given_ = arguments(sentences())
    way = LocalUpdate(model, losses, STEPS)
    with caplog.at_level(logging.WARNING):
        found = [named(model, way.weighted_sum(**given_)) for _ in range(2)]
    assert not way.batched
    assert [r.name for r in caplog.records] == ["uedp.mechanism.local_update"]
    assert "because" in caplog.text
    expected = LocalUpdate(model, losses, STEPS, batched=False).weighted_sum(**given_)
    assert all(distance(f, named(model, expected)) < 1e-6 for f in found)


def test_what_a_model_remembers_of_one_user_does_not_reach_the_next():
    torch.manual_seed(0)
    model = Remembering()
    given_ = arguments(sentences())
    way = LocalUpdate(model, next_token, STEPS)
    norms = way.weighted_sum(**given_).norms
    given_["orders"] = given_["orders"][::-1]
    assert torch.equal(way.weighted_sum(**given_).norms, norms.flip(0))
    assert not model.seen.any()


def test_other_errors_are_not_swallowed():
    calls = []

    def failing(forward, batch):
        calls.append(1)
        raise RuntimeError("out of memory")

    way = LocalUpdate(Net(), failing, STEPS)
    with pytest.raises(RuntimeError, match="out of memory"):
        way.weighted_sum(**arguments(sentences()))
    assert len(calls) == 1  # nor tried again in another way
    assert way.batched


def test_users_of_a_large_model_come_one_after_the_other(monkeypatch):
    """Where two users' copies do not fit, batching would only cost."""
    model, losses = made("net")
    forwards = set()

    def watched(forward, batch):
        forwards.add(forward is model)
        return losses(forward, batch)

    for max_bytes, one_by_one in ((1 << 20, False), (1 << 10, True)):
        monkeypatch.setitem(local._MAX_BYTES, "cpu", max_bytes)
        forwards.clear()
        LocalUpdate(model, watched, STEPS).weighted_sum(**arguments(sentences()))
        assert forwards == {one_by_one}


# --- orders ---------------------------------------------------------------------------------------


def test_orders_are_the_users_own_places_shuffled():
    rows = Rows(np.array([0, 3, 3, 8]), np.array([4, 7, 9, 1, 2, 3, 5, 6]))
    rng = np.random.default_rng(0)
    many = [shuffled(rows, rng) for _ in range(200)]
    for orders in many:
        assert [sorted(order.tolist()) for order in orders] == [[0, 1, 2], [], [3, 4, 5, 6, 7]]
    assert {tuple(orders[0].tolist()) for orders in many} == {
        (a, b, c) for a in range(3) for b in range(3) for c in range(3) if len({a, b, c}) == 3
    }


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("rate 0", lambda: Steps(0, 2, 1.0)),
        ("rate nan", lambda: Steps(float("nan"), 2, 1.0)),
        ("batch_size 0", lambda: Steps(0.1, 0, 1.0)),
        ("update_clip -1", lambda: Steps(0.1, 2, -1)),
        ("divisor inf", lambda: Steps(0.1, 2, 1.0, divisor=float("inf"))),
        ("users_at_once 0", lambda: LocalUpdate(Net(), next_token, STEPS, users_at_once=0)),
        ("no trainable", lambda: LocalUpdate(Net().requires_grad_(False), next_token, STEPS)),
        (
            r"layer 1 \(BatchNorm1d\)",
            lambda: LocalUpdate(nn.Sequential(Net(), nn.BatchNorm1d(3)), next_token, STEPS),
        ),
        (
            r"shape \(\)",
            lambda: LocalUpdate(Net(), lambda f, b: next_token(f, b).mean(), STEPS).weighted_sum(
                **arguments(sentences())
            ),
        ),
    ],
)
def test_refusals(words, bad):
    """Guarantee: a layer that mixes sentences is refused by name, and other faults of the user."""
    with pytest.raises(UserError, match=words):
        bad()
